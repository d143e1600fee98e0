//! Refusals of credentials that the upstream has accepted before: permanent or temporary.

use amqp::{Fault, ReplyCode};

/// Whether the user may not log in, or not open the virtual host, until an operator changes that. Other refusals may be
/// temporary: RabbitMQ also answers 530 NOT_ALLOWED if a connection limit is reached, the virtual host is down on its
/// node, or an authorisation service is unavailable.
pub(super) fn is_permanent(fault: &Fault, vhost: &str) -> bool {
    match fault.code {
        ReplyCode::AccessRefused => !spool::is_backend_error(&fault.text),
        ReplyCode::NotAllowed => denies_vhost(&fault.text, vhost),
        _ => false,
    }
}

/// Compares with the texts of RabbitMQ's `rabbit_reader` and `rabbit_access_control`, releases 3.10 to 4.
fn denies_vhost(text: &str, vhost: &str) -> bool {
    let refused = || {
        let rest = text.strip_prefix("access to vhost '")?.strip_prefix(vhost)?;
        rest.strip_prefix("' refused for user '")?.strip_suffix('\'')
    };
    let missing = || text.strip_prefix("vhost ")?.strip_prefix(vhost)?.strip_suffix(" not found");
    // Text after a colon would be the reason of a temporary refusal.
    refused().is_some_and(|user| !user.contains("': ")) || missing() == Some("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_of_the_user_are_permanent() {
        let not_allowed =
            |text: &str| is_permanent(&Fault::new(ReplyCode::NotAllowed, text.to_owned()), "orders");
        for text in ["access to vhost 'orders' refused for user 'edge'", "vhost orders not found"] {
            assert!(not_allowed(text), "{text}");
        }
        for text in [
            "access to vhost 'orders' refused for user 'edge': connection limit (0) is reached",
            "access to vhost 'orders' refused for user 'edge': vhost 'orders' is down",
            "access to vhost 'orders' refused for user 'edge': backend rabbit_auth_backend_http returned an error: 'timeout'",
            "connection refused for user 'edge': user connection limit (1) is reached",
            "access to vhost 'other' refused for user 'edge'",
            "vhost other not found",
            "something else",
        ] {
            assert!(!not_allowed(text), "{text}");
        }
        assert!(is_permanent(&Fault::new(ReplyCode::AccessRefused, "login refused"), "orders"));
        let text = "access to exchange 'x' in vhost 'orders' refused for user 'edge', backend rabbit_auth_backend_http \
                    returned an error: timeout";
        assert!(!is_permanent(&Fault::new(ReplyCode::AccessRefused, text), "orders"));
        assert!(!is_permanent(&Fault::new(ReplyCode::ConnectionForced, "no upstream reachable"), "orders"));
    }
}
