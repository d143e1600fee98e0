//! Subscriptions that end with the connection, on the queue that all clients with one login share.

use std::collections::VecDeque;
use std::sync::Arc;

use amqp::{Fault, Properties};
use hashbrown::HashMap;
use mqtt::QoS;
use smallvec::SmallVec;
use transport::Outbox;

use crate::backend::Backend;
use crate::mqtt::MqttConfig;
use crate::mqtt::message;
use crate::mqtt::native::StoredForm;
use crate::server::Shared;
use crate::upstream::multiplexing::{
    Copies, InboxLimits, IsDroppable, MultiplexedMessage, MultiplexedSubscriber, SubscriberEvent,
    SubscriberInbox, UpstreamLogin,
};

/// The live subscriptions of one client: one for each binding key.
pub(super) struct LiveFilters {
    login: UpstreamLogin,
    /// The exchange that the keys are bound to.
    exchange: Arc<str>,
    /// The limits of the messages that wait for the client, and which of them may be dropped.
    limits: InboxLimits,
    is_droppable: IsDroppable,
    /// `None` until the first subscription.
    shared: Option<SharedPart>,
    keys: HashMap<Box<str>, LiveKey>,
    /// The keys whose subscriptions have not been answered, by subscription number.
    asked: HashMap<u64, Box<str>>,
    /// Answers that are due.
    answers: VecDeque<(u64, Result<(), Fault>)>,
    /// A message that did not fit into the client's window.
    deferred: Option<Arc<MultiplexedMessage>>,
}

struct SharedPart {
    inbox: Arc<SubscriberInbox>,
    subscriber: MultiplexedSubscriber,
}

/// The subscription to a binding key.
struct LiveKey {
    number: u64,
    /// The requests that wait for the subscription's answer; `None` once it is answered.
    waiting: Option<SmallVec<[u64; 1]>>,
    /// Whether the client still wants the subscription. It is not ended before it is answered, since the answer would be
    /// lost.
    is_wanted: bool,
}

/// An event of the shared queue.
#[derive(Debug)]
pub(super) enum LiveEvent {
    /// The answer to the request with this number.
    Answered(u64, Result<(), Fault>),
    Message(Arc<MultiplexedMessage>),
    /// The client did not take its messages fast enough.
    Overflowed,
    /// The upstream has refused to bind a key again after the shared queue was lost, although the client has this
    /// subscription.
    Lost(Fault),
    /// No more messages will arrive.
    Ended(Fault),
}

impl LiveFilters {
    /// Without subscriptions. Above [`MqttConfig::queue_max`] bytes of waiting messages, the oldest QoS 0 messages are
    /// dropped; if there are none, the client is disconnected. `form` is the form of the upstream's messages.
    pub(super) fn new(login: UpstreamLogin, config: &MqttConfig, form: StoredForm) -> Self {
        let (shared, keys, asked, answers, deferred) = Default::default();
        let bytes = usize::try_from(config.queue_max).unwrap_or(usize::MAX);
        let (limits, exchange) = (InboxLimits { messages: usize::MAX, bytes }, Arc::clone(&config.exchange));
        let is_droppable: IsDroppable = match form {
            StoredForm::Headers => |message| is_qos0(message, StoredForm::Headers),
            _ => |message| is_qos0(message, StoredForm::AnnotationHeader),
        };
        Self { login, exchange, limits, is_droppable, shared, keys, asked, answers, deferred }
    }

    /// Sets whether a key's subscription gets QoS 1 and 2 messages as such.
    pub(super) fn set_reliable(&self, key: &str, is_reliable: bool) {
        if let (Some(known), Some(part)) = (self.keys.get(key), &self.shared) {
            part.inbox.set_reliable(known.number, is_reliable);
        }
    }

    /// Subscribes to a binding key; the answer has this number.
    pub(super) fn subscribe(&mut self, shared: &Shared, outbox: &Arc<Outbox>, key: &str, number: u64) {
        if let Some(known) = self.keys.get_mut(key) {
            known.is_wanted = true;
            match &mut known.waiting {
                Some(waiting) => waiting.push(number),
                None => self.answers.push_back((number, Ok(()))),
            }
            return;
        }
        let Backend::Upstream(pool) = &shared.backend else { return };
        let part = self.shared.get_or_insert_with(|| {
            let budget = shared.subscriptions.budget();
            let inbox =
                SubscriberInbox::new(outbox, self.limits, budget, Copies::PerClient, Some(self.is_droppable));
            let subscriber = shared.subscriptions.join(pool, (&self.login, &self.exchange), &inbox);
            SharedPart { inbox, subscriber }
        });
        part.subscriber.subscribe(key, number);
        let waiting = Some(SmallVec::from([number]));
        self.keys.insert(key.into(), LiveKey { number, waiting, is_wanted: true });
        self.asked.insert(number, key.into());
    }

    /// Ends the subscription to a binding key.
    pub(super) fn unsubscribe(&mut self, key: &str) {
        let Some(known) = self.keys.get_mut(key) else { return };
        known.is_wanted = false;
        if known.waiting.is_none() {
            self.end(key);
        }
    }

    /// The next event. Messages wait unless there is capacity.
    pub(super) fn take(&mut self, has_capacity: bool) -> Option<LiveEvent> {
        loop {
            if let Some((number, answer)) = self.answers.pop_front() {
                if self.answers.is_empty() {
                    self.answers = VecDeque::new();
                }
                return Some(LiveEvent::Answered(number, answer));
            }
            if has_capacity && let Some(message) = self.deferred.take() {
                return Some(LiveEvent::Message(message));
            }
            let event = self.shared.as_ref()?.inbox.take(has_capacity && self.deferred.is_none())?;
            match event {
                SubscriberEvent::Subscribed(number) => self.answered(number, Ok(())),
                SubscriberEvent::Refused(number, fault) => {
                    if self.loses(number) {
                        return Some(LiveEvent::Lost(fault));
                    }
                    self.answered(number, Err(fault));
                }
                SubscriberEvent::Message(_, message) => return Some(LiveEvent::Message(message)),
                SubscriberEvent::Overflowed => return Some(LiveEvent::Overflowed),
                SubscriberEvent::Ended(fault) => return Some(LiveEvent::Ended(fault)),
            }
        }
    }

    /// Puts back a message that did not fit into the client's window.
    pub(super) fn hold(&mut self, message: Arc<MultiplexedMessage>) {
        self.deferred = Some(message);
    }

    /// Whether a message waits for the client's window.
    pub(super) fn holds(&self) -> bool {
        self.deferred.is_some()
    }

    /// Whether the client may be read.
    pub(super) fn has_capacity(&self) -> bool {
        self.shared.as_ref().is_none_or(|part| part.subscriber.has_capacity())
    }

    /// Handles the refusal of a subscription. Returns whether it had been granted before, so that the client has lost it.
    fn loses(&mut self, number: u64) -> bool {
        let granted = |known: &LiveKey| known.number == number && known.waiting.is_none();
        let is_lost = self.keys.extract_if(|_, known| granted(known)).next().is_some();
        if is_lost {
            self.forget_reliable(number);
        }
        is_lost
    }

    /// Removes the reliability of an ended subscription, whose number is not used again.
    fn forget_reliable(&self, number: u64) {
        if let Some(part) = &self.shared {
            part.inbox.set_reliable(number, false);
        }
    }

    /// Answers all requests that wait for a subscription.
    fn answered(&mut self, number: u64, answer: Result<(), Fault>) {
        let Some(key) = self.asked.remove(&number) else { return };
        if self.asked.is_empty() {
            self.asked = HashMap::new();
        }
        let Some(known) = self.keys.get_mut(&key) else { return };
        let waiting = known.waiting.take().into_iter().flatten();
        self.answers.extend(waiting.map(|number| (number, answer.clone())));
        if answer.is_err() {
            self.keys.remove(&key);
            self.forget_reliable(number);
        } else if !known.is_wanted {
            self.end(&key);
        }
    }

    fn end(&mut self, key: &str) {
        if let (Some(known), Some(part)) = (self.keys.remove(key), &self.shared) {
            part.subscriber.unsubscribe(key, known.number);
            self.forget_reliable(known.number);
        }
    }
}

/// Whether a message was published at QoS 0. A malformed message is sent to nobody, and so counts as one.
fn is_qos0(message: &MultiplexedMessage, form: StoredForm) -> bool {
    let Ok(properties) = Properties::decode(&message.properties) else { return true };
    let outgoing = message::outgoing(message.routing_key.to_string(), &properties, form);
    outgoing.is_none_or(|outgoing| outgoing.qos == QoS::AtMostOnce)
}
