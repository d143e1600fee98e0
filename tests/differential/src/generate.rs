//! Writes random programs: mostly legal, so that they get somewhere, and slightly illegal.

use serde_json::{Value, json};

use crate::program::{
    Binding, Consume, DeclareExchange, DeclareQueue, How, Op, Program, Publish, Settle, Step, Table,
};
use crate::rng::Rng;

/// The program that `seed` stands for.
pub(crate) fn generate(seed: u64) -> Program {
    let mut writer = Writer::new(seed);
    let mut program = Program::new();
    // A world to begin with, for most operations need one.
    for _ in 0..2 + writer.rng.below(3) {
        program.push(writer.step(Writer::declare_queue));
    }
    for _ in 0..writer.rng.below(4) {
        program.push(writer.step(Writer::declare_exchange));
    }
    let steps = 10 + writer.rng.below(MOST_STEPS - 10);
    while (program.len() as u64) < steps {
        let operation = writer.operation();
        program.push(writer.step(operation));
    }
    program
}

/// Enough to reach deep states, few enough to read.
const MOST_STEPS: u64 = 40;

type Operation = fn(&mut Writer) -> Op;

/// What may come next, and how often in relation to the others.
const OPERATIONS: &[(u64, Operation)] = &[
    (6, Writer::declare_queue),
    (4, Writer::declare_exchange),
    (7, Writer::bind),
    (2, Writer::unbind),
    (30, Writer::publish),
    (8, Writer::get),
    (11, Writer::consume),
    (3, Writer::cancel),
    (16, Writer::settle),
    (2, |_| Op::Recover),
    (4, Writer::qos),
    (2, |w| Op::Purge { queue: w.queue() }),
    (3, Writer::delete_queue),
    (2, Writer::delete_exchange),
    (2, |_| Op::ConfirmSelect),
    (1, |_| Op::TxSelect),
    (2, |w| w.transaction()),
    (2, |_| Op::CloseChannel),
    (1, |w| if w.rng.chance(50) { Op::CloseConnection } else { Op::DropConnection }),
];

struct Writer {
    rng: Rng,
    connections: u64,
    channels: u64,
    /// Declarations so far, for most redeclarations are the same again.
    queues: Vec<DeclareQueue>,
    exchanges: Vec<DeclareExchange>,
    /// Where something is to be done instead of just anywhere: `tx.commit` where `tx.select` was.
    transactional: Option<(u8, u16)>,
}

impl Writer {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (connections, channels) = (1 + rng.below(2), 1 + rng.below(3));
        Self { rng, connections, channels, queues: Vec::new(), exchanges: Vec::new(), transactional: None }
    }

    fn operation(&mut self) -> Operation {
        let sum: u64 = OPERATIONS.iter().map(|(weight, _)| weight).sum();
        let mut at = self.rng.below(sum);
        for (weight, operation) in OPERATIONS {
            if at < *weight {
                return *operation;
            }
            at -= weight;
        }
        OPERATIONS[0].1
    }

    fn step(&mut self, operation: Operation) -> Step {
        let op = operation(self);
        let mut connection = self.rng.below(self.connections) as u8;
        let mut channel = 1 + self.rng.below(self.channels) as u16;
        match op {
            Op::TxSelect => self.transactional = Some((connection, channel)),
            Op::TxCommit | Op::TxRollback if self.rng.chance(90) => {
                if let Some(place) = self.transactional {
                    (connection, channel) = place;
                }
            }
            _ => {}
        }
        Step { connection, channel, op }
    }

    fn transaction(&mut self) -> Op {
        match self.transactional {
            None if self.rng.chance(90) => Op::TxSelect,
            _ if self.rng.chance(60) => Op::TxCommit,
            _ => Op::TxRollback,
        }
    }

    fn name(&mut self, letter: char, of: u64) -> String {
        format!("{letter}{}", self.rng.below(of))
    }

    /// A queue, likely one that exists.
    fn queue(&mut self) -> String {
        match self.rng.below(100) {
            0..4 => String::new(),
            4..7 => "gen0".to_owned(),
            7..12 => self.name('q', 5),
            _ => self.name('q', 3),
        }
    }

    fn exchange(&mut self) -> String {
        match self.rng.below(100) {
            0..3 => String::new(),
            3..6 => "amq.direct".to_owned(),
            6..9 => self.name('e', 5),
            _ => self.name('e', 3),
        }
    }

    fn declare_queue(&mut self) -> Op {
        if !self.queues.is_empty() && self.rng.chance(30) {
            let at = self.rng.below(self.queues.len() as u64) as usize;
            let mut again = self.queues[at].clone();
            match self.rng.below(8) {
                0 => again.passive = true,
                1 => again.durable = !again.durable,
                2 => again.exclusive = !again.exclusive,
                3 => again.auto_delete = !again.auto_delete,
                4 => again.arguments = self.queue_arguments(),
                _ => {}
            }
            return Op::DeclareQueue(again);
        }
        let declare = DeclareQueue {
            queue: match self.rng.below(100) {
                0..8 => String::new(),
                8..9 => "amq.own".to_owned(),
                _ => self.name('q', 4),
            },
            passive: self.rng.chance(4),
            durable: self.rng.chance(20),
            exclusive: self.rng.chance(12),
            auto_delete: self.rng.chance(15),
            no_wait: self.rng.chance(5),
            arguments: self.queue_arguments(),
        };
        self.queues.push(declare.clone());
        Op::DeclareQueue(declare)
    }

    fn queue_arguments(&mut self) -> Table {
        let mut table = Table::new();
        let mut add = |key: &str, value: Value| drop(table.insert(key.to_owned(), value));
        let rng = &mut self.rng;
        if rng.chance(15) {
            add(
                "x-message-ttl",
                rng.pick(&[json!(0), json!(0), json!(600_000), json!(-1), json!("1")].each_ref()).clone(),
            );
        }
        if rng.chance(25) {
            add("x-max-length", json!(rng.pick(&[0, 1, 2, 3])));
            if rng.chance(60) {
                add(
                    "x-overflow",
                    json!(rng.pick(&["drop-head", "reject-publish", "reject-publish-dlx", "odd"])),
                );
            }
        } else if rng.chance(8) {
            add("x-max-length-bytes", json!(rng.pick(&[10, 25, 40])));
        }
        if rng.chance(35) {
            add("x-dead-letter-exchange", json!(rng.pick(&["", "e0", "e1", "e2"])));
        }
        if rng.chance(22) {
            add("x-dead-letter-routing-key", json!(rng.pick(&["q0", "q1", "q2", "a.b"])));
        }
        if rng.chance(12) {
            add("x-max-priority", rng.pick(&[json!(3), json!(10), json!(0), json!(256)].each_ref()).clone());
        }
        if rng.chance(12) {
            add("x-single-active-consumer", json!(true));
        }
        if rng.chance(5) {
            add("x-expires", rng.pick(&[json!(600_000), json!(0), json!("x")].each_ref()).clone());
        }
        if rng.chance(3) {
            add("x-unknown", json!(1));
        }
        if rng.chance(3) {
            add("x-queue-type", json!(rng.pick(&["classic", "nope"])));
        }
        table
    }

    fn declare_exchange(&mut self) -> Op {
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

    fn binding(&mut self) -> Binding {
        let to_exchange = self.rng.chance(20);
        let source = self.exchange();
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
            key: match &*source {
                // Shared by all programs: only keys of this program's own may be bound there.
                "amq.direct" => self.name('q', 4),
                _ => self.rng.pick(PATTERNS).to_owned(),
            },
            source,
            arguments,
        }
    }

    fn bind(&mut self) -> Op {
        Op::Bind(self.binding())
    }

    fn unbind(&mut self) -> Op {
        Op::Unbind(self.binding())
    }

    fn publish(&mut self) -> Op {
        let mut headers = Table::new();
        let mut add = |key: &str, value: Value| drop(headers.insert(key.to_owned(), value));
        if self.rng.chance(25) {
            for key in ["h1", "h2", "x-h"] {
                if self.rng.chance(50) {
                    add(key, self.rng.pick(&HEADER_VALUES).to_json());
                }
            }
        }
        if self.rng.chance(6) {
            add(self.rng.pick(&["CC", "BCC"]), json!([format!("q{}", self.rng.below(4)), "a.b"]));
        } else if self.rng.chance(1) {
            add("CC", json!("q0"));
        }
        let to_queue = self.rng.chance(55);
        let exchange = if to_queue { String::new() } else { self.exchange() };
        let key = match (&*exchange, to_queue) {
            ("amq.direct", _) | (_, true) => self.queue(),
            _ => self.rng.pick(KEYS).to_owned(),
        };
        Op::Publish(Publish {
            exchange,
            key,
            mandatory: self.rng.chance(25),
            repeats: if self.rng.chance(25) { 1 + self.rng.below(4) as u8 } else { 0 },
            priority: self.rng.chance(20).then(|| self.rng.pick(&[0, 1, 2, 5, 255])),
            delivery_mode: self.rng.chance(15).then(|| self.rng.pick(&[1, 2, 2, 1, 2, 0])),
            expiration: self
                .rng
                .chance(10)
                .then(|| self.rng.pick(&["0", "0", "0", "600000", "600000", "x", "-1", "", " 1"]).to_owned()),
            user_id: self.rng.chance(4).then(|| self.rng.pick(&["guest", "guest", "other"]).to_owned()),
            headers,
        })
    }

    fn get(&mut self) -> Op {
        Op::Get { queue: self.queue(), no_ack: self.rng.chance(30) }
    }

    fn consume(&mut self) -> Op {
        let mut arguments = Table::new();
        if self.rng.chance(20) {
            let priority =
                self.rng.pick(&[json!(1), json!(2), json!(-1), json!(10), json!("x")].each_ref()).clone();
            arguments.insert("x-priority".to_owned(), priority);
        }
        Op::Consume(Consume {
            queue: self.queue(),
            // Of so many that one is seldom used twice on one channel, for that ends the connection.
            tag: if self.rng.chance(15) { String::new() } else { format!("t{}", self.rng.below(12)) },
            no_ack: self.rng.chance(25),
            exclusive: self.rng.chance(8),
            arguments,
        })
    }

    fn cancel(&mut self) -> Op {
        Op::Cancel {
            tag: if self.rng.chance(15) { "ctag0".to_owned() } else { format!("t{}", self.rng.below(12)) },
        }
    }

    fn settle(&mut self) -> Op {
        let how = self.rng.pick(&[How::Ack, How::Ack, How::Nack, How::Reject]);
        let literal_tag = match self.rng.below(100) {
            0..2 => Some(99),
            2..4 => Some(0),
            _ => None,
        };
        Op::Settle(Settle {
            how,
            which: self.rng.below(4) as u8,
            literal_tag,
            multiple: how != How::Reject && self.rng.chance(30),
            requeue: how != How::Ack && self.rng.chance(60),
        })
    }

    fn qos(&mut self) -> Op {
        Op::Qos { prefetch: self.rng.pick(&[0, 1, 1, 2, 3]), global: self.rng.chance(25) }
    }

    fn delete_queue(&mut self) -> Op {
        Op::DeleteQueue { queue: self.queue(), if_unused: self.rng.chance(30), if_empty: self.rng.chance(30) }
    }

    fn delete_exchange(&mut self) -> Op {
        Op::DeleteExchange { exchange: self.exchange(), if_unused: self.rng.chance(40) }
    }
}

/// A value of a header.
#[derive(Debug, Clone, Copy)]
enum Header {
    Number(i64),
    Text(&'static str),
    Truth(bool),
    Void,
}

impl Header {
    fn to_json(self) -> Value {
        match self {
            Self::Number(n) => json!(n),
            Self::Text(text) => json!(text),
            Self::Truth(truth) => json!(truth),
            Self::Void => Value::Null,
        }
    }
}

const HEADER_VALUES: [Header; 6] = [
    Header::Number(1),
    Header::Number(2),
    Header::Text("1"),
    Header::Text("x"),
    Header::Truth(true),
    Header::Void,
];
const KINDS: &[&str] = &["direct", "fanout", "topic", "headers"];
const KEYS: &[&str] = &["", "a", "b", "a.b", "a.b.c", "b.a", "a..b", "q0", "q1"];
const PATTERNS: &[&str] = &["", "a", "a", "b", "a.b", "a.*", "*", "#", "a.#", "#.b", "*.#.c", "q0", "q1"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_program() {
        assert_eq!(generate(7), generate(7));
        assert_ne!(generate(7), generate(8));
    }

    #[test]
    fn a_thousand_programs_use_every_operation() {
        let text: String = (0..1000).map(|seed| crate::program::to_text(&generate(seed))).collect();
        for op in ["declare_queue", "unbind", "recover", "tx_commit", "tx_rollback", "drop_connection", "qos"]
        {
            assert!(text.contains(&format!("\"op\":\"{op}\"")), "{op}");
        }
    }
}
