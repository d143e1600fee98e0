//! The request that opens a WebSocket.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use transport::{Peer, linger};
use websocket::Deflate;
use websocket::forwarded::{self, Contradiction};
use websocket::handshake::{Head, MAX_HEAD, Status, Upgrade, UpgradeRefusal};

use super::WebSocketConfig;
use super::routes::{Route, Routes};
use super::webroot::FileRequest;
use crate::client::Spoken;
use crate::relay::{Relay, RelayConfig};

/// Subprotocols that mean AMQP, in order of preference.
const AMQP_PROTOCOLS: [&str; 2] = ["amqp091", "amqp"];

/// Bytes of the first read, which suffices for most requests.
const FIRST_READ: usize = 1024;

/// A valid request.
#[derive(Debug)]
pub(super) enum Judged {
    /// It is to be upgraded.
    Granted(Granted),
    /// It asks for a file.
    File(FileRequest),
}

/// A request that was granted.
#[derive(Debug)]
pub(super) struct Granted {
    /// The HTTP response of the upgrade.
    pub(super) answer: Vec<u8>,
    /// The client's address as a trusted reverse proxy reports it.
    pub(super) client: Option<IpAddr>,
    /// The protocol, unless the connection is relayed.
    pub(super) spoken: Spoken,
    /// The relay, if the connection is relayed.
    pub(super) relay: Option<Arc<Relay>>,
    /// Compression, if negotiated.
    pub(super) deflate: Option<Deflate>,
}

/// Why a connection is not upgraded.
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
            Self::Unused => f.write_str("client went away without a request"),
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
) -> Result<Judged, NotUpgraded> {
    loop {
        if input.len() == input.capacity() {
            input.reserve(input.len().max(FIRST_READ));
        }
        // One byte more than a head may have, so that an oversized one is noticed.
        let room = MAX_HEAD + 1 - input.len().min(MAX_HEAD);
        let read = stream.take(room as u64).read_buf(input).await.map_err(NotUpgraded::Io)?;
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
) -> Result<Judged, UpgradeRefusal> {
    if config.routes.webroot.is_some()
        && let Some(request) = FileRequest::of(&head)
    {
        return Ok(Judged::File(request));
    }
    let upgrade = Upgrade::validate(head)?;
    let leaves_open = upgrade.head.path == "/";
    let own_origins = (&config.origins, "the setting ws_origins allows them");
    let ((origins, setting), spoken, relay) = match config.routes.find(upgrade.head.path) {
        Some(Route::Amqp)
            if leaves_open && !config.routes.stomp.is_empty() && offers_stomp_alone(&upgrade) =>
        {
            (own_origins, Spoken::Stomp, None)
        }
        Some(Route::Amqp) if leaves_open && !config.routes.mqtt.is_empty() && offers_mqtt_alone(&upgrade) => {
            (own_origins, Spoken::Mqtt, None)
        }
        Some(Route::Amqp) => (own_origins, Spoken::Amqp, None),
        Some(Route::Mqtt) => (own_origins, Spoken::Mqtt, None),
        Some(Route::Stomp) => (own_origins, Spoken::Stomp, None),
        Some(Route::Relay(relay)) => {
            let origins = (&relay.config().origins, "the relay's origins allow them");
            (origins, Spoken::Amqp, Some(Arc::clone(relay)))
        }
        None if config.routes.amqp => {
            return Err(UpgradeRefusal::new(Status::NotFound, "nothing here: AMQP is at / and /ws/amqp"));
        }
        None => return Err(UpgradeRefusal::new(Status::NotFound, "nothing here")),
    };
    if !origins.allow(upgrade.origin) {
        let text = format!("pages of this origin may not connect; {setting}");
        return Err(UpgradeRefusal::new(Status::Forbidden, text));
    }
    if !is_alone {
        return Err(UpgradeRefusal::new(
            Status::BadRequest,
            "frames may not come before the answer (RFC 6455, 4.1)",
        ));
    }
    let protocol = match &relay {
        None if spoken == Spoken::Mqtt => mqtt_subprotocol(&upgrade)?,
        None if spoken == Spoken::Stomp => stomp_subprotocol(&upgrade)?,
        None => subprotocol(&upgrade)?,
        Some(relay) => relayed_subprotocol(&upgrade, relay.config())?,
    };
    let reported = || forwarded::client(&upgrade.head, |address| config.is_proxy(address));
    let contradiction = |error: Contradiction| UpgradeRefusal::new(Status::BadRequest, error.to_string());
    let client = config.is_from_proxy(peer).then(reported).transpose().map_err(contradiction)?.flatten();
    let deflate = if config.compression { Deflate::negotiate(&upgrade.head) } else { None };
    let answer = upgrade.accept(protocol, deflate);
    Ok(Judged::Granted(Granted { answer, client, spoken, relay, deflate }))
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

/// Whether a client offers subprotocols of STOMP and none of AMQP, which decides if the path allows both.
fn offers_stomp_alone(upgrade: &Upgrade<'_>) -> bool {
    upgrade.prefer(&Routes::STOMP_SUBPROTOCOLS).is_some() && upgrade.prefer(&AMQP_PROTOCOLS).is_none()
}

/// Whether a client offers subprotocols of MQTT and none of AMQP.
fn offers_mqtt_alone(upgrade: &Upgrade<'_>) -> bool {
    upgrade.prefer(&Routes::MQTT_SUBPROTOCOLS).is_some() && upgrade.prefer(&AMQP_PROTOCOLS).is_none()
}

/// The MQTT subprotocol to answer with. Clients have to offer it (5.0, section 6; MQTT-6.0.0-3); those that
/// offer nothing are admitted, as by RabbitMQ.
fn mqtt_subprotocol<'u>(upgrade: &Upgrade<'u>) -> Result<Option<&'u str>, UpgradeRefusal> {
    let found = upgrade.prefer(&Routes::MQTT_SUBPROTOCOLS);
    if found.is_none() && !upgrade.offered.is_empty() {
        let text = format!("subprotocols here: {}", Routes::MQTT_SUBPROTOCOLS.join(", "));
        return Err(UpgradeRefusal::new(Status::BadRequest, text));
    }
    Ok(upgrade.offered.iter().copied().find(|offered| Some(*offered) == found))
}

/// The STOMP subprotocol to answer with: the highest one offered, as in RabbitMQ. Clients need not offer any;
/// CONNECT negotiates the version.
fn stomp_subprotocol<'u>(upgrade: &Upgrade<'u>) -> Result<Option<&'u str>, UpgradeRefusal> {
    let found = upgrade.prefer(&Routes::STOMP_SUBPROTOCOLS);
    if found.is_none() && !upgrade.offered.is_empty() {
        let text = format!("subprotocols here: {}", Routes::STOMP_SUBPROTOCOLS.join(", "));
        return Err(UpgradeRefusal::new(Status::BadRequest, text));
    }
    Ok(upgrade.offered.iter().copied().find(|offered| Some(*offered) == found))
}

/// The AMQP subprotocol to answer with. A browser fails a connection that does not get one of those it offered,
/// so any is accepted, unless it certainly means another protocol.
fn subprotocol<'u>(upgrade: &Upgrade<'u>) -> Result<Option<&'u str>, UpgradeRefusal> {
    if let Some(known) = upgrade.prefer(&AMQP_PROTOCOLS) {
        return Ok(upgrade.offered.iter().copied().find(|offered| *offered == known));
    }
    let is_other = |offered: &&str| {
        Routes::MQTT_SUBPROTOCOLS.contains(offered) || Routes::STOMP_SUBPROTOCOLS.contains(offered)
    };
    let first = upgrade.offered.iter().copied().find(|offered| !is_other(offered));
    if first.is_none() && !upgrade.offered.is_empty() {
        return Err(UpgradeRefusal::new(
            Status::BadRequest,
            "only AMQP is spoken here: subprotocol amqp091, or none",
        ));
    }
    Ok(first)
}
