//! CONNECT: who the client is, where it goes, and how long its session lasts.

use std::sync::Arc;
use std::time::Instant;

use broker::{BrokerError, LoginRefused, Seat, VirtualHost};
use mqtt::ReasonCode;
use mqtt::packet::{Connect, Will};
use mqtt::server::split_user_name;
use transport::Peer;

use super::MqttConfig;
use super::hub::{Hub, Owner, QUEUE_PREFIX, queue_name};
use super::message::{Incoming, MAX_SHORT, Untold, routing_key, to_amqp};

/// Longest client identifier: with what stands around it, it is the name of a queue.
const MAX_CLIENT_ID: usize = MAX_SHORT - QUEUE_PREFIX.len() - "qos0".len();

/// What a CONNECT says, and what comes of it.
pub(super) struct Login {
    user: Option<Box<str>>,
    password: Option<Box<[u8]>>,
    client_id: Box<str>,
    /// The name is the server's.
    is_assigned: bool,
    expiry: u32,
    pub(super) is_bridge: bool,
    seat: Option<Seat>,
    vhost: Box<str>,
}

/// Why a client is not let in.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) reason: ReasonCode,
    /// For the log.
    pub(super) why: String,
    /// For the client, who does not learn everything.
    pub(super) told: &'static str,
}

impl Refused {
    pub(super) fn new(reason: ReasonCode, why: String) -> Self {
        Self { reason, why, told: "" }
    }
}

impl Login {
    /// Reads a CONNECT.
    ///
    /// # Errors
    /// A name that no queue can have.
    pub(super) fn of(connect: &Connect<'_>) -> Result<Self, Refused> {
        let is_assigned = connect.client_id.is_empty();
        let client_id =
            if is_assigned { broker::generated_name("leveret-") } else { connect.client_id.to_owned() };
        if client_id.len() > MAX_CLIENT_ID || client_id.contains(char::is_control) {
            let why = "client identifier that is too long for a queue's name, or has control characters";
            return Err(Refused {
                reason: ReasonCode::ClientIdentifierNotValid,
                why: why.to_owned(),
                told: "at most 232 bytes, no control characters",
            });
        }
        if let Some(Err(Untold { reason, text })) = connect.will.as_ref().map(check_will) {
            // Later there is nobody who could be told.
            return Err(Refused { reason, why: format!("will: {text}"), told: text });
        }
        let expiry = match (connect.version.is_5(), connect.clean_start) {
            (true, _) => connect.properties.session_expiry_interval().unwrap_or(0),
            (false, clean) => {
                if clean {
                    0
                } else {
                    u32::MAX
                }
            }
        };
        Ok(Self {
            user: connect.user_name.map(Into::into),
            password: connect.password.map(Into::into),
            client_id: client_id.into(),
            is_assigned,
            expiry,
            is_bridge: connect.is_bridge,
            seat: None,
            vhost: Box::default(),
        })
    }

    /// Authenticates, and opens the virtual host.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn judge(mut self, hub: &Hub, peer: Peer, external: Option<&str>) -> Result<Self, Refused> {
        let config = &hub.config;
        let broker = hub.broker();
        let (vhost, name) = match &self.user {
            Some(user) => split_user_name(user),
            None => (None, ""),
        };
        let vhost = vhost.unwrap_or(&config.vhost).to_owned();
        let loopback = peer.is_loopback();
        let judged = match (&self.user, &self.password) {
            (Some(_), Some(password)) => {
                broker.authenticate_from(name, password, peer.ip(), loopback, Instant::now())
            }
            (Some(_), None) => return Err(bad_credentials("user without a password")),
            // The client says nothing: its certificate does, or the operator.
            (None, None) => match external.or(config.anonymous_user.as_deref()) {
                Some(user) => broker.authenticate_external(user, loopback),
                None => {
                    let why = "no user name, and anonymous clients are not let in (mqtt_anonymous_user)";
                    return Err(bad_credentials(why));
                }
            },
            (None, Some(_)) => return Err(bad_credentials("password without a user")),
        };
        let identity = judged.map_err(|why| match why {
            LoginRefused::LoopbackOnly => Refused::new(ReasonCode::NotAuthorized, format!("{name}: {why}")),
            why => bad_credentials(&format!("{name}: {why}")),
        })?;
        // Topic permissions may speak of the client.
        let identity = identity.as_client(&self.client_id);
        let seat = broker.seat(&identity, &vhost);
        let seat = seat.map_err(|error| match error {
            // As RabbitMQ has it: the name in front of the user's is wrong.
            BrokerError::NoVirtualHost(_) => bad_credentials(&error.to_string()),
            error => Refused::new(ReasonCode::NotAuthorized, error.to_string()),
        })?;
        (self.user, self.vhost) = (Some(identity.user().into()), vhost.into());
        self.password = None;
        self.seat = Some(seat);
        Ok(self)
    }

    /// The user, once that is known.
    pub(super) fn user(&self) -> &str {
        self.user.as_deref().unwrap_or_default()
    }

    /// Whose session it is.
    pub(super) fn owner(&self) -> Owner {
        Owner { vhost: (*self.vhost).into(), client_id: self.client_id.clone() }
    }

    /// The virtual host, once the client may come in.
    pub(super) fn vhost(&self) -> Option<&Arc<VirtualHost>> {
        self.seat.as_ref().map(Seat::vhost)
    }

    /// Whether the user may have a session of this client that an earlier version wrote, which noted no user: whoever may
    /// delete its queue and read from it.
    pub(super) fn may_adopt(&self) -> bool {
        let queue = queue_name(&self.client_id, 1);
        self.seat.as_ref().is_some_and(|seat| {
            seat.check_delete_queue(&queue).is_ok() && seat.check_read_queue(&queue).is_ok()
        })
    }

    pub(super) fn take_seat(&mut self) -> Option<Seat> {
        self.seat.take()
    }

    /// The name that the server has given to the client.
    pub(super) fn assigned(&self) -> Option<&str> {
        self.is_assigned.then_some(&*self.client_id)
    }

    /// Seconds that the session outlives the connection.
    pub(super) fn session_expiry(&self, config: &MqttConfig) -> u32 {
        self.expiry.min(config.settings.session_expiry_maximum)
    }
}

/// User and virtual host of a login that was accepted.
pub(super) fn names(judged: &Result<Login, Refused>) -> Option<(&str, &str)> {
    judged.as_ref().ok().map(|login| (login.user(), &*login.vhost))
}

/// Whether a will can be published.
fn check_will(will: &Will<'_>) -> Result<(), Untold> {
    let Will { qos, retain, properties, .. } = *will;
    routing_key(will.topic)?;
    to_amqp(&Incoming { qos, dup: false, retain, properties, client_id: None }).map(drop)
}

fn bad_credentials(why: &str) -> Refused {
    Refused::new(ReasonCode::BadUserNameOrPassword, why.to_owned())
}
