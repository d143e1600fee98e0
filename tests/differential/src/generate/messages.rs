//! What is published.

use serde_json::{Value, json};

use super::Writer;
use crate::program::{Op, Publish, REPLIES, Table};
use crate::run::SHORT_MILLISECONDS;

impl Writer {
    pub(super) fn publish(&mut self) -> Op {
        let request = self.flavours.replies && self.rng.chance(25);
        let reply = self.flavours.replies && self.rng.chance(20);
        let to_queue = self.rng.chance(if self.flavours.hash || self.flavours.users { 40 } else { 55 });
        let exchange = if reply || to_queue { String::new() } else { self.exchange() };
        let key = match &*exchange {
            _ if reply => self.reply_key(),
            "" | "amq.direct" => self.queue(),
            "amq.topic" => self.name('q', 4) + self.rng.pick(&["", ".a", ".a.b"]),
            _ => self.rng.pick(KEYS).to_owned(),
        };
        let headers = self.headers();
        let priorities = if self.flavours.quorum { 50 } else { 20 };
        Op::Publish(Publish {
            exchange,
            key,
            mandatory: self.rng.chance(25),
            // Of several that go to a queue and to another that dead-letters to it, the letters of the first race with
            // the last.
            repeats: if headers.is_empty() && self.rng.chance(25) { 1 + self.rng.below(4) as u8 } else { 0 },
            // Quorum queues of RabbitMQ 4 take none for 4, and all above 31 for 31.
            priority: self.rng.chance(priorities).then(|| self.rng.pick(&[0, 1, 2, 4, 5, 31, 255])),
            delivery_mode: self.rng.chance(15).then(|| self.rng.pick(&[1, 2, 2, 1, 2, 0])),
            expiration: self.expiration(),
            user_id: self.user_id(),
            reply_to: match request {
                true => Some(REPLIES.to_owned()),
                false => self.rng.chance(2).then(|| "elsewhere".to_owned()),
            },
            headers,
        })
    }

    /// Where a requester has asked that replies go.
    pub(super) fn reply_key(&mut self) -> String {
        match self.requesters.len() as u64 {
            0 => "reply0.1".to_owned(),
            many => {
                let (connection, channel) = self.requesters[self.rng.below(many) as usize];
                format!("reply{connection}.{channel}")
            }
        }
    }

    fn expiration(&mut self) -> Option<String> {
        if self.flavours.timed && self.rng.chance(30) {
            return Some(SHORT_MILLISECONDS.to_string());
        }
        let values = ["0", "0", "0", "600000", "600000", "x", "-1", "", " 1"];
        self.rng.chance(10).then(|| self.rng.pick(&values).to_owned())
    }

    fn user_id(&mut self) -> Option<String> {
        let users = ["guest", "guest", "other", "limited", "topical"];
        let (chance, known) = if self.flavours.users { (15, 5) } else { (4, 3) };
        self.rng.chance(chance).then(|| self.rng.pick(&users[..known]).to_owned())
    }

    fn headers(&mut self) -> Table {
        let mut headers = Table::new();
        let mut add = |key: &str, value: Value| drop(headers.insert(key.to_owned(), value));
        if self.rng.chance(25) {
            for key in ["h1", "h2", "x-h"] {
                if self.rng.chance(50) {
                    add(key, self.rng.pick(&HEADER_VALUES).to_json());
                }
            }
        }
        if self.rng.chance(if self.flavours.letters { 15 } else { 6 }) {
            let copies = json!([format!("q{}", self.rng.below(4)), self.rng.pick(&["a.b", "q1"])]);
            add(self.rng.pick(&["CC", "BCC"]), copies);
        } else if self.rng.chance(1) {
            add(self.rng.pick(&["CC", "BCC"]), self.rng.pick(&[json!("q0"), json!([1])].each_ref()).clone());
        }
        headers
    }
}

/// A value of a header.
#[derive(Debug, Clone, Copy)]
pub(super) enum Header {
    Number(i64),
    Text(&'static str),
    Truth(bool),
    Void,
}

impl Header {
    pub(super) fn to_json(self) -> Value {
        match self {
            Self::Number(n) => json!(n),
            Self::Text(text) => json!(text),
            Self::Truth(truth) => json!(truth),
            Self::Void => Value::Null,
        }
    }
}

pub(super) const HEADER_VALUES: [Header; 6] = [
    Header::Number(1),
    Header::Number(2),
    Header::Text("1"),
    Header::Text("x"),
    Header::Truth(true),
    Header::Void,
];
const KEYS: &[&str] = &["", "a", "b", "a.b", "a.b.c", "b.a", "a..b", "q0", "q1"];
