//! Clients whose sockets go from a process to its successor.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use server::{DepartingClient, MAX_CLIENT_STATE, Server};
use tokio::sync::mpsc;

use super::messages::{Client, Socket, Taken, receive, receive_with_sockets, send, send_with_sockets};

/// Clients that wait for their turn: each waits for those before it anyway.
const WAITING: usize = 1;

/// Has the clients of `server` leave for the successor at the other end of `stream`, once the server drains.
///
/// # Errors
/// There is no thread for it.
pub(super) fn hand_over(mut stream: UnixStream, server: &Server) -> io::Result<()> {
    let (leave, mut leaving) = mpsc::channel(WAITING);
    server.hand_over_to(leave);
    let send_all = move || {
        while let Some(client) = leaving.blocking_recv() {
            if let Err(error) = send_client(&mut stream, client) {
                // Those that come now are told at once: their channel is closed.
                return tracing::warn!(%error, "the successor takes no more clients");
            }
        }
    };
    std::thread::Builder::new().name("handover".into()).spawn(send_all).map(drop)
}

fn send_client(stream: &mut UnixStream, client: DepartingClient) -> io::Result<()> {
    let DepartingClient { state, socket, taken } = client;
    send(stream, &Client { bytes: state.len() })?;
    stream.write_all(&state)?;
    send_with_sockets(stream, &Socket {}, &[socket.as_fd()])?;
    receive::<Taken>(stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    // The client's task is there until it is told.
    let _ = taken.send(());
    Ok(())
}

/// Serves the clients that the predecessor at the other end of `stream` hands over, until it ends.
pub(super) fn take_over(mut stream: UnixStream, server: &Server) {
    let runtime = tokio::runtime::Handle::current();
    let receiving = server.clone();
    let receive_all = move || {
        let _entered = runtime.enter();
        let mut clients = 0_u64;
        let ended = loop {
            match receive_client(&mut stream) {
                Ok(Some((state, socket))) => {
                    clients += 1;
                    if let Err(error) = receiving.resume(&state, socket) {
                        tracing::warn!(%error, "a client of the predecessor cannot be served");
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match ended {
            Ok(()) => tracing::info!(clients, "the predecessor has ended; its clients are served here"),
            Err(error) => {
                tracing::warn!(clients, %error, "the predecessor has ended in the middle of a client")
            }
        }
    };
    server.expect_clients_of(tokio::task::spawn_blocking(receive_all));
}

fn receive_client(stream: &mut UnixStream) -> io::Result<Option<(Vec<u8>, OwnedFd)>> {
    let Some(Client { bytes }) = receive(stream)? else { return Ok(None) };
    if bytes > MAX_CLIENT_STATE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a client with too large a state"));
    }
    let mut state = vec![0; bytes];
    stream.read_exact(&mut state)?;
    let (Socket {}, mut sockets) = receive_with_sockets(stream)?;
    let socket = sockets.pop().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no socket came"))?;
    send(stream, &Taken {})?;
    Ok(Some((state, socket)))
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_client_arrives_with_its_socket_and_is_acknowledged() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        let (taken, mut is_taken) = oneshot::channel();
        let state = vec![b'\n'; 100_000];
        let client = DepartingClient { state: state.clone(), socket: near.into(), taken };
        let sending = std::thread::spawn(move || send_client(&mut one, client));
        let (received, socket) = receive_client(&mut other).unwrap().unwrap();
        sending.join().unwrap().unwrap();
        assert!(received == state && is_taken.try_recv().is_ok());
        UnixStream::from(socket).write_all(b"x").unwrap();
        let mut byte = [0];
        far.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        assert!(receive_client(&mut other).unwrap().is_none());
    }

    #[test]
    fn a_client_that_nobody_takes_is_told() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let (near, _far) = UnixStream::pair().unwrap();
        let (taken, mut is_taken) = oneshot::channel();
        drop(other);
        assert!(
            send_client(&mut one, DepartingClient { state: vec![1], socket: near.into(), taken }).is_err()
        );
        assert!(is_taken.try_recv().is_err());
    }
}
