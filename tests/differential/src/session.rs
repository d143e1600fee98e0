//! One connection of a running program: sends its steps, and keeps track of deliveries and confirms.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use amqp::method::{basic, confirm, exchange, queue, tx};
use amqp::{FieldTable, FieldValue, Properties, RawTable, frame};
use serde_json::Value;

use crate::event::Event;
use crate::link::Link;
use crate::names::{BODY, Names};
use crate::program::{Binding, Consume, How, Op, Publish, Settle, Step, Table};
use crate::run::CONTROL_CHANNEL;

/// Messages and consumers of each queue.
pub(crate) type Counts = BTreeMap<String, (u32, u32)>;

/// A connection and its channels.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) link: Link,
    channels: BTreeMap<u16, Channel>,
    /// The name of a queue that the server has just made.
    pub(crate) declared: Option<String>,
    /// Lines about the connection itself.
    lines: Vec<String>,
}

/// What is known of a channel.
#[derive(Debug, Default)]
struct Channel {
    /// In confirm mode, the number of the last publish.
    published: Option<u64>,
    unconfirmed: BTreeSet<u64>,
    /// Deliveries that wait for an acknowledgement: tag, and the step in which they came.
    outstanding: Vec<(u64, usize)>,
    /// Settled within a transaction that is not committed yet.
    settled_in_tx: Vec<(u64, usize)>,
    in_tx: bool,
    /// Consumers without acknowledgements.
    no_ack: BTreeSet<String>,
    get_is_no_ack: bool,
    last_tag: u64,
    /// What came since the last report: answers in order, deliveries with their consumers, confirms.
    lines: Vec<String>,
    delivered: Vec<(String, u64, String)>,
    confirms: BTreeMap<u64, bool>,
    /// Consumers that the server has cancelled.
    cancelled: Vec<String>,
}

impl Session {
    pub(crate) fn open(address: &str, user: &str) -> io::Result<Self> {
        Ok(Self {
            link: Link::open(address, user)?,
            channels: BTreeMap::new(),
            declared: None,
            lines: Vec::new(),
        })
    }

    /// Sends a step. Its answers come with the next round trip.
    pub(crate) fn perform(
        &mut self,
        step: &Step,
        number: usize,
        names: &Names,
        lines: &mut Vec<String>,
    ) -> io::Result<()> {
        let id = step.channel;
        if !self.link.channels.contains(&id) {
            self.link.open_channel(id);
            self.channels.insert(id, Channel::default());
        }
        let link = &mut self.link;
        let channel = self.channels.entry(id).or_default();
        match &step.op {
            Op::Publish(op) => publish(link, channel, id, op, number, names)?,
            Op::Get { queue, no_ack } => {
                channel.get_is_no_ack = *no_ack;
                let queue = names.wire(queue);
                link.send(id, basic::Get { queue: &queue, no_ack: *no_ack, ..Default::default() });
            }
            Op::Consume(op) => consume(link, channel, id, op, names),
            Op::Cancel { tag } => {
                link.send(id, basic::Cancel { consumer_tag: &names.wire(tag), no_wait: false });
            }
            Op::Settle(op) => {
                if !settle(link, channel, id, op) {
                    lines.push("nothing to settle".to_owned());
                }
            }
            Op::Recover => {
                channel.outstanding.clear();
                link.send(id, basic::Recover { requeue: true });
            }
            Op::Qos { prefetch, global } => {
                link.send(id, basic::Qos { prefetch_size: 0, prefetch_count: *prefetch, global: *global });
            }
            Op::ConfirmSelect => {
                // In tx mode it is refused, and the channel closes.
                channel.published = channel.published.or(Some(0));
                link.send(id, confirm::Select { no_wait: false });
            }
            Op::TxSelect => {
                channel.in_tx = true;
                link.send(id, tx::Select {});
            }
            Op::TxCommit => {
                channel.settled_in_tx.clear();
                link.send(id, tx::Commit {});
                link.wait_for_commit(id)?;
            }
            Op::TxRollback => {
                channel.outstanding.append(&mut channel.settled_in_tx);
                channel.outstanding.sort_unstable();
                link.send(id, tx::Rollback {});
            }
            Op::CloseChannel => link.close_channel(id),
            other => topology(link, id, other, names),
        }
        Ok(())
    }

    /// The open channels of the program.
    pub(crate) fn open_channels(&self) -> Vec<u16> {
        self.link.channels.iter().copied().filter(|&id| id != CONTROL_CHANNEL).collect()
    }

    /// Whether no confirm is awaited any longer.
    pub(crate) fn all_confirmed(&self) -> bool {
        self.channels
            .iter()
            .all(|(id, channel)| channel.unconfirmed.is_empty() || !self.link.channels.contains(id))
    }

    /// Takes in what came since the last time, during step `number`.
    pub(crate) fn take_events(&mut self, number: usize, names: &mut Names) {
        for (id, event) in std::mem::take(&mut self.link.events) {
            let channel = self.channels.entry(id).or_default();
            match event {
                Event::Delivered { consumer, tag, text } => {
                    names.learn_reply(&text);
                    channel.check_tag(tag);
                    if !channel.no_ack.contains(&consumer) {
                        channel.outstanding.push((tag, number));
                    }
                    channel.delivered.push((consumer, tag, text));
                }
                Event::Got { tag, text } => {
                    names.learn_reply(&text);
                    channel.check_tag(tag);
                    if !channel.get_is_no_ack {
                        channel.outstanding.push((tag, number));
                    }
                    channel.lines.push(format!("basic.get-ok {text}"));
                }
                Event::Confirmed { tag, multiple, nack } => channel.confirmed(tag, multiple, nack),
                Event::Returned { text } => {
                    if !channel.confirms.is_empty() && channel.unconfirmed.is_empty() {
                        channel.lines.push("returned after its confirm".to_owned());
                    }
                    channel.lines.push(format!("basic.return {text}"));
                }
                Event::Declared { queue, messages, consumers } => {
                    if queue.starts_with("amq.gen-") {
                        names.learn(&queue);
                        self.declared = Some(queue.clone());
                    }
                    channel.lines.push(format!(
                        "queue.declare-ok {queue}: {messages} messages, {consumers} consumers"
                    ));
                }
                Event::Consuming { tag } => {
                    names.learn(&tag);
                    if channel.no_ack.remove("") {
                        channel.no_ack.insert(tag.clone());
                    }
                    channel.lines.push(format!("basic.consume-ok {tag}"));
                }
                Event::ChannelClosed(text) => {
                    channel.lines.push(text);
                    channel.unconfirmed.clear();
                }
                Event::Cancelled { tag } => channel.cancelled.push(tag),
                Event::ChannelCloseOk => {
                    channel.lines.push("channel.close-ok".to_owned());
                    channel.unconfirmed.clear();
                }
                Event::ConnectionClosed(text) => self.lines.push(text),
                Event::Other(text) => channel.lines.push(text),
                Event::Synced(_) => {}
            }
        }
    }

    /// Reports what came, in an order that does not depend on which of several queues was faster.
    pub(crate) fn tell(&mut self, connection: u8, names: &Names, lines: &mut Vec<String>) {
        for (id, channel) in &mut self.channels {
            let place = format!("connection {connection} channel {id}");
            for line in channel.lines.drain(..) {
                lines.push(format!("{place}: {}", names.tidy(&line)));
            }
            // Of several consumers of a deleted queue, any may be told first.
            let mut cancelled: Vec<String> = channel
                .cancelled
                .drain(..)
                .map(|tag| format!("{place}: basic.cancel {} by the server", names.tidy(&tag)))
                .collect();
            cancelled.sort();
            lines.append(&mut cancelled);
            let mut delivered: Vec<(String, String)> = channel
                .delivered
                .drain(..)
                .map(|(consumer, _, text)| (names.tidy(&consumer), names.tidy(&text)))
                .collect();
            // What is told on the way to the end of the connection depends on who was faster.
            if self.link.closed {
                delivered.clear();
            }
            // Stable: the order of each consumer's own deliveries stays.
            delivered.sort_by(|a, b| a.0.cmp(&b.0));
            for (consumer, text) in delivered {
                lines.push(format!("{place}: basic.deliver to {consumer}: {text}"));
            }
            for (tag, nack) in std::mem::take(&mut channel.confirms) {
                lines
                    .push(format!("{place}: {} {tag}", if nack { "confirmed by nack" } else { "confirmed" }));
            }
        }
        lines.extend(
            self.lines.drain(..).map(|line| format!("connection {connection}: {}", names.tidy(&line))),
        );
    }
}

impl Channel {
    fn check_tag(&mut self, tag: u64) {
        if tag <= self.last_tag {
            self.lines.push(format!("delivery tag {tag} after {}", self.last_tag));
        }
        self.last_tag = tag;
    }

    fn confirmed(&mut self, tag: u64, multiple: bool, nack: bool) {
        let (of, rest) = std::mem::take(&mut self.unconfirmed)
            .into_iter()
            .partition(|&waiting| waiting == tag || multiple && (waiting < tag || tag == 0));
        self.unconfirmed = rest;
        let of: BTreeSet<u64> = of;
        if of.is_empty() {
            self.lines.push(format!("confirm of {tag}, which was not waited for"));
        }
        self.confirms.extend(of.into_iter().map(|tag| (tag, nack)));
    }
}

fn publish(
    link: &mut Link,
    channel: &mut Channel,
    id: u16,
    op: &Publish,
    number: usize,
    names: &Names,
) -> io::Result<()> {
    let headers = table(&op.headers, names).encode();
    let properties = Properties {
        headers: match op.headers.is_empty() {
            true => None,
            false => Some(RawTable::check(&headers).map_err(io::Error::other)?),
        },
        delivery_mode: op.delivery_mode,
        priority: op.priority,
        expiration: op.expiration.as_deref(),
        reply_to: op.reply_to.as_deref(),
        user_id: op.user_id.as_deref(),
        ..Properties::default()
    };
    let mut encoded = Vec::new();
    properties.encode(&mut encoded);
    let (exchange, key) = (names.wire(&op.exchange), names.wire(&op.key));
    for repeat in 0..=op.repeats {
        let publish = basic::Publish {
            exchange: &exchange,
            routing_key: &key,
            mandatory: op.mandatory,
            ..Default::default()
        };
        link.send(id, publish);
        let body = format!("{BODY}{number}.{repeat}");
        frame::write_content_header(link.output(), id, body.len() as u64, &encoded);
        frame::write_body(link.output(), id, body.as_bytes());
        if let Some(published) = &mut channel.published {
            *published += 1;
            channel.unconfirmed.insert(*published);
        }
    }
    Ok(())
}

fn consume(link: &mut Link, channel: &mut Channel, id: u16, op: &Consume, names: &Names) {
    // Under the empty name until the server has made one up.
    match op.no_ack {
        true => channel.no_ack.insert(op.tag.clone()),
        false => channel.no_ack.remove(&op.tag),
    };
    let (queue, arguments) = (names.wire(&op.queue), table(&op.arguments, names).encode());
    let consume = basic::Consume {
        queue: &queue,
        consumer_tag: &op.tag,
        no_ack: op.no_ack,
        exclusive: op.exclusive,
        arguments: RawTable::check(&arguments).unwrap_or_default(),
        ..Default::default()
    };
    link.send(id, consume);
}

/// Sends an acknowledgement of either kind; says whether there was anything to acknowledge.
fn settle(link: &mut Link, channel: &mut Channel, id: u16, op: &Settle) -> bool {
    let tag = match op.literal_tag {
        Some(tag) => tag,
        None if channel.outstanding.is_empty() => return false,
        None => {
            let (tag, step) = channel.outstanding[usize::from(op.which) % channel.outstanding.len()];
            // Which tag a delivery has within its step depends on which queue was faster; the step's last does not.
            let of_step = channel.outstanding.iter().filter(|(_, of)| *of == step).map(|(tag, _)| *tag);
            if op.multiple { of_step.max().unwrap_or(tag) } else { tag }
        }
    };
    let (settled, rest) = std::mem::take(&mut channel.outstanding)
        .into_iter()
        .partition(|(waiting, _)| *waiting == tag || op.multiple && (*waiting < tag || tag == 0));
    channel.outstanding = rest;
    if channel.in_tx {
        channel.settled_in_tx.extend::<Vec<(u64, usize)>>(settled);
    }
    match op.how {
        How::Ack => link.send(id, basic::Ack { delivery_tag: tag, multiple: op.multiple }),
        How::Nack => {
            link.send(id, basic::Nack { delivery_tag: tag, multiple: op.multiple, requeue: op.requeue });
        }
        How::Reject => link.send(id, basic::Reject { delivery_tag: tag, requeue: op.requeue }),
    }
    true
}

/// Declares, deletes, binds and unbinds.
fn topology(link: &mut Link, id: u16, op: &Op, names: &Names) {
    let wire = |name: &str| names.wire(name);
    match op {
        Op::DeclareQueue(op) => {
            let arguments = table(&op.arguments, names).encode();
            let declare = queue::Declare {
                queue: &wire(&op.queue),
                passive: op.passive,
                durable: op.durable,
                exclusive: op.exclusive,
                auto_delete: op.auto_delete,
                no_wait: op.no_wait,
                arguments: RawTable::check(&arguments).unwrap_or_default(),
                ..Default::default()
            };
            link.send(id, declare);
        }
        Op::DeclareExchange(op) => {
            let arguments = table(&op.arguments, names).encode();
            let declare = exchange::Declare {
                exchange: &wire(&op.exchange),
                kind: &op.kind,
                passive: op.passive,
                durable: op.durable,
                auto_delete: op.auto_delete,
                internal: op.internal,
                arguments: RawTable::check(&arguments).unwrap_or_default(),
                ..Default::default()
            };
            link.send(id, declare);
        }
        Op::DeleteQueue { queue, if_unused, if_empty } => {
            let (if_unused, if_empty) = (*if_unused, *if_empty);
            link.send(id, queue::Delete { queue: &wire(queue), if_unused, if_empty, ..Default::default() });
        }
        Op::DeleteExchange { exchange, if_unused } => {
            let if_unused = *if_unused;
            link.send(id, exchange::Delete { exchange: &wire(exchange), if_unused, ..Default::default() });
        }
        Op::Bind(op) => bind(link, id, op, names, true),
        Op::Unbind(op) => bind(link, id, op, names, false),
        Op::Purge { queue } => link.send(id, queue::Purge { queue: &wire(queue), ..Default::default() }),
        _ => {}
    }
}

fn bind(link: &mut Link, id: u16, op: &Binding, names: &Names, bind: bool) {
    let arguments = table(&op.arguments, names).encode();
    let arguments = RawTable::check(&arguments).unwrap_or_default();
    let (source, destination) = (&*names.wire(&op.source), &*names.wire(&op.destination));
    let routing_key = &*names.wire(&op.key);
    match (bind, op.to_exchange) {
        (true, false) => {
            let (queue, exchange) = (destination, source);
            link.send(id, queue::Bind { queue, exchange, routing_key, arguments, ..Default::default() });
        }
        (false, false) => {
            let (queue, exchange) = (destination, source);
            link.send(id, queue::Unbind { queue, exchange, routing_key, arguments, ..Default::default() });
        }
        (true, true) => link
            .send(id, exchange::Bind { destination, source, routing_key, arguments, ..Default::default() }),
        (false, true) => link
            .send(id, exchange::Unbind { destination, source, routing_key, arguments, ..Default::default() }),
    }
}

fn table(table: &Table, names: &Names) -> FieldTable {
    table.iter().map(|(key, v)| (key, value(v, names))).collect()
}

fn value(value: &Value, names: &Names) -> FieldValue {
    match value {
        Value::Null => FieldValue::Void,
        Value::Bool(v) => FieldValue::Boolean(*v),
        Value::Number(n) => n.as_i64().map_or(FieldValue::Void, |n| match i32::try_from(n) {
            Ok(small) => FieldValue::I32(small),
            Err(_) => FieldValue::I64(n),
        }),
        Value::String(text) => FieldValue::text(names.wire(text)),
        Value::Array(items) => FieldValue::Array(items.iter().map(|item| self::value(item, names)).collect()),
        Value::Object(inner) => FieldValue::Table(table(inner, names)),
    }
}
