//! SASL as AMQP 0-9-1 uses it: `connection.start-ok` names a mechanism and carries its response.
//!
//! PLAIN is RFC 4616; AMQPLAIN is a field table with LOGIN and PASSWORD; EXTERNAL leaves the proof to the transport (a
//! client certificate); ANONYMOUS (RFC 4505) proves nothing. None of them needs a challenge.

use std::fmt;

use crate::error::{Fault, ReplyCode};
use crate::table::{FieldTable, FieldValue, RawTable};

/// The mechanism by which a client authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named as on the wire")]
pub enum Mechanism {
    Plain,
    AmqPlain,
    External,
    Anonymous,
}

impl Mechanism {
    /// Every mechanism, in the order in which RabbitMQ lists them.
    pub const ALL: [Self; 4] = [Self::Plain, Self::AmqPlain, Self::External, Self::Anonymous];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::AmqPlain => "AMQPLAIN",
            Self::External => "EXTERNAL",
            Self::Anonymous => "ANONYMOUS",
        }
    }

    /// The mechanism with this name; names are compared exactly, as RabbitMQ does.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }

    /// RabbitMQ's text for a refused login, without `ACCESS_REFUSED - ` in front. It deliberately gives no reason.
    pub fn refusal_text(self) -> String {
        format!(
            "Login was refused using authentication mechanism {}. For details see the broker logfile.",
            self.name()
        )
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bytes that must not reach a log: a password or a token. Not `Clone`, not printed, overwritten when dropped.
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes over `bytes` and overwrites them when it is dropped.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes themselves, for code that checks or forwards them.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

/// Takes the same time wherever the first difference is; only a difference in length is observable.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        let difference = self.0.iter().zip(&other.0).fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(difference) == 0 && self.0.len() == other.0.len()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from removing a write that is never read.
        std::hint::black_box(&self.0);
    }
}

/// Credentials that a client presents. Share them in an `Arc` where several parties need them.
#[derive(Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The mechanism that presents them.
    pub mechanism: Mechanism,
    /// The authentication identity; empty for EXTERNAL and ANONYMOUS.
    pub username: String,
    /// The identity to act as (SASL authzid), if the client named one.
    pub authorize_as: Option<String>,
    /// The password or token; empty for EXTERNAL and ANONYMOUS.
    pub secret: Secret,
}

impl Credentials {
    /// A copy with a secret of its own, which is overwritten separately.
    pub fn copy(&self) -> Self {
        self.with_secret(self.secret.expose())
    }

    /// The same identity with another secret.
    pub fn with_secret(&self, secret: impl Into<Vec<u8>>) -> Self {
        let Self { mechanism, username, authorize_as, .. } = self;
        Self {
            mechanism: *mechanism,
            username: username.clone(),
            authorize_as: authorize_as.clone(),
            secret: Secret::new(secret),
        }
    }

    /// User name and password, by PLAIN.
    pub fn plain(username: impl Into<String>, password: impl Into<Vec<u8>>) -> Self {
        Self::with_password(Mechanism::Plain, username.into(), password.into())
    }

    /// User name and password, by AMQPLAIN.
    pub(crate) fn amqplain(username: impl Into<String>, password: impl Into<Vec<u8>>) -> Self {
        Self::with_password(Mechanism::AmqPlain, username.into(), password.into())
    }

    /// The identity proven by the transport, optionally to act as another one.
    pub fn external(authorize_as: Option<String>) -> Self {
        Self { authorize_as, ..Self::with_password(Mechanism::External, String::new(), Vec::new()) }
    }

    /// ANONYMOUS: no proof of identity.
    pub(crate) fn anonymous() -> Self {
        Self::with_password(Mechanism::Anonymous, String::new(), Vec::new())
    }

    fn with_password(mechanism: Mechanism, username: String, password: Vec<u8>) -> Self {
        Self { mechanism, username, authorize_as: None, secret: Secret(password) }
    }

    /// Reads the response of a `connection.start-ok`.
    ///
    /// # Errors
    /// The response is malformed. The error never contains a part of it.
    pub fn parse(mechanism: Mechanism, response: &[u8]) -> Result<Self, SaslError> {
        match mechanism {
            Mechanism::Plain => parse_plain(response),
            Mechanism::AmqPlain => parse_amqplain(response),
            Mechanism::External => {
                let identity = utf8(mechanism, response)?;
                Ok(Self::external((!identity.is_empty()).then_some(identity)))
            }
            // The response is trace information for people (RFC 4505), and of no use to a broker.
            Mechanism::Anonymous => Ok(Self::anonymous()),
        }
    }

    /// Builds the response of a `connection.start-ok`.
    pub fn response(&self) -> Secret {
        let authorize_as = self.authorize_as.as_deref().unwrap_or_default().as_bytes();
        Secret(match self.mechanism {
            Mechanism::Plain => [authorize_as, self.username.as_bytes(), self.secret.expose()].join(&0),
            Mechanism::AmqPlain => {
                let mut table = FieldTable::new();
                table.insert(LOGIN, FieldValue::text(&*self.username));
                table.insert(PASSWORD, FieldValue::LongString(self.secret.expose().to_vec()));
                table.encode()
            }
            Mechanism::External => authorize_as.to_vec(),
            Mechanism::Anonymous => Vec::new(),
        })
    }
}

/// A response that does not follow its mechanism. RabbitMQ treats it as a 502 SYNTAX_ERROR, unlike a wrong password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaslError {
    /// The parts of the response are not separated as the mechanism requires.
    Malformed(Mechanism),
    /// A user name or identity is not UTF-8.
    NotUtf8(Mechanism),
    /// AMQPLAIN without LOGIN or PASSWORD.
    MissingField,
    /// AMQPLAIN whose LOGIN or PASSWORD is not a string.
    WrongFieldType,
}

impl fmt::Display for SaslError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(mechanism) => write!(f, "{mechanism} response invalid"),
            Self::NotUtf8(mechanism) => write!(f, "{mechanism} response is not UTF-8"),
            Self::MissingField => f.write_str("AMQPLAIN auth info is missing LOGIN or PASSWORD field"),
            Self::WrongFieldType => {
                f.write_str("AMQPLAIN auth info uses unsupported type for LOGIN or PASSWORD field")
            }
        }
    }
}

impl std::error::Error for SaslError {}

impl From<SaslError> for Fault {
    fn from(error: SaslError) -> Self {
        Self::new(ReplyCode::SyntaxError, error.to_string())
    }
}

/// `authzid NUL authcid NUL passwd`, no NUL in any of the three (RFC 4616, section 2).
fn parse_plain(response: &[u8]) -> Result<Credentials, SaslError> {
    let mut parts = response.split(|&byte| byte == 0);
    let (Some(authorize_as), Some(username), Some(password), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(SaslError::Malformed(Mechanism::Plain));
    };
    let authorize_as = utf8(Mechanism::Plain, authorize_as)?;
    let mut credentials = Credentials::plain(utf8(Mechanism::Plain, username)?, password);
    credentials.authorize_as = (!authorize_as.is_empty()).then_some(authorize_as);
    Ok(credentials)
}

/// Parses a field table without its length.
fn parse_amqplain(response: &[u8]) -> Result<Credentials, SaslError> {
    let table = RawTable::check(response).map_err(|_| SaslError::Malformed(Mechanism::AmqPlain))?;
    let mut table = table.decode();
    // The password first, so that it is in a `Secret` before anything else can fail.
    let password = table.remove(PASSWORD).map(take_string).ok_or(SaslError::MissingField)?;
    let password = Secret(password?);
    let username = table.remove(LOGIN).map(take_string).ok_or(SaslError::MissingField)??;
    let mut credentials = Credentials::amqplain(utf8(Mechanism::AmqPlain, &username)?, Vec::new());
    credentials.secret = password;
    Ok(credentials)
}

fn take_string(value: FieldValue) -> Result<Vec<u8>, SaslError> {
    match value {
        FieldValue::LongString(bytes) | FieldValue::ByteArray(bytes) => Ok(bytes),
        _ => Err(SaslError::WrongFieldType),
    }
}

fn utf8(mechanism: Mechanism, bytes: &[u8]) -> Result<String, SaslError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| SaslError::NotUtf8(mechanism))
}

const LOGIN: &str = "LOGIN";
const PASSWORD: &str = "PASSWORD";

#[cfg(test)]
mod tests {
    use super::*;

    fn survives(credentials: &Credentials) {
        let response = credentials.response();
        assert_eq!(Credentials::parse(credentials.mechanism, response.expose()).as_ref(), Ok(credentials));
    }

    #[test]
    fn every_mechanism_survives_a_round_trip() {
        survives(&Credentials::plain("guest", "gu€st"));
        survives(&Credentials { authorize_as: Some("boss".into()), ..Credentials::plain("u", "p") });
        survives(&Credentials::amqplain("guest", vec![0, 0xff]));
        survives(&Credentials::external(None));
        survives(&Credentials::external(Some("CN=client".into())));
        survives(&Credentials::anonymous());
    }

    #[test]
    fn plain_has_the_layout_of_rfc_4616() {
        assert_eq!(Credentials::plain("guest", "guest").response().expose(), b"\0guest\0guest");
    }

    #[test]
    fn external_is_the_identity_to_act_as_and_nothing_else() {
        assert_eq!(Credentials::external(Some("CN=client".into())).response().expose(), b"CN=client");
        assert_eq!(Credentials::external(None).response().expose(), b"");
    }

    #[test]
    fn plain_wants_exactly_three_parts() {
        for response in [&b""[..], b"guest", b"\0guest", b"\0guest\0guest\0"] {
            assert_eq!(
                Credentials::parse(Mechanism::Plain, response),
                Err(SaslError::Malformed(Mechanism::Plain)),
                "{response:?}"
            );
        }
        assert_eq!(
            Credentials::parse(Mechanism::Plain, b"\0\xff\0p"),
            Err(SaslError::NotUtf8(Mechanism::Plain))
        );
        assert_eq!(Credentials::parse(Mechanism::Plain, b"\0\0"), Ok(Credentials::plain("", "")));
    }

    #[test]
    fn malformed_amqplain_responses_are_refused_with_the_reason() {
        let parse = |bytes: &[u8]| Credentials::parse(Mechanism::AmqPlain, bytes);
        assert_eq!(parse(b"\x05LOGIN"), Err(SaslError::Malformed(Mechanism::AmqPlain)));
        assert_eq!(parse(b"\x05LOGINS\0\0\0\x01u"), Err(SaslError::MissingField));
        assert_eq!(parse(b"\x05LOGINV\x08PASSWORDV"), Err(SaslError::WrongFieldType));
        assert_eq!(
            parse(b"\x05LOGINS\0\0\0\x01\xff\x08PASSWORDS\0\0\0\0"),
            Err(SaslError::NotUtf8(Mechanism::AmqPlain))
        );
    }

    #[test]
    fn neither_debug_nor_errors_show_the_secret() {
        let view = format!("{:?}", Credentials::plain("guest", "hunter2"));
        assert!(view.contains("guest") && !view.contains("hunter2"), "{view}");
        let fault = Fault::from(Credentials::parse(Mechanism::Plain, b"hunter2").unwrap_err());
        assert_eq!(fault.to_string(), "502 SYNTAX_ERROR - PLAIN response invalid");
    }

    #[test]
    fn secrets_are_equal_by_content() {
        assert_eq!(Secret::new("a"), Secret::new("a"));
        assert_ne!(Secret::new("a"), Secret::new("b"));
        assert_ne!(Secret::new("a"), Secret::new("ab"));
    }
}
