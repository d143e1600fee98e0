//! The contents of messages besides their identity: properties, and bodies from files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use amqp::properties::{PERSISTENT, Properties, ShortBytes};
use amqp::{FieldTable, FieldValue, RawTable};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::usage::check;

/// Properties, as given on the command line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct MessageProperties {
    /// Names, as in the specification, and values.
    pub(crate) named: Vec<(String, String)>,
    /// Names and values of headers.
    pub(crate) headers: Vec<(String, String)>,
}

/// The valid names in [`MessageProperties::named`].
const NAMES: [&str; 11] = [
    "content_type",
    "content_encoding",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
];

impl MessageProperties {
    /// Parses `content-type=text/plain`, `header.x=1` and the like.
    ///
    /// # Errors
    /// A usage error that names the problem.
    pub(crate) fn parse(texts: &[String]) -> Result<Self, Error> {
        let mut properties = Self::default();
        for text in texts {
            let bad = |what: &str| Error::Usage(format!("--property {text}: {what}"));
            let (name, value) = text.split_once('=').ok_or_else(|| bad("it is written NAME=VALUE"))?;
            if let Some(header) = name.strip_prefix("header.") {
                properties.headers.push((header.into(), value.into()));
                continue;
            }
            let name = name.replace('-', "_");
            let number_fits = match name.as_str() {
                "priority" => value.parse::<u8>().is_ok(),
                "timestamp" => value.parse::<u64>().is_ok(),
                _ => value.len() <= SHORT_STRING,
            };
            if !NAMES.contains(&name.as_str()) {
                return Err(bad("there is no such property"));
            }
            if !number_fits {
                return Err(bad("the value does not fit"));
            }
            properties.named.push((name, value.into()));
        }
        properties.headers.iter().try_for_each(|header| check_name("", header))?;
        Ok(properties)
    }

    /// Encodes flags and property list, as in a content header.
    pub(crate) fn encode(&self, persistent: bool) -> Vec<u8> {
        let headers = table(&self.headers).encode();
        let mut properties = Properties::default();
        if persistent {
            properties = properties.with_delivery_mode(PERSISTENT);
        }
        if !self.headers.is_empty()
            && let Ok(headers) = RawTable::check(&headers)
        {
            properties = properties.with_headers(headers);
        }
        for (name, value) in &self.named {
            properties = match name.as_str() {
                "content_type" => properties.with_content_type(value),
                "content_encoding" => properties.with_content_encoding(value),
                "priority" => properties.with_priority(value.parse().unwrap_or_default()),
                "correlation_id" => properties.with_correlation_id(ShortBytes(value.as_bytes())),
                "reply_to" => properties.with_reply_to(value),
                "expiration" => properties.with_expiration(value),
                "message_id" => properties.with_message_id(ShortBytes(value.as_bytes())),
                "timestamp" => properties.with_timestamp(value.parse().unwrap_or_default()),
                "type" => properties.with_kind(value),
                "user_id" => properties.with_user_id(value),
                _ => properties.with_app_id(value),
            };
        }
        let mut bytes = Vec::new();
        properties.encode(&mut bytes);
        bytes
    }
}

/// Bytes of the longest short string.
const SHORT_STRING: usize = 255;

/// Converts arguments with valid names: numbers and booleans are sent as such, everything else as text.
pub(crate) fn table(pairs: &[(String, String)]) -> FieldTable {
    pairs.iter().map(field).collect()
}

/// Checks that a name fits into a field table; a usage error begins with `option`.
fn check_name(option: &str, (name, _): &(String, String)) -> Result<(), Error> {
    let fits = (1..=SHORT_STRING).contains(&name.len());
    check(fits, &format!("{option}{name:?} is not a name of an argument or header"))
}

fn field((name, value): &(String, String)) -> (&str, FieldValue) {
    let value = match value.as_str() {
        "true" => FieldValue::Boolean(true),
        "false" => FieldValue::Boolean(false),
        text => match (text.parse(), text.parse::<f64>()) {
            (Ok(number), _) => FieldValue::I64(number),
            (_, Ok(number)) => FieldValue::F64(number),
            _ => FieldValue::text(text),
        },
    };
    (name.as_str(), value)
}

/// Parses `x-max-length=5`, given as the option with this name.
pub(crate) fn pairs(option: &str, texts: &[String]) -> Result<Vec<(String, String)>, Error> {
    let pair = |text: &String| {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| Error::Usage(format!("{option} {text}: it is written NAME=VALUE")))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    let pairs = texts.iter().map(pair).collect::<Result<Vec<_>, Error>>()?;
    pairs.iter().try_for_each(|pair| check_name(&format!("{option}: "), pair))?;
    Ok(pairs)
}

/// A body from a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct BodyFile {
    /// The path it was read from.
    pub(crate) path: String,
    /// The contents of the file.
    #[serde(skip)]
    pub(crate) bytes: Arc<[u8]>,
}

impl BodyFile {
    /// Reads a file.
    ///
    /// # Errors
    /// A usage error if it cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let bytes =
            fs::read(path).map_err(|why| Error::Usage(format!("--body {}: {why}", path.display())))?;
        Ok(Self { path: path.to_string_lossy().into_owned(), bytes: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&str]) -> Result<MessageProperties, Error> {
        MessageProperties::parse(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn properties_and_headers_are_sent_as_given() {
        let texts =
            ["content-type=text/x=y", "priority=7", "type=t", "header.n=5", "header.b=true", "header.s=x"];
        let bytes = parse(&texts).unwrap().encode(true);
        let properties = Properties::decode(&bytes).unwrap();
        assert_eq!((properties.content_type, properties.kind), (Some("text/x=y"), Some("t")));
        assert_eq!((properties.priority, properties.delivery_mode), (Some(7), Some(PERSISTENT)));
        let headers = table(&parse(&texts).unwrap().headers);
        assert_eq!(headers.get("n"), Some(&FieldValue::I64(5)));
        assert_eq!(headers.get("b"), Some(&FieldValue::Boolean(true)));
        assert_eq!(headers.get("s"), Some(&FieldValue::text("x")));
        assert!(properties.headers.is_some());
        assert_eq!(MessageProperties::default().encode(false), amqp::properties::NO_PROPERTIES);
    }

    #[test]
    fn invalid_properties_and_queue_arguments_are_refused() {
        for text in ["x", "colour=red", "priority=300", "timestamp=soon", "header.=1"] {
            assert!(parse(&[text]).unwrap_err().is_usage(), "{text}");
        }
        assert!(pairs("--queue-argument", &["x".into()]).unwrap_err().is_usage());
    }
}
