//! Reads encoded field tables in place, without allocating.

use amqp::wire::Reader;

/// The value of a table's entry, reduced to what RabbitMQ compares: integers of all widths are one class,
/// floats another, everything else is compared by type and bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ValueView<'a> {
    Void,
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Text(&'a [u8]),
    /// The bytes of an array, from which its values can be read.
    Array(&'a [u8]),
    Other(u8, &'a [u8]),
}

/// An iterator over the entries of a table.
#[derive(Debug, Clone)]
pub(crate) struct Entries<'a>(Reader<'a>);

/// Reads a table from its bytes, without the length prefix. They must have been validated.
pub(crate) fn entries(table: &[u8]) -> Entries<'_> {
    Entries(Reader::new(table))
}

impl<'a> Entries<'a> {
    /// The bytes that have not been read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0.rest()
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = (&'a str, ValueView<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.rest().is_empty() {
            return None;
        }
        // The table has been validated, so the input ends between two entries.
        Some((self.0.read().ok()?, read_value(&mut self.0)?))
    }
}

/// The long strings of an array.
pub(crate) fn texts_in(array: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut reader = Reader::new(array);
    std::iter::from_fn(move || if reader.rest().is_empty() { None } else { read_value(&mut reader) })
        .filter_map(|value| match value {
            ValueView::Text(text) => Some(text),
            _ => None,
        })
}

fn read_value<'a>(reader: &mut Reader<'a>) -> Option<ValueView<'a>> {
    let letter: u8 = reader.read().ok()?;
    Some(match letter {
        b'V' => ValueView::Void,
        b't' => ValueView::Boolean(reader.read::<u8>().ok()? != 0),
        b'b' => ValueView::Integer(reader.read::<i8>().ok()?.into()),
        b'B' => ValueView::Integer(reader.read::<u8>().ok()?.into()),
        b's' => ValueView::Integer(reader.read::<i16>().ok()?.into()),
        b'u' => ValueView::Integer(reader.read::<u16>().ok()?.into()),
        b'I' => ValueView::Integer(reader.read::<i32>().ok()?.into()),
        b'i' => ValueView::Integer(reader.read::<u32>().ok()?.into()),
        b'l' | b'L' => ValueView::Integer(reader.read().ok()?),
        b'f' => ValueView::Float(reader.read::<f32>().ok()?.into()),
        b'd' => ValueView::Float(reader.read().ok()?),
        b'S' => ValueView::Text(reader.read().ok()?),
        b'A' => ValueView::Array(reader.read().ok()?),
        b'F' | b'x' => ValueView::Other(letter, reader.read().ok()?),
        b'T' => ValueView::Other(letter, reader.take(8).ok()?),
        b'D' => ValueView::Other(letter, reader.take(5).ok()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use amqp::{FieldTable, FieldValue};

    use super::*;

    #[test]
    fn values_are_read_in_place() {
        let table: FieldTable = [
            ("a", FieldValue::I8(-1)),
            ("b", FieldValue::text("x")),
            ("c", FieldValue::Array(vec![FieldValue::text("p"), FieldValue::I32(1), FieldValue::text("q")])),
            ("d", FieldValue::F32(1.5)),
            ("e", FieldValue::Void),
        ]
        .into_iter()
        .collect();
        let bytes = table.encode();
        let views: Vec<_> = entries(&bytes).collect();
        assert_eq!(views[0], ("a", ValueView::Integer(-1)));
        assert_eq!(views[1], ("b", ValueView::Text(b"x")));
        let ValueView::Array(array) = views[2].1 else { panic!("{views:?}") };
        assert_eq!(texts_in(array).collect::<Vec<_>>(), [b"p", b"q"]);
        assert_eq!(views[3], ("d", ValueView::Float(1.5)));
        assert_eq!(views[4], ("e", ValueView::Void));
    }
}
