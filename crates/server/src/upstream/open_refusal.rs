//! The reasons why an upstream refuses to open a virtual host for a logged-in user.

use amqp::Fault;

/// The reason why a virtual host was not opened. AMQP has one code for all, 530 NOT_ALLOWED.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenRefusal {
    NoVirtualHost,
    NoPermission,
    /// The virtual host or the user has too many connections.
    Limit,
}

impl OpenRefusal {
    /// Parses RabbitMQ's texts, which are the same in 3.10 and 4.3 and contain no variable parts but these names. Any
    /// other text counts as a missing permission.
    pub(crate) fn of(fault: &Fault, vhost: &str, user: &str) -> Self {
        let text = &*fault.text;
        let of_vhost = text.strip_prefix(&*format!("access to vhost '{vhost}' refused for user '{user}'"));
        let of_user = text.strip_prefix(&*format!("connection refused for user '{user}'"));
        match of_vhost.or(of_user) {
            Some(reason) if reason.starts_with(": ") => Self::Limit,
            None if *text == *format!("vhost {vhost} not found") => Self::NoVirtualHost,
            _ => Self::NoPermission,
        }
    }
}

#[cfg(test)]
mod tests {
    use amqp::ReplyCode;

    use super::*;

    fn of(text: &str, vhost: &str, user: &str) -> OpenRefusal {
        OpenRefusal::of(&Fault::new(ReplyCode::NotAllowed, text.to_owned()), vhost, user)
    }

    #[test]
    fn vhost_and_user_names_do_not_change_the_reported_refusal() {
        for (vhost, user) in
            [("/", "u"), ("limit", "limit"), ("a: b", "not found"), ("vhost x not found", "'")]
        {
            let access = format!("access to vhost '{vhost}' refused for user '{user}'");
            assert_eq!(of(&format!("vhost {vhost} not found"), vhost, user), OpenRefusal::NoVirtualHost);
            assert_eq!(of(&access, vhost, user), OpenRefusal::NoPermission);
            for text in [
                format!("{access}: connection limit (1) is reached"),
                format!("connection refused for user '{user}': user connection limit (1) is reached"),
            ] {
                assert_eq!(of(&text, vhost, user), OpenRefusal::Limit);
            }
            assert_eq!(of("no", vhost, user), OpenRefusal::NoPermission);
        }
    }
}
