//! Clients that go on in another process, with their sockets, while this one drains; and those that come from such a one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use amqp::Credentials;
use broker::FrontEnd;
use tokio::sync::{mpsc, oneshot};
use transport::{Ended, Outbox, Peer, Stream, Transit, drive_on};

use super::{Listed, Newcomer, Server, Shared, reason_of};
use crate::access::Transport;
use crate::amqp::connection::{AmqpConnection, ConnectionState};
use crate::client::{ClientConnection, ProtocolState};

/// Bytes of the state of a client: far more than one has whose messages wait for the upstream. A client with more is closed.
pub const MAX_CLIENT_STATE: usize = 256 << 20;

/// A client that leaves for another process.
#[derive(Debug)]
pub struct DepartingClient {
    /// What that process has to know; it has the client's password, and is for nobody else.
    pub state: Vec<u8>,
    /// The connection to the client.
    pub socket: OwnedFd,
    /// To be answered when the other process has both. If it is dropped, the client is closed.
    pub taken: oneshot::Sender<()>,
}

/// Why a client of another process cannot go on here.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The state is none that this version knows.
    #[error("its state is in another format: {0}")]
    Format(#[from] serde_json::Error),
    /// The client has logged in by a mechanism that this version does not know.
    #[error("it has logged in in a way that this version does not know")]
    Login,
    /// The socket is gone, or no socket.
    #[error("its socket: {0}")]
    Socket(#[from] io::Error),
}

impl Server {
    /// Has the clients that can go on in another process leave for it when the server drains. To be called before
    /// [`Server::drain`].
    pub fn hand_over_to(&self, successor: mpsc::Sender<DepartingClient>) {
        // A second call changes nothing: there is one drain.
        let _ = self.shared.successor.set(successor);
    }

    /// Serves a client that another process has handed over. Must be called within a runtime.
    ///
    /// # Errors
    /// It cannot go on.
    pub fn resume(&self, state: &[u8], socket: OwnedFd) -> Result<(), ResumeError> {
        let state: ConnectionState = serde_json::from_slice(state)?;
        let stream = Stream::from_socket(socket)?;
        let credentials = state.credentials().ok_or(ResumeError::Login)?;
        tokio::spawn(resume(Arc::clone(&self.shared), stream, credentials, state));
        Ok(())
    }

    /// Waits for a task in [`Server::drain`], as long as for the clients: it has clients come that this server has to serve.
    pub fn expect_clients_of(&self, task: tokio::task::JoinHandle<()>) {
        self.shared.accepting.lock().push(task);
    }
}

impl Shared {
    /// The process that the clients are handed over to, if there is one.
    pub(crate) fn successor(&self) -> Option<&mpsc::Sender<DepartingClient>> {
        self.successor.get()
    }

    /// Waits until clients that have not logged in are to be closed: when the server drains and hands nobody over.
    pub(crate) async fn turns_newcomers_away(&self) {
        self.drain_begun().await;
        if self.successor().is_some() {
            std::future::pending::<()>().await;
        }
    }

    /// Hands a client over; returns whether the successor has it. If not, the client is told that the connection is closed.
    async fn hand_over(&self, state: ConnectionState, stream: Stream) -> io::Result<()> {
        let gone = || io::Error::other("the successor is gone");
        let state = serde_json::to_vec(&state)?;
        if state.len() > MAX_CLIENT_STATE {
            return Err(io::Error::other("too much is on its way to it"));
        }
        let (taken, is_taken) = oneshot::channel();
        let client = DepartingClient { state, socket: stream.into_socket()?, taken };
        let successor = self.successor().ok_or_else(gone)?;
        successor.send(client).await.map_err(|_| gone())?;
        is_taken.await.map_err(|_| gone())
    }

    /// Finishes a connection whose socket another process is to have.
    pub(super) async fn leave(
        &self,
        state: Option<ConnectionState>,
        stream: Stream,
        transit: Transit,
    ) -> String {
        let Some(state) = state else { return "closed".to_owned() };
        self.metrics.connections_handed_over.add(1);
        match self.hand_over(state.with_transit(transit), stream).await {
            Ok(()) => "handed over to another process".to_owned(),
            Err(error) => {
                tracing::warn!(%error, "a client could not be handed over, and is disconnected");
                format!("not handed over: {error}")
            }
        }
    }
}

/// Runs a connection that another process has had.
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
    let newcomer = Newcomer { id, peer, transport, lease, since, local: state.local, external: None };
    let outbox = Arc::new(Outbox::new(shared.config.outbox_limit / 2));
    let output = std::mem::take(&mut state.output);
    outbox.append(|buf| buf.push(output.into()));
    let input = std::mem::take(&mut state.input);
    let resume = |core| AmqpConnection::resume(core, credentials, state, since);
    let mut connection = ClientConnection::resume(&shared, newcomer, &outbox, resume);
    let listed = Listed::new(&shared, id, &outbox);
    let limits = (shared.config.outbox_limit, shared.config.write_timeout);
    let ended = drive_on(&mut stream, &mut connection, &outbox, limits, (&*input).into()).await;
    finish(&shared, stream, connection, (id, peer), ended, outbox.sent()).await;
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
    shared.closed(connection.take_record(), id, peer, sent, &reason);
}
