//! The broker's errors, with RabbitMQ's reply codes and texts.

use amqp::{DecodeError, Fault, ReplyCode};

/// A refused operation. `Display` gives the reply text without the code's name in front (`no queue 'q' in
/// vhost '/'`), identical to that of RabbitMQ 3.10.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerError {
    /// 404: no queue of this name.
    #[error("no queue '{name}' in vhost '{vhost}'")]
    NoQueue {
        /// The requested queue.
        name: String,
        /// The virtual host in which it was looked up.
        vhost: String,
    },
    /// 404: no exchange of this name.
    #[error("no exchange '{name}' in vhost '{vhost}'")]
    NoExchange {
        /// The requested exchange.
        name: String,
        /// The virtual host in which it was looked up.
        vhost: String,
    },
    /// 404: the empty queue name stands for the channel's last declared queue, and there is none.
    #[error("no previously declared queue")]
    NoPreviousQueue,
    /// 403, 405, 406 and 503: the operation is valid but not allowed. The text is RabbitMQ's.
    #[error("{text}")]
    Refused {
        /// The reply code.
        code: ReplyCode,
        /// RabbitMQ's text.
        text: String,
    },
    /// 530: no virtual host of this name.
    #[error("vhost {0} not found")]
    NoVirtualHost(String),
    /// 530: the user has no permissions in the virtual host.
    #[error("access to vhost '{vhost}' refused for user '{user}'")]
    VirtualHostRefused {
        /// The requested virtual host.
        vhost: String,
        /// The name of the user.
        user: String,
    },
    /// 403: another auth backend authorizes the operation, and has not been queried yet. Sessions send the request
    /// ([`crate::Identity::take_authz_request`]) and repeat the operation; clients never see this error.
    #[error("authorization pending")]
    Unasked,
    /// 502: the message's properties cannot be decoded.
    #[error(transparent)]
    MalformedProperties(DecodeError),
}

impl BrokerError {
    /// The code of the `channel.close` or `connection.close` to be sent.
    pub fn reply_code(&self) -> ReplyCode {
        match self {
            Self::NoQueue { .. } | Self::NoExchange { .. } | Self::NoPreviousQueue => ReplyCode::NotFound,
            Self::Refused { code, .. } => *code,
            Self::NoVirtualHost(_) | Self::VirtualHostRefused { .. } => ReplyCode::NotAllowed,
            Self::Unasked => ReplyCode::AccessRefused,
            Self::MalformedProperties(_) => ReplyCode::SyntaxError,
        }
    }

    pub(crate) fn no_queue(name: &str, vhost: &str) -> Self {
        Self::NoQueue { name: name.into(), vhost: vhost.into() }
    }

    pub(crate) fn no_exchange(name: &str, vhost: &str) -> Self {
        Self::NoExchange { name: name.into(), vhost: vhost.into() }
    }

    pub(crate) fn precondition(text: impl Into<String>) -> Self {
        Self::Refused { code: ReplyCode::PreconditionFailed, text: text.into() }
    }

    pub(crate) fn access(text: impl Into<String>) -> Self {
        Self::Refused { code: ReplyCode::AccessRefused, text: text.into() }
    }

    pub(crate) fn locked(queue: &str, vhost: &str) -> Self {
        let text = format!(
            "cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. It could be originally \
             declared on another connection or the exclusive property value does not match that of the original \
             declaration."
        );
        Self::Refused { code: ReplyCode::ResourceLocked, text }
    }
}

impl From<BrokerError> for Fault {
    fn from(error: BrokerError) -> Self {
        let is_unasked = error == BrokerError::Unasked;
        let fault = Self::new(error.reply_code(), error.to_string());
        if is_unasked { fault.unasked() } else { fault }
    }
}
