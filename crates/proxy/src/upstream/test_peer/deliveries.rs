//! A model of how a broker settles the deliveries of one channel (RabbitMQ, rabbit_channel.erl).

use std::collections::BTreeSet;

use amqp::Method;

/// The deliveries on a channel.
#[derive(Debug, Default)]
pub(crate) struct ChannelDeliveries {
    /// The last delivery tag.
    pub(crate) last: u64,
    unsettled: BTreeSet<u64>,
    /// The steps so far.
    pub(crate) effects: Vec<Effect>,
}

/// A step on a channel, as everyone but the channel's process sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// These have left their queues, in whatever order: nothing came in between.
    Acked(BTreeSet<u64>),
    /// These are back in their queues, or have left them as dead letters, in this order.
    Returned { tags: Vec<u64>, requeued: bool },
    /// The channel was closed: 406 PRECONDITION_FAILED, with this delivery tag in the text.
    Refused(u64),
}

impl ChannelDeliveries {
    /// Delivers a message; `automatic` if it is settled by that. Returns its delivery tag.
    pub(crate) fn deliver(&mut self, automatic: bool) -> u64 {
        self.last += 1;
        if !automatic {
            self.unsettled.insert(self.last);
        }
        self.last
    }

    /// Deliveries that are not settled.
    pub(crate) fn unsettled(&self) -> Vec<u64> {
        self.unsettled.iter().copied().collect()
    }

    /// Whether the channel was closed for an acknowledgement.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.effects.last(), Some(Effect::Refused(_)))
    }

    /// Carries out a method that settles deliveries; others are ignored.
    pub(crate) fn take(&mut self, method: &Method<'_>) {
        if self.is_closed() {
            return;
        }
        match method {
            Method::BasicAck(ack) => {
                let Some(tags) = self.collect(ack.delivery_tag, ack.multiple) else { return };
                match self.effects.last_mut() {
                    Some(Effect::Acked(before)) => before.extend(tags),
                    _ => self.effects.push(Effect::Acked(tags.into_iter().collect())),
                }
            }
            Method::BasicNack(nack) => self.give_back(nack.delivery_tag, nack.multiple, nack.requeue),
            Method::BasicReject(reject) => self.give_back(reject.delivery_tag, false, reject.requeue),
            Method::BasicRecover(_) => {
                let tags = std::mem::take(&mut self.unsettled).into_iter().collect();
                self.effects.push(Effect::Returned { tags, requeued: true });
            }
            _ => {}
        }
    }

    fn give_back(&mut self, tag: u64, multiple: bool, requeued: bool) {
        if let Some(tags) = self.collect(tag, multiple) {
            self.effects.push(Effect::Returned { tags, requeued });
        }
    }

    /// The deliveries that a tag stands for, which are settled now. `None` if it is refused.
    fn collect(&mut self, tag: u64, multiple: bool) -> Option<Vec<u64>> {
        if (tag, multiple) == (0, true) {
            return Some(std::mem::take(&mut self.unsettled).into_iter().collect());
        }
        if !self.unsettled.remove(&tag) {
            self.effects.push(Effect::Refused(tag));
            return None;
        }
        let mut tags = vec![tag];
        if multiple {
            let later = self.unsettled.split_off(&tag);
            tags.splice(..0, std::mem::replace(&mut self.unsettled, later));
        }
        Some(tags)
    }
}
