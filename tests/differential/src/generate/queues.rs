//! Queues: declarations and their arguments, consumers, acknowledgements.

use serde_json::{Value, json};

use super::Writer;
use crate::program::{Consume, DeclareQueue, How, Op, REPLIES, Settle, Table};
use crate::run::SHORT_MILLISECONDS;

impl Writer {
    pub(super) fn declare_queue(&mut self) -> Op {
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
        let quorum = self.flavours.quorum && self.rng.chance(60);
        let mut declare = DeclareQueue {
            queue: match self.rng.below(100) {
                _ if self.flavours.policies && self.rng.chance(60) => self.queue_with_policy(),
                0..8 => String::new(),
                8..9 => "amq.own".to_owned(),
                9..11 if self.flavours.replies => self.reply_queue(),
                _ => self.name('q', 4),
            },
            passive: self.rng.chance(4),
            durable: self.rng.chance(20),
            exclusive: self.rng.chance(12),
            auto_delete: self.rng.chance(15),
            no_wait: self.rng.chance(5),
            arguments: self.queue_arguments(),
        };
        if quorum {
            let mut unlikely = || self.rng.chance(4);
            (declare.durable, declare.exclusive, declare.auto_delete) = (!unlikely(), unlikely(), unlikely());
            declare.arguments = self.quorum_arguments();
            if declare.queue == "q7" {
                declare.queue = "q6".to_owned();
            }
        }
        self.queues.push(declare.clone());
        Op::DeclareQueue(declare)
    }

    pub(super) fn queue_with_policy(&mut self) -> String {
        let timed: &[&str] = &["q5", "q6", "q8", "q8", "q9"];
        self.rng.pick(if self.flavours.timed { timed } else { &["q5", "q5", "q6", "q7"] }).to_owned()
    }

    /// Where replies come from, or go to.
    pub(super) fn reply_queue(&mut self) -> String {
        match self.rng.below(10) {
            0..3 => REPLIES.to_owned(),
            3 => format!("{REPLIES}.guessed"),
            _ => self.reply_key(),
        }
    }

    fn queue_arguments(&mut self) -> Table {
        let mut table = Table::new();
        let letters = self.flavours.letters;
        let timed = self.flavours.timed;
        let rng = &mut self.rng;
        let mut add = |key: &str, value: Value| drop(table.insert(key.to_owned(), value));
        if rng.chance(if timed { 40 } else { 15 }) {
            let values = [json!(0), json!(0), json!(600_000), json!(-1), json!("1")];
            let short = timed && rng.chance(80);
            let value = if short { json!(SHORT_MILLISECONDS) } else { rng.pick(&values.each_ref()).clone() };
            add("x-message-ttl", value);
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
        if rng.chance(if letters || timed { 70 } else { 30 }) {
            add(
                "x-dead-letter-exchange",
                json!(rng.pick(&["", "e0", "e1", "e2", "amq.direct", if letters { "" } else { "e3" }])),
            );
        }
        if rng.chance(if letters { 60 } else { 22 }) {
            add("x-dead-letter-routing-key", json!(rng.pick(&["q0", "q1", "q2", "q0", "q1", "a.b"])));
        }
        if rng.chance(12) {
            add("x-max-priority", rng.pick(&[json!(3), json!(10), json!(0), json!(256)].each_ref()).clone());
        }
        if rng.chance(12) {
            add("x-single-active-consumer", json!(true));
        }
        if rng.chance(5) {
            add("x-expires", rng.pick(&[json!(600_000), json!(0), json!("x")].each_ref()).clone());
        } else if timed && rng.chance(15) {
            add("x-expires", json!(SHORT_MILLISECONDS));
        }
        if rng.chance(3) {
            add("x-unknown", json!(1));
        }
        if rng.chance(3) {
            add("x-queue-type", json!(rng.pick(&["classic", "nope"])));
        }
        table
    }

    /// Those that queues of type quorum know, and sometimes another. None that makes a full queue refuse messages:
    /// RabbitMQ refuses the ones that come after those that are on their way already.
    fn quorum_arguments(&mut self) -> Table {
        let mut table = Table::new();
        let rng = &mut self.rng;
        let mut add = |key: &str, value: Value| drop(table.insert(key.to_owned(), value));
        add("x-queue-type", json!("quorum"));
        if rng.chance(60) {
            add("x-delivery-limit", rng.pick(&[json!(0), json!(1), json!(2), json!(-1)].each_ref()).clone());
        }
        if rng.chance(40) {
            add("x-dead-letter-exchange", json!(rng.pick(&["", "e0"])));
            add("x-dead-letter-routing-key", json!(rng.pick(&["q0", "q1", "q2"])));
        }
        if rng.chance(15) {
            add("x-max-length", json!(rng.pick(&[1, 2])));
        }
        if rng.chance(10) {
            add("x-overflow", json!("drop-head"));
        }
        if rng.chance(10) {
            add("x-single-active-consumer", json!(true));
        }
        if rng.chance(6) {
            add("x-max-priority", json!(3));
        }
        if rng.chance(10) {
            add("x-message-ttl", json!(600_000));
        }
        table
    }

    pub(super) fn get(&mut self) -> Op {
        Op::Get { queue: self.queue(), no_ack: self.rng.chance(30) }
    }

    pub(super) fn consume(&mut self) -> Op {
        let mut arguments = Table::new();
        if self.rng.chance(20) {
            let priority =
                self.rng.pick(&[json!(1), json!(2), json!(-1), json!(10), json!("x")].each_ref()).clone();
            arguments.insert("x-priority".to_owned(), priority);
        }
        let replies = self.flavours.replies && self.rng.chance(40);
        Op::Consume(Consume {
            queue: if replies { REPLIES.to_owned() } else { self.queue() },
            // Of so many that one is seldom used twice on one channel, for that ends the connection.
            tag: if self.rng.chance(15) { String::new() } else { format!("t{}", self.rng.below(12)) },
            no_ack: self.rng.chance(if replies { 90 } else { 25 }),
            exclusive: self.rng.chance(8),
            arguments,
        })
    }

    pub(super) fn cancel(&mut self) -> Op {
        Op::Cancel {
            tag: if self.rng.chance(15) { "ctag0".to_owned() } else { format!("t{}", self.rng.below(12)) },
        }
    }

    pub(super) fn settle(&mut self) -> Op {
        let how = self.rng.pick(&[How::Ack, How::Ack, How::Nack, How::Reject]);
        let literal_tag = match self.rng.below(100) {
            0..2 => Some(99),
            2..4 => Some(0),
            _ => None,
        };
        let requeue = if self.flavours.letters { 30 } else { 60 };
        Op::Settle(Settle {
            how,
            which: self.rng.below(4) as u8,
            literal_tag,
            multiple: how != How::Reject && self.rng.chance(30),
            requeue: how != How::Ack && self.rng.chance(requeue),
        })
    }

    pub(super) fn qos(&mut self) -> Op {
        Op::Qos { prefetch: self.rng.pick(&[0, 1, 1, 2, 3]), global: self.rng.chance(25) }
    }

    pub(super) fn delete_queue(&mut self) -> Op {
        Op::DeleteQueue { queue: self.queue(), if_unused: self.rng.chance(30), if_empty: self.rng.chance(30) }
    }
}
