//! Clients whose sockets are passed from a process to its successor.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use server::{DepartingClient, MAX_CLIENT_STATE, Server};
use tokio::sync::mpsc;

use super::ANSWER_TIMEOUT;
use super::messages::{Client, Socket, Taken, receive, receive_with_sockets, send, send_with_sockets};

/// Clients queued to be handed over, which is done one at a time.
const WAITING: usize = 1;

/// Has the clients of `server` leave for the successor at the other end of `stream`, once the server drains.
///
/// # Errors
/// There is no thread for it.
pub(super) fn hand_over(mut stream: UnixStream, server: &Server) -> io::Result<()> {
    // A successor that hangs is detected, and the remaining clients are closed.
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let (leave, mut leaving) = mpsc::channel(WAITING);
    server.hand_over_to(leave);
    let send_all = move || {
        while let Some(client) = leaving.blocking_recv() {
            if let Err(error) = send_client(&mut stream, client) {
                // The server closes the remaining clients.
                return tracing::warn!(%error, "successor stopped accepting clients: remaining ones are closed");
            }
        }
    };
    std::thread::Builder::new().name("handover".into()).spawn(send_all).map(drop)
}

fn send_client(stream: &mut UnixStream, client: DepartingClient) -> io::Result<()> {
    let mut state = match client.state() {
        Ok(state) => state,
        Err(error) => {
            // Dropping it notifies the client's task, which closes the connection.
            tracing::warn!(%error, "client not handed over");
            return Ok(());
        }
    };
    let sent = send_state(stream, &state, &client.socket);
    // The state contains the client's password.
    state.fill(0);
    sent?;
    // The client's task exists until it is notified.
    let _ = client.taken.send(());
    Ok(())
}

/// Hands a client over. On an error the successor does not serve it, now or later, and takes no more clients.
fn send_state(stream: &mut UnixStream, state: &[u8], socket: &OwnedFd) -> io::Result<()> {
    let mut offer = || {
        send(stream, &Client { bytes: state.len() })?;
        stream.write_all(state)?;
        send_with_sockets(stream, &Socket {}, &[socket.as_fd()])?;
        is_taken(stream)
    };
    match offer() {
        Ok(true) => Ok(()),
        outcome => take_back(stream, outcome.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())),
    }
}

/// Whether the successor has the client; false if it has ended.
fn is_taken(stream: &mut UnixStream) -> io::Result<bool> {
    Ok(receive::<Taken>(stream)?.is_some())
}

/// Takes the client back that the successor has not answered for, so that one process at most reads its socket. A successor
/// serves it only after its answer has been sent: from the shutdown on that fails, and an answer before it is here.
///
/// # Errors
/// `error`, if there is no answer.
fn take_back(stream: &mut UnixStream, error: io::Error) -> io::Result<()> {
    // It fails only if the connection has ended.
    let _ = stream.shutdown(Shutdown::Both);
    if matches!(is_taken(stream), Ok(true)) { Ok(()) } else { Err(error) }
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
                Ok(Some((mut state, socket))) => {
                    clients += 1;
                    if let Err(error) = receiving.resume(&state, socket) {
                        tracing::warn!(%error, "cannot resume client of the previous process");
                    }
                    state.fill(0);
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match ended {
            Ok(()) => tracing::info!(clients, "previous process exited; its clients are served here"),
            Err(error) => {
                tracing::warn!(clients, %error, "previous process exited during the hand-over of a client")
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
    // If this fails, the predecessor has taken the client back.
    send(stream, &Taken {})?;
    Ok(Some((state, socket)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_arrives_with_its_socket_and_is_acknowledged() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        let state = vec![b'\n'; 100_000];
        let sent = state.clone();
        let sending = std::thread::spawn(move || send_state(&mut one, &sent, &near.into()));
        let (received, socket) = receive_client(&mut other).unwrap().unwrap();
        sending.join().unwrap().unwrap();
        assert!(received == state);
        UnixStream::from(socket).write_all(b"x").unwrap();
        let mut byte = [0];
        far.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        assert!(receive_client(&mut other).unwrap().is_none());
    }

    #[test]
    fn a_successor_that_is_gone_is_an_error() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let (near, _far) = UnixStream::pair().unwrap();
        drop(other);
        send_state(&mut one, &[1], &near.into()).unwrap_err();
    }

    #[test]
    fn a_successor_that_comes_too_late_does_not_serve_the_client() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let (near, _far) = UnixStream::pair().unwrap();
        // Nobody answers meanwhile.
        one.set_read_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
        send_state(&mut one, b"state", &near.into()).unwrap_err();
        receive_client(&mut other).unwrap_err();
    }

    #[test]
    fn an_answer_at_the_last_moment_counts() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        send(&mut other, &Taken {}).unwrap();
        take_back(&mut one, io::ErrorKind::WouldBlock.into()).unwrap();
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let error = take_back(&mut one, io::ErrorKind::WouldBlock.into()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        send(&mut other, &Taken {}).unwrap_err();
    }
}
