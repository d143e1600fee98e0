//! Output: tables for people, JSON and bare lines for scripts.

use std::io::{self, Write as _};

use clap::{Args, ValueEnum};
use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

use crate::Failure;

/// How to print.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct Output {
    /// A table for people, or JSON
    #[arg(long, global = true, value_enum, default_value_t = Format::Table, value_name = "FORMAT")]
    format: Format,
    /// Print no headings and no messages; columns are separated by tabs
    #[arg(long, short, global = true)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// A column: its heading, and the path of its value, such as `queue.name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    heading: String,
    place: String,
}

impl Column {
    /// A column whose heading is the path of its value.
    pub(super) fn new(place: &str) -> Self {
        Self::headed(place, place)
    }

    pub(super) fn headed(heading: &str, place: &str) -> Self {
        Self { heading: heading.to_owned(), place: place.to_owned() }
    }

    /// Its value in a row.
    fn of<'v>(&self, row: &'v Value) -> &'v Value {
        // A key may itself contain dots.
        row.get(&self.place).unwrap_or_else(|| {
            self.place.split('.').try_fold(row, |value, key| value.get(key)).unwrap_or(&Value::Null)
        })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }
}

impl Output {
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub(super) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Prints rows. As JSON they are printed whole, unless columns were chosen.
    pub(super) fn rows(&self, columns: &[Column], chosen: bool, rows: Vec<Value>) -> Result<(), Failure> {
        if self.format == Format::Json {
            let pick = |row: &Value| {
                columns.iter().map(|column| (column.heading.clone(), column.of(row).clone())).collect()
            };
            let rows = if chosen { rows.iter().map(pick).map(Value::Object).collect() } else { rows };
            return self.json(&Value::Array(rows));
        }
        let show = |column: &Column, row: &Value| cell(&self.readable(&column.place, column.of(row)));
        let cells = |row: &Value| columns.iter().map(|column| show(column, row)).collect::<Vec<_>>();
        let mut text = String::new();
        if self.quiet {
            for row in &rows {
                text.push_str(&cells(row).join("\t"));
                text.push('\n');
            }
        } else {
            let mut table = Table::new();
            table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
            table.set_header(columns.iter().map(|column| &column.heading));
            rows.iter().for_each(|row| {
                table.add_row(cells(row));
            });
            for line in table.lines() {
                text.push_str(line.trim());
                text.push('\n');
            }
        }
        print(&text)
    }

    /// Prints one object: a line for each of its facts, or the whole as JSON.
    pub(super) fn facts(&self, facts: &[(&str, Value)], whole: &Value) -> Result<(), Failure> {
        if self.format == Format::Json {
            return self.json(whole);
        }
        let facts = facts.iter().filter(|(_, value)| !value.is_null());
        let width = facts.clone().map(|(name, _)| name.len()).max().unwrap_or(0);
        let line = |(name, value): &(&str, Value)| match self.quiet {
            true => format!("{name}\t{}\n", cell(value)),
            false => format!("{name:<width$}  {}\n", cell(&self.readable(name, value))),
        };
        print(&facts.map(line).collect::<String>())
    }

    /// The value, which for people is in a fitting unit if its name says that it is a number of bytes.
    fn readable(&self, place: &str, value: &Value) -> Value {
        match value.as_u64() {
            Some(number) if !self.quiet && self.format == Format::Table && is_size(place) => {
                Value::String(size(number))
            }
            _ => value.clone(),
        }
    }

    /// Reports what was done.
    pub(super) fn done(&self, what: &str) -> Result<(), Failure> {
        match (self.quiet, self.format) {
            (true, _) => Ok(()),
            (false, Format::Json) => self.json(&serde_json::json!({ "done": what })),
            (false, Format::Table) => print(&format!("{}\n", printable(what))),
        }
    }

    /// Tells people how it goes.
    pub(super) fn remark(&self, what: &str) -> Result<(), Failure> {
        match (self.quiet, self.format) {
            (false, Format::Table) => print(&format!("{}\n", printable(what))),
            _ => Ok(()),
        }
    }

    /// Prints JSON, on one line in quiet mode.
    pub(super) fn json(&self, value: &Value) -> Result<(), Failure> {
        let text = if self.quiet { Ok(value.to_string()) } else { serde_json::to_string_pretty(value) };
        print(&(text.map_err(Failure::run)? + "\n"))
    }
}

/// Whether values of this name are numbers of bytes, in RabbitMQ's API or in Leveret's own.
fn is_size(place: &str) -> bool {
    let name = place.rsplit('.').next().unwrap_or(place);
    SIZES.contains(&name) || name.ends_with("_bytes") || name.starts_with("message_bytes")
}

const SIZES: [&str; 8] =
    ["memory", "bytes", "recv_oct", "send_oct", "mem_used", "mem_limit", "disk_free", "disk_free_limit"];

/// Formats a number of bytes with one decimal, in the largest unit in which it is at least 1.
pub(crate) fn size(bytes: u64) -> String {
    let fits = |(_, unit): &&(&str, u64)| bytes >= *unit;
    match UNITS.iter().find(fits) {
        // Rounded down, so as not to show more free space than there is.
        Some((name, unit)) => format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
        None => format!("{bytes} B"),
    }
}

/// Largest first.
const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Prints to standard output. A reader that closes the pipe early, such as `head`, is not a failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(Failure::run),
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => printable(text),
        Value::Array(values) if values.iter().all(Value::is_string) => {
            values.iter().map(cell).collect::<Vec<_>>().join(",")
        }
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            printable(&value.to_string())
        }
    }
}

/// Escapes control characters. Any user who may declare a queue chooses its name, which must not move the
/// cursor or fake lines and columns.
pub(crate) fn printable(text: &str) -> String {
    let mut view = String::with_capacity(text.len());
    for sign in text.chars() {
        if sign.is_control() {
            view.extend(sign.escape_default());
        } else {
            view.push(sign);
        }
    }
    view
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_column_finds_its_value_however_deep() {
        let row = json!({"queue": {"name": "q"}, "a.b": 1, "tags": ["x", "y"], "arguments": {"x-max": 1}});
        let view = |place: &str| cell(Column::new(place).of(&row));
        assert_eq!(view("queue.name"), "q");
        assert_eq!(view("a.b"), "1");
        assert_eq!(view("tags"), "x,y");
        assert_eq!(view("arguments"), "{\"x-max\":1}");
        assert_eq!(view("missing.entirely"), "");
    }

    #[test]
    fn people_read_sizes_in_a_unit_that_fits_and_scripts_bytes() {
        for (bytes, view) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_048_575, "1023.9 KiB"), (3 << 29, "1.5 GiB")]
        {
            assert_eq!(size(bytes), view);
        }
        let printed = |format, quiet, name| Output { format, quiet }.readable(name, &json!(1024));
        for name in ["memory", "message_bytes_ready", "queue.message_bytes", "waiting_bytes", "disk_free"] {
            assert_eq!(printed(Format::Table, false, name), "1.0 KiB");
            assert_eq!(printed(Format::Table, true, name), 1024);
            assert_eq!(printed(Format::Json, false, name), 1024);
        }
        assert_eq!(printed(Format::Table, false, "messages"), 1024);
        let people = Output { format: Format::Table, quiet: false };
        assert_eq!(people.readable("memory", &json!("NaN")), "NaN");
    }

    #[test]
    fn a_name_cannot_move_the_cursor_or_make_up_lines() {
        assert_eq!(printable("a\u{1b}[2J\nb\tü"), "a\\u{1b}[2J\\nb\\tü");
    }
}
