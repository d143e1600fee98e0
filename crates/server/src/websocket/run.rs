//! The lifetime of a connection over WebSocket.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::websocket::handshake::{Status, UpgradeRefusal};
use ::websocket::{CloseCode, encode};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use transport::{Peer, PeerWatch, Stream, drive, linger};

use super::WebSocketConfig;
use super::adapter::{CarriedProtocol, FrameMapping, WebSocket};
use super::upgrade::{AcceptedUpgrade, NotUpgraded, UpgradeDecision, answer_refusal, request};
use super::webroot;
use crate::client::{ClientConnection, Ending, ProtocolState};
use crate::limits::LimitReached;
use crate::protocols::ClientProtocol;
use crate::relay;
use crate::server::{AcceptedConnection, ConnectionListEntry, Shared, reason_of};

/// The maximum of clients over a limit that are notified at the same time. A page can only see a close code, which takes
/// a whole handshake; further connections are dropped as over TCP, so that a limit remains a limit.
static REFUSALS: Semaphore = Semaphore::const_new(64);

/// Runs a connection that has passed its preface.
pub(crate) async fn run(
    shared: Arc<Shared>,
    config: Arc<WebSocketConfig>,
    mut stream: Stream,
    mut accepted: AcceptedConnection,
) {
    // Boxed: the state for reading a request is needed only briefly.
    let mut granted = match Box::pin(upgrade(&shared, &config, &mut stream, &accepted)).await {
        Some(UpgradeDecision::AcceptedUpgrade(granted)) => granted,
        Some(UpgradeDecision::File(file)) => {
            return Box::pin(webroot::serve(shared, config, stream, accepted, file)).await;
        }
        None => return,
    };
    if let Some(ip) = granted.client {
        accepted.peer = Peer::Ip(SocketAddr::new(ip, 0));
        if let Err(limit) = accepted.lease.set_client_address(Some(ip)) {
            shared.refuse(accepted.id, accepted.peer, accepted.transport, limit);
            return answer_at_limit(&mut stream, granted, limit).await;
        }
    }
    if let Some(relay) = granted.relay.take() {
        let AcceptedUpgrade { answer, deflate, .. } = granted;
        let interval = config.ping_interval;
        return Box::pin(relay::run(shared, relay, stream, accepted, answer, deflate, interval)).await;
    }
    accepted.transport.protocol = granted.protocol;
    let interval = config.ping_interval;
    drop(config);
    // As another task: this one is as large as the upgrade, which is over.
    (ClientProtocol::of(granted.protocol).start_in_websocket)(shared, stream, accepted, granted, interval);
}

/// Answers a request that was granted and runs its protocol. As in [`crate::server`], the future's state is
/// built before it.
pub(crate) fn join<P, S>(
    shared: Arc<Shared>,
    mut stream: S,
    accepted: AcceptedConnection,
    granted: AcceptedUpgrade,
    ping_interval: Duration,
) -> impl Future<Output = ()> + Send + 'static
where
    P: ProtocolState,
    S: AsyncRead + AsyncWrite + PeerWatch + Unpin + Send + 'static,
{
    let AcceptedConnection { id, peer, .. } = accepted;
    let (connection, outbox) = accepted.into_client::<P>(&shared);
    let AcceptedUpgrade { answer, deflate, .. } = granted;
    let limit = shared.config.outbox_limit;
    let now = std::time::Instant::now();
    let mut protocol =
        WebSocket::new(connection, Arc::clone(&outbox), limit, ping_interval, now).with_deflate(deflate);
    let listed = ConnectionListEntry::new(&shared, id, &outbox);
    async move {
        let sent = send(&mut stream, &answer).await;
        drop(answer);
        let ended = match sent {
            Ok(()) => drive(&mut stream, &mut protocol, &outbox, limit, shared.config.write_timeout).await,
            Err(error) => transport::Ended::Io(error),
        };
        let reason = protocol.take_reason();
        let reason = reason_of(reason.as_deref().or_else(|| protocol.inner_mut().reason()), ended);
        // Boxed: needed only at the end.
        Box::pin(protocol.inner_mut().end()).await;
        shared.closed(protocol.inner_mut().take_record(), id, peer, outbox.sent(), &reason);
        drop(listed);
    }
}

/// Notifies a client that it exceeds a limit, unless too many others are being notified.
pub(crate) async fn refuse(
    shared: Arc<Shared>,
    config: Arc<WebSocketConfig>,
    mut stream: Stream,
    peer: Peer,
    limit: LimitReached,
) {
    let Ok(_permit) = REFUSALS.try_acquire() else { return };
    let telling = async {
        match request(&mut stream, &mut Vec::new(), peer, &config).await {
            Ok(UpgradeDecision::AcceptedUpgrade(granted)) => {
                answer_at_limit(&mut stream, granted, limit).await
            }
            Ok(UpgradeDecision::File(_)) => answer_refusal(&mut stream, &at_limit(limit)).await,
            Err(NotUpgraded::Refused(refusal)) => answer_refusal(&mut stream, &refusal).await,
            Err(NotUpgraded::Io(_) | NotUpgraded::Unused) => {}
        }
    };
    // The client is dropped whether it was notified or not.
    let _ = tokio::time::timeout(shared.config.handshake_timeout, Box::pin(telling)).await;
}

fn at_limit(limit: LimitReached) -> UpgradeRefusal {
    UpgradeRefusal::new(Status::Unavailable, limit.to_string())
}

/// Upgrades and closes with 1013. On a relay, which never upgrades a client that it cannot serve, answers 503.
async fn answer_at_limit(stream: &mut Stream, granted: AcceptedUpgrade, limit: LimitReached) {
    if granted.relay.is_some() {
        return answer_refusal(stream, &at_limit(limit)).await;
    }
    let mut answer = granted.answer;
    encode::close(&mut answer, None, CloseCode::TRY_AGAIN_LATER, &limit.to_string());
    if send(stream, &answer).await.is_ok() {
        linger(stream).await;
    }
}

/// Writes and flushes, which TLS needs.
async fn send<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Reads the request within the time limit of the login, and answers it if it is refused.
async fn upgrade(
    shared: &Shared,
    config: &WebSocketConfig,
    stream: &mut Stream,
    accepted: &AcceptedConnection,
) -> Option<UpgradeDecision> {
    let deadline = accepted.since + shared.config.handshake_timeout;
    let mut input = Vec::new();
    let read = tokio::select! {
        read = tokio::time::timeout_at(deadline.into(), request(stream, &mut input, accepted.peer, config)) => {
            Some(read)
        }
        () = shared.drain_begun() => None,
    };
    let refused = |status, text: &'static str| {
        NotUpgraded::Refused(UpgradeRefusal { status, text: Cow::Borrowed(text) })
    };
    let error = match read {
        Some(Ok(Ok(validated))) => return Some(validated),
        Some(Ok(Err(error))) => error,
        _ if input.is_empty() => NotUpgraded::Unused,
        Some(Err(_)) => refused(Status::RequestTimeout, "request timed out"),
        None => refused(Status::Unavailable, "server is shutting down"),
    };
    if let NotUpgraded::Refused(refusal) = &error {
        answer_refusal(stream, refusal).await;
    }
    shared.metrics.connections_closed.add(1);
    shared.closed(shared.record(accepted), accepted.id, accepted.peer, 0, &error.to_string());
    None
}

impl<P: ProtocolState> CarriedProtocol for ClientConnection<P> {
    const CARRIAGE: FrameMapping = P::CARRIAGE;

    fn ending(&self) -> (CloseCode, String) {
        close_of(self.ending())
    }
}

/// The close frame for the way in which a protocol ended.
fn close_of((ending, reason): (Ending, &str)) -> (CloseCode, String) {
    let code = match ending {
        Ending::Normal => return (CloseCode::NORMAL, String::new()),
        Ending::Shutdown => CloseCode::GOING_AWAY,
        Ending::Limit => CloseCode::TRY_AGAIN_LATER,
        Ending::Refused => CloseCode::POLICY,
        Ending::Failed => CloseCode::INTERNAL,
    };
    (code, reason.to_owned())
}
