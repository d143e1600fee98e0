//! The golden vectors, and strategies for arbitrary protocol elements.

use amqp::{FieldTable, FieldValue};
use proptest::prelude::*;

/// The fields of every golden line of this kind.
pub fn golden_lines(kind: &'static str) -> impl Iterator<Item = Vec<String>> {
    include_str!("fixtures/golden.txt").lines().filter_map(move |line| {
        let fields = line.strip_prefix(kind)?.strip_prefix('|')?;
        Some(fields.split('|').map(str::to_owned).collect())
    })
}

/// A method as pika describes it.
#[derive(Debug, Clone)]
pub struct GoldenMethod {
    /// The method's name in the specification.
    pub name: String,
    /// The name and the type of each argument, such as `queue` and `shortstr`.
    pub arguments: Vec<(String, String)>,
    /// The payload of its frame.
    pub payload: Vec<u8>,
    /// The expected output of Rust's `Debug`.
    pub view: String,
}

/// All methods of the golden vectors.
pub fn golden_methods() -> impl Iterator<Item = GoldenMethod> {
    golden_lines("method").map(|fields| GoldenMethod {
        name: fields[0].clone(),
        arguments: names(&fields[3])
            .zip(fields[1].split(' '))
            .map(|(name, kind)| (name, kind.into()))
            .collect(),
        payload: unhex(&fields[2]),
        view: fields[3].clone(),
    })
}

/// The argument names in Rust's `Debug` of a method.
fn names(view: &str) -> impl Iterator<Item = String> {
    let fields = view.split_once("{ ").map_or("", |(_, fields)| fields);
    fields.split(", ").filter_map(|field| Some(field.split_once(": ")?.0.to_owned()))
}

/// Bytes from their hexadecimal form.
pub fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Tables of every type, nested, with keys in ascending order, as other implementations keep them.
pub fn any_table() -> impl Strategy<Value = FieldTable> {
    table_of(any_value().boxed())
}

/// Payloads of method frames: any method with any arguments, as encoded by an independent writer. Reserved arguments
/// are empty unless requested.
pub fn any_method_payload(wanted: fn(&str) -> bool) -> impl Strategy<Value = Vec<u8>> {
    let methods: Vec<GoldenMethod> = golden_methods().collect();
    prop::sample::select(methods).prop_flat_map(move |method| {
        let mut parts = vec![Just(method.payload[..4].to_vec()).boxed()];
        let mut arguments = method.arguments.iter().peekable();
        while let Some((name, kind)) = arguments.next() {
            if kind == "bit" {
                // Bits that follow each other share one byte.
                let (mut mask, mut bits) = (u8::from(wanted(name)), 1);
                while let Some((name, _)) = arguments.next_if(|(_, kind)| kind == "bit") {
                    mask |= u8::from(wanted(name)) << bits;
                    bits += 1;
                }
                parts.push((0..1u16 << bits).prop_map(move |bits| vec![bits as u8 & mask]).boxed());
            } else if wanted(name) {
                parts.push(any_argument(kind));
            } else {
                parts.push(Just(empty_argument(kind)).boxed());
            }
        }
        parts.prop_map(|parts| parts.concat())
    })
}

/// Property flags and list: any of the fourteen, as encoded by an independent writer.
pub fn any_properties() -> impl Strategy<Value = Vec<u8>> {
    let kinds = [
        "shortstr", "shortstr", "table", "octet", "octet", "shortstr", "shortstr", "shortstr", "shortstr",
        "longlong", "shortstr", "shortstr", "shortstr", "shortstr",
    ];
    let list: Vec<_> = kinds.iter().map(|kind| prop::option::of(any_argument(kind))).collect();
    list.prop_map(|list| {
        let flags = list.iter().enumerate().map(|(at, value)| u16::from(value.is_some()) << (15 - at));
        let mut bytes = flags.sum::<u16>().to_be_bytes().to_vec();
        bytes.extend(list.into_iter().flatten().flatten());
        bytes
    })
}

fn any_argument(kind: &str) -> BoxedStrategy<Vec<u8>> {
    match kind {
        "octet" => any::<u8>().prop_map(|n| vec![n]).boxed(),
        "short" => any::<u16>().prop_map(|n| n.to_be_bytes().to_vec()).boxed(),
        "long" => any::<u32>().prop_map(|n| n.to_be_bytes().to_vec()).boxed(),
        "longlong" => any::<u64>().prop_map(|n| n.to_be_bytes().to_vec()).boxed(),
        "shortstr" => short_text().prop_map(|text| [&[text.len() as u8], text.as_bytes()].concat()).boxed(),
        "longstr" => prop::collection::vec(any::<u8>(), 0..300).prop_map(|bytes| with_length(&bytes)).boxed(),
        "table" => any_table().prop_map(|table| with_length(&table.encode())).boxed(),
        other => panic!("argument of kind {other}"),
    }
}

fn empty_argument(kind: &str) -> Vec<u8> {
    let width = match kind {
        "long" => 4,
        "short" => 2,
        "shortstr" => 1,
        "longstr" => 4,
        other => panic!("unwanted argument of kind {other}"),
    };
    vec![0; width]
}

fn with_length(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// At most 60 characters of up to four bytes: a short string holds 255.
fn short_text() -> impl Strategy<Value = String> {
    "\\PC{0,60}"
}

fn any_value() -> impl Strategy<Value = FieldValue> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let leaf = prop_oneof![
        any::<bool>().prop_map(FieldValue::Boolean),
        any::<i8>().prop_map(FieldValue::I8),
        any::<u8>().prop_map(FieldValue::U8),
        any::<i16>().prop_map(FieldValue::I16),
        any::<u16>().prop_map(FieldValue::U16),
        any::<i32>().prop_map(FieldValue::I32),
        any::<u32>().prop_map(FieldValue::U32),
        any::<i64>().prop_map(FieldValue::I64),
        any::<f32>().prop_map(FieldValue::F32),
        any::<f64>().prop_map(FieldValue::F64),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| FieldValue::Decimal { scale, value }),
        bytes().prop_map(FieldValue::LongString),
        bytes().prop_map(FieldValue::ByteArray),
        any::<u64>().prop_map(FieldValue::Timestamp),
        Just(FieldValue::Void),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(FieldValue::Array),
            table_of(inner.boxed()).prop_map(FieldValue::Table),
        ]
    })
}

fn table_of(value: BoxedStrategy<FieldValue>) -> impl Strategy<Value = FieldTable> {
    prop::collection::btree_map(short_text(), value, 0..5).prop_map(FieldTable::from_iter)
}
