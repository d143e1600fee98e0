//! Field tables (specification section 4.2.5.5) with RabbitMQ's reading of the type letters.
//!
//! The specification and RabbitMQ disagree on some letters; every client follows RabbitMQ, and so does this module: `s`
//! is a signed 16-bit integer (not a short string), `l` a signed 64-bit one, `x` a byte array.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::wire::{DecodeError, Field, Reader, Writer, truncate_to_short, write_length};

/// How deeply tables and arrays may nest. Each level costs a stack frame while it is checked; no known client
/// nests more than a handful.
pub const MAX_TABLE_DEPTH: usize = 64;

/// One value of a field table.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each variant is named after the type that it holds")]
pub enum FieldValue {
    Boolean(bool),
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    F32(f32),
    F64(f64),
    /// `value` times ten to the power of minus `scale`.
    Decimal {
        scale: u8,
        value: u32,
    },
    LongString(Vec<u8>),
    Array(Vec<FieldValue>),
    /// Seconds since 1970-01-01 UTC.
    Timestamp(u64),
    Table(FieldTable),
    Void,
    ByteArray(Vec<u8>),
}

impl FieldValue {
    /// A long string with this text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::LongString(text.into().into_bytes())
    }

    /// The value as an integer, whatever its width on the wire.
    pub fn as_integer(&self) -> Option<i64> {
        Some(match self {
            Self::I8(v) => i64::from(*v),
            Self::U8(v) => i64::from(*v),
            Self::I16(v) => i64::from(*v),
            Self::U16(v) => i64::from(*v),
            Self::I32(v) => i64::from(*v),
            Self::U32(v) => i64::from(*v),
            Self::I64(v) => *v,
            _ => return None,
        })
    }

    /// The value as text, if it is a long string of UTF-8.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::LongString(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// RabbitMQ's name for the type, as it appears in its error texts.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Boolean(_) => "bool",
            Self::I8(_) => "byte",
            Self::U8(_) => "unsignedbyte",
            Self::I16(_) => "short",
            Self::U16(_) => "unsignedshort",
            Self::I32(_) => "signedint",
            Self::U32(_) => "unsignedint",
            Self::I64(_) => "long",
            Self::F32(_) => "float",
            Self::F64(_) => "double",
            Self::Decimal { .. } => "decimal",
            Self::LongString(_) => "longstr",
            Self::Array(_) => "array",
            Self::Timestamp(_) => "timestamp",
            Self::Table(_) => "table",
            Self::Void => "void",
            Self::ByteArray(_) => "binary",
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let letter: u8 = reader.read()?;
        Ok(match letter {
            b't' => Self::Boolean(reader.read::<u8>()? != 0),
            b'b' => Self::I8(reader.read()?),
            b'B' => Self::U8(reader.read()?),
            b's' => Self::I16(reader.read()?),
            b'u' => Self::U16(reader.read()?),
            b'I' => Self::I32(reader.read()?),
            b'i' => Self::U32(reader.read()?),
            b'l' | b'L' => Self::I64(reader.read()?),
            b'f' => Self::F32(reader.read()?),
            b'd' => Self::F64(reader.read()?),
            b'D' => Self::Decimal { scale: reader.read()?, value: reader.read()? },
            b'S' => Self::LongString(reader.read::<&[u8]>()?.to_vec()),
            b'T' => Self::Timestamp(reader.read()?),
            b'x' => Self::ByteArray(reader.read::<&[u8]>()?.to_vec()),
            b'V' => Self::Void,
            b'F' => Self::Table(read_entries(reader.read()?)?),
            b'A' => {
                let mut items = Reader::new(reader.read()?);
                let mut array = Vec::new();
                while !items.rest().is_empty() {
                    array.push(Self::read(&mut items)?);
                }
                Self::Array(array)
            }
            other => return Err(DecodeError::UnknownFieldType(other)),
        })
    }

    /// Appends the value with its type letter.
    pub fn write(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Boolean(v) => put_tagged(writer, b't', &u8::from(*v)),
            Self::I8(v) => put_tagged(writer, b'b', v),
            Self::U8(v) => put_tagged(writer, b'B', v),
            Self::I16(v) => put_tagged(writer, b's', v),
            Self::U16(v) => put_tagged(writer, b'u', v),
            Self::I32(v) => put_tagged(writer, b'I', v),
            Self::U32(v) => put_tagged(writer, b'i', v),
            Self::I64(v) => put_tagged(writer, b'l', v),
            Self::F32(v) => put_tagged(writer, b'f', v),
            Self::F64(v) => put_tagged(writer, b'd', v),
            Self::Decimal { scale, value } => {
                put_tagged(writer, b'D', scale);
                writer.write(value);
            }
            Self::LongString(v) => put_tagged(writer, b'S', &v.as_slice()),
            Self::Timestamp(v) => put_tagged(writer, b'T', v),
            Self::ByteArray(v) => put_tagged(writer, b'x', &v.as_slice()),
            Self::Void => writer.put(b"V"),
            Self::Table(table) => {
                writer.put(b"F");
                table.write(writer);
            }
            Self::Array(items) => {
                let mut bytes = Vec::new();
                let mut inner = Writer::new(&mut bytes);
                items.iter().for_each(|item| item.write(&mut inner));
                put_tagged(writer, b'A', &bytes.as_slice());
            }
        }
    }
}

fn put_tagged<'a, F: Field<'a>>(writer: &mut Writer<'_>, letter: u8, field: &F) {
    writer.put(&[letter]);
    writer.write(field);
}

/// A field table that owns its contents, in the order they were received. No two entries have the same name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FieldTable(Vec<(Box<str>, FieldValue)>);

impl FieldTable {
    /// Creates a table without entries.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&FieldValue> {
        self.0.iter().find(|(name, _)| &**name == key).map(|(_, value)| value)
    }

    /// Sets `key`, replacing an earlier value. Keys are cut to 255 bytes, the longest that the format allows.
    pub fn insert(&mut self, key: &str, value: FieldValue) {
        let key = truncate_to_short(key);
        match self.0.iter_mut().find(|(name, _)| &**name == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.into(), value)),
        }
    }

    /// Removes `key` and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<FieldValue> {
        let at = self.0.iter().position(|(name, _)| &**name == key)?;
        Some(self.0.remove(at).1)
    }

    /// Sorts the entries by key.
    pub fn sort(&mut self) {
        self.0.sort_by(|(one, _), (other, _)| one.cmp(other));
    }

    /// The entries in the order of their insertion.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &FieldValue)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// Number of entries, without those of nested tables.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends the table with its length.
    pub fn write(&self, writer: &mut Writer<'_>) {
        let encoded = self.encode();
        write_length(writer, encoded.len());
        writer.put(&encoded);
    }

    /// The table's entries on the wire, without the length in front, as [`RawTable`] borrows them.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        for (name, value) in &self.0 {
            writer.write(&&**name);
            value.write(&mut writer);
        }
        bytes
    }
}

/// Like repeated calls of [`FieldTable::insert`]: the last value of a key wins, at the index of its first one. The cost is
/// linear in the number of entries, not quadratic.
impl<K: AsRef<str>> FromIterator<(K, FieldValue)> for FieldTable {
    fn from_iter<I: IntoIterator<Item = (K, FieldValue)>>(entries: I) -> Self {
        let (mut table, mut entries) = (Self::new(), entries.into_iter());
        while table.len() < SEARCHED {
            let Some((key, value)) = entries.next() else { return table };
            table.insert(key.as_ref(), value);
        }
        let mut places: HashMap<Box<str>, usize> = HashMap::with_capacity(table.len());
        places.extend(table.0.iter().enumerate().map(|(place, (name, _))| (name.clone(), place)));
        for (key, value) in entries {
            let key: Box<str> = truncate_to_short(key.as_ref()).into();
            match places.entry(key) {
                Entry::Occupied(known) => table.0[*known.get()].1 = value,
                Entry::Vacant(new) => {
                    table.0.push((new.key().clone(), value));
                    new.insert(table.0.len() - 1);
                }
            }
        }
        table
    }
}

/// Tables with at most this many entries are searched linearly when they are collected or read: a map would cost more.
const SEARCHED: usize = 16;

/// A table as it is in a received frame: validated, not yet decoded.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct RawTable<'a>(&'a [u8]);

impl<'a> RawTable<'a> {
    /// A table without entries.
    pub const EMPTY: Self = Self(&[]);

    /// Accepts `bytes` (without the length in front) if they are a well-formed table.
    ///
    /// # Errors
    /// The table is malformed, or nested deeper than [`MAX_TABLE_DEPTH`].
    pub fn check(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        check_entries(bytes, MAX_TABLE_DEPTH)?;
        Ok(Self(bytes))
    }

    /// The wire form, without the length in front.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all floating-point numbers in it are finite. Erlang has no infinity or NaN, so a RabbitMQ process that tries
    /// to decode one crashes.
    pub fn is_finite(&self) -> bool {
        // `check` has validated every byte, so this cannot fail.
        check_entries(self.0, MAX_TABLE_DEPTH).unwrap_or_default()
    }

    /// Its bytes with this entry appended, and without other entries of that name. The rest is unchanged, including
    /// duplicate names, which a [`FieldTable`] would drop.
    pub fn with_entry(&self, name: &str, value: &FieldValue) -> Vec<u8> {
        let name = truncate_to_short(name);
        let (mut bytes, mut reader) = (Vec::with_capacity(self.0.len()), Reader::new(self.0));
        let mut from = reader.rest();
        // `check` has validated every byte, so this loop stops only at the end of the table.
        while let Ok(other) = reader.read::<&str>()
            && skip_value(&mut reader).is_ok()
        {
            let (entry, rest) = from.split_at(from.len() - reader.rest().len());
            if other != name {
                bytes.extend_from_slice(entry);
            }
            from = rest;
        }
        let mut writer = Writer::new(&mut bytes);
        writer.write(&name);
        value.write(&mut writer);
        bytes
    }

    /// Decodes the bytes into a table of its own.
    pub fn decode(&self) -> FieldTable {
        // `check` has validated every byte, so this cannot fail.
        read_entries(self.0).unwrap_or_default()
    }
}

impl fmt::Debug for RawTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.decode().fmt(f)
    }
}

/// If several entries have one name, the first counts, as in RabbitMQ, and only that one is decoded: a lookup by name
/// and an iteration over all entries find the same value.
fn read_entries(bytes: &[u8]) -> Result<FieldTable, DecodeError> {
    let mut reader = Reader::new(bytes);
    let mut entries = Vec::new();
    while !reader.rest().is_empty() {
        let name: &str = reader.read()?;
        entries.push((name.into(), FieldValue::read(&mut reader)?));
    }
    keep_first(&mut entries);
    Ok(FieldTable(entries))
}

/// Removes all but the first entry with each name, without quadratic cost.
fn keep_first(entries: &mut Vec<(Box<str>, FieldValue)>) {
    let is_first: Vec<bool> = if entries.len() <= SEARCHED {
        let earlier = |at: usize| entries[..at].iter().any(|(name, _)| *name == entries[at].0);
        if !(1..entries.len()).any(earlier) {
            return;
        }
        (0..entries.len()).map(|at| !earlier(at)).collect()
    } else {
        let mut names = HashSet::with_capacity(entries.len());
        entries.iter().map(|(name, _)| names.insert(&**name)).collect()
    };
    let mut is_first = is_first.into_iter();
    entries.retain(|_| is_first.next().unwrap_or(true));
}

/// Validates a table; returns whether all its numbers are finite.
fn check_entries(bytes: &[u8], depth: usize) -> Result<bool, DecodeError> {
    let mut reader = Reader::new(bytes);
    let mut is_finite = true;
    while !reader.rest().is_empty() {
        reader.read::<&str>()?;
        is_finite &= check_value(&mut reader, depth)?;
    }
    Ok(is_finite)
}

fn check_value(reader: &mut Reader<'_>, depth: usize) -> Result<bool, DecodeError> {
    let letter: u8 = reader.read()?;
    let width = match letter {
        b'V' => 0,
        b't' | b'b' | b'B' => 1,
        b's' | b'u' => 2,
        b'I' | b'i' => 4,
        b'D' => 5,
        b'l' | b'L' | b'T' => 8,
        b'f' => return Ok(reader.read::<f32>()?.is_finite()),
        b'd' => return Ok(reader.read::<f64>()?.is_finite()),
        b'S' | b'x' => return reader.read::<&[u8]>().map(|_| true),
        b'F' => return check_entries(reader.read()?, depth.checked_sub(1).ok_or(DecodeError::TooDeep)?),
        b'A' => {
            let depth = depth.checked_sub(1).ok_or(DecodeError::TooDeep)?;
            let mut items = Reader::new(reader.read()?);
            let mut is_finite = true;
            while !items.rest().is_empty() {
                is_finite &= check_value(&mut items, depth)?;
            }
            return Ok(is_finite);
        }
        other => return Err(DecodeError::UnknownFieldType(other)),
    };
    reader.take(width).map(|_| true)
}

/// The value of the first entry with this name in an unvalidated table. Malformed other entries, such as names that are not
/// UTF-8, do not hide it.
pub(crate) fn find_value(bytes: &[u8], wanted: &str) -> Option<FieldValue> {
    let mut reader = Reader::new(bytes);
    while !reader.rest().is_empty() {
        let length: u8 = reader.read().ok()?;
        if reader.take(usize::from(length)).ok()? == wanted.as_bytes() {
            return FieldValue::read(&mut reader).ok();
        }
        skip_value(&mut reader).ok()?;
    }
    None
}

/// Skips a value without looking into tables and arrays.
fn skip_value(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    match reader.rest().first() {
        Some(b'F' | b'A') => {
            reader.take(1)?;
            reader.read::<&[u8]>().map(drop)
        }
        _ => check_value(reader, MAX_TABLE_DEPTH).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_type() -> FieldTable {
        let inner: FieldTable = [("k", FieldValue::text("v"))].into_iter().collect();
        [
            ("boolean", FieldValue::Boolean(true)),
            ("i8", FieldValue::I8(-1)),
            ("u8", FieldValue::U8(255)),
            ("i16", FieldValue::I16(-2)),
            ("u16", FieldValue::U16(65535)),
            ("i32", FieldValue::I32(-3)),
            ("u32", FieldValue::U32(u32::MAX)),
            ("i64", FieldValue::I64(i64::MIN)),
            ("f32", FieldValue::F32(1.5)),
            ("f64", FieldValue::F64(-2.5)),
            ("decimal", FieldValue::Decimal { scale: 2, value: 314 }),
            ("text", FieldValue::text("héllo")),
            ("array", FieldValue::Array(vec![FieldValue::Void, FieldValue::Table(inner.clone())])),
            ("time", FieldValue::Timestamp(1_700_000_000)),
            ("table", FieldValue::Table(inner)),
            ("void", FieldValue::Void),
            ("bytes", FieldValue::ByteArray(vec![0, 255])),
        ]
        .into_iter()
        .collect()
    }

    #[test]
    fn integers_of_every_width_are_integers_and_have_rabbitmqs_names() {
        for (value, name) in [
            (FieldValue::I8(-7), "byte"),
            (FieldValue::I16(-7), "short"),
            (FieldValue::I32(-7), "signedint"),
            (FieldValue::I64(-7), "long"),
        ] {
            assert_eq!((value.as_integer(), value.type_name()), (Some(-7), name));
        }
        for (value, name) in [
            (FieldValue::U8(200), "unsignedbyte"),
            (FieldValue::U16(200), "unsignedshort"),
            (FieldValue::U32(200), "unsignedint"),
        ] {
            assert_eq!((value.as_integer(), value.type_name()), (Some(200), name));
        }
        for (value, name) in [
            (FieldValue::Boolean(true), "bool"),
            (FieldValue::F32(1.0), "float"),
            (FieldValue::F64(1.0), "double"),
            (FieldValue::Timestamp(1), "timestamp"),
            (FieldValue::Void, "void"),
            (FieldValue::text("1"), "longstr"),
            (FieldValue::ByteArray(vec![1]), "binary"),
            (FieldValue::Array(Vec::new()), "array"),
            (FieldValue::Table(FieldTable::new()), "table"),
        ] {
            assert_eq!((value.as_integer(), value.type_name()), (None, name));
        }
    }

    #[test]
    fn every_type_survives_a_round_trip() {
        let table = every_type();
        let bytes = table.encode();
        let raw = RawTable::check(&bytes).unwrap();
        assert_eq!(raw.decode(), table);
    }

    #[test]
    fn every_truncation_is_detected() {
        let table: FieldTable = every_type().iter().skip(1).map(|(k, v)| (k, v.clone())).collect();
        let bytes = table.encode();
        let whole_entries = (0..bytes.len()).filter(|&n| RawTable::check(&bytes[..n]).is_ok()).count();
        assert_eq!(whole_entries, table.len(), "only cuts between entries may pass");
    }

    #[test]
    fn non_finite_numbers_are_found_at_any_depth() {
        let is_finite =
            |value| RawTable::check(&FieldTable::from_iter([("k", value)]).encode()).unwrap().is_finite();
        let inner = |value| FieldValue::Table(FieldTable::from_iter([("k", value)]));
        for odd in
            [FieldValue::F64(f64::NAN), FieldValue::F32(f32::INFINITY), FieldValue::F64(f64::NEG_INFINITY)]
        {
            assert!(!is_finite(odd.clone()));
            assert!(!is_finite(inner(odd.clone())));
            assert!(!is_finite(FieldValue::Array(vec![odd.clone(), FieldValue::I32(1)])));
            assert!(!is_finite(FieldValue::Array(vec![FieldValue::Void, inner(odd)])));
        }
        assert!(is_finite(FieldValue::Table(every_type())));
        assert!(is_finite(FieldValue::F64(f64::MAX)));
    }

    #[test]
    fn nesting_is_bounded() {
        let nest = |levels: usize| {
            (0..levels)
                .fold(FieldTable::new(), |inner, _| [("t", FieldValue::Table(inner))].into_iter().collect())
        };
        assert!(RawTable::check(&nest(MAX_TABLE_DEPTH).encode()).is_ok());
        assert_eq!(RawTable::check(&nest(MAX_TABLE_DEPTH + 1).encode()), Err(DecodeError::TooDeep));
    }

    #[test]
    fn a_table_is_collected_as_if_entries_were_inserted_one_by_one() {
        let long = "k".repeat(300);
        let mut entries: Vec<(String, i32)> = (0..100).map(|n| (format!("k{}", n % 60), n)).collect();
        entries.extend([(format!("{long}1"), 100), (format!("{long}2"), 101)]);
        let mut inserted = FieldTable::new();
        entries.iter().for_each(|(key, n)| inserted.insert(key, FieldValue::I32(*n)));
        let collected: FieldTable = entries.into_iter().map(|(key, n)| (key, FieldValue::I32(n))).collect();
        assert_eq!((collected.len(), &collected), (61, &inserted));
    }

    #[test]
    fn the_first_of_several_entries_with_one_name_is_taken() {
        for others in [0, SEARCHED, 100_000] {
            let mut bytes = Vec::new();
            let mut writer = Writer::new(&mut bytes);
            let mut put = |name: &str, value: i32| {
                writer.write(&name);
                FieldValue::I32(value).write(&mut writer);
            };
            put("twice", 1);
            (0..others).for_each(|n| put(&n.to_string(), 0));
            put("twice", 2);
            put("last", 3);
            let table = RawTable::check(&bytes).unwrap().decode();
            assert_eq!((table.len(), table.get("twice")), (others + 2, Some(&FieldValue::I32(1))));
            assert_eq!(table.iter().last(), Some(("last", &FieldValue::I32(3))));
        }
    }

    #[test]
    fn collecting_a_million_keys_is_not_quadratic() {
        // With a search through all earlier entries this would take many minutes.
        let table: FieldTable = (0..1_000_000).map(|n| (n.to_string(), FieldValue::Void)).collect();
        assert_eq!(table.len(), 1_000_000);
    }

    #[test]
    fn unknown_letters_are_refused() {
        assert_eq!(RawTable::check(b"\x01k?"), Err(DecodeError::UnknownFieldType(b'?')));
    }
}
