//! Reads and validates the properties of a message when it is published.

use std::borrow::Cow;

use amqp::queue_arguments::MAX_EXPIRY;
use amqp::{FieldTable, FieldValue, Properties, RawTable};
use smallvec::SmallVec;

use crate::compatibility::Compatibility;
use crate::error::BrokerError;
use crate::message::{ANNOTATION, BrokerProperties};
use crate::table_view::{ValueView, entries, texts_in};

/// A message's properties, validated.
#[derive(Debug, Default)]
pub(crate) struct Inspected<'a> {
    pub(crate) broker_properties: BrokerProperties,
    /// The headers, encoded, without the length in front.
    pub(crate) headers: &'a [u8],
    /// Further routing keys from the header CC.
    pub(crate) copies: SmallVec<[&'a str; 2]>,
    /// Further routing keys from the header BCC.
    pub(crate) blind_copies: SmallVec<[&'a str; 2]>,
    /// The properties without BCC, if it was present: receivers must not see it.
    pub(crate) rewritten: Option<Vec<u8>>,
    /// The error text for the property user_id, if that has to be refused after other checks.
    pub(crate) foreign_user: Option<String>,
}

/// Validates properties in RabbitMQ's order. `publisher` is the user, and `may_impersonate` is called if `user_id` is another.
///
/// # Errors
/// 502 when they are malformed; 406 for a foreign user_id, an invalid expiration, CC or BCC, or an unknown
/// delivery_mode.
pub(crate) fn inspect<'a>(
    bytes: &'a [u8],
    publisher: &str,
    may_impersonate: impl FnOnce() -> bool,
    compatibility: Compatibility,
) -> Result<Inspected<'a>, BrokerError> {
    // No properties: there is nothing to check.
    if bytes == amqp::properties::NO_PROPERTIES {
        return Ok(Inspected::default());
    }
    let properties = Properties::decode(bytes).map_err(BrokerError::MalformedProperties)?;
    let foreign = properties.user_id.filter(|user| *user != publisher && !may_impersonate());
    let foreign = foreign
        .map(|user| format!("user_id property set to '{user}' but authenticated user was '{publisher}'"));
    let foreign_user = match foreign {
        Some(text) if !compatibility.checks_topic_permission_last() => {
            return Err(BrokerError::precondition(text));
        }
        foreign => foreign,
    };
    let expiration = properties.expiration.map(expiration_of).transpose()?;
    let headers = properties.headers.unwrap_or_default();
    let mut inspected = Inspected { headers: headers.bytes(), foreign_user, ..Inspected::default() };
    if let Some(copies) = routes_in(headers, "CC")? {
        inspected.copies = copies;
    }
    if let Some(copies) = routes_in(headers, "BCC")? {
        inspected.blind_copies = copies;
        inspected.rewritten = Some(without_header(&properties, headers, "BCC"));
    }
    let persistent = match properties.delivery_mode {
        None | Some(1) => false,
        Some(2) => true,
        Some(_) if !compatibility.checks_delivery_mode() => false,
        Some(mode) => return Err(invalid(&format!("{{delivery_mode_unknown,{mode}}}"))),
    };
    inspected.broker_properties = BrokerProperties {
        persistent,
        priority: properties.priority,
        expiration,
        ..BrokerProperties::default()
    };
    Ok(inspected)
}

/// The values of validated properties that the broker needs; `None` if they were not validated.
pub(crate) fn broker_properties_of(bytes: &[u8]) -> Option<BrokerProperties> {
    let properties = Properties::decode(bytes).ok()?;
    let expiration = properties.expiration.map(expiration_of).transpose().ok()?;
    let persistent = properties.delivery_mode == Some(2);
    Some(BrokerProperties {
        persistent,
        priority: properties.priority,
        expiration,
        ..BrokerProperties::default()
    })
}

/// The properties without the header BCC, as others may see them. A returned message is stripped of it too, since it may be
/// forwarded. Malformed properties, which were not inspected, are returned unchanged.
pub fn without_blind_copies(bytes: &[u8]) -> Cow<'_, [u8]> {
    let Ok(properties) = Properties::decode(bytes) else { return Cow::Borrowed(bytes) };
    match properties.headers {
        Some(headers) if entries(headers.bytes()).any(|(name, _)| name == "BCC") => {
            Cow::Owned(without_header(&properties, headers, "BCC"))
        }
        _ => Cow::Borrowed(bytes),
    }
}

/// The properties of an annotated message as clients of other front ends see them.
pub(crate) fn without_annotation(bytes: &[u8]) -> Vec<u8> {
    let properties = Properties::decode(bytes).unwrap_or_default();
    let mut headers = properties.headers.map(|headers| headers.decode()).unwrap_or_default();
    headers.remove(ANNOTATION);
    let others = Properties { headers: properties.headers.filter(|_| !headers.is_empty()), ..properties };
    if headers.is_empty() {
        let mut bytes = Vec::new();
        others.encode(&mut bytes);
        return bytes;
    }
    with_headers(&others, &headers)
}

/// Whether encoded headers include the annotation.
pub(crate) fn has_annotation(headers: &[u8]) -> bool {
    entries(headers).any(|(name, _)| name == ANNOTATION)
}

/// The properties with other headers.
pub(crate) fn with_headers(properties: &Properties<'_>, headers: &FieldTable) -> Vec<u8> {
    let encoded = headers.encode();
    let mut properties = *properties;
    // It has just been encoded from a table, and is nested no deeper than what was received.
    properties.headers = RawTable::check(&encoded).ok();
    let mut bytes = Vec::new();
    properties.encode(&mut bytes);
    bytes
}

fn without_header(properties: &Properties<'_>, headers: RawTable<'_>, name: &str) -> Vec<u8> {
    let mut headers = headers.decode();
    headers.remove(name);
    with_headers(properties, &headers)
}

fn routes_in<'a>(headers: RawTable<'a>, name: &str) -> Result<Option<SmallVec<[&'a str; 2]>>, BrokerError> {
    match entries(headers.bytes()).find(|(found, _)| *found == name) {
        None => Ok(None),
        Some((_, ValueView::Array(array))) => {
            Ok(Some(texts_in(array).filter_map(|text| std::str::from_utf8(text).ok()).collect()))
        }
        Some(_) => {
            let kind = headers.decode().get(name).map_or("void", FieldValue::type_name);
            Err(invalid(&format!("{{unacceptable_type_in_header,\"{name}\",{kind}}}")))
        }
    }
}

/// The milliseconds of an expiration, which is a number in a string (RabbitMQ, "Time-To-Live and
/// Expiration").
fn expiration_of(text: &str) -> Result<u64, BrokerError> {
    let digits_from = usize::from(text.starts_with(['+', '-']));
    let digits = text[digits_from..].bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits_from + digits);
    let reason = match number.parse::<i128>() {
        _ if digits == 0 => "no_integer".to_owned(),
        Ok(_) | Err(_) if !rest.is_empty() => format!("{{leftover_string,\"{rest}\"}}"),
        Ok(n) if n < 0 => format!("{{value_negative,{n}}}"),
        Ok(n) if n <= i128::from(MAX_EXPIRY) => return Ok(n as u64),
        _ => format!("{{value_too_large,{number}}}"),
    };
    Err(BrokerError::precondition(format!("invalid expiration '{text}': {reason}")))
}

fn invalid(reason: &str) -> BrokerError {
    BrokerError::precondition(format!("invalid message: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(properties: Properties<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        properties.encode(&mut bytes);
        bytes
    }

    fn refusal(properties: Properties<'_>) -> String {
        inspect(&encode(properties), "guest", || false, Compatibility::V3_10).unwrap_err().to_string()
    }

    #[test]
    fn expiration_is_a_number_in_a_string() {
        let expired = |text| refusal(Properties::default().with_expiration(text));
        assert_eq!(expired("x"), "invalid expiration 'x': no_integer");
        assert_eq!(expired(""), "invalid expiration '': no_integer");
        assert_eq!(expired("-1"), "invalid expiration '-1': {value_negative,-1}");
        assert_eq!(expired("5s"), "invalid expiration '5s': {leftover_string,\"s\"}");
        let too_large = "invalid expiration '315360000001': {value_too_large,315360000001}";
        assert_eq!(expired("315360000001"), too_large);
        let bytes = encode(Properties::default().with_expiration("60000"));
        assert_eq!(
            inspect(&bytes, "guest", || false, Compatibility::V3_10).unwrap().broker_properties.expiration,
            Some(60_000)
        );
    }

    #[test]
    fn user_id_has_to_be_the_publishers() {
        let foreign = Properties::default().with_user_id("x");
        assert_eq!(refusal(foreign), "user_id property set to 'x' but authenticated user was 'guest'");
        assert!(
            inspect(&encode(foreign), "guest", || true, Compatibility::V3_10).is_ok(),
            "an impersonator may"
        );
        assert!(
            inspect(&encode(Properties::default().with_user_id("u")), "u", || false, Compatibility::V3_10)
                .is_ok()
        );
    }

    #[test]
    fn delivery_mode_is_one_or_two() {
        assert_eq!(
            refusal(Properties::default().with_delivery_mode(7)),
            "invalid message: {delivery_mode_unknown,7}"
        );
    }

    #[test]
    fn blind_copies_are_read_and_taken_out() {
        let keys = |key: &str| FieldValue::Array(vec![FieldValue::text(key)]);
        let headers: FieldTable =
            [("BCC", keys("b")), ("CC", keys("c")), ("x", FieldValue::I32(1))].into_iter().collect();
        let headers = headers.encode();
        let bytes = encode(Properties::default().with_headers(RawTable::check(&headers).unwrap()));
        let inspected = inspect(&bytes, "guest", || false, Compatibility::V3_10).unwrap();
        assert_eq!((inspected.copies[0], inspected.blind_copies[0]), ("c", "b"));
        let rewritten = inspected.rewritten.unwrap();
        let left = Properties::decode(&rewritten).unwrap().headers.unwrap().decode();
        assert_eq!(left.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["CC", "x"]);
        assert_eq!(
            without_blind_copies(&bytes),
            rewritten,
            "a returned message does not contain them either"
        );
        assert_eq!(without_blind_copies(&rewritten), rewritten, "nothing else is changed");
    }

    #[test]
    fn copies_that_are_not_an_array_are_refused() {
        let headers: FieldTable = [("CC", FieldValue::text("c"))].into_iter().collect();
        let headers = headers.encode();
        let properties = Properties::default().with_headers(RawTable::check(&headers).unwrap());
        let refused = "invalid message: {unacceptable_type_in_header,\"CC\",longstr}";
        assert_eq!(refusal(properties), refused);
        assert_eq!(refusal(properties.with_delivery_mode(7)), refused, "they are checked first");
    }

    #[test]
    fn malformed_properties_are_a_syntax_error() {
        let error = inspect(&[0x80, 0], "guest", || false, Compatibility::V3_10).unwrap_err();
        assert_eq!(error.reply_code(), amqp::ReplyCode::SyntaxError);
    }
}
