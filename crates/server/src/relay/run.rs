//! The lifetime of a relayed connection.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ::websocket::Deflate;
use ::websocket::handshake::{Status, UpgradeRefusal};
use tokio::io::AsyncWriteExt;
use transport::{Outbox, Stream, linger, turn_to_end};

use super::close::RelayEnd;
use super::pump::Pump;
use super::upstream::connect;
use super::{Relay, RelayConfig};
use crate::server::{AcceptedConnection, ConnectionListEntry, Shared};
use crate::websocket::answer_refusal;

/// Joins a client, whose request was granted with `answer`, to the upstream server of `relay`. Connects there first, so
/// that the client gets an HTTP error instead of a useless upgrade if that fails.
pub(crate) async fn run(
    shared: Arc<Shared>,
    relay: Arc<Relay>,
    mut client: Stream,
    accepted: AcceptedConnection,
    answer: Vec<u8>,
    deflate: Option<Deflate>,
    ping_interval: Duration,
) {
    let AcceptedConnection { id, peer, lease, .. } = accepted;
    // Never appended to: it represents the connection in the list that a drain waits for.
    let _listed = ConnectionListEntry::new(&shared, id, &Arc::new(Outbox::new(0)));
    let _place = lease;
    let name = relay.config.name.as_str();
    let _relay_place = match relay.counter.enter(peer.ip()) {
        Ok(lease) => lease,
        Err(limit) => {
            shared.metrics.connections_refused.add(1);
            tracing::warn!(connection = id, %peer, relay = name, %limit, "connection refused");
            let refusal = UpgradeRefusal::new(Status::Unavailable, format!("of this relay: {limit}"));
            return answer_refusal(&mut client, &refusal).await;
        }
    };
    let listener = client.addresses().map(|(local, _)| local);
    let connecting = Box::pin(connect(&relay.config, peer, listener));
    let connected = tokio::select! {
        connected = connecting => connected.map_err(|error| refusal(&relay.config, &error)),
        () = shared.drain_begun() => Err((Cow::Borrowed("server is shutting down"), going_down())),
    };
    let upstream = match connected {
        Ok(upstream) => upstream,
        Err((reason, refusal)) => {
            tracing::warn!(connection = id, %peer, relay = name, %reason, "relay failed");
            return answer_refusal(&mut client, &refusal).await;
        }
    };
    if let Err(error) = send(&mut client, &answer).await {
        tracing::info!(connection = id, %peer, relay = name, reason = %error, "connection closed");
        return;
    }
    drop(answer);
    let text = relay.config.text;
    let mut pump = Pump::new(client, upstream, text, ping_interval, shared.config.write_timeout);
    pump.deflate(deflate);
    let reason = run_pump(&shared, id, &mut pump).await;
    let (received, sent) = pump.moved;
    shared.metrics.bytes_received.add(received);
    tracing::info!(connection = id, %peer, relay = name, %reason, received, sent, "connection closed");
    let Pump { client, upstream, .. } = pump;
    close_both(client, upstream).await;
}

/// Closes the sockets of a pair that has ended, after reading what is left: closing a socket with unread input resets it,
/// and the last bytes written might not arrive.
pub(super) async fn close_both(mut client: Stream, mut upstream: Stream) {
    Box::pin(turn_to_end()).await;
    tokio::join!(Box::pin(linger(&mut client)), Box::pin(linger(&mut upstream)));
}

async fn run_pump(shared: &Shared, id: u64, pump: &mut Pump) -> RelayEnd {
    let mut drained = pin!(shared.wait_for_drain_slot(id));
    let mut draining = false;
    poll_fn(|cx| {
        if !draining && drained.as_mut().poll(cx).is_ready() {
            draining = true;
            pump.drain();
        }
        pump.poll(cx)
    })
    .await
}

/// Writes and flushes, which TLS needs.
async fn send(stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// The error for the log, and the refusal for the client, if the upstream is unreachable. The client is not
/// authenticated, and does not learn the upstream's address.
fn refusal(config: &RelayConfig, error: &io::Error) -> (Cow<'static, str>, UpgradeRefusal) {
    let (status, text) = match error.kind() {
        io::ErrorKind::TimedOut => (Status::GatewayTimeout, "upstream timed out"),
        _ => (Status::BadGateway, "upstream unreachable"),
    };
    (Cow::Owned(format!("{}: {error}", config.upstream)), UpgradeRefusal::new(status, text))
}

fn going_down() -> UpgradeRefusal {
    UpgradeRefusal::new(Status::Unavailable, "server is shutting down")
}
