//! The configuration file: TOML with one key per setting.

use std::collections::BTreeMap;
use std::path::Path;

use toml::{Spanned, Value};

use super::layers::{ConfigError, Given, Origin};
use super::settings::SETTINGS;
use super::suggestion::{did_you_mean, setting_meant};
use super::value_error::ValueError;

/// Far above any real configuration; a device or a log given by mistake must not fill the memory.
const MAX_FILE_SIZE: u64 = 1 << 20;

/// Reads the file that `named_by` (a flag or a variable) names.
///
/// # Errors
///
/// The file cannot be read, is not TOML, or has an unknown key or a value of an unsupported type.
pub(super) fn read(path: &Path, named_by: &str) -> Result<Vec<Given>, ConfigError> {
    let unreadable =
        |reason: String| ConfigError::new(named_by, format!("cannot read {}: {reason}", path.display()));
    let text = read_limited(path).map_err(|error| unreadable(error.to_string()))?;
    let text = String::from_utf8(text).map_err(|_| unreadable("it is not valid UTF-8".to_owned()))?;
    parse(&text, path)
}

fn read_limited(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_SIZE + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE_SIZE {
        return Err(std::io::Error::other(format!("it is larger than {MAX_FILE_SIZE} bytes")));
    }
    Ok(text)
}

fn parse(text: &str, path: &Path) -> Result<Vec<Given>, ConfigError> {
    let line_of = |offset: usize| 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
    let entries: BTreeMap<Spanned<String>, Value> = toml::from_str(text).map_err(|error| {
        // Only the message: the error's `Display` quotes the line, including any secret in it.
        let line = error.span().map_or(1, |span| line_of(span.start));
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        let hint = quoted_form(text.lines().nth(line - 1).unwrap_or_default());
        let hint = hint.map(|form| format!("; text needs quotes: {form}")).unwrap_or_default();
        ConfigError::new(format!("{}:{line}", path.display()), format!("not valid TOML: {message}{hint}"))
    })?;

    let mut given = Vec::new();
    for (key, value) in entries {
        let line = line_of(key.span().start);
        let key = key.into_inner();
        let fault = |reason: &str| ConfigError::new(format!("{}:{line}: {key}", path.display()), reason);
        let known = SETTINGS.iter().find(|setting| setting.key == key);
        let unknown = || match value {
            Value::Table(_) => fault("unknown section; settings are given without a section"),
            _ => fault(&format!("unknown key{}", did_you_mean(setting_meant(&key)))),
        };
        let known = known.ok_or_else(unknown)?;
        let texts = texts(&value, known.tables).map_err(|error| fault(&error.to_string()))?;
        given.push(Given { key: known.key, texts, origin: Origin::File { path: path.to_owned(), line } });
    }
    // Sorted in the order of the file, so that the first mistake is the one reported.
    given.sort_by_key(|given| match given.origin {
        Origin::File { line, .. } => line,
        _ => 0,
    });
    Ok(given)
}

/// The form that a line should have whose value is text without quotes, such as `amqp = 0.0.0.0:5672`.
fn quoted_form(line: &str) -> Option<String> {
    let (key, value) = line.split_once('=')?;
    let setting = SETTINGS.iter().find(|setting| setting.key == key.trim())?;
    let value = value.split('#').next().unwrap_or_default().trim();
    let is_text = |value: &str| {
        let is_other = value.starts_with(['"', '\'', '{'])
            || value.parse::<f64>().is_ok()
            || matches!(value, "" | "true" | "false");
        !is_other
    };
    // An IPv6 address begins like a list, and does not end like one.
    match value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(list) => {
            let has_text = list.split(',').any(|element| is_text(element.trim()));
            has_text.then(|| format!("{} = [\"...\"]", setting.key))
        }
        None => is_text(value).then(|| format!("{} = \"...\"", setting.key)),
    }
}

/// Converts a value of the file to the texts that flags would have.
pub(super) fn texts(value: &Value, tables: bool) -> Result<Vec<String>, ValueError> {
    match value {
        Value::Array(values) => values.iter().map(|value| text(value, tables)).collect(),
        _ => Ok(vec![text(value, tables)?]),
    }
}

fn text(value: &Value, tables: bool) -> Result<String, ValueError> {
    match value {
        Value::Table(_) if tables => Ok(value.to_string()),
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(truth) => Ok(truth.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => Err(ValueError::TomlType(value.type_str())),
    }
}
