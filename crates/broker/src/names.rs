//! Names of queues and exchanges: sanitising, reserved prefixes, and generation.

use std::borrow::{Borrow, Cow};
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::BrokerError;

/// The name of an exchange, shared by its messages: one word per message, where an `Arc<str>` takes two.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExchangeName(Arc<Arc<str>>);

impl ExchangeName {
    /// The name, for values that outlive its exchange.
    pub(crate) fn text(&self) -> &Arc<str> {
        &self.0
    }
}

impl Deref for ExchangeName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ExchangeName {
    fn borrow(&self) -> &str {
        self
    }
}

impl From<&str> for ExchangeName {
    fn from(name: &str) -> Self {
        Self(Arc::new(name.into()))
    }
}

/// The type of a resource, as RabbitMQ writes it before its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    Queue,
    Exchange,
}

impl Resource {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Exchange => "exchange",
        }
    }

    /// `queue 'q' in vhost '/'`
    pub(crate) fn describe(self, name: &str, vhost: &str) -> String {
        format!("{} '{name}' in vhost '{vhost}'", self.word())
    }

    /// Refuses names that only the broker may create.
    pub(crate) fn check_reserved(self, name: &str) -> Result<(), BrokerError> {
        if !name.starts_with("amq.") {
            return Ok(());
        }
        let word = self.word();
        Err(BrokerError::access(format!("{word} name '{name}' contains reserved prefix 'amq.*'")))
    }
}

/// Strips carriage returns and line feeds from the names of queues and exchanges, as RabbitMQ does.
pub(crate) fn strip_line_ends(name: &str) -> Cow<'_, str> {
    if name.bytes().any(|byte| matches!(byte, b'\r' | b'\n')) {
        Cow::Owned(name.replace(['\r', '\n'], ""))
    } else {
        Cow::Borrowed(name)
    }
}

/// A name for a queue whose client left the name to the broker: `amq.gen-` and 128 random bits.
pub(crate) fn generate_queue_name() -> String {
    generated_name(GENERATED_PREFIX)
}

/// `prefix` and 128 random bits in 22 digits, as RabbitMQ generates names for queues and consumer tags.
pub fn generated_name(prefix: &str) -> String {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    // Keyed with random bits from the operating system, so that names are neither guessable nor repeated
    // after a restart.
    let keys = RandomState::new();
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let bits = u128::from(keys.hash_one((call, 0))) << 64 | u128::from(keys.hash_one((call, 1)));
    let mut name = String::with_capacity(prefix.len() + RANDOM_DIGITS);
    name.push_str(prefix);
    // 21 digits of 6 bits from the top; the last digit has the remaining 2 bits.
    for digit in 0..RANDOM_DIGITS {
        let shift = 122 - 6 * digit as i32;
        let bits = if shift >= 0 { bits >> shift } else { bits << -shift };
        name.push(char::from(BASE64_URL[(bits & 63) as usize]));
    }
    name
}

/// Whether `digits` may come from [`generated_name`].
pub(crate) fn is_generated(digits: &str) -> bool {
    digits.len() == RANDOM_DIGITS && digits.bytes().all(|digit| BASE64_URL.contains(&digit))
}

const GENERATED_PREFIX: &str = "amq.gen-";

/// The digits of 128 bits in base 64.
const RANDOM_DIGITS: usize = 22;

const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_look_like_rabbitmqs_and_differ() {
        let (one, other) = (generate_queue_name(), generate_queue_name());
        assert_ne!(one, other);
        let digits = one.strip_prefix("amq.gen-").unwrap();
        assert_eq!(digits.len(), 22);
        assert!(is_generated(digits) && !is_generated(&digits[1..]), "{one}");
    }

    #[test]
    fn line_ends_are_taken_out() {
        assert_eq!(strip_line_ends("a\r\nb\n"), "ab");
        assert!(matches!(strip_line_ends("plain"), Cow::Borrowed("plain")));
    }

    #[test]
    fn the_reserved_prefix_is_refused() {
        let error = Resource::Queue.check_reserved("amq.x").unwrap_err();
        assert_eq!(error.to_string(), "queue name 'amq.x' contains reserved prefix 'amq.*'");
        assert!(Resource::Exchange.check_reserved("amqp").is_ok());
    }
}
