//! Reasons for refusing a client, and conversion of a broker's close text to a fault.

use amqp::{Fault, ReplyCode};

use crate::pool::channel_limit;

/// Why a client cannot log in or open a virtual host.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The broker refuses the credentials; its text, without `ACCESS_REFUSED - ` in front.
    #[error("{0}")]
    Login(String),
    /// Any other reason: the fault that the broker sent, or 320 CONNECTION_FORCED when no broker can be asked.
    #[error(transparent)]
    Fault(Fault),
}

impl Refusal {
    /// No broker could be asked.
    pub(crate) fn unreachable(why: impl std::fmt::Display) -> Self {
        Self::Fault(Fault::new(ReplyCode::ConnectionForced, format!("upstream unreachable: {why}")))
    }

    /// The reason without the address, for messages that name the address already.
    pub(crate) fn cause(&self, address: &impl std::fmt::Display) -> String {
        match self {
            Self::Login(text) => text.clone(),
            Self::Fault(fault) => {
                let text = fault.text.strip_prefix("upstream unreachable: ").unwrap_or(&fault.text);
                text.strip_prefix(&format!("{address}: ")).unwrap_or(text).to_owned()
            }
        }
    }

    /// The outage has lasted longer than clients wait.
    pub(crate) fn outage_timeout(limit: std::time::Duration, last: Self) -> Self {
        let text = match last {
            Self::Login(text) => text,
            Self::Fault(fault) => fault.text.into_owned(),
        };
        Self::Fault(Fault::new(ReplyCode::ConnectionForced, format!("waited {limit:?} in vain: {text}")))
    }

    /// Whether retrying may succeed shortly: no broker could be asked, or it is starting or stopping.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(self, Self::Fault(fault) if matches!(fault.code, ReplyCode::ConnectionForced | ReplyCode::InternalError))
    }

    /// Whether this is a refusal to open a virtual host because it is not available for now, not because the broker is
    /// stopping.
    pub(crate) fn is_of_virtual_host(&self) -> bool {
        matches!(self, Self::Fault(fault) if fault.code == ReplyCode::InternalError)
    }

    /// Whether a broker has refused the credentials or the virtual host, and would do so again.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Login(_) => true,
            Self::Fault(fault) => {
                matches!(fault.code, ReplyCode::AccessRefused | ReplyCode::NotAllowed)
                    && !self.is_connection_limit()
            }
        }
    }

    /// Whether this refusal to open a virtual host is due to a limit on the connections of the virtual host, user or node. The
    /// broker has accepted the credentials then. Names are quoted in RabbitMQ's texts and never stand at the end of these, so
    /// that a name cannot imitate the suffix (`rabbit_reader` of 3.10 and 4.3).
    pub(crate) fn is_connection_limit(&self) -> bool {
        let Self::Fault(fault) = self else { return false };
        let limit = fault.text.strip_suffix(") is reached").and_then(|text| text.rsplit_once(" limit ("));
        fault.code == ReplyCode::NotAllowed
            && limit.is_some_and(|(what, most)| {
                what.ends_with("connection") && most.bytes().all(|byte| byte.is_ascii_digit())
            })
    }

    /// The chosen connection has no free channel.
    pub(crate) fn no_channel() -> Self {
        Self::Fault(Fault::new(ReplyCode::ResourceError, "no upstream channel is free"))
    }

    /// Whether a limit of the pool, or of the broker for this user, on connections or channels is reached for now.
    pub(crate) fn is_shortage(&self, user: &str) -> bool {
        let is_of_pool = |fault: &Fault| fault.code == ReplyCode::ResourceError;
        self.is_connection_limit()
            || matches!(self, Self::Fault(fault) if is_of_pool(fault) || channel_limit(fault, user).is_some())
    }

    /// Converts to a fault that ends the connection.
    pub(crate) fn into_fault(self) -> Fault {
        match self {
            Self::Login(text) => Fault::new(ReplyCode::AccessRefused, text).on_connection(),
            Self::Fault(fault) => fault.on_connection(),
        }
    }
}

/// Converts the fields of a broker's close method to a connection fault.
pub(crate) fn announced_fault(code: u16, text: &str, method: (u16, u16)) -> Fault {
    Fault::announced(code, text, method).on_connection()
}

/// Like [`announced_fault`], from the payload of a broker's `connection.close`, if it is one. The text need
/// not be valid UTF-8: RabbitMQ truncates long texts in the middle of a character, and echoes invalid ones.
pub(crate) fn announced_close(payload: &[u8]) -> Option<Fault> {
    let arguments = payload.strip_prefix(&CONNECTION_CLOSE)?;
    let (code, rest) = arguments.split_first_chunk()?;
    let (length, rest) = rest.split_first()?;
    let (text, blame) = rest.split_at_checked(usize::from(*length))?;
    let (class, method) = blame.split_first_chunk()?;
    let blame = (u16::from_be_bytes(*class), u16::from_be_bytes(method.try_into().ok()?));
    Some(announced_fault(u16::from_be_bytes(*code), &String::from_utf8_lossy(text), blame))
}

/// Class and method id of `connection.close`, which precede its arguments.
const CONNECTION_CLOSE: [u8; 4] = [0, 10, 0, 50];

#[cfg(test)]
mod tests {
    use amqp::Method;
    use amqp::method::connection;

    use super::*;

    #[test]
    fn a_brokers_text_comes_out_as_it_came_in() {
        for text in ["NOT_ALLOWED - vhost nowhere not found", "ACCESS_REFUSED - access to vhost"] {
            let code = if text.starts_with('N') { 530 } else { 403 };
            assert_eq!(announced_fault(code, text, (10, 40)).reply_text(), text);
        }
        assert_eq!(announced_fault(541, "INTERNAL_ERROR", (0, 0)).reply_text(), "INTERNAL_ERROR");
    }

    #[test]
    fn a_limit_on_connections_is_no_verdict_on_the_login() {
        let not_allowed = |text: &str| Refusal::Fault(Fault::new(ReplyCode::NotAllowed, text.to_owned()));
        for text in [
            "access to vhost '/' refused for user 'u': connection limit (1) is reached",
            "connection refused for user 'u': user connection limit (1) is reached",
            "connection refused: node connection limit (1000) is reached",
        ] {
            assert!(not_allowed(text).is_connection_limit() && !not_allowed(text).is_final(), "{text}");
        }
        for text in [
            "access to vhost '/' refused for user 'u'",
            "access to vhost '/' refused for user ': connection limit (1) is reached'",
            "vhost connection limit (1) is reached not found",
        ] {
            assert!(!not_allowed(text).is_connection_limit() && not_allowed(text).is_final(), "{text}");
        }
    }

    #[test]
    fn a_close_is_understood_even_if_its_text_is_not_utf8() {
        let mut close = Vec::new();
        let announced = connection::Close {
            reply_code: 540,
            reply_text: "NOT_IMPLEMENTED - q",
            class_id: 50,
            method_id: 30,
        };
        Method::from(announced).encode(&mut close);
        let fault = announced_close(&close).unwrap();
        assert_eq!((fault.reply_text().as_str(), fault.method), ("NOT_IMPLEMENTED - q", (50, 30)));
        let last = close.len() - 5;
        close[last] = 0xc3;
        assert_eq!(announced_close(&close).unwrap().reply_text(), "NOT_IMPLEMENTED - \u{fffd}");
        for cut in 0..close.len() {
            assert_eq!(announced_close(&close[..cut]), None);
        }
    }
}
