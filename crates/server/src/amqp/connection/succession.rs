//! The handover of a client's connection to another process: its export here, and its resumption there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::channel::ConnectionLife;
use amqp::frame::write_method;
use amqp::handshake::OpenRequest;
use amqp::heartbeat::Heartbeat;
use amqp::method::connection;
use amqp::{Capabilities, Credentials, Fault, FieldTable, Negotiated, RawTable, ReplyCode};
use proxy::{Export, SessionState, encoded};
use serde::{Deserialize, Serialize};
use transport::{Intent, Peer, Transit};

use super::{AmqpConnection, AmqpPhase, Answer};
use crate::backend::LoginRequest;
use crate::client::{ConnectionCore, Ending, ProtocolState as _};
use crate::registry::{NewConnection, OpenConnection};

/// The longest time for the export of a client's connection: longer than the broker usually takes to confirm messages and
/// to close a channel. Afterwards the connection is closed, as in any other drain.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(6);

/// An open connection of a client that has nothing left at the upstream.
///
/// The field names are a format between two processes: see [`proxy::FORMAT`].
#[derive(Serialize, Deserialize)]
pub(crate) struct ConnectionState {
    /// The client's address, from the PROXY header if there was one; `None` for a Unix socket.
    pub(crate) peer: Option<SocketAddr>,
    /// The server's address; `None` for a Unix socket.
    pub(crate) local: Option<SocketAddr>,
    vhost: String,
    channel_max: u16,
    frame_max: u32,
    heartbeat_secs: u16,
    #[serde(with = "encoded")]
    client_properties: Vec<u8>,
    /// Milliseconds since 1970.
    connected_at: u64,
    session: SessionState,
    /// Bytes that were read and not processed.
    #[serde(with = "encoded")]
    pub(crate) input: Vec<u8>,
    /// Bytes that have not been written.
    #[serde(with = "encoded")]
    pub(crate) output: Vec<u8>,
}

impl ConnectionState {
    /// Adds the socket's unprocessed input and unwritten output.
    pub(crate) fn with_transit(self, Transit { input, output }: Transit) -> Self {
        Self { input, output, ..self }
    }

    /// The client's credentials; `None` if this version does not know the mechanism.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        self.session.credentials()
    }

    pub(crate) fn peer(&self) -> Peer {
        self.peer.map_or(Peer::Unix, Peer::Ip)
    }

    fn negotiated(&self) -> Negotiated {
        let Self { channel_max, frame_max, heartbeat_secs, .. } = *self;
        Negotiated { channel_max, frame_max, heartbeat_secs }
    }

    fn open_request(&self) -> OpenRequest {
        let table = RawTable::check(&self.client_properties).map(|table| table.decode());
        let client_properties: FieldTable = table.unwrap_or_default();
        OpenRequest {
            virtual_host: self.vhost.clone(),
            negotiated: self.negotiated(),
            capabilities: Capabilities::from_properties(&client_properties),
            client_properties,
        }
    }
}

impl AmqpConnection {
    /// During a handover: takes the next step of exporting an open connection. Returns false if it has to be closed
    /// instead.
    pub(super) fn leaves_for_successor(&mut self, now: Instant) -> bool {
        if !self.is_open() || !self.core.may_be_handed_over() {
            return false;
        }
        let limit = self.core.shared.leave_timeout(LEAVE_TIMEOUT);
        let deadline = self.core.settle_deadline(now, limit);
        self.note_upstreams();
        let AmqpPhase::Open(session) = &mut self.phase else { return false };
        match session.export(now) {
            Export::Impossible(why) => {
                tracing::debug!(connection = self.core.id, why, "client not handed over");
                self.core.depends_on_upstream = true;
                self.core.deadline = None;
                return false;
            }
            Export::Later => {}
            Export::Leaving => self.intent = Intent::Pause,
            Export::Done(state) => {
                self.export(*state);
                return true;
            }
        }
        deadline > now
    }

    fn export(&mut self, session: SessionState) {
        let Some(view) = self.core.view().cloned() else { return self.finish() };
        let Negotiated { channel_max, frame_max, heartbeat_secs } = view.negotiated();
        let peer = match view.peer() {
            Peer::Ip(address) => Some(address),
            Peer::Unix => None,
        };
        self.core.departing = Some(Box::new(ConnectionState {
            peer,
            local: view.local(),
            vhost: view.vhost().to_owned(),
            channel_max,
            frame_max,
            heartbeat_secs,
            client_properties: view.client_properties().encode(),
            connected_at: view.connected_at(),
            session,
            input: Vec::new(),
            output: Vec::new(),
        }));
        self.core.ends(Ending::Shutdown, || "handed over to another process".to_owned());
        self.finish();
        self.intent = Intent::HandOver;
    }

    /// Resumes a connection that was open in another process. It is not read until the upstream has its session.
    pub(crate) fn resume(
        mut core: ConnectionCore,
        credentials: Credentials,
        state: ConnectionState,
        now: Instant,
    ) -> Self {
        let request = state.open_request();
        core.logs_in(&credentials.username);
        core.lease.resume(&credentials.username);
        core.enters(&request.virtual_host);
        // The pool's own timeout for outages applies.
        core.deadline = None;
        let view = OpenConnection::new(NewConnection {
            id: core.id,
            arrival: core.arrival,
            protocol: PROTOCOL,
            user: &credentials.username,
            vhost: &request.virtual_host,
            mechanism: credentials.mechanism.name(),
            connected_at: state.connected_at,
            negotiated: request.negotiated,
            client_properties: &request.client_properties,
            session: None,
            outbox: &core.outbox,
        });
        let (shared, outbox) = (Arc::clone(&core.shared), Arc::clone(&core.outbox));
        let client = LoginRequest { id: core.id, peer: core.peer };
        let negotiated = request.negotiated;
        let mut connection = Self {
            core,
            phase: AmqpPhase::Resuming(view),
            ending: None,
            unsent_close: None,
            life: ConnectionLife::default(),
            channels: 0,
            intent: Intent::Pause,
            heartbeat: Heartbeat::new(negotiated.heartbeat_secs, now),
            frame_max: negotiated.frame_max,
            asking: None,
        };
        connection.ask(async move {
            let session = (credentials, state.session);
            Answer::Open(shared.backend.resume_upstream(session, client, &request, outbox).await)
        });
        connection
    }

    /// Handles the upstream's answer: it has the session, or refuses it.
    pub(super) fn resumed(&mut self, answer: Answer, now: Instant) {
        let AmqpPhase::Resuming(view) = &self.phase else { return };
        let view = Arc::clone(view);
        self.intent = Intent::Run;
        match answer {
            Answer::Open(Ok(session)) => {
                self.core.lease.resume_channels(session.channel_count());
                self.phase = AmqpPhase::Open(session);
                self.core.opened(view);
                self.count_channels();
            }
            Answer::Open(Err(fault)) => self.fail(fault, now),
            Answer::Available(_) | Answer::Login(_) => {}
        }
    }
}

/// The frame that closes a connection with 320 CONNECTION_FORCED, and this text.
pub(crate) fn closing(text: &str) -> Vec<u8> {
    let fault = Fault::new(ReplyCode::ConnectionForced, text.to_owned());
    let (mut out, reply_text) = (Vec::new(), fault.reply_text());
    let close = connection::Close {
        reply_code: fault.code.code(),
        reply_text: &reply_text,
        class_id: 0,
        method_id: 0,
    };
    write_method(&mut out, 0, close);
    out
}

/// The protocol, as RabbitMQ names it.
pub(super) const PROTOCOL: &str = "AMQP 0-9-1";

#[cfg(test)]
mod tests {
    use super::*;

    /// The format that other processes write. If this changes, [`proxy::FORMAT`] has to change as well.
    const WRITTEN: &str = concat!(
        r#"{"peer":"192.0.2.7:40000","local":"192.0.2.1:5672","vhost":"orders","channel_max":2047,"frame_max":131072,"#,
        r#""heartbeat_secs":60,"client_properties":"AAAAAA==","connected_at":1700000000000,"session":{"login":"#,
        r#"{"mechanism":"PLAIN","username":"ada","authorize_as":null,"secret":"c2VjcmV0"},"is_suspect":false,"#,
        r#""is_torn":false,"channels":[{"number":1,"open":{"general":{"own":true,"held":"","touched":true,"#,
        r#""confirm":false,"prefetch":{"each":10,"all":0,"latest":10},"numbers":{"offset":0,"gaps":[]},"consumers":"#,
        r#"[{"tag":"c","method":"ADwAFA==","position":{"At":7},"prefetch":{"each":10,"all":0,"latest":10},"#,
        r#""is_reply_to":false}],"delivered":42,"last_queue":"q"},"publishing":{"own":null,"held":"","touched":false,"#,
        r#""confirm":true,"prefetch":{"each":0,"all":0,"latest":0},"numbers":{"offset":5,"gaps":[7]},"consumers":[],"#,
        r#""delivered":0,"last_queue":null},"in_line":"","incomplete":"","risked":false,"limit_of_each":10,"#,
        r#""limit_of_all":null,"has_declared":true}},{"number":2,"open":null}],"declarations":["ADI="]},"input":"AQ==","#,
        r#""output":""}"#
    );

    #[test]
    fn the_format_is_the_one_that_other_processes_write() {
        let state: ConnectionState = serde_json::from_str(WRITTEN).unwrap();
        assert_eq!(serde_json::to_string(&state).unwrap(), WRITTEN);
        assert_eq!(state.credentials().unwrap().username, "ada");
        assert_eq!((state.negotiated().heartbeat_secs, state.input), (60, vec![1]));
    }
}
