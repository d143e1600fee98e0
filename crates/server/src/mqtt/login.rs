//! CONNECT: the client's identity, its virtual host, and its session's lifetime.

use amqp::Fault;
use broker::Timestamp;
use mqtt::packet::{ConnectPacket, Will};
use mqtt::server::split_user_name;
use mqtt::{MqttVersion, ReasonCode};

use super::MqttConfig;
use super::hub::QUEUE_PREFIX;
use super::message::{ConversionError, Incoming, MAX_SHORT, MessageMapping, check_length, to_amqp};
use super::session_ownership::Owner;
use crate::client::{ConnectionCore, Ending};

/// Bytes of the longest client identifier: with prefix and suffix it becomes the name of a queue.
const MAX_CLIENT_ID: usize = MAX_SHORT - QUEUE_PREFIX.len() - "qos0".len();

/// A CONNECT.
pub(super) struct MqttLogin {
    user: Option<Box<str>>,
    password: Option<Box<[u8]>>,
    client_id: Box<str>,
    /// The server has assigned the client identifier.
    is_assigned: bool,
    expiry: u32,
    pub(super) is_bridge: bool,
    /// Whether its will is to be retained.
    pub(super) retains_will: bool,
    /// The routing key of its will, if it has one.
    pub(super) will_key: Option<Box<str>>,
}

/// How a client authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoginAs<'a> {
    Password {
        user: &'a str,
        password: &'a [u8],
    },
    /// Without a password: the user of a verified certificate, or `mqtt_anonymous_user`.
    Identity(&'a str),
}

impl<'a> LoginAs<'a> {
    pub(super) fn user(self) -> &'a str {
        let (Self::Password { user, .. } | Self::Identity(user)) = self;
        user
    }
}

/// Why a client is refused.
#[derive(Debug)]
pub(super) struct MqttRefused {
    pub(super) reason: ReasonCode,
    /// For the log.
    pub(super) why: String,
    /// For the client, without details that it must not learn.
    pub(super) reported: &'static str,
    /// The fault by which the virtual host is refused to a client whose login is accepted.
    vhost_fault: Option<Fault>,
}

impl MqttRefused {
    pub(super) fn new(reason: ReasonCode, why: String) -> Self {
        Self { reason, why, reported: "", vhost_fault: None }
    }

    /// The virtual host is refused.
    pub(super) fn vhost(reason: ReasonCode, fault: Fault) -> Self {
        Self { vhost_fault: Some(fault.clone()), ..Self::new(reason, fault.text.into_owned()) }
    }

    /// Counts and logs the refusal of a user's login, and records it as the end of the connection.
    pub(super) fn record(&self, user: &str, core: &mut ConnectionCore) {
        match &self.vhost_fault {
            Some(fault) => core.vhost_refused(user, fault),
            None => core.login_refused(user, &self.why),
        }
    }

    /// The session belongs to another user. MQTT 3 clients get the return code that RabbitMQ sends if the user may not
    /// have the session's queue (3).
    pub(super) fn foreign(version: MqttVersion, why: String) -> Self {
        let reason = match version {
            MqttVersion::V5 => ReasonCode::NotAuthorized,
            MqttVersion::V31 | MqttVersion::V311 => ReasonCode::ServerUnavailable,
        };
        Self { reported: "client identifier in use by another user", ..Self::new(reason, why) }
    }
}

/// Sets the connection's user, and counts it against the user's limits.
///
/// # Errors
/// A limit is reached.
pub(super) fn enter(core: &mut ConnectionCore, user: &str, vhost: &str) -> Result<(), MqttRefused> {
    core.logs_in(user);
    core.enters(vhost);
    core.lease.log_in(user).map_err(|limit| {
        core.ends(Ending::Limit, || limit.to_string());
        MqttRefused::new(ReasonCode::QuotaExceeded, limit.to_string())
    })
}

impl MqttLogin {
    /// Reads a CONNECT.
    ///
    /// # Errors
    /// Fails for a client identifier that cannot be part of a queue's name.
    pub(super) fn of(
        connect: &ConnectPacket<'_>,
        mapping: MessageMapping,
        most_properties: usize,
    ) -> Result<Self, MqttRefused> {
        let is_assigned = connect.client_id.is_empty();
        let client_id =
            if is_assigned { broker::generated_name("leveret-") } else { connect.client_id.to_owned() };
        if client_id.len() > MAX_CLIENT_ID || client_id.contains(char::is_control) {
            let why = "client identifier that is too long for a queue's name, or has control characters";
            return Err(MqttRefused {
                reported: "at most 232 bytes, no control characters",
                ..MqttRefused::new(ReasonCode::ClientIdentifierNotValid, why.to_owned())
            });
        }
        if let Some(Err(ConversionError { reason, text })) =
            connect.will.as_ref().map(|will| check_will(will, mapping, most_properties))
        {
            // An error could not be reported to the client once the will is published.
            return Err(MqttRefused { reported: text, ..MqttRefused::new(reason, format!("will: {text}")) });
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
            will_key: connect
                .will
                .as_ref()
                .and_then(|will| Some(mapping.routing_key(will.topic).ok()?.into())),
            retains_will: connect.will.as_ref().is_some_and(|will| will.retain),
        })
    }

    /// The virtual host, and how the client authenticates. `external` is the user of its certificate, `port` the server's
    /// port.
    ///
    /// # Errors
    /// The client has no complete credentials.
    pub(super) fn credentials<'a>(
        &'a self,
        config: &'a MqttConfig,
        external: Option<&'a str>,
        port: Option<u16>,
    ) -> Result<(&'a str, LoginAs<'a>), MqttRefused> {
        let (vhost, name) = match &self.user {
            Some(user) => split_user_name(user),
            None => (None, ""),
        };
        let login_as = match (&self.user, &self.password) {
            (Some(_), Some(password)) => LoginAs::Password { user: name, password },
            (Some(_), None) => return Err(bad_credentials("user without a password")),
            // A client without credentials is identified by its certificate or by the operator's setting.
            (None, None) => match external.or(config.anonymous_user.as_deref()) {
                Some(user) => LoginAs::Identity(user),
                None => {
                    let why = "no user name, and anonymous access is disabled (mqtt_anonymous_user)";
                    return Err(bad_credentials(why));
                }
            },
            (None, Some(_)) => return Err(bad_credentials("password without a user")),
        };
        Ok((config.vhosts.of(external, port, vhost), login_as))
    }

    /// The user name as the client sent it, for the log.
    pub(super) fn claimed_user(&self) -> &str {
        self.user.as_deref().unwrap_or_default()
    }

    pub(super) fn client_id(&self) -> &str {
        &self.client_id
    }

    /// The identity of the session.
    pub(super) fn owner(&self, vhost: &str) -> Owner {
        Owner { vhost: vhost.into(), client_id: self.client_id.clone() }
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
fn check_will(
    will: &Will<'_>,
    mapping: MessageMapping,
    most_properties: usize,
) -> Result<(), ConversionError> {
    let Will { qos, retain, properties, .. } = *will;
    mapping.routing_key(will.topic)?;
    let message = Incoming { qos, dup: false, retain, properties, client_id: None };
    check_length(&to_amqp(&message, mapping, Timestamp::default())?, most_properties)
}

pub(super) fn bad_credentials(why: &str) -> MqttRefused {
    MqttRefused::new(ReasonCode::BadUserNameOrPassword, why.to_owned())
}
