//! The property that the fuzz target checks. `tests/fuzz_corpus.rs` includes this file and runs the same body without
//! nightly.
//!
//! Run it for real with `cargo +nightly fuzz run definitions` in `crates/broker`.

use broker::{Broker, BrokerConfig, Definitions, Timestamp};
use serde_json::Value;

/// A broker loads what a file has; its export makes another broker that exports the same.
pub fn definitions(input: &[u8]) {
    let Ok(definitions) = Definitions::from_json(input) else { return };
    let broker = Broker::new(BrokerConfig::default());
    // Entries before one that is refused stay.
    let _ = broker.load(&definitions, Timestamp(1));
    let exported = exported(&broker);
    let again =
        Definitions::from_json(exported.to_string().as_bytes()).expect("an export is a definitions file");
    let other = Broker::new(BrokerConfig { defaults: false, ..BrokerConfig::default() });
    other.load(&again, Timestamp(1)).expect("an export can be loaded");
    assert_eq!(self::exported(&other), exported);
}

/// Entries of a section come in any order.
fn exported(broker: &Broker) -> Value {
    let mut sections = broker.export(None);
    for entries in sections.values_mut().filter_map(Value::as_array_mut) {
        entries.sort_by_key(Value::to_string);
    }
    Value::Object(sections)
}
