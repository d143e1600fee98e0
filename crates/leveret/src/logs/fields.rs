//! The fields of log lines, as logfmt: `error="Connection refused (os error 111)" address=127.0.0.1:5672`.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

use crate::ctl::printable;

/// Writes the message, and each field as `name=value`. Values that parsers of logfmt would cut are quoted, whether they were
/// recorded as text, by `%` or by `?`.
pub(super) struct LogFields;

impl<'w> FormatFields<'w> for LogFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut line = Line { writer, is_empty: true, result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

struct Line<'w> {
    writer: Writer<'w>,
    is_empty: bool,
    result: fmt::Result,
}

impl Line<'_> {
    fn write(&mut self, name: &str, value: &dyn fmt::Debug) -> fmt::Result {
        if !std::mem::take(&mut self.is_empty) {
            self.writer.write_char(' ')?;
        }
        if name == "message" {
            // Peers choose parts of some, and must neither forge lines nor move the cursor of the reader's terminal.
            return self.writer.write_str(&printable(&format!("{value:?}")));
        }
        let name = name.strip_prefix("r#").unwrap_or(name);
        if self.writer.has_ansi_escapes() {
            // Italic, and dimmed.
            write!(self.writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?;
        } else {
            write!(self.writer, "{name}=")?;
        }
        write_value(&mut self.writer, value)
    }
}

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Lines of the `log` crate come with their source files, as `log.file` and the like.
        if self.result.is_ok() && !field.name().starts_with("log.") {
            self.result = self.write(field.name(), value);
        }
    }
}

/// Writes a value, quoted if it is empty, or has blanks, quotes, `=` or control characters.
pub(super) fn write_value(into: &mut impl fmt::Write, value: &dyn fmt::Debug) -> fmt::Result {
    let text = format!("{value:?}");
    let needs_quotes = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '=');
    if is_quoted(&text) || !(text.is_empty() || text.contains(needs_quotes)) {
        into.write_str(&text)
    } else {
        write!(into, "{text:?}")
    }
}

/// Whether a text is in quotes, and nothing in it ends them early or begins another line.
fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else { return false };
    let mut is_escaped = false;
    let is_whole = inner.chars().all(|c| {
        let is_allowed = !c.is_control() && (c != '"' || is_escaped);
        is_escaped = c == '\\' && !is_escaped;
        is_allowed
    });
    is_whole && !is_escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_blanks_are_quoted_however_they_were_recorded() {
        let written = |value: &dyn fmt::Debug| {
            let mut text = String::new();
            write_value(&mut text, value).unwrap();
            text
        };
        assert_eq!(written(&format_args!("handshake timed out")), "\"handshake timed out\"");
        assert_eq!(written(&format_args!("127.0.0.1:5672")), "127.0.0.1:5672");
        assert_eq!(written(&format_args!("amqp://a/?x=1")), "\"amqp://a/?x=1\"");
        assert_eq!(written(&format_args!("say \"no\"")), r#""say \"no\"""#);
        assert_eq!(written(&format_args!("")), "\"\"");
        assert_eq!(written(&format_args!(r#""a" is not "b""#)), r#""\"a\" is not \"b\"""#);
        assert_eq!(written(&format_args!("\"x\n2026 ERROR y\"")), r#""\"x\n2026 ERROR y\"""#);
        assert_eq!(written(&format_args!(r#""x\""#)), r#""\"x\\\"""#);
        assert_eq!(written(&"ann"), "\"ann\"");
        assert_eq!(written(&7), "7");
    }
}
