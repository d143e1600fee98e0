//! One line, as text or as JSON.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// The format of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessFormat {
    /// `2026-11-21T14:00:00.000Z close connection=1 client=127.0.0.1:40000 …`
    Text,
    /// An object on each line, with the same names.
    Json,
}

/// A line being built.
#[derive(Debug)]
pub(super) struct LogLine {
    format: AccessFormat,
    text: String,
}

/// The value of a field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'v> {
    Number(u64),
    Flag(bool),
    Text(&'v str),
    List(&'v [String]),
}

impl LogLine {
    pub(super) fn new(format: AccessFormat, time: SystemTime, event: &'static str) -> Self {
        let text = match format {
            AccessFormat::Text => format!("{} {event}", timestamp(time)),
            AccessFormat::Json => format!("{{\"time\":\"{}\",\"event\":\"{event}\"", timestamp(time)),
        };
        Self { format, text }
    }

    /// Adds a field. `name` is a plain word.
    pub(super) fn add(&mut self, name: &'static str, value: Value<'_>) {
        let json = self.format == AccessFormat::Json;
        self.text.push_str(if json { ",\"" } else { " " });
        self.text.push_str(name);
        self.text.push_str(if json { "\":" } else { "=" });
        match value {
            Value::Number(number) => self.text.push_str(&number.to_string()),
            Value::Flag(flag) => self.text.push_str(if flag { "true" } else { "false" }),
            Value::Text(text) if !json && is_plain(text) => self.text.push_str(text),
            Value::Text(text) => quote(&mut self.text, text),
            Value::List(items) if json => {
                for (place, item) in items.iter().enumerate() {
                    self.text.push(if place == 0 { '[' } else { ',' });
                    quote(&mut self.text, item);
                }
                self.text.push_str(if items.is_empty() { "[]" } else { "]" });
            }
            Value::List(items) => self.text.push_str(&items.join(",")),
        }
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push_str(if self.format == AccessFormat::Json { "}\n" } else { "\n" });
        self.text
    }
}

/// Whether a text can stand without quotes.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
}

/// Appends a JSON string. Clients choose the names of users and virtual hosts, so no byte of them may begin a new line.
fn quote(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\n' => out.push_str("\\n"),
            // Includes the characters that only some readers take for line breaks.
            '\u{2028}' | '\u{2029}' | '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' => {
                // Writing into a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

/// RFC 3339, in UTC, to the millisecond.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// The date of a day counted from 1970, in the Gregorian calendar, whose cycle of 400 years has 146,097 days.
/// Years begin in March here, so that the leap day is the last.
fn date(days: u64) -> (u64, u64, u64) {
    // 1970-01-01 is 719,468 days after 0000-03-01.
    let days = days + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Months from March on have 31, 30, 31, 30, 31 days repeatedly: 153 days in five months.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (400 * cycle + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn line(format: AccessFormat, user: &str) -> String {
        let mut line = LogLine::new(format, UNIX_EPOCH + Duration::from_millis(1_795_269_600_007), "close");
        line.add("connection", Value::Number(7));
        line.add("tls", Value::Flag(true));
        line.add("user", Value::Text(user));
        line.add("upstreams", Value::List(&["a:1#2".to_owned(), "b:1#3".to_owned()]));
        line.finish()
    }

    #[test]
    fn a_line_has_the_same_fields_in_both_formats() {
        assert_eq!(
            line(AccessFormat::Text, "guest"),
            "2026-11-21T14:00:00.007Z close connection=7 tls=true user=guest upstreams=a:1#2,b:1#3\n"
        );
        assert_eq!(
            line(AccessFormat::Json, "guest"),
            "{\"time\":\"2026-11-21T14:00:00.007Z\",\"event\":\"close\",\"connection\":7,\"tls\":true,\
             \"user\":\"guest\",\"upstreams\":[\"a:1#2\",\"b:1#3\"]}\n"
        );
    }

    #[test]
    fn client_supplied_text_stays_within_its_field() {
        for format in [AccessFormat::Text, AccessFormat::Json] {
            let text = line(format, "a\" close user=b\r\n\u{2028}\u{85}\\");
            assert_eq!(text.matches('\n').count(), 1);
            assert!(text.contains(r#""a\" close user=b\u000d\n\u2028\u0085\\""#), "{text}");
        }
        assert!(line(AccessFormat::Text, "").contains("user=\"\""));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (19_782, (2024, 2, 29)),
            (20_453, (2025, 12, 31)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
    }
}
