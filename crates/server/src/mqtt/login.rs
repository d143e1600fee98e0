//! CONNECT: the client's identity, its virtual host, and its session's lifetime.

use std::sync::Arc;
use std::time::Instant;

use broker::{AuthorisedSession, BrokerError, Compatibility, LoginRefused, Timestamp, VirtualHost};
use mqtt::ReasonCode;
use mqtt::packet::{ConnectPacket, Will};
use mqtt::server::split_user_name;
use transport::Peer;

use super::MqttConfig;
use super::hub::{Hub, Owner, QUEUE_PREFIX, queue_name};
use super::message::{Incoming, MAX_SHORT, Untold, routing_key, to_amqp};

/// Bytes of the longest client identifier: with prefix and suffix it becomes the name of a queue.
const MAX_CLIENT_ID: usize = MAX_SHORT - QUEUE_PREFIX.len() - "qos0".len();

/// A CONNECT and the outcome of its validation.
pub(super) struct MqttLogin {
    user: Option<Box<str>>,
    password: Option<Box<[u8]>>,
    client_id: Box<str>,
    /// The server has assigned the client identifier.
    is_assigned: bool,
    expiry: u32,
    pub(super) is_bridge: bool,
    authorised: Option<AuthorisedSession>,
    vhost: Box<str>,
}

/// Why a client is refused.
#[derive(Debug)]
pub(super) struct MqttRefused {
    pub(super) reason: ReasonCode,
    /// For the log.
    pub(super) why: String,
    /// For the client, which does not learn every detail.
    pub(super) reported: &'static str,
}

impl MqttRefused {
    pub(super) fn new(reason: ReasonCode, why: String) -> Self {
        Self { reason, why, reported: "" }
    }
}

impl MqttLogin {
    /// Reads a CONNECT.
    ///
    /// # Errors
    /// Fails for a client identifier that cannot be part of a queue's name.
    pub(super) fn of(connect: &ConnectPacket<'_>, compatibility: Compatibility) -> Result<Self, MqttRefused> {
        let is_assigned = connect.client_id.is_empty();
        let client_id =
            if is_assigned { broker::generated_name("leveret-") } else { connect.client_id.to_owned() };
        if client_id.len() > MAX_CLIENT_ID || client_id.contains(char::is_control) {
            let why = "client identifier that is too long for a queue's name, or has control characters";
            return Err(MqttRefused {
                reason: ReasonCode::ClientIdentifierNotValid,
                why: why.to_owned(),
                reported: "at most 232 bytes, no control characters",
            });
        }
        if let Some(Err(Untold { reason, text })) =
            connect.will.as_ref().map(|will| check_will(will, compatibility))
        {
            // It could not be reported to the client later.
            return Err(MqttRefused { reason, why: format!("will: {text}"), reported: text });
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
            authorised: None,
            vhost: Box::default(),
        })
    }

    /// Authenticates the user, and opens the virtual host.
    ///
    /// # Errors
    /// Returns why the client is refused.
    pub(super) fn validate(
        mut self,
        hub: &Hub,
        peer: Peer,
        external: Option<&str>,
    ) -> Result<Self, MqttRefused> {
        let config = &hub.config;
        let broker = hub.broker();
        let (vhost, name) = match &self.user {
            Some(user) => split_user_name(user),
            None => (None, ""),
        };
        let vhost = vhost.unwrap_or(&config.vhost).to_owned();
        let loopback = peer.is_loopback();
        let validated = match (&self.user, &self.password) {
            (Some(_), Some(password)) => {
                broker.authenticate_from(name, password, peer.ip(), loopback, Instant::now())
            }
            (Some(_), None) => return Err(bad_credentials("user without a password")),
            // A client without credentials is identified by its certificate or by the operator's setting.
            (None, None) => match external.or(config.anonymous_user.as_deref()) {
                Some(user) => broker.authenticate_external(user, loopback),
                None => {
                    let why = "no user name, and anonymous clients are not let in (mqtt_anonymous_user)";
                    return Err(bad_credentials(why));
                }
            },
            (None, Some(_)) => return Err(bad_credentials("password without a user")),
        };
        let identity = validated.map_err(|why| match why {
            LoginRefused::LoopbackOnly => {
                MqttRefused::new(ReasonCode::NotAuthorized, format!("{name}: {why}"))
            }
            why => bad_credentials(&format!("{name}: {why}")),
        })?;
        // Topic permissions may refer to the client identifier.
        let identity = identity.as_client(&self.client_id);
        let authorised = broker.authorised(&identity, &vhost);
        let authorised = authorised.map_err(|error| match error {
            // As in RabbitMQ: the virtual host in front of the user name is wrong.
            BrokerError::NoVirtualHost(_) => bad_credentials(&error.to_string()),
            error => MqttRefused::new(ReasonCode::NotAuthorized, error.to_string()),
        })?;
        (self.user, self.vhost) = (Some(identity.user().into()), vhost.into());
        self.password = None;
        self.authorised = Some(authorised);
        Ok(self)
    }

    /// The user, once known.
    pub(super) fn user(&self) -> &str {
        self.user.as_deref().unwrap_or_default()
    }

    /// The name of the virtual host, once the login was accepted.
    pub(super) fn vhost_name(&self) -> &str {
        &self.vhost
    }

    /// The identity of the session.
    pub(super) fn owner(&self) -> Owner {
        Owner { vhost: (*self.vhost).into(), client_id: self.client_id.clone() }
    }

    /// The virtual host, once the login was accepted.
    pub(super) fn vhost(&self) -> Option<&Arc<VirtualHost>> {
        self.authorised.as_ref().map(AuthorisedSession::vhost)
    }

    /// Whether the user may adopt this client's session of an earlier version, which recorded no user: requires
    /// the permissions to delete its queue and to read from it.
    pub(super) fn may_adopt(&self) -> bool {
        let queue = queue_name(&self.client_id, 1);
        self.authorised.as_ref().is_some_and(|authorised| {
            authorised.check_delete_queue(&queue).is_ok() && authorised.check_read_queue(&queue).is_ok()
        })
    }

    pub(super) fn take_authorised(&mut self) -> Option<AuthorisedSession> {
        self.authorised.take()
    }

    /// The client identifier that the server has assigned, if it did.
    pub(super) fn assigned(&self) -> Option<&str> {
        self.is_assigned.then_some(&*self.client_id)
    }

    /// Seconds that the session outlives the connection.
    pub(super) fn session_expiry(&self, config: &MqttConfig) -> u32 {
        self.expiry.min(config.settings.session_expiry_maximum)
    }
}

/// Returns an error if a will cannot be published.
fn check_will(will: &Will<'_>, compatibility: Compatibility) -> Result<(), Untold> {
    let Will { qos, retain, properties, .. } = *will;
    routing_key(will.topic)?;
    let message = Incoming { qos, dup: false, retain, properties, client_id: None };
    to_amqp(&message, compatibility, Timestamp::default()).map(drop)
}

fn bad_credentials(why: &str) -> MqttRefused {
    MqttRefused::new(ReasonCode::BadUserNameOrPassword, why.to_owned())
}
