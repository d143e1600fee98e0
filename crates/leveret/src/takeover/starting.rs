//! The successor's side of a takeover.

use std::io;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use transport::Inherited;

use super::messages::{
    Acceptable, Hello, Leave, Left, ListObjects, ObjectKind, SuccessorRequest, Welcome, receive,
    receive_objects, receive_with_sockets, send,
};
use super::running::BIND_PAUSE;
use super::{ANSWER_TIMEOUT, check_peer, socket_name};
use crate::config::Config;
use crate::definitions::ExistingObjects;

/// How long a process that is shutting down is asked again, until its own successor, if it has one, is found.
const SUCCESSOR_POLL_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum time until the list of a broker's objects arrives, of which there may be millions.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to search for a process if none is found at first: it may just have taken over.
const FIND_TIMEOUT: Duration = Duration::from_millis(200);

/// The process that this one replaces.
#[derive(Debug)]
pub(crate) struct Predecessor {
    stream: UnixStream,
    /// Whether it has to end before this process can start: one at a time can use the data directory, and two brokers that
    /// serve side by side keep their messages apart.
    must_end_first: bool,
    /// Whether it can be asked for its broker's objects.
    can_list_objects: bool,
    /// The clients that this process can take over.
    clients: Acceptable,
}

impl Predecessor {
    /// Finds the process whose place this one is to take, if it is to take one; its listening sockets are added to
    /// `inherited`. It continues meanwhile.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) fn find(config: &Config, inherited: &Inherited) -> io::Result<Option<Self>> {
        if !config.take_over.0 {
            return Ok(None);
        }
        let began = Instant::now();
        let mut shuts_down = false;
        loop {
            let found = Self::ask(config, inherited);
            shuts_down |= found.as_ref().is_err_and(is_gone);
            let patience = if shuts_down { SUCCESSOR_POLL_TIMEOUT } else { FIND_TIMEOUT };
            match found {
                // Another process may just have taken over.
                Ok(None) if began.elapsed() < patience => thread::sleep(BIND_PAUSE),
                Err(error) if is_gone(&error) && began.elapsed() < patience => thread::sleep(BIND_PAUSE),
                Ok(None) | Err(_) if shuts_down => {
                    tracing::info!("take_over: previous process is shutting down");
                    return Ok(None);
                }
                Ok(None) => {
                    tracing::info!("take_over: no running process with these listeners");
                    return Ok(None);
                }
                found => return found,
            }
        }
    }

    fn ask(config: &Config, inherited: &Inherited) -> io::Result<Option<Self>> {
        let Some(name) = socket_name(config) else { return Ok(None) };
        let mut stream = match UnixStream::connect_addr(&name) {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(error),
        };
        let pid = match check_peer(&stream) {
            Ok(pid) => pid,
            Err(error) => {
                tracing::warn!(%error, "take_over: running process belongs to another user");
                return Ok(None);
            }
        };
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        send(&mut stream, &Hello { version: env!("CARGO_PKG_VERSION").to_owned() })?;
        let (welcome, sockets): (Welcome, _) = match receive_with_sockets(&stream) {
            Ok(welcome) => welcome,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::other(
                    "running process not responding: it is starting, or being taken over by another process",
                ));
            }
            Err(error) => return Err(error),
        };
        if welcome.sockets != sockets.len() {
            return Err(io::Error::other(format!(
                "received {} of {} sockets",
                sockets.len(),
                welcome.sockets
            )));
        }
        for socket in sockets {
            inherited.add(socket)?;
        }
        let can_list_objects = welcome.can_list_objects;
        let (pid, version, sockets) = (pid.as_raw_nonzero(), welcome.version, welcome.sockets);
        tracing::info!(process = pid, version, sockets, "taking over");
        let must_end_first = config.uses_data_dir();
        Ok(Some(Self { stream, must_end_first, can_list_objects, clients: Acceptable::of(config) }))
    }

    /// Whether it has to end before this process can start.
    pub(crate) fn must_end_first(&self) -> bool {
        self.must_end_first
    }

    /// A second handle of the connection, for ending a wait for an answer.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub(super) fn connection(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// Asks for its broker's objects; with `only_if_untouched`, the list is empty if a client or an operator has defined any.
    /// `None` if it is no broker, is of a release without this request, or has ended.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) fn existing(&mut self, only_if_untouched: bool) -> io::Result<Option<ExistingObjects>> {
        if !self.can_list_objects {
            return Ok(None);
        }
        self.stream.set_read_timeout(Some(LIST_TIMEOUT))?;
        let request = ListObjects { kind: ObjectKind::Existing, only_if_untouched };
        let received = send(&mut self.stream, &request).and_then(|()| receive_objects(&mut self.stream));
        self.stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        match received {
            Err(error) if is_gone(&error) => Ok(None),
            received => received.map(Some),
        }
    }

    /// Asks it to end. Returns when the service manager knows of this process; if it has to end first, when it has ended:
    /// clients that connect meanwhile wait at the sockets. Otherwise it hands its clients over at the connection that is
    /// returned.
    ///
    /// # Errors
    /// It answers something else, or cannot be waited for.
    pub(crate) async fn replace(self) -> io::Result<Option<UnixStream>> {
        let replaced = tokio::task::spawn_blocking(move || self.ask_to_leave()).await?;
        match replaced {
            Err(error) if is_gone(&error) => {
                tracing::warn!("take_over: previous process already exited");
                Ok(None)
            }
            replaced => replaced,
        }
    }

    fn ask_to_leave(mut self) -> io::Result<Option<UnixStream>> {
        let at_once = self.must_end_first;
        let clients = (!at_once).then_some(self.clients);
        send(&mut self.stream, &SuccessorRequest::Leave(Leave { at_once, clients }))?;
        receive::<Left>(&mut self.stream)?;
        self.stream.set_read_timeout(None)?;
        if at_once {
            // The connection ends with the process.
            receive::<Left>(&mut self.stream)?;
            return Ok(None);
        }
        Ok(Some(self.stream))
    }
}

/// Whether the other process has ended.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}
