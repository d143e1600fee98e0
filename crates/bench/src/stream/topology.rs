//! The queues and the exchange of a round, and their assignment to producers and consumers.

use std::ops::Range;

use amqp::method::{basic, channel, exchange, queue};
use amqp::{Method, RawTable};

use super::content::table;
use super::message::CHANNEL;
use super::workload::{Acks, Workload};
use crate::client::Connection;
use crate::error::ClientError;

/// The objects that a round publishes to and consumes from.
#[derive(Debug)]
pub(crate) struct Topology<'w> {
    workload: &'w Workload,
    queues: Vec<String>,
    /// Each key is bound to the queue whose number is the key's own modulo the number of queues.
    keys: Vec<String>,
    /// Queues that this round has declared and that did not exist before.
    created: Vec<String>,
}

impl<'w> Topology<'w> {
    /// `salt` is part of generated queue names.
    pub(crate) fn new(workload: &'w Workload, salt: u8) -> Self {
        let base = match &workload.queue {
            Some(name) => name.clone(),
            None => format!("leveret-bench-{}-{salt}", std::process::id()),
        };
        let queues = numbered(&base, workload.first_queue, workload.queues);
        let keys = match &workload.routing_key {
            Some(key) => numbered(key, 1, workload.keys),
            None => queues.clone(),
        };
        Self { workload, queues, keys, created: Vec::new() }
    }

    /// Routing keys that a producer publishes with, in turn.
    pub(crate) fn keys_of(&self, producer: usize) -> Vec<&str> {
        share(&self.keys, producer, self.workload.producers)
    }

    /// Queues that a consumer consumes from.
    fn queues_of(&self, consumer: usize) -> Vec<&str> {
        share(&self.queues, consumer, self.workload.consumers)
    }

    /// Declares everything, unless it is predeclared. A queue that exists already belongs to another program: it is consumed
    /// if there are no producers, and is an error otherwise. An exchange that exists is always an error.
    pub(crate) fn declare(&mut self, control: &mut Connection) -> Result<(), ClientError> {
        let workload = self.workload;
        if workload.predeclared {
            return Ok(());
        }
        let queues = self.missing(control)?;
        let arguments = encoded(&workload.queue_arguments);
        for name in &queues {
            let declare = queue::Declare {
                queue: name,
                durable: workload.durable,
                // A generated queue is deleted with its consumers, should this process be killed.
                auto_delete: workload.queue.is_none() && workload.consumers > 0 && !workload.is_replicated(),
                arguments: RawTable::check(&arguments)?,
                ..Default::default()
            };
            control.call(CHANNEL, declare, |m| matches!(m, Method::QueueDeclareOk(_)).then_some(()))?;
            self.created.push(name.clone());
        }
        if let Some(name) = &workload.exchange {
            let durable = workload.durable;
            let declare = exchange::Declare {
                exchange: name,
                kind: &workload.exchange_type,
                durable,
                ..Default::default()
            };
            control.call(CHANNEL, declare, |m| matches!(m, Method::ExchangeDeclareOk(_)).then_some(()))?;
            for (queue, routing_key) in self.queues.iter().cycle().zip(&self.keys) {
                let bind = queue::Bind { queue, exchange: name, routing_key, ..Default::default() };
                control.call(CHANNEL, bind, |m| matches!(m, Method::QueueBindOk(_)).then_some(()))?;
            }
        }
        Ok(())
    }

    /// The queues that do not exist.
    ///
    /// # Errors
    /// A queue that would be published to exists, or the exchange does.
    fn missing(&self, control: &mut Connection) -> Result<Vec<String>, ClientError> {
        let workload = self.workload;
        if let Some(name) = &workload.exchange {
            let ask = exchange::Declare { exchange: name, passive: true, ..Default::default() };
            if exists(control, ask, |m| matches!(m, Method::ExchangeDeclareOk(_)))? {
                return Err(ClientError::Exists(format!("exchange '{name}'")));
            }
        }
        // No queue has a generated name.
        if workload.queue.is_none() {
            return Ok(self.queues.clone());
        }
        let mut missing = Vec::new();
        for name in &self.queues {
            let ask = queue::Declare { queue: name, passive: true, ..Default::default() };
            if !exists(control, ask, |m| matches!(m, Method::QueueDeclareOk(_)))? {
                missing.push(name.clone());
            } else if workload.producers > 0 {
                return Err(ClientError::Exists(format!("queue '{name}'")));
            }
        }
        Ok(missing)
    }

    /// Deletes the objects that [`Topology::declare`] has created.
    pub(crate) fn delete(&self, control: &mut Connection) -> Result<(), ClientError> {
        if self.workload.predeclared {
            return Ok(());
        }
        for name in &self.created {
            let delete = queue::Delete { queue: name, ..Default::default() };
            control.call(CHANNEL, delete, |m| matches!(m, Method::QueueDeleteOk(_)).then_some(()))?;
        }
        if let Some(name) = &self.workload.exchange {
            let delete = exchange::Delete { exchange: name, ..Default::default() };
            control.call(CHANNEL, delete, |m| matches!(m, Method::ExchangeDeleteOk(_)).then_some(()))?;
        }
        Ok(())
    }

    /// Subscribes a consumer to all of its queues, on each of these channels.
    pub(crate) fn subscribe(
        &self,
        connection: &mut Connection,
        consumer: usize,
        channels: Range<u16>,
    ) -> Result<(), ClientError> {
        let arguments = encoded(&self.workload.consumer_arguments);
        let no_ack = self.workload.acks == Acks::Automatic;
        let queues = self.queues_of(consumer);
        let all = channels.flat_map(|channel| queues.iter().map(move |queue| (channel, *queue)));
        for (number, (channel, queue)) in all.enumerate() {
            let consumer_tag = &number.to_string();
            let arguments = RawTable::check(&arguments)?;
            let consume = basic::Consume { queue, consumer_tag, no_ack, arguments, ..Default::default() };
            if number == 0 {
                connection
                    .call(channel, consume, |m| matches!(m, Method::BasicConsumeOk(_)).then_some(()))?;
            } else {
                // An answer would arrive between deliveries.
                connection.send_method(channel, basic::Consume { no_wait: true, ..consume })?;
            }
        }
        Ok(())
    }
}

/// Whether the object of a passive declaration exists. If not, the server closes the channel.
fn exists<'m>(
    control: &mut Connection,
    ask: impl Into<Method<'m>>,
    accept: impl Fn(&Method<'_>) -> bool,
) -> Result<bool, ClientError> {
    control.open_channel(PASSIVE_CHANNEL)?;
    match control.call(PASSIVE_CHANNEL, ask, |method| accept(method).then_some(())) {
        Ok(()) => {
            let close = channel::Close { reply_code: 200, reply_text: "", ..Default::default() };
            control.call(PASSIVE_CHANNEL, close, |m| matches!(m, Method::ChannelCloseOk(_)).then_some(true))
        }
        Err(ClientError::Closed(text)) if text.starts_with(NOT_FOUND) => {
            control.send_method(PASSIVE_CHANNEL, channel::CloseOk {})?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The channel for passive declarations, which the server may close.
const PASSIVE_CHANNEL: u16 = CHANNEL + 1;
/// The beginning of the error text for an object that does not exist.
const NOT_FOUND: &str = "404 ";

fn encoded(pairs: &[(String, String)]) -> Vec<u8> {
    table(pairs).encode()
}

/// Names with numbers from `first` on, at `%d` or else at the end; a single name without `%d` stays as it is.
fn numbered(base: &str, first: u64, count: usize) -> Vec<String> {
    let name = |number: u64| match base.contains("%d") {
        true => base.replace("%d", &number.to_string()),
        false if count == 1 => base.to_owned(),
        false => format!("{base}-{number}"),
    };
    (first..).take(count).map(name).collect()
}

/// The queues or keys of one of several connections, assigned in turn; no connection is left without any.
fn share(all: &[String], number: usize, connections: usize) -> Vec<&str> {
    if connections >= all.len() {
        return vec![&all[number % all.len()]];
    }
    all.iter().skip(number).step_by(connections).map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_at_the_placeholder_or_the_end() {
        assert_eq!(numbered("q", 1, 1), ["q"]);
        assert_eq!(numbered("q", 1, 2), ["q-1", "q-2"]);
        assert_eq!(numbered("a-%d-b", 9, 2), ["a-9-b", "a-10-b"]);
        assert_eq!(numbered("a-%d", 3, 1), ["a-3"]);
    }

    #[test]
    fn every_connection_has_a_queue_and_every_queue_a_connection() {
        let all = numbered("q", 1, 5);
        assert_eq!(
            [0, 1].map(|number| share(&all, number, 2)),
            [vec!["q-1", "q-3", "q-5"], vec!["q-2", "q-4"]]
        );
        assert_eq!(share(&all, 6, 7), ["q-2"]);
    }
}
