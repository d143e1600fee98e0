use amqp::FieldTable;
use proptest::prelude::*;

use super::*;

fn table(entries: &[(&str, FieldValue)]) -> Vec<u8> {
    let mut entries = entries.to_vec();
    entries.sort_by_key(|(name, _)| *name);
    entries.into_iter().collect::<FieldTable>().encode()
}

/// A table and its arguments, bound to destinations of the same number as the arguments' position.
fn indexed(bindings: &[Vec<u8>]) -> (HeadersTable, Arguments) {
    let (mut index, mut all) = (HeadersTable::default(), Arguments::default());
    for (destination, arguments) in bindings.iter().enumerate() {
        let number = all.intern(&keep(arguments));
        if all.insert(number, destination as u32) {
            index.insert(&all, number);
        }
    }
    (index, all)
}

fn remove(index: &mut HeadersTable, all: &mut Arguments, arguments: &[u8], destination: u32) {
    let number = all.number_of(&keep(arguments)).unwrap();
    if all.remove(number, destination) {
        index.remove(all, number);
        all.forget(number);
    }
}

fn found(index: &HeadersTable, all: &Arguments, headers: &[u8]) -> Vec<u32> {
    let mut found = Vec::new();
    index.matches(all, headers, |destination| found.push(destination));
    found.sort_unstable();
    found
}

/// Whether one binding matches, through the index.
fn matches(binding: &[(&str, FieldValue)], headers: &[(&str, FieldValue)]) -> bool {
    let arguments = table(binding);
    let (mut index, mut all) = indexed(std::slice::from_ref(&arguments));
    let found = found(&index, &all, &table(headers));
    remove(&mut index, &mut all, &arguments, 0);
    assert!(index.is_empty() && all.is_empty(), "removing left something behind");
    found == [0]
}

fn text(text: &str) -> FieldValue {
    FieldValue::text(text)
}

#[test]
fn all_needs_every_pair_and_is_the_default() {
    let binding = [("a", text("1")), ("b", FieldValue::I32(2))];
    assert!(matches(&binding, &[("a", text("1")), ("b", FieldValue::I64(2)), ("c", text("3"))]));
    assert!(!matches(&binding, &[("a", text("1"))]));
    assert!(!matches(&binding, &[("a", text("1")), ("b", text("2"))]), "types differ");
    assert!(matches(&[], &[]), "all of nothing");
}

#[test]
fn any_needs_one_pair() {
    let binding = [("x-match", text("any")), ("a", text("1")), ("b", text("2"))];
    assert!(matches(&binding, &[("b", text("2"))]));
    assert!(!matches(&binding, &[("b", text("1"))]));
    assert!(matches(&binding, &[("a", text("1")), ("b", text("2"))]), "both, and found once");
    assert!(!matches(&[("x-match", text("any"))], &[("b", text("1"))]), "any of nothing");
}

#[test]
fn a_void_value_asks_for_presence() {
    assert!(matches(&[("a", FieldValue::Void)], &[("a", text("whatever"))]));
    assert!(!matches(&[("a", FieldValue::Void)], &[("b", text("whatever"))]));
    assert!(!matches(&[("a", text("whatever"))], &[("a", FieldValue::Void)]));
}

#[test]
fn names_with_x_count_only_when_asked_for() {
    let binding = |mode| [("x-match", text(mode)), ("x-a", text("1")), ("b", text("2"))];
    assert!(matches(&binding("all"), &[("b", text("2"))]));
    assert!(!matches(&binding("all-with-x"), &[("b", text("2"))]));
    assert!(matches(&binding("all-with-x"), &[("b", text("2")), ("x-a", text("1"))]));
    assert!(!matches(&binding("any"), &[("x-a", text("1"))]));
    assert!(matches(&binding("any-with-x"), &[("x-a", text("1"))]));
}

#[test]
fn values_are_compared_across_types() {
    let equal = |one: FieldValue, other: FieldValue| {
        let there = matches(&[("a", one.clone())], &[("a", other.clone())]);
        assert_eq!(there, matches(&[("a", other)], &[("a", one)]));
        there
    };
    assert!(equal(FieldValue::I8(-3), FieldValue::I64(-3)));
    assert!(equal(FieldValue::I32(2), FieldValue::F64(2.0)));
    assert!(equal(FieldValue::F32(1.5), FieldValue::F64(1.5)));
    assert!(equal(FieldValue::F64(0.0), FieldValue::F64(-0.0)));
    assert!(equal(FieldValue::Timestamp(60), FieldValue::U8(60)));
    assert!(equal(FieldValue::ByteArray(b"x".to_vec()), text("x")));
    assert!(!equal(FieldValue::I32(2), FieldValue::F64(2.5)));
    assert!(!equal(FieldValue::Timestamp(u64::MAX), FieldValue::I64(-1)));
    assert!(!equal(FieldValue::Boolean(true), FieldValue::I8(1)));
    assert!(!equal(FieldValue::I8(1), text("1")));
}

#[test]
fn the_rarest_pair_carries_a_binding_and_equal_arguments_are_one() {
    let arguments = |id: i32| table(&[("format", text("pdf")), ("id", FieldValue::I32(id / 2))]);
    let bindings: Vec<_> = (0..100).map(arguments).collect();
    let (index, all) = indexed(&bindings);
    assert_eq!((index.anchors.len(), index.crowds.len()), (50, 0));
    assert_eq!(found(&index, &all, &bindings[7]), [6, 7]);
}

#[test]
fn an_unknown_x_match_is_refused_in_rabbitmqs_words() {
    let refused = |value| {
        let bytes = table(&[("x-match", value)]);
        check_arguments(RawTable::check(&bytes).unwrap()).unwrap_err().to_string()
    };
    assert_eq!(
        refused(text("bad")),
        "Invalid x-match field value <<\"bad\">>; expected all, any, all-with-x, or any-with-x"
    );
    assert_eq!(
        refused(FieldValue::Boolean(true)),
        "Invalid x-match field type bool (value true); expected longstr"
    );
}

/// A literal implementation of the definition.
fn naive(binding: &[(String, FieldValue)], headers: &[(String, FieldValue)]) -> bool {
    let mode = binding.iter().find(|(name, _)| name == "x-match").and_then(|(_, mode)| mode.as_text());
    let (any, with_x) = match mode {
        Some("any") => (true, false),
        Some("any-with-x") => (true, true),
        Some("all-with-x") => (false, true),
        _ => (false, false),
    };
    let mut present = binding
        .iter()
        .filter(|(name, _)| name != "x-match" && (with_x || !name.starts_with("x-")))
        .map(|(name, value)| {
            let found = headers.iter().find(|(other, _)| other == name);
            found.is_some_and(|(_, found)| *value == FieldValue::Void || same(value, found))
        });
    if any { present.any(|found| found) } else { present.all(|found| found) }
}

/// Erlang's equality, for the values below.
fn same(one: &FieldValue, other: &FieldValue) -> bool {
    let number = |value: &FieldValue| match value {
        FieldValue::F32(number) => Some(f64::from(*number)),
        FieldValue::F64(number) => Some(*number),
        FieldValue::Timestamp(number) => Some(*number as f64),
        value => value.as_integer().map(|number| number as f64),
    };
    let bytes = |value: &FieldValue| match value {
        FieldValue::LongString(bytes) | FieldValue::ByteArray(bytes) => Some(bytes.clone()),
        _ => None,
    };
    match (number(one), number(other), bytes(one), bytes(other)) {
        (Some(one), Some(other), ..) => one == other,
        (.., Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

fn value() -> impl Strategy<Value = FieldValue> {
    prop_oneof![
        Just(FieldValue::Void),
        (0i8..3).prop_map(FieldValue::I8),
        (0i64..3).prop_map(FieldValue::I64),
        (0u32..3).prop_map(FieldValue::U32),
        (0u8..5).prop_map(|half| FieldValue::F64(f64::from(half) / 2.0)),
        (0u8..5).prop_map(|half| FieldValue::F32(f32::from(half) / 2.0)),
        (0u64..3).prop_map(FieldValue::Timestamp),
        any::<bool>().prop_map(FieldValue::Boolean),
        (0u8..3).prop_map(|digit| FieldValue::text(digit.to_string())),
        (0u8..3).prop_map(|digit| FieldValue::ByteArray(digit.to_string().into_bytes())),
        (0i32..2).prop_map(|number| FieldValue::Array(vec![FieldValue::I32(number)])),
    ]
}

fn pairs() -> impl Strategy<Value = Vec<(String, FieldValue)>> {
    let name = prop_oneof![Just("a"), Just("b"), Just("c"), Just("x-d"), Just("x-e")];
    proptest::collection::btree_map(name.prop_map(str::to_owned), value(), 0..5)
        .prop_map(|pairs| pairs.into_iter().collect())
}

fn binding() -> impl Strategy<Value = Vec<(String, FieldValue)>> {
    let mode = prop_oneof![
        Just(None),
        Just(Some("all")),
        Just(Some("any")),
        Just(Some("all-with-x")),
        Just(Some("any-with-x"))
    ];
    (mode, pairs()).prop_map(|(mode, mut pairs)| {
        pairs.extend(mode.map(|mode| ("x-match".to_owned(), FieldValue::text(mode))));
        pairs
    })
}

fn encoded(pairs: &[(String, FieldValue)]) -> Vec<u8> {
    let pairs: Vec<_> = pairs.iter().map(|(name, value)| (&**name, value.clone())).collect();
    table(&pairs)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn agrees_with_the_naive_matcher(
        bindings in proptest::collection::vec(binding(), 1..24),
        removed in proptest::collection::vec(any::<bool>(), 24),
        headers in proptest::collection::vec(pairs(), 1..8),
    ) {
        let arguments: Vec<Vec<u8>> = bindings.iter().map(|pairs| encoded(pairs)).collect();
        let (mut index, mut all) = indexed(&arguments);
        for at in (0..bindings.len()).filter(|&at| removed[at]) {
            remove(&mut index, &mut all, &arguments[at], at as u32);
        }
        for headers in &headers {
            let expected: Vec<u32> = (0..bindings.len())
                .filter(|&at| !removed[at] && naive(&bindings[at], headers))
                .map(|at| at as u32)
                .collect();
            // The order of the message's headers does not matter.
            let reversed: FieldTable =
                headers.iter().rev().map(|(name, value)| (name, value.clone())).collect();
            prop_assert_eq!(found(&index, &all, &reversed.encode()), expected);
        }
        for at in (0..bindings.len()).filter(|&at| !removed[at]) {
            remove(&mut index, &mut all, &arguments[at], at as u32);
        }
        prop_assert!(index.is_empty() && all.is_empty());
    }
}
