//! The request that opens a WebSocket.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use broker::FrontEnd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use transport::{Peer, linger};
use websocket::Deflate;
use websocket::forwarded::{self, ConflictingHeaders};
use websocket::handshake::{Head, MAX_HEAD, Status, Upgrade, UpgradeRefusal};

use super::WebSocketConfig;
use super::routes::{Route, Routes};
use super::webroot::FileRequest;
use crate::protocols::{ClientProtocol, PROTOCOLS};
use crate::relay::{Relay, RelayConfig};

/// Bytes of the first read, which suffices for most requests.
const FIRST_READ: usize = 1024;

/// A valid request.
#[derive(Debug)]
pub(super) enum UpgradeDecision {
    /// It is to be upgraded.
    AcceptedUpgrade(AcceptedUpgrade),
    /// It asks for a file.
    File(FileRequest),
}

/// A request that was granted.
#[derive(Debug)]
pub(crate) struct AcceptedUpgrade {
    /// The HTTP response of the upgrade.
    pub(super) answer: Vec<u8>,
    /// The client's address as a trusted reverse proxy reports it.
    pub(super) client: Option<IpAddr>,
    /// The protocol, unless the connection is relayed.
    pub(super) protocol: FrontEnd,
    /// The relay, if the connection is relayed.
    pub(super) relay: Option<Arc<Relay>>,
    /// Compression, if negotiated.
    pub(super) deflate: Option<Deflate>,
}

/// The reason why a connection is not upgraded.
#[derive(Debug)]
pub(super) enum NotUpgraded {
    /// The peer disconnected.
    Io(io::Error),
    /// No bytes were received: browsers open connections in advance.
    Unused,
    /// The request is refused with this answer.
    Refused(UpgradeRefusal),
}

impl std::fmt::Display for NotUpgraded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Unused => f.write_str("client closed the connection without a request"),
            Self::Refused(refusal) => write!(f, "{} {}", refusal.status as u16, refusal.text),
        }
    }
}

/// Reads a request into `input` and validates it. A refusal has not been sent yet.
pub(super) async fn request<S: AsyncRead + Unpin>(
    stream: &mut S,
    input: &mut Vec<u8>,
    peer: Peer,
    config: &WebSocketConfig,
) -> Result<UpgradeDecision, NotUpgraded> {
    loop {
        if input.len() == input.capacity() {
            input.reserve(input.len().max(FIRST_READ));
        }
        // One byte more than a head may have, so that an oversized one is noticed.
        let remaining = MAX_HEAD + 1 - input.len().min(MAX_HEAD);
        let read = stream.take(remaining as u64).read_buf(input).await.map_err(NotUpgraded::Io)?;
        if read == 0 {
            return Err(NotUpgraded::Unused);
        }
        match Head::parse(input) {
            Ok(None) => {}
            Ok(Some((head, len))) => {
                return validate(head, len == input.len(), peer, config).map_err(NotUpgraded::Refused);
            }
            Err(error) => return Err(NotUpgraded::Refused(error.into())),
        }
    }
}

/// Sends a refusal, and lingers so that the client receives it.
pub(crate) async fn answer_refusal<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    refusal: &UpgradeRefusal,
) {
    if stream.write_all(&refusal.response()).await.is_ok() {
        linger(stream).await;
    }
}

fn validate(
    head: Head<'_>,
    is_alone: bool,
    peer: Peer,
    config: &WebSocketConfig,
) -> Result<UpgradeDecision, UpgradeRefusal> {
    // A file of the webroot needs no upgrade.
    if config.routes.webroot.is_some()
        && let Some(request) = FileRequest::of(&head)
    {
        return Ok(UpgradeDecision::File(request));
    }
    let upgrade = Upgrade::validate(head)?;
    let routes = &config.routes;
    // The path decides on protocol or relay, and so on the origins that may connect.
    let ((origins, setting), protocol, relay) = match routes.find(upgrade.head.path) {
        Some(Route::Protocol(at_path)) => {
            let origins = (&config.origins, "the setting ws_origins allows them");
            (origins, protocol_of(&upgrade, at_path, routes), None)
        }
        Some(Route::Relay(relay)) => {
            let origins = (&relay.config().origins, "the relay's origins allow them");
            (origins, FrontEnd::default(), Some(Arc::clone(relay)))
        }
        None => return Err(UpgradeRefusal::new(Status::NotFound, routes.nothing_here())),
    };
    if !origins.allow(upgrade.origin) {
        let text = format!("origin not allowed; {setting}");
        return Err(UpgradeRefusal::new(Status::Forbidden, text));
    }
    if !is_alone {
        return Err(UpgradeRefusal::new(
            Status::BadRequest,
            "frames may not come before the answer (RFC 6455, 4.1)",
        ));
    }
    let subprotocol = match &relay {
        None => subprotocol(&upgrade, ClientProtocol::of(protocol))?,
        Some(relay) => relayed_subprotocol(&upgrade, relay.config())?,
    };
    // Headers about the client are used only if a trusted proxy has sent them.
    let reported = || forwarded::client(&upgrade.head, |address| config.is_proxy(address));
    let conflicting_headers =
        |error: ConflictingHeaders| UpgradeRefusal::new(Status::BadRequest, error.to_string());
    let client =
        config.is_from_proxy(peer).then(reported).transpose().map_err(conflicting_headers)?.flatten();
    let deflate = if config.compression { Deflate::negotiate(&upgrade.head) } else { None };
    let answer = upgrade.accept(subprotocol, deflate);
    Ok(UpgradeDecision::AcceptedUpgrade(AcceptedUpgrade { answer, client, protocol, relay, deflate }))
}

/// The subprotocol to answer with on a relay: one of its own, or the first one offered if it has none. A client
/// that offers none gets none, and is relayed all the same.
fn relayed_subprotocol<'u>(
    upgrade: &Upgrade<'u>,
    relay: &RelayConfig,
) -> Result<Option<&'u str>, UpgradeRefusal> {
    if relay.subprotocols.is_empty() {
        return Ok(upgrade.offered.first().copied());
    }
    let offered = |own: &String| upgrade.offered.iter().copied().find(|offered| offered == own);
    let found = relay.subprotocols.iter().find_map(offered);
    if found.is_none() && !upgrade.offered.is_empty() {
        let text = format!("subprotocols here: {}", relay.subprotocols.join(", "));
        return Err(UpgradeRefusal::new(Status::BadRequest, text));
    }
    Ok(found)
}

/// The protocol of a client at this path. At `/`, which URLs without a path have, a client that offers only subprotocols
/// of another protocol of the listener gets that protocol.
fn protocol_of(upgrade: &Upgrade<'_>, at_path: FrontEnd, routes: &Routes) -> FrontEnd {
    let offers = |protocol| upgrade.prefer(ClientProtocol::of(protocol).subprotocols).is_some();
    if upgrade.head.path != "/" || offers(at_path) {
        return at_path;
    }
    let mut others = routes.protocols.iter().rev().map(|(_, other)| *other);
    others.find(|other| offers(*other)).unwrap_or(at_path)
}

/// The subprotocol to answer with: the preferred one of those offered. Clients that offer nothing are admitted, as
/// by RabbitMQ, although MQTT's have to (5.0, section 6; MQTT-6.0.0-3).
///
/// A browser fails a connection that does not get a subprotocol that it offered. AMQP has no standard one, so any is
/// accepted for it, unless it certainly means another protocol.
fn subprotocol<'u>(
    upgrade: &Upgrade<'u>,
    protocol: &ClientProtocol,
) -> Result<Option<&'u str>, UpgradeRefusal> {
    let is_amqp = protocol.front_end == FrontEnd::Amqp;
    let mut offered = upgrade.offered.iter().copied();
    let found = match upgrade.prefer(protocol.subprotocols) {
        Some(known) => offered.find(|offered| *offered == known),
        None if is_amqp => {
            offered.find(|offered| PROTOCOLS.iter().all(|known| !known.subprotocols.contains(offered)))
        }
        None => None,
    };
    if found.is_none() && !upgrade.offered.is_empty() {
        let text = if is_amqp {
            "only AMQP is spoken here: subprotocol amqp091, or none".to_owned()
        } else {
            format!("subprotocols here: {}", protocol.subprotocols.join(", "))
        };
        return Err(UpgradeRefusal::new(Status::BadRequest, text));
    }
    Ok(found)
}
