//! The state of a client's session that is passed to another process, along with the client's socket.
//!
//! The names of the fields are a format between two processes, of which one may be a later release: a change of them, or of
//! the types in them, is a new [`FORMAT`].

use amqp::Credentials;
use amqp::sasl::Mechanism;
use serde::{Deserialize, Serialize};

use super::channel::Channel;
use super::side::{Side, SideState, without_settling};
use super::validate::PrefetchLimits;
use crate::encoded;

/// The format of [`SessionState`]. A process accepts only its own format.
pub const FORMAT: u32 = 1;

/// The state of a session that has no upstream channels any more.
///
/// It contains the client's password or token, and must not be exposed.
#[derive(Serialize, Deserialize)]
pub struct SessionState {
    login: LoginState,
    /// Whether the client may have made a broker close a shared connection.
    pub(super) is_suspect: bool,
    /// Whether its declarations may be lost at the broker.
    pub(super) is_torn: bool,
    pub(super) channels: Vec<ChannelState>,
    /// The encoded methods of declarations that a restart of the broker would undo.
    pub(super) declarations: Vec<EncodedMethod>,
}

#[derive(Serialize, Deserialize)]
struct LoginState {
    mechanism: String,
    username: String,
    authorize_as: Option<String>,
    #[serde(with = "encoded")]
    secret: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ChannelState {
    pub(super) number: u16,
    /// `None` if the broker has closed it, and the client has not confirmed that yet.
    pub(super) open: Option<OpenState>,
}

/// An open channel.
#[derive(Serialize, Deserialize)]
pub(super) struct OpenState {
    general: SideState,
    publishing: Option<SideState>,
    #[serde(with = "encoded")]
    in_line: Vec<u8>,
    /// The frames of an incomplete message.
    #[serde(with = "encoded")]
    incomplete: Vec<u8>,
    risked: bool,
    limit_of_each: Option<u16>,
    limit_of_all: Option<u16>,
    has_declared: bool,
}

/// The payload of a method frame.
#[derive(Serialize, Deserialize)]
pub(super) struct EncodedMethod(#[serde(with = "encoded")] pub(super) Vec<u8>);

impl Drop for LoginState {
    fn drop(&mut self) {
        self.secret.fill(0);
        // Keeps the compiler from removing a write that is never read.
        std::hint::black_box(&self.secret);
    }
}

impl std::fmt::Debug for SessionState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (user, channels) = (&self.login.username, self.channels.len());
        f.debug_struct("SessionState")
            .field("user", user)
            .field("channels", &channels)
            .finish_non_exhaustive()
    }
}

impl SessionState {
    pub(super) fn new(
        credentials: &Credentials,
        (is_suspect, is_torn): (bool, bool),
        channels: Vec<ChannelState>,
        declarations: Vec<Vec<u8>>,
    ) -> Self {
        let Credentials { mechanism, username, authorize_as, secret } = credentials;
        let login = LoginState {
            mechanism: mechanism.name().to_owned(),
            username: username.clone(),
            authorize_as: authorize_as.clone(),
            secret: secret.expose().to_vec(),
        };
        let declarations = declarations.into_iter().map(EncodedMethod).collect();
        Self { login, is_suspect, is_torn, channels, declarations }
    }

    /// The client's credentials; `None` if this version does not know the mechanism.
    pub fn credentials(&self) -> Option<Credentials> {
        let LoginState { mechanism, username, authorize_as, secret } = &self.login;
        let plain = Credentials::plain(username.clone(), secret.clone());
        let (mechanism, authorize_as) = (Mechanism::from_name(mechanism)?, authorize_as.clone());
        Some(Credentials { mechanism, authorize_as, ..plain })
    }
}

impl ChannelState {
    /// The state of a channel without upstream channels.
    pub(super) fn of(number: u16, channel: Channel) -> Self {
        let incomplete = channel.incoming().map(|message| message.buffered().to_vec()).unwrap_or_default();
        let Channel { general, publishing, mut in_line, risked, limits, has_declared, .. } = channel;
        if general.has_delivered() {
            // Acknowledgements refer to deliveries of the upstream channel that was left.
            in_line = without_settling(&in_line);
        }
        let open = OpenState {
            general: general.into_state(),
            publishing: publishing.map(|side| side.into_state()),
            in_line,
            incomplete,
            risked,
            limit_of_each: limits.each,
            limit_of_all: limits.all,
            has_declared,
        };
        Self { number, open: Some(open) }
    }
}

impl OpenState {
    /// Restores the channel. Also returns the frames of its incomplete message, which the caller feeds to the session.
    pub(super) fn into_channel(self) -> (Channel, Vec<u8>) {
        let channel = Channel {
            general: Side::from_state(self.general),
            publishing: self.publishing.map(|side| Box::new(Side::from_state(side))),
            in_line: self.in_line,
            risked: self.risked,
            limits: PrefetchLimits { each: self.limit_of_each, all: self.limit_of_all },
            has_declared: self.has_declared,
            ..Channel::default()
        };
        (channel, self.incomplete)
    }
}
