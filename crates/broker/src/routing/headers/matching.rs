//! Matches one set of arguments against one message (RabbitMQ, `rabbit_exchange_type_headers`).

use smallvec::SmallVec;

use super::encoded;
use crate::table_view::{ValueView, entries};

/// The matching rule of a binding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mode {
    /// Whether one of the pairs suffices; otherwise all have to match.
    pub(super) any: bool,
    /// Whether names that start with `x-` take part. `x-match` itself never does.
    with_x: bool,
}

/// The matching rule of arguments in [compact form](encoded::keep), and the pairs that take part.
pub(super) fn asked(encoded_arguments: &[u8]) -> (Mode, impl Iterator<Item = (&str, Term<'_>)>) {
    let (mode, arguments) = encoded::parts(encoded_arguments);
    let mode = Mode::of(mode);
    let pairs = entries(arguments)
        .filter(move |(name, _)| mode.with_x || !name.starts_with("x-"))
        .map(|(name, value)| (name, Term::of(value)));
    (mode, pairs)
}

/// A message's headers, sorted by name.
pub(super) struct SortedHeaders<'a>(SmallVec<[(&'a str, Term<'a>); 8]>);

/// A value as RabbitMQ compares it: by its bytes, and not by its type. Numbers of all types are compared by
/// value, texts and byte arrays by their bytes. Types count only within arrays and tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Term<'a> {
    /// In a binding: matches any value.
    Void,
    /// An integer, a timestamp, or a float with an integral value.
    Integer(i128),
    /// The bytes of a float without an integral value.
    Fraction(u64),
    Boolean(bool),
    Bytes(&'a [u8]),
    /// The type and the bytes of an array, table or decimal.
    Structure(u8, &'a [u8]),
}

impl Mode {
    /// Decodes the value of `x-match`, as returned by `encoded::parts`.
    fn of(mode: Option<&[u8]>) -> Self {
        let mode = mode.unwrap_or(b"all");
        Self { any: mode.starts_with(b"any"), with_x: mode.ends_with(b"-with-x") }
    }
}

impl<'a> SortedHeaders<'a> {
    /// Reads them from a message's table.
    pub(super) fn of(table: &'a [u8]) -> Self {
        let mut headers: SmallVec<[_; 8]> =
            entries(table).map(|(name, value)| (name, Term::of(value))).collect();
        // The sort is stable: of several headers with one name, the first counts.
        if !headers.is_sorted_by_key(|(name, _)| *name) {
            headers.sort_by_key(|(name, _)| *name);
        }
        Self(headers)
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (&'a str, Term<'a>)> {
        self.0.iter().copied()
    }

    /// Whether a binding's arguments, which are sorted by name, match.
    pub(super) fn matches(&self, encoded_arguments: &[u8]) -> bool {
        let (mode, pairs) = asked(encoded_arguments);
        let mut rest = self.0.iter().peekable();
        let mut present = pairs.map(|(name, value)| {
            while rest.next_if(|(other, _)| *other < name).is_some() {}
            let found = rest.next_if(|(other, _)| *other == name);
            found.is_some_and(|&(_, found)| value == Term::Void || value == found)
        });
        if mode.any { present.any(|found| found) } else { present.all(|found| found) }
    }
}

impl<'a> Term<'a> {
    fn of(value: ValueView<'a>) -> Self {
        match value {
            ValueView::Void => Self::Void,
            ValueView::Integer(number) => Self::Integer(number.into()),
            ValueView::Float(number) if number.fract() == 0.0 && number.abs() < BEYOND_INTEGERS => {
                Self::Integer(number as i128)
            }
            ValueView::Float(number) => Self::Fraction(number.to_bits()),
            ValueView::Boolean(value) => Self::Boolean(value),
            ValueView::Text(bytes) | ValueView::Other(b'x', bytes) => Self::Bytes(bytes),
            ValueView::Other(b'T', bytes) => {
                let seconds = bytes.try_into().map_or(0, u64::from_be_bytes);
                Self::Integer(seconds.into())
            }
            ValueView::Array(bytes) => Self::Structure(b'A', bytes),
            // RabbitMQ represents both as the empty list.
            ValueView::Other(b'F', []) => Self::Structure(b'A', &[]),
            ValueView::Other(letter, bytes) => Self::Structure(letter, bytes),
        }
    }
}

/// Two to the power of 64, which exceeds every integer of a table.
const BEYOND_INTEGERS: f64 = 18_446_744_073_709_551_616.0;
