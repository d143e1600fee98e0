//! Destinations as RabbitMQ's STOMP adapter defines them (<https://www.rabbitmq.com/docs/stomp#d>).

use std::borrow::Cow;
use std::fmt;

use crate::fault::StompFault;

/// The target of a SEND or the source of a SUBSCRIBE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination<'a> {
    /// `/queue/NAME`, or a name alone: a queue that is declared on first use.
    Queue(Cow<'a, str>),
    /// `/exchange/NAME` or `/exchange/NAME/KEY`: an existing exchange, and a routing or binding key.
    Exchange {
        /// The exchange; never empty.
        name: Cow<'a, str>,
        /// The key, which may be empty.
        key: Cow<'a, str>,
    },
    /// `/topic/KEY`: a routing or binding key of amq.topic.
    Topic(Cow<'a, str>),
    /// `/amq/queue/NAME`: an existing queue.
    AmqQueue(Cow<'a, str>),
    /// `/temp-queue/NAME`: in reply-to only, a temporary queue of this connection.
    TempQueue(Cow<'a, str>),
    /// `/reply-queue/NAME`, where the name may contain slashes: the receiver of a request finds it in its reply-to.
    ReplyQueue(Cow<'a, str>),
}

/// The exchange that `/topic` destinations use.
pub const TOPIC_EXCHANGE: &str = "amq.topic";

/// Precedes a queue's name in the reply-to that is sent to a client.
pub const REPLY_QUEUE_PREFIX: &str = "/reply-queue/";

/// A reply-to that begins with one of these is passed on unchanged.
pub const PREFIXES: [&str; 5] = ["/exchange", "/topic", "/queue", "/amq/queue", "/reply-queue/"];

impl<'a> Destination<'a> {
    /// Reads a header `destination` or `reply-to`.
    ///
    /// # Errors
    /// The text is not a valid destination; the fault has RabbitMQ's wording.
    pub fn parse(text: &'a str) -> Result<Self, StompFault> {
        let Some(path) = text.strip_prefix('/') else {
            if text.is_empty() {
                return Err(StompFault::new("Invalid destination", "Destination cannot be blank"));
            }
            // A text without any slash is the name of a queue.
            return if text.contains('/') { Err(unknown(text)) } else { Ok(Self::Queue(unescape(text)?)) };
        };
        let (kind, rest) = match path.strip_prefix("amq/queue") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => ("amqqueue", rest),
            _ => path.find('/').map_or((path, ""), |slash| path.split_at(slash)),
        };
        // `None` if nothing follows the type, not even a slash.
        let name = rest.strip_prefix('/');
        let one = |name: Option<&'a str>| match name {
            Some(name) if !name.is_empty() && !name.contains('/') => unescape(name),
            _ => Err(invalid(kind, rest)),
        };
        match kind {
            "queue" => Ok(Self::Queue(one(name)?)),
            "topic" => Ok(Self::Topic(one(name)?)),
            "temp-queue" => Ok(Self::TempQueue(one(name)?)),
            "amqqueue" => Ok(Self::AmqQueue(one(name)?)),
            "reply-queue" if name.is_some() => Ok(Self::ReplyQueue(name.unwrap_or_default().into())),
            "exchange" => {
                let name = name.unwrap_or_default();
                let (exchange, key) = name.split_once('/').unwrap_or((name, ""));
                // The default exchange means something else for SEND than for SUBSCRIBE, and is not allowed here.
                if exchange.is_empty() || key.contains('/') {
                    return Err(invalid(kind, rest));
                }
                Ok(Self::Exchange { name: unescape(exchange)?, key: unescape(key)? })
            }
            _ => Err(unknown(text)),
        }
    }

    /// The exchange and the routing key of a message sent to this destination.
    pub fn route(&self) -> (&str, &str) {
        match self {
            Self::Exchange { name, key } => (name, key),
            Self::Topic(key) => (TOPIC_EXCHANGE, key),
            Self::Queue(name) | Self::AmqQueue(name) | Self::TempQueue(name) | Self::ReplyQueue(name) => {
                ("", name)
            }
        }
    }
}

/// The destination that a receiver sees for a message published to an exchange with a routing key.
#[derive(Debug, Clone, Copy)]
pub struct PublishedTo<'a> {
    /// The exchange; empty for the default one.
    pub exchange: &'a str,
    /// The routing key of the message.
    pub routing_key: &'a str,
}

impl fmt::Display for PublishedTo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = Escaped(self.routing_key);
        match self.exchange {
            "" => write!(f, "/queue/{key}"),
            TOPIC_EXCHANGE => write!(f, "/topic/{key}"),
            exchange if self.routing_key.is_empty() => write!(f, "/exchange/{}", Escaped(exchange)),
            exchange => write!(f, "/exchange/{}/{key}", Escaped(exchange)),
        }
    }
}

/// A name as part of a destination: slashes, percent signs, control characters and non-ASCII bytes are
/// written as `%` and two hex digits.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            if is_escaped(byte) {
                write!(f, "%{byte:02X}")?;
            } else {
                write!(f, "{}", char::from(byte))?;
            }
        }
        Ok(())
    }
}

fn is_escaped(byte: u8) -> bool {
    matches!(byte, b'/' | b'%' | ..=31 | 128..)
}

/// The name that a part of a destination stands for. Only the escapes that [`Escaped`] writes are decoded, as
/// in RabbitMQ; `%20` therefore remains `%20`.
fn unescape(text: &str) -> Result<Cow<'_, str>, StompFault> {
    if !text.contains('%') {
        return Ok(text.into());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let escaped = behind.first_chunk().filter(|_| byte == b'%').and_then(from_hex);
        if let Some(byte) = escaped.filter(|byte| is_escaped(*byte)) {
            bytes.push(byte);
            rest = &behind[2..];
        } else {
            bytes.push(byte);
            rest = behind;
        }
    }
    let name = String::from_utf8(bytes);
    let not_text = |_| StompFault::new("Invalid destination", format!("'{text}' does not stand for UTF-8\n"));
    name.map(Cow::Owned).map_err(not_text)
}

fn from_hex(digits: &[u8; 2]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(digits[0])? << 4 | digit(digits[1])?) as u8)
}

fn invalid(kind: &str, rest: &str) -> StompFault {
    // RabbitMQ shows the type as an Erlang atom, and nothing for a path without a name.
    let kind = kind.replace('-', "_");
    StompFault::new("Invalid destination", format!("'{rest}' is not a valid {kind} destination\n"))
}

fn unknown(text: &str) -> StompFault {
    let detail = format!(
        "'{text}' is not a valid destination.\nValid destination types are: /temp-queue, {}.\n",
        PREFIXES.join(", ")
    );
    StompFault::new("Unknown destination", detail)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exchange(name: &'static str, key: &'static str) -> Destination<'static> {
        Destination::Exchange { name: name.into(), key: key.into() }
    }

    #[test]
    fn destinations_are_rabbitmqs() {
        for (text, destination) in [
            ("/queue/a", Destination::Queue("a".into())),
            ("a.b", Destination::Queue("a.b".into())),
            ("/queue/a%2Fb%20c", Destination::Queue("a/b%20c".into())),
            ("/topic/a.*.#", Destination::Topic("a.*.#".into())),
            ("/exchange/e", exchange("e", "")),
            ("/exchange/e/k.1", exchange("e", "k.1")),
            ("/exchange/e/", exchange("e", "")),
            ("/amq/queue/q", Destination::AmqQueue("q".into())),
            ("/temp-queue/t", Destination::TempQueue("t".into())),
            ("/reply-queue/a/b%2Fc", Destination::ReplyQueue("a/b%2Fc".into())),
            ("/queue/%C3%A9%25", Destination::Queue("é%".into())),
        ] {
            assert_eq!(Destination::parse(text), Ok(destination), "{text}");
        }
    }

    #[test]
    fn invalid_destinations_are_refused_with_rabbitmqs_messages() {
        for (text, words) in [
            ("/queue", "Invalid destination: '' is not a valid queue destination"),
            ("/queue/", "Invalid destination: '/' is not a valid queue destination"),
            ("/queue/a/b", "Invalid destination: '/a/b' is not a valid queue destination"),
            ("/topic/a/b", "Invalid destination: '/a/b' is not a valid topic destination"),
            ("/temp-queue/", "Invalid destination: '/' is not a valid temp_queue destination"),
            ("/amq/queue/a/b", "Invalid destination: '/a/b' is not a valid amqqueue destination"),
            ("/exchange//k", "Invalid destination: '//k' is not a valid exchange destination"),
            ("/exchange/a/b/c", "Invalid destination: '/a/b/c' is not a valid exchange destination"),
            ("", "Invalid destination: Destination cannot be blank"),
            ("/queue/%FF", "Invalid destination: '%FF' does not stand for UTF-8"),
            (
                "/something/else",
                "Unknown destination: '/something/else' is not a valid destination.\nValid destination types are: \
                 /temp-queue, /exchange, /topic, /queue, /amq/queue, /reply-queue/.",
            ),
        ] {
            assert_eq!(Destination::parse(text).unwrap_err().to_string(), words, "{text}");
        }
        for text in ["a/b", "/amq/queues/a", "/queues/a", "/", "/reply-queue"] {
            assert_eq!(Destination::parse(text).unwrap_err().message, "Unknown destination", "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_message_can_be_sent_to_the_destination_it_came_from(
            exchange in "(|amq\\.topic|[a-z/%é\n]{1,9})", routing_key in "[\\PC/%]{1,20}",
        ) {
            let reported = PublishedTo { exchange: &exchange, routing_key: &routing_key }.to_string();
            prop_assert!(reported.is_ascii());
            let destination = Destination::parse(&reported).unwrap();
            prop_assert_eq!(destination.route(), (&*exchange, &*routing_key));
        }

        #[test]
        fn no_text_panics(text in "[/a-z%0-9é]{0,20}|/(queue|topic|exchange|temp-queue|amq/queue|reply-queue)[/a%é2F]{0,9}") {
            let _ = Destination::parse(&text);
        }
    }
}
