//! The choice of messages by user and virtual host, for operators.

/// The messages of all users and virtual hosts, or of some of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpoolSelection<'a> {
    /// `None` for all users.
    pub user: Option<&'a str>,
    /// `None` for all virtual hosts.
    pub vhost: Option<&'a str>,
}

impl SpoolSelection<'_> {
    /// Whether it includes the messages of a user in a virtual host.
    pub(super) fn contains(self, vhost: &str, user: &str) -> bool {
        self.user.is_none_or(|wanted| wanted == user) && self.vhost.is_none_or(|wanted| wanted == vhost)
    }

    pub(super) fn is_everything(self) -> bool {
        self == Self::default()
    }
}
