//! Escaping of headers: none in 1.0, and `\n`, `\c`, `\\` since 1.1, with `\r` since 1.2.

use std::borrow::Cow;

use crate::fault::StompFault;
use crate::version::StompVersion;

/// The replacement of a byte that cannot be written as itself in a header. In 1.0, which has no escapes, a line end
/// in a value would let its author inject headers: RabbitMQ escapes it in all versions, and so does this function.
fn escaped(byte: u8, version: StompVersion, in_name: bool) -> Option<&'static str> {
    match byte {
        b'\n' => Some("\\n"),
        b'\r' if version != StompVersion::V11 => Some("\\r"),
        // 1.1 has no escape for it; unescaped it would be taken as part of the line end.
        b'\r' => Some(""),
        b':' if in_name || version != StompVersion::V10 => Some("\\c"),
        b'\\' if version != StompVersion::V10 => Some("\\\\"),
        // It would end the frame for peers that look for the end of the frame before they read its headers.
        0 => Some("\u{fffd}"),
        _ => None,
    }
}

/// Appends a header's name or value in its wire form.
pub(crate) fn write(out: &mut Vec<u8>, text: &str, version: StompVersion, in_name: bool) {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| escaped(*byte, version, in_name).is_some()) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(escaped(rest[at], version, in_name).unwrap_or_default().as_bytes());
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Decodes a header's name or value from its wire form.
///
/// # Errors
/// An escape that the version does not have, which ends the connection (1.2, "Value Encoding").
pub(crate) fn read(wire: &str, version: StompVersion) -> Result<Cow<'_, str>, StompFault> {
    if version == StompVersion::V10 || memchr::memchr(b'\\', wire.as_bytes()).is_none() {
        return Ok(Cow::Borrowed(wire));
    }
    let mut text = String::with_capacity(wire.len());
    let mut characters = wire.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            text.push(character);
            continue;
        }
        text.push(match characters.next() {
            Some('n') => '\n',
            Some('c') => ':',
            Some('\\') => '\\',
            Some('r') if version == StompVersion::V12 => '\r',
            other => {
                let other = other.map_or(String::new(), |other| other.escape_debug().to_string());
                return Err(StompFault::frame(format!(
                    "STOMP {version} has no escape '\\{other}' in headers\n"
                )));
            }
        });
    }
    Ok(Cow::Owned(text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wire(text: &str, version: StompVersion, in_name: bool) -> String {
        let mut out = Vec::new();
        write(&mut out, text, version, in_name);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_version_escapes_the_characters_it_must() {
        let text = "a:b\\c\nd\re";
        assert_eq!(wire(text, StompVersion::V12, false), r"a\cb\\c\nd\re");
        assert_eq!(wire(text, StompVersion::V11, false), r"a\cb\\c\nde");
        assert_eq!(wire(text, StompVersion::V10, false), r"a:b\c\nd\re");
        assert_eq!(wire("a:b", StompVersion::V10, true), r"a\cb");
    }

    #[test]
    fn unknown_escapes_are_refused() {
        for (text, version) in [
            (r"\t", StompVersion::V12),
            (r"\", StompVersion::V12),
            (r"\r", StompVersion::V11),
            (r"a\é", StompVersion::V11),
        ] {
            let fault = read(text, version).unwrap_err();
            assert!(fault.detail.starts_with("STOMP 1."), "{fault}");
        }
        assert_eq!(read(r"C:\temp\", StompVersion::V10).unwrap(), r"C:\temp\");
    }

    proptest! {
        #[test]
        fn escaping_round_trips_except_carriage_returns_in_stomp_1_1(text in "[^\0]{0,40}", in_name: bool) {
            for (version, expected) in [(StompVersion::V12, text.clone()), (StompVersion::V11, text.replace('\r', ""))] {
                let wire = wire(&text, version, in_name);
                prop_assert_eq!(read(&wire, version).unwrap(), expected);
            }
        }

        #[test]
        fn no_text_breaks_out_of_its_line(text in "\\PC{0,20}[\n\r\0:\\\\]{0,4}\\PC{0,20}", version in 0usize..3) {
            let version = [StompVersion::V10, StompVersion::V11, StompVersion::V12][version];
            let wire = wire(&text, version, true);
            prop_assert!(!wire.contains(['\n', '\r', '\0', ':']));
        }
    }
}
