//! Exchanges and bindings.

use serde_json::{Value, json};

use super::messages::HEADER_VALUES;
use super::{HASH_EXCHANGE, Writer};
use crate::program::{Binding, DeclareExchange, Op, Table};

impl Writer {
    pub(super) fn declare_exchange(&mut self) -> Op {
        if self.flavours.hash && self.rng.chance(50) {
            return self.declare_hash_exchange();
        }
        if !self.exchanges.is_empty() && self.rng.chance(25) {
            let at = self.rng.below(self.exchanges.len() as u64) as usize;
            let mut again = self.exchanges[at].clone();
            match self.rng.below(8) {
                0 => again.passive = true,
                1 => again.durable = !again.durable,
                2 => again.internal = !again.internal,
                3 => again.auto_delete = !again.auto_delete,
                4 => again.kind = self.rng.pick(KINDS).to_owned(),
                _ => {}
            }
            return Op::DeclareExchange(again);
        }
        let mut arguments = Table::new();
        if self.rng.chance(25) {
            arguments.insert("alternate-exchange".to_owned(), json!(self.name('e', 4)));
        }
        let declare = DeclareExchange {
            exchange: match self.rng.below(100) {
                _ if self.flavours.policies && self.rng.chance(50) => {
                    self.rng.pick(&["e5", "e6", "e7"]).to_owned()
                }
                0..2 => String::new(),
                2..4 => "amq.direct".to_owned(),
                4..5 => "amq.own".to_owned(),
                _ => self.name('e', 4),
            },
            kind: if self.rng.chance(1) { "nope".to_owned() } else { self.rng.pick(KINDS).to_owned() },
            passive: self.rng.chance(4),
            durable: self.rng.chance(20),
            auto_delete: self.rng.chance(20),
            internal: self.rng.chance(8),
            arguments,
        };
        self.exchanges.push(declare.clone());
        Op::DeclareExchange(declare)
    }

    fn declare_hash_exchange(&mut self) -> Op {
        let mut arguments = Table::new();
        if self.rng.chance(15) {
            arguments.insert("hash-header".to_owned(), json!("h1"));
        }
        if self.rng.chance(15) {
            let property = self.rng.pick(&["message_id", "correlation_id", "timestamp", "no_property"]);
            arguments.insert("hash-property".to_owned(), json!(property));
        }
        if self.rng.chance(15) {
            arguments.insert("alternate-exchange".to_owned(), json!(self.name('e', 4)));
        }
        Op::DeclareExchange(DeclareExchange {
            exchange: HASH_EXCHANGE.to_owned(),
            kind: if self.rng.chance(97) { "x-consistent-hash" } else { "direct" }.to_owned(),
            auto_delete: self.rng.chance(10),
            arguments,
            ..DeclareExchange::default()
        })
    }

    pub(super) fn binding(&mut self) -> Binding {
        let source = self.exchange();
        if source == HASH_EXCHANGE {
            return self.hash_binding();
        }
        let to_exchange = self.rng.chance(20);
        let mut arguments = Table::new();
        if self.rng.chance(30) {
            let mut add = |key: &str, value: Value| drop(arguments.insert(key.to_owned(), value));
            if self.rng.chance(80) {
                let matches = ["all", "any", "all-with-x", "any-with-x", "all", "any", "bad"];
                add("x-match", json!(self.rng.pick(&matches)));
            }
            for key in ["h1", "h2", "x-h"] {
                if self.rng.chance(50) {
                    add(key, self.rng.pick(&HEADER_VALUES).to_json());
                }
            }
        }
        Binding {
            destination: if to_exchange { self.exchange() } else { self.queue() },
            to_exchange,
            // Those that are shared by all programs: only keys of this program's own may be bound there.
            key: match &*source {
                "amq.direct" if self.flavours.policies => self.queue_with_policy(),
                "amq.direct" => self.name('q', 4),
                "amq.topic" => self.name('q', 4) + self.rng.pick(&["", ".#", ".*", ".a"]),
                _ => self.rng.pick(PATTERNS).to_owned(),
            },
            source,
            arguments,
        }
    }

    /// Always the same destination: which of several a message goes to is the broker's own choice.
    fn hash_binding(&mut self) -> Binding {
        let key = if self.rng.chance(85) { "3" } else { self.rng.pick(&["", "x", "-1", "0", "1.5"]) };
        Binding {
            source: HASH_EXCHANGE.to_owned(),
            destination: "q0".to_owned(),
            key: key.to_owned(),
            ..Binding::default()
        }
    }

    pub(super) fn delete_exchange(&mut self) -> Op {
        Op::DeleteExchange { exchange: self.exchange(), if_unused: self.rng.chance(40) }
    }
}

const KINDS: &[&str] = &["direct", "fanout", "topic", "headers"];
const PATTERNS: &[&str] = &["", "a", "a", "b", "a.b", "a.*", "*", "#", "a.#", "#.b", "*.#.c", "q0", "q1"];
