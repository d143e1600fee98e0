//! The reasons for which the broker refuses a message.

use std::time::Duration;

use crate::envelope::Envelope;

/// The reason for which the broker has refused a message permanently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRefusal {
    /// The reply code of the channel.close or connection.close, such as 404; 0 if it has nacked the message for too long.
    pub code: u16,
    /// Its reply text, which names the exchange in most cases.
    pub text: String,
}

/// How certain it is that a message caused a connection.close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultCertainty {
    /// The message is not the cause: the broker is shutting down, or the login failed.
    None,
    /// It may be the cause: park the message if the connection is closed repeatedly while nothing else is in flight.
    Possible,
    /// The broker considers the message malformed.
    Certain,
}

/// Connections in a row that have to be closed while only a message is in flight before it is parked.
const ATTEMPTS: u32 = 3;

/// The same if the broker has failed each time, perhaps for reasons unrelated to the message. With the forwarder's growing
/// pauses these attempts take a quarter of a minute, in which the broker has confirmed nothing.
const FAILURE_ATTEMPTS: u32 = 8;

const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const INTERNAL_ERROR: u16 = 541;

impl MessageRefusal {
    /// The broker has nacked everything for the message's destination for this long.
    pub(crate) fn of_nacks(lasted: Duration) -> Self {
        let text =
            format!("NACKED - basic.nack at each attempt for {} s, as of a full queue", lasted.as_secs());
        Self { code: 0, text }
    }

    /// Whether another attempt would fail the same way unless the broker's configuration changes. For channel.close.
    pub fn is_permanent(&self) -> bool {
        // 311, 312 and 313 concern content; 540 is for features that the broker does not implement.
        matches!(self.code, 311..=313 | 402 | ACCESS_REFUSED | NOT_FOUND | 405 | 406 | 540)
            && !self.is_backend_error()
    }

    /// Whether the broker could not determine the user's permission.
    fn is_backend_error(&self) -> bool {
        self.code == ACCESS_REFUSED && is_backend_error(&self.text)
    }

    /// Whether a permission is missing, which other credentials of the same user may have.
    pub fn is_of_permissions(&self) -> bool {
        self.code == ACCESS_REFUSED
    }

    /// Whether a message may be the reason of a connection.close with this code.
    pub fn certainty(&self) -> FaultCertainty {
        match self.code {
            501 | 502 | 505 | 540 => FaultCertainty::Certain,
            // With 320 the upstream is shutting down, with 506 it is out of resources; 403 and 530 concern the login.
            200 | 320 | ACCESS_REFUSED | 506 | 530 => FaultCertainty::None,
            _ => FaultCertainty::Possible,
        }
    }

    /// Whether the broker itself failed, because of this message or for another reason.
    pub fn is_failure(&self) -> bool {
        self.code == INTERNAL_ERROR
    }

    /// Connections in a row that have to be closed while only a suspected message is in flight before it is parked.
    pub(crate) fn attempts(&self) -> u32 {
        if self.is_failure() { FAILURE_ATTEMPTS } else { ATTEMPTS }
    }

    /// Whether the text names the message's exchange, as RabbitMQ's do: "no exchange 'orders' in vhost '/'".
    pub(crate) fn names_exchange_of(&self, envelope: &Envelope) -> bool {
        let (before, after) = ("exchange '", "'");
        let name = match envelope.exchange() {
            "" => "amq.default",
            name => name,
        };
        self.text.match_indices(before).any(|(at, _)| {
            let rest = &self.text[at + before.len()..];
            rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(after))
        })
    }

    /// Whether it also applies to messages with other keys; `None` if it certainly applies to no other message.
    pub(crate) fn holds_for_all_keys(&self) -> Option<bool> {
        match self.code {
            NOT_FOUND => Some(true),
            // Permissions may depend on the key.
            ACCESS_REFUSED => Some(false),
            _ => None,
        }
    }
}

/// Whether a text of RabbitMQ's `rabbit_access_control` reports that the auth backend has failed, or that a token has
/// expired: "… refused for user 'edge', backend rabbit_auth_backend_http returned an error: …". A denial ends with the
/// user's name. Texts are cut at 255 bytes, so the beginning of this part has to suffice; a text that is cut before it
/// counts as a denial.
pub fn is_backend_error(text: &str) -> bool {
    let Some((_, rest)) = text.rsplit_once(" refused for user '") else { return false };
    ["', b", "': b"].iter().any(|start| rest.contains(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permission_that_could_not_be_looked_up_is_not_denied() {
        let refused = |text: &str| MessageRefusal { code: ACCESS_REFUSED, text: text.to_owned() };
        let denial = "ACCESS_REFUSED - access to exchange 'orders' in vhost '/' refused for user 'edge'";
        assert!(refused(denial).is_permanent());
        for rest in [
            ", backend rabbit_auth_backend_oauth2 returned an error: \"Provided JWT token has expired\"",
            ", backend rabbit_auth_back...",
            ": backend rabbit_auth_backend_http returned an error: 'timeout'",
        ] {
            assert!(!refused(&format!("{denial}{rest}")).is_permanent(), "{rest}");
        }
        let named = "access to exchange ', backend x returned an error' in vhost '/' refused for user 'edge'";
        assert!(refused(named).is_permanent());
        assert!(MessageRefusal { code: NOT_FOUND, text: format!("{denial}, backend") }.is_permanent());
    }
}
