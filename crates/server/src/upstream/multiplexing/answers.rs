//! Passes the upstream's answers to the subscribers that wait for them.

use std::collections::VecDeque;

use amqp::Fault;
use sync::work;

use super::inbox::SubscriberEvent;
use super::state::{BindingId, MultiplexedBinding, SubscribersState, subscriber_in};

/// Nanoseconds charged for an answer: for writing it to an inbox, and waking the client's task.
const ANSWER: u32 = 300;

/// Nanoseconds charged for visiting a slot.
pub(super) const SLOT: u32 = 20;

/// Answers to the subscribers of each key in turn. There may be very many, which takes several turns.
#[derive(Default)]
pub(super) struct BindingAnswers {
    answers: VecDeque<BindingAnswer>,
}

struct BindingAnswer {
    id: BindingId,
    /// The next slot among the key's subscribers.
    slot: usize,
    /// The removed binding and the fault, if the upstream refused it.
    refused: Option<(MultiplexedBinding, Fault)>,
}

impl BindingAnswers {
    /// Whether subscribers of a key have yet to be answered.
    pub(super) fn is_for(&self, id: BindingId) -> bool {
        self.answers.iter().any(|answer| answer.id == id)
    }

    pub(super) fn add_bound(&mut self, id: BindingId) {
        self.answers.push_back(BindingAnswer { id, slot: 0, refused: None });
    }

    pub(super) fn add_refused(&mut self, id: BindingId, binding: MultiplexedBinding, fault: Fault) {
        self.answers.push_back(BindingAnswer { id, slot: 0, refused: Some((binding, fault)) });
    }
}

impl SubscribersState {
    /// Answers the subscribers at the next `slots` slots. Returns whether all are answered.
    pub(super) fn answer(&mut self, slots: usize) -> bool {
        let Self { answers, bindings, subscribers, .. } = self;
        let mut left = slots;
        while let Some(BindingAnswer { id, slot, refused }) = answers.answers.front_mut() {
            let (binding, fault) = match refused {
                Some((binding, fault)) => (Some(binding), Some(&*fault)),
                None => (bindings.get_mut(id).filter(|binding| binding.waiting > 0), None),
            };
            let Some(binding) = binding.filter(|binding| *slot < binding.subscribers.capacity()) else {
                answers.answers.pop_front();
                continue;
            };
            if left == 0 || work::is_turn_over() {
                return false;
            }
            left -= 1;
            work::charge(SLOT, 1);
            let own = binding.subscribers.get_mut(*slot);
            *slot += 1;
            let Some(own) = own else { continue };
            let Some(entry) = subscriber_in(subscribers, own.subscriber) else { continue };
            if fault.is_some() {
                entry.slots.remove(id);
            }
            for subscription in &mut own.subscriptions {
                let event = match fault {
                    Some(fault) => SubscriberEvent::Refused(subscription.number, fault.clone()),
                    None if subscription.is_answered => continue,
                    None => SubscriberEvent::Subscribed(subscription.number),
                };
                if !std::mem::replace(&mut subscription.is_answered, true) {
                    binding.waiting -= 1;
                }
                entry.inbox.push(event);
                work::charge(ANSWER, 1);
            }
        }
        true
    }
}
