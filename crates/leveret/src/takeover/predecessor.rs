//! The successor's part.

use std::io;
use std::os::unix::net::UnixStream;

use transport::Inherited;

use super::messages::{Hello, Leave, Welcome, receive, receive_with_sockets, send};
use super::{ANSWER_TIME, check_peer, socket_name};
use crate::config::Config;

/// The process whose place this one takes.
#[derive(Debug)]
pub(crate) struct Predecessor {
    stream: UnixStream,
}

impl Predecessor {
    /// Finds the process whose place this one is to take, if it is to take one, and lets it keep serving until this one does:
    /// not if this one needs its data folder, for whose release it waits.
    ///
    /// # Errors
    /// It belongs to another user, or is shutting down.
    pub(crate) async fn approach(config: &Config, inherited: &Inherited) -> io::Result<Option<Self>> {
        if !config.take_over.0 {
            return Ok(None);
        }
        let Some(found) = Self::find(config, inherited)? else {
            tracing::info!("take_over: no process runs with these listeners");
            return Ok(None);
        };
        if uses_data_folder(config) {
            return found.replace().await.map(|()| None);
        }
        Ok(Some(found))
    }

    /// Asks the process that runs with this configuration for its listening sockets, which are added to `inherited`; `None` if
    /// there is no such process.
    ///
    /// # Errors
    /// It belongs to another user, or is shutting down.
    fn find(config: &Config, inherited: &Inherited) -> io::Result<Option<Self>> {
        let Some(name) = socket_name(config) else { return Ok(None) };
        let mut stream = match UnixStream::connect_addr(&name) {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(error),
        };
        let pid = check_peer(&stream)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        send(&mut stream, &Hello { version: env!("CARGO_PKG_VERSION").to_owned() })?;
        let (welcome, sockets): (Welcome, _) =
            receive_with_sockets(&stream).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::other("it is shutting down"),
                _ => error,
            })?;
        if welcome.sockets != sockets.len() {
            return Err(io::Error::other(format!("{} of {} sockets came", sockets.len(), welcome.sockets)));
        }
        for socket in sockets {
            inherited.add(socket)?;
        }
        let (pid, version, sockets) = (pid.as_raw_nonzero(), welcome.version, welcome.sockets);
        tracing::info!(process = pid, version, sockets, "taking over");
        stream.set_read_timeout(None)?;
        Ok(Some(Self { stream }))
    }

    /// Asks it to end: its clients go in its own time.
    ///
    /// # Errors
    /// It has ended already.
    pub(crate) fn dismiss(mut self) -> io::Result<()> {
        send(&mut self.stream, &Leave { at_once: false })
    }

    /// Asks it to end, and waits until its data folder is free. Clients that connect meanwhile wait at the sockets.
    ///
    /// # Errors
    /// It has ended already.
    async fn replace(mut self) -> io::Result<()> {
        let ended = tokio::task::spawn_blocking(move || {
            send(&mut self.stream, &Leave { at_once: true })?;
            // It says nothing more.
            receive::<Leave>(&mut self.stream).map(drop)
        });
        match ended.await? {
            // Killed in the middle: its folder is free as well.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
            ended => ended,
        }
    }
}

/// Whether a process keeps messages in its data folder, which one at a time can use.
fn uses_data_folder(config: &Config) -> bool {
    let has_spool = !config.spool.0.is_empty();
    let has_folder = config.data_dir.folder().is_ok_and(|folder| folder.is_some());
    has_spool || (config.upstream.is_empty() && has_folder)
}
