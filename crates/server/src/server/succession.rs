//! The handover of clients, with their sockets, to another process while this one drains; and from such a process.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use std::{fmt, io};

use amqp::Credentials;
use broker::FrontEnd;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{mpsc, oneshot};
use transport::{Ended, Outbox, Peer, Stream, Transit, drive_on, linger};

use super::{AcceptedConnection, ConnectionListEntry, Server, Shared, reason_of};
use crate::access::Transport;
use crate::amqp::connection::{AmqpConnection, ConnectionState, SHUTDOWN, closing};
use crate::client::{ClientConnection, ProtocolState};

/// The maximum size of a client's state, in bytes: far more than that of a client whose messages wait for the upstream. A
/// client with more is closed.
pub const MAX_CLIENT_STATE: usize = 256 << 20;

/// A client that is handed over to another process.
pub struct DepartingClient {
    state: ConnectionState,
    /// The connection to the client.
    pub socket: OwnedFd,
    /// Answered when the other process has both. If it is dropped, the client is closed.
    pub taken: oneshot::Sender<()>,
}

impl DepartingClient {
    /// The state for the other process. It contains the client's password or token, and must not be passed to anybody
    /// else.
    ///
    /// # Errors
    /// The state exceeds [`MAX_CLIENT_STATE`].
    pub fn state(&self) -> io::Result<Vec<u8>> {
        let state = serde_json::to_vec(&self.state)?;
        if state.len() > MAX_CLIENT_STATE {
            return Err(io::Error::other("too much data in transit to and from the client"));
        }
        Ok(state)
    }
}

impl fmt::Debug for DepartingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DepartingClient").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// The reason why a client of another process cannot continue here.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// This version does not know the format of the state.
    #[error("incompatible state format: {0}")]
    Format(#[from] serde_json::Error),
    /// The client has logged in with a mechanism that this version does not know.
    #[error("unknown login mechanism")]
    Login,
    /// The socket is closed, or not a socket.
    #[error("its socket: {0}")]
    Socket(#[from] io::Error),
}

impl Server {
    /// Has clients handed over to another process when the server drains, as far as they can continue there. Must precede
    /// [`Server::drain`].
    pub fn hand_over_to(&self, successor: mpsc::Sender<DepartingClient>) {
        *self.shared.successor.lock() = Some(successor);
    }

    /// Serves a client that another process has handed over. Must be called within a runtime.
    ///
    /// # Errors
    /// It cannot continue.
    pub fn resume(&self, state: &[u8], socket: OwnedFd) -> Result<(), ResumeError> {
        let state: ConnectionState = serde_json::from_slice(state)?;
        let stream = Stream::from_socket(socket)?;
        let credentials = state.credentials().ok_or(ResumeError::Login)?;
        tokio::spawn(resume(Arc::clone(&self.shared), stream, credentials, state));
        Ok(())
    }

    /// Makes [`Server::drain`] wait for a task, as long as for clients: it hands clients over that this server has to
    /// serve.
    pub fn expect_clients_of(&self, task: tokio::task::JoinHandle<()>) {
        self.shared.accepting.lock().push(task);
    }
}

impl Shared {
    /// The process that clients are handed over to, while it accepts any.
    fn successor(&self) -> Option<mpsc::Sender<DepartingClient>> {
        self.successor.lock().clone().filter(|successor| !successor.is_closed())
    }

    /// Whether clients that have to leave are handed over to another process instead of closed.
    pub(crate) fn hands_over(&self) -> bool {
        self.successor().is_some()
    }

    /// Waits until clients that have not logged in have to be closed: when the server drains without handing clients
    /// over.
    pub(crate) async fn cuts_logins(&self) {
        self.drain_begun().await;
        if self.hands_over() {
            std::future::pending::<()>().await;
        }
    }

    async fn hand_over(&self, state: ConnectionState, stream: &Stream) -> io::Result<()> {
        let gone = || io::Error::other("successor exited");
        let successor = self.successor().ok_or_else(gone)?;
        // In turn, so that few states are in memory at a time.
        let place = successor.reserve().await.map_err(|_| gone())?;
        let (taken, is_taken) = oneshot::channel();
        place.send(DepartingClient { state, socket: stream.share_socket()?, taken });
        is_taken.await.map_err(|_| gone())
    }

    /// Finishes a connection whose socket is handed over to another process; returns the reason of its end. If that
    /// process does not accept it, the client is sent connection.close, unless it has received half a frame.
    async fn leave(&self, state: Option<ConnectionState>, mut stream: Stream, transit: Transit) -> String {
        let Some(state) = state else { return "closed".to_owned() };
        let is_between_frames = transit.output.is_empty();
        match self.hand_over(state.with_transit(transit), &stream).await {
            Ok(()) => {
                self.metrics.connections_handed_over.add(1);
                "handed over to another process".to_owned()
            }
            Err(error) => {
                tracing::warn!(%error, "client hand-over failed: connection closed");
                if is_between_frames {
                    // The connection ends in any case.
                    let _ = stream.write_all(&closing(SHUTDOWN)).await;
                    linger(&mut stream).await;
                }
                format!("not handed over: {error}")
            }
        }
    }
}

/// Runs a connection taken over from another process.
async fn resume(
    shared: Arc<Shared>,
    mut stream: Stream,
    credentials: Credentials,
    mut state: ConnectionState,
) {
    let (id, peer) = (shared.next_id(), state.peer());
    shared.metrics.connections_opened.add(1);
    shared.metrics.connections_resumed.add(1);
    let lease = shared.counter.resume(peer.ip());
    let transport = Transport { protocol: FrontEnd::default(), websocket: false, tls: false };
    let since = Instant::now();
    let accepted =
        AcceptedConnection { id, peer, transport, lease, since, local: state.local, external: None };
    let outbox = Arc::new(Outbox::new(shared.config.outbox_limit / 2));
    let output = std::mem::take(&mut state.output);
    outbox.append(|buf| buf.push(output.into()));
    let input = std::mem::take(&mut state.input);
    let resume = |core| AmqpConnection::resume(core, credentials, state, since);
    let mut connection = ClientConnection::resume(&shared, accepted, &outbox, resume);
    let listed = ConnectionListEntry::new(&shared, id, &outbox);
    let limits = (shared.config.outbox_limit, shared.config.write_timeout);
    let ended = drive_on(&mut stream, &mut connection, &outbox, limits, (&*input).into()).await;
    Box::pin(finish(&shared, stream, connection, (id, peer), ended, outbox.sent())).await;
    drop(listed);
}

/// Logs the end of a connection, or hands it over.
pub(super) async fn finish<P: ProtocolState>(
    shared: &Shared,
    stream: Stream,
    mut connection: ClientConnection<P>,
    (id, peer): (u64, Peer),
    ended: Ended,
    sent: u64,
) {
    let reason = match ended {
        Ended::HandedOver(transit) => shared.leave(connection.take_departing(), stream, transit).await,
        ended => reason_of(connection.reason(), ended),
    };
    connection.end().await;
    shared.closed(connection.take_record(), id, peer, sent, &reason);
}
