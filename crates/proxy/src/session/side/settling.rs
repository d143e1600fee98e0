//! Settling the deliveries of a side's current upstream channel.
//!
//! Tag 0 with `multiple` settles all deliveries so far. The broker applies it to everything that it has sent. On a shared
//! connection this may include deliveries that exceed the client's budget: these are not passed on, and are requeued when the
//! upstream channel is closed. So on a shared connection, 0 is replaced by the tag of the last unsettled delivery that was
//! passed on.

use std::borrow::Cow;

use amqp::Method;
use amqp::frame::write_method;
use amqp::method::basic;

use super::{Side, SidePlacement};
use crate::session::output::Output;

impl Side {
    /// Passes on acknowledgements, merged where that settles exactly the same deliveries; returns their number. Returns
    /// `None`, having taken none, if they have to wait, or be passed on one by one.
    #[inline]
    pub(in crate::session) fn acknowledge(
        &mut self,
        output: &mut Output,
        acks: impl Iterator<Item = basic::Ack>,
    ) -> Option<usize> {
        let (SidePlacement::Placed(route), Some(ledger)) = (&self.place, &self.ledger) else { return None };
        if !self.queued.is_empty() {
            return None;
        }
        let (channel, delivered) = (route.channel, ledger.gathers_up_to());
        let (mut taken, mut gathered) = (0, None);
        for ack in acks {
            // Acknowledgements of deliveries from earlier upstream channels are dropped.
            let present = self.carried.present_tag(ack.delivery_tag);
            let settled = self.settled.get_or_insert_default();
            let present = match present {
                Some(0) if ack.multiple && !route.own => match settled.last_unsettled(delivered) {
                    Some(last) => last,
                    None if taken == 0 => return None,
                    None => break,
                },
                other => other,
            };
            taken += 1;
            let Some(delivery_tag) = present else { continue };
            let ack = basic::Ack { delivery_tag, ..ack };
            let is_plain = settled.settle(delivery_tag, ack.multiple, delivered.unwrap_or_default());
            let both = gathered.as_ref().filter(|_| is_plain).and_then(|before| settled.join(before, &ack));
            if both.is_none()
                && let Some(before) = gathered.take()
            {
                write_method(output.to(&route.upstream), channel, before);
            }
            gathered = both.or(Some(ack));
        }
        if let Some(last) = gathered {
            write_method(output.to(&route.upstream), channel, last);
            // A channel that is closed instead of proven clean needs no proof.
            self.unproven |= !self.touched;
        }
        Some(taken)
    }

    /// A method as it is sent on the current upstream channel, with its delivery tag translated. Returns `None` if it
    /// settles no delivery of that channel.
    pub(super) fn settling<'p>(&self, payload: &'p [u8]) -> Option<Cow<'p, [u8]>> {
        let payload = self.carried.settling(payload)?;
        if !self.settles_all_on_shared_connection(&payload) {
            return Some(payload);
        }
        match self.last_unsettled() {
            Some(last) => Some(with_tag(payload.into_owned(), last?).into()),
            None => Some(payload),
        }
    }

    /// Whether a method settles all deliveries so far on a shared connection, and the last unsettled one is unknown. It
    /// then needs the client's own connection, where all deliveries are passed on.
    pub(in crate::session) fn settles_unknown(&self, payload: &[u8]) -> bool {
        self.settles_all_on_shared_connection(payload)
            && self.last_unsettled().is_none()
            // Such consumers would not survive the move.
            && self.ledger.as_ref().is_some_and(|ledger| !ledger.has_dependent_consumers())
    }

    /// Whether a method settles all deliveries so far on a shared connection.
    fn settles_all_on_shared_connection(&self, payload: &[u8]) -> bool {
        settles_all(payload) && matches!(&self.place, SidePlacement::Placed(route) if !route.own)
    }

    /// See [`Settled::last_unsettled`](super::Settled::last_unsettled).
    fn last_unsettled(&self) -> Option<Option<u64>> {
        let delivered = self.ledger.as_ref()?.gathers_up_to();
        match &self.settled {
            Some(settled) => settled.last_unsettled(delivered),
            None => delivered.map(|last| Some(last).filter(|last| *last > 0)),
        }
    }

    /// Notes what a method settles, or that delivery tags cannot be tracked any more: some are used by automatically
    /// acknowledged deliveries, all are requeued at once, or a commit settles them.
    pub(super) fn note_settling(&mut self, payload: &[u8]) {
        let (tag, multiple) = match Method::decode(payload) {
            Ok(Method::BasicConsume(basic::Consume { no_ack: false, .. }))
            | Ok(Method::BasicGet(basic::Get { no_ack: false, .. })) => return,
            Ok(Method::BasicAck(ack)) => (ack.delivery_tag, ack.multiple),
            Ok(Method::BasicNack(nack)) => (nack.delivery_tag, nack.multiple),
            Ok(Method::BasicReject(reject)) => (reject.delivery_tag, false),
            _ => return self.settled.get_or_insert_default().invalidate_counts(),
        };
        let delivered = self.ledger.as_ref().and_then(|ledger| ledger.gathers_up_to());
        self.settled.get_or_insert_default().settle(tag, multiple, delivered.unwrap_or_default());
    }
}

/// Whether it is a `basic.ack` or `basic.nack` of all deliveries so far: tag 0, with `multiple`.
fn settles_all(payload: &[u8]) -> bool {
    matches!(payload, [0, 60, 0, 80 | 120, 0, 0, 0, 0, 0, 0, 0, 0, bits, ..] if bits & 1 != 0)
}

/// A `basic.ack` or `basic.nack` with another delivery tag.
fn with_tag(mut payload: Vec<u8>, tag: u64) -> Vec<u8> {
    if let Some(at) = payload.get_mut(4..12) {
        at.copy_from_slice(&tag.to_be_bytes());
    }
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_deliveries_are_settled_by_tag_0_with_multiple_alone() {
        let mut seen = Vec::new();
        for (delivery_tag, multiple) in [(0, true), (0, false), (1, true)] {
            let nack = basic::Nack { delivery_tag, multiple, requeue: true };
            for method in [Method::from(basic::Ack { delivery_tag, multiple }), nack.into()] {
                let mut payload = Vec::new();
                method.encode(&mut payload);
                seen.push(settles_all(&payload));
                let tag = Method::decode(&with_tag(payload, 7)).map(|method| match method {
                    Method::BasicAck(ack) => ack.delivery_tag,
                    Method::BasicNack(nack) => nack.delivery_tag,
                    other => panic!("{other:?}"),
                });
                assert_eq!(tag, Ok(7));
            }
        }
        assert_eq!(seen, [true, true, false, false, false, false]);
    }
}
