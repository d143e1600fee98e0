//! A client's subscriptions in front of an upstream: live ones, and those that use the session's queue.

use amqp::{Fault, ReplyCode};
use mqtt::server::ServerConnection as Engine;
use mqtt::session::Subscription;
use mqtt::{QoS, ReasonCode};
use sync::work;

use super::delivery_paths::PathChange;
use super::pending::{PendingEntry, SubscribeOutcome, Subscribed};
use super::queue_requests::QueueRequest;
use super::session::{QueueState, UpstreamSession, of_fault};
use crate::mqtt::message::MAX_SHORT;
use crate::mqtt::session::{INVALID_FILTER, Refusal, Request, granted};
use crate::mqtt::subscriptions::Class;

/// Cost of an entry of a SUBSCRIBE or UNSUBSCRIBE, in nanoseconds.
const ENTRY: u32 = 2_000;

/// Cost of comparing a filter that may have the same binding key, in nanoseconds.
const SCANNED_FILTER: u32 = 100;

impl UpstreamSession {
    /// Requests the retained messages of bound SUBSCRIBEs, and collects those that have arrived.
    pub(super) fn advance_subscribes(&mut self) {
        let Self { pending, retained, outbox, at, .. } = self;
        for wait in pending.retained_waits() {
            retained.advance(wait, outbox, *at);
        }
        self.collect_retained();
    }

    /// Processes entries of SUBSCRIBEs and UNSUBSCRIBEs as far as the turn and the limit of upstream requests permit.
    /// Returns whether there were any. A packet is answered once the upstream has answered all requests of its entries.
    pub(super) fn handle_entries(&mut self, engine: &mut Engine) -> bool {
        let mut has_handled = false;
        while self.is_open()
            && !work::is_turn_over()
            && self.uplink.has_capacity()
            && self.live.has_capacity()
            && let Some(entry) = self.pending.next_entry()
        {
            work::charge(ENTRY, 1);
            has_handled = true;
            match entry {
                PendingEntry::Subscribe(request) => self.subscribe_one(engine, &request),
                PendingEntry::Unsubscribe(filter) => self.unsubscribe_one(engine, &filter),
            }
            if let Some(packet) = self.pending.completed() {
                self.list(packet);
            }
        }
        has_handled
    }

    fn subscribe_one(&mut self, engine: &mut Engine, request: &Request) {
        let requested = match request.fault {
            Some(reason) => Err(Refusal { reason, text: "" }),
            None => request
                .subscription(engine, self.is_bridge)
                .and_then(|subscription| Ok((subscription, self.binding_key(&request.text, &subscription)?))),
        };
        let (mut subscription, key) = match requested {
            Ok(requested) => requested,
            Err(refusal) => return self.pending.resolve(refusal.reason, &[], None),
        };
        let filter = &*request.text;
        let options = &mut subscription.options;
        if self.uses_queue() {
            // As in RabbitMQ: the upstream does not know which messages the client has received.
            options.qos = options.qos.min(QoS::AtLeastOnce);
        }
        let options = *options;
        if !self.note_subscription(filter, &subscription, engine) {
            return self.pending.resolve(ReasonCode::QuotaExceeded, &[], None);
        }
        if subscription.is_shared {
            return self.share_one(engine, request, subscription);
        }
        let before = engine.session().subscription(filter).copied();
        let class = self.class_of(options.qos);
        let (declared, number) = self.bind(class, &key);
        self.pending.begin(filter, number, before);
        match before.map(|before| self.class_of(before.options.qos)) {
            // Its messages come through the other path until this one is bound.
            Some(other) if other != class => {
                self.paths.add(&key, class);
                let replaced = self.paths.change(filter, PathChange { number, class });
                self.give_up(&key, replaced);
            }
            same => {
                if same.is_none() {
                    self.paths.add(&key, class);
                }
                let replaced = self.paths.take_change(filter);
                self.give_up(&key, replaced);
                engine.session_mut().subscribe(filter, subscription);
                self.subscriptions.insert(filter, subscription);
            }
        }
        self.note_reliable(filter, &key);
        let subscribed = Some(Subscribed { filter: filter.into(), subscription });
        match declared {
            Some(declared) => self.pending.resolve(granted(options.qos), &[declared, number], subscribed),
            None => self.pending.resolve(granted(options.qos), &[number], subscribed),
        }
        if request.wants_retained {
            self.pending.want_retained(filter);
        }
    }

    /// The class of a subscription: the session's queue for QoS 1 and above if the session has one, otherwise live.
    fn class_of(&self, qos: QoS) -> Class {
        if self.uses_queue() { Class::of(qos) } else { Class::Qos0 }
    }

    /// Requests reliable delivery of live QoS 1 and 2 messages for a subscription that gets them as such.
    fn note_reliable(&self, filter: &str, key: &str) {
        if self.uses_queue() {
            return;
        }
        let keeps = |qos: QoS| qos != QoS::AtMostOnce;
        let own = self.subscriptions.get(filter).map(|own| own.options.qos);
        let others = self.paths.count(key, Class::Qos0).saturating_sub(u32::from(own.is_some()));
        let mut is_reliable = own.is_some_and(keeps);
        if !is_reliable && others > 0 {
            work::charge(SCANNED_FILTER, self.subscriptions.len());
            is_reliable = self.subscriptions.binds(filter, self.mapping, keeps);
        }
        self.live.set_reliable(key, is_reliable);
    }

    /// Requests a binding. Returns the numbers of the requests: for the queue, unless it exists, and for the binding.
    fn bind(&mut self, class: Class, key: &str) -> (Option<u64>, u64) {
        if class == Class::Qos0 {
            let number = self.pending.next_number();
            self.live.subscribe(&self.shared, &self.outbox, key, number);
            return (None, number);
        }
        let (queue, declared) = (self.queue.name.clone(), self.declare_queue());
        let number = self.pending.next_number();
        self.uplink.request(number, QueueRequest::Bind { queue, key: key.into() });
        (declared, number)
    }

    /// Requests the session's queue, unless it exists. Returns the number of the request.
    pub(super) fn declare_queue(&mut self) -> Option<u64> {
        let queue = self.queue.name.clone();
        (self.queue.state == QueueState::Absent).then(|| {
            let (number, expires) = (self.pending.next_number(), self.queue_expires());
            self.uplink.request(number, QueueRequest::Declare { queue, expires });
            self.queue.state = QueueState::Declaring(number);
            number
        })
    }

    /// Removes a filter's path. Returns the number of the request if that removes a binding.
    fn remove_path(&mut self, key: &str, class: Class) -> Option<u64> {
        if !self.paths.remove(key, class) {
            return None;
        }
        if class == Class::Qos0 {
            self.live.unsubscribe(key);
            return None;
        }
        Some(self.unbind(key))
    }

    fn unbind(&mut self, key: &str) -> u64 {
        let number = self.pending.next_number();
        let queue = self.queue.name.clone();
        self.uplink.request(number, QueueRequest::Unbind { queue, key: key.into() });
        self.outbox.nudge();
        number
    }

    /// Cancels a path change.
    fn give_up(&mut self, key: &str, change: Option<PathChange>) {
        if let Some(change) = change {
            self.remove_path(key, change.class);
        }
    }

    fn binding_key(&self, filter: &str, subscription: &Subscription) -> Result<String, Refusal> {
        let key = self.mapping.key(subscription.filter(filter).ok_or(INVALID_FILTER)?.filter());
        if key.len() > MAX_SHORT {
            return Err(Refusal {
                reason: ReasonCode::TopicFilterInvalid,
                text: "filter longer than 255 bytes",
            });
        }
        Ok(key)
    }

    fn unsubscribe_one(&mut self, engine: &mut Engine, filter: &str) {
        let before = engine.session_mut().unsubscribe(filter);
        self.pending.forget(filter);
        let is_shared = match &before {
            Some(before) => before.is_shared,
            // The client may still be leaving the group.
            None => {
                let filter = engine.session().parse_filter(filter, engine.version().is_5());
                filter.is_ok_and(|filter| filter.group().is_some())
            }
        };
        if is_shared {
            let number = self.leave_group(filter);
            let existed = before.map_or(ReasonCode::NoSubscriptionExisted, |_| ReasonCode::Success);
            return self.pending.resolve(existed, number.as_slice(), None);
        }
        let Some(before) = before else {
            let key = self.mapping.key(filter);
            // The queue of a session that another server has served may have the binding. A longer key cannot have been
            // bound.
            let is_bound =
                self.queue.is_there() && key.len() <= MAX_SHORT && !self.paths.needs(&key, Class::Qos1);
            let number = is_bound.then(|| self.unbind(&key));
            return self.pending.resolve(ReasonCode::NoSubscriptionExisted, number.as_slice(), None);
        };
        let number = self.end_ordinary(filter, before);
        self.pending.resolve(ReasonCode::Success, number.as_slice(), None);
    }

    /// Ends an ordinary subscription that the session no longer has. Returns the number of the request if that removes a
    /// binding.
    pub(super) fn end_ordinary(&mut self, filter: &str, ended: Subscription) -> Option<u64> {
        let key = self.mapping.key(filter);
        self.subscriptions.remove(filter);
        let change = self.paths.take_change(filter);
        self.give_up(&key, change);
        for _ in 0..self.paths.stop_lingering(filter) {
            self.remove_path(&key, Class::Qos0);
        }
        let number = self.remove_path(&key, self.class_of(ended.options.qos));
        self.note_reliable(filter, &key);
        number
    }

    /// Handles the upstream's answer to a request.
    pub(super) fn answered(&mut self, number: u64, answer: Result<(), Fault>, engine: &mut Engine) {
        let refused = answer.err().and_then(|fault| {
            tracing::debug!(client = &*self.owner.client_id, %fault, "refused by the upstream");
            self.note_refused(&fault);
            // Another server has declared the queue with other arguments; it is used as it is.
            if fault.code == ReplyCode::PreconditionFailed {
                return None;
            }
            if self.pending.is_restoring(number) {
                // The session is kept for when the client has the permission again, as on the embedded broker.
                self.fail(of_fault(&fault), &fault);
            }
            Some(of_fault(&fault))
        });
        if self.queue.state == QueueState::Declaring(number) {
            self.queue.state = if refused.is_none() { QueueState::Exists } else { QueueState::Absent };
            self.consume(engine);
        }
        match self.pending.answered(number, refused) {
            Some(SubscribeOutcome::Granted { subscribed, packet }) => {
                self.subscribed((number, packet), subscribed, engine);
            }
            Some(SubscribeOutcome::Refused { filter, settled }) => {
                self.not_subscribed(number, &filter, settled, engine);
            }
            None => {}
        }
    }

    /// Makes a packet's answer wait for the list of the session's subscriptions, if there is one.
    fn list(&mut self, packet: u64) {
        if let Some(number) = self.wait_for_list() {
            self.pending.wait_for(packet, number);
            self.outbox.nudge();
        }
    }

    /// Handles a granted subscription: its messages come through the new path from now on.
    fn subscribed(&mut self, (number, packet): (u64, u64), subscribed: Subscribed, engine: &mut Engine) {
        let Subscribed { filter, subscription } = subscribed;
        let Some(change) = self.paths.take_changed(&filter, number) else { return };
        engine.session_mut().subscribe(&filter, subscription);
        self.subscriptions.insert(&filter, subscription);
        if change.class == Class::Qos0 {
            // Messages that are in the queue already are still sent.
            let key = self.mapping.key(&filter);
            self.remove_path(&key, Class::Qos1);
        } else if let Some(over) = self.paths.linger(&filter, self.at) {
            self.remove_path(&self.mapping.key(&over), Class::Qos0);
        }
        self.list(packet);
    }

    /// Handles a refused subscription: the client keeps the one that it had before.
    fn not_subscribed(
        &mut self,
        number: u64,
        filter: &str,
        settled: Option<Option<Subscription>>,
        engine: &mut Engine,
    ) {
        let key = self.mapping.key(filter);
        self.mark_list_stale();
        if let Some(change) = self.paths.take_changed(filter, number) {
            self.give_up(&key, Some(change));
            // Unless the subscription that it was to replace was refused as well.
            if !matches!(settled, Some(None)) {
                return;
            }
        }
        match settled {
            Some(Some(before)) => {
                engine.session_mut().subscribe(filter, before);
                if before.is_shared {
                    return;
                }
                self.subscriptions.insert(filter, before);
                self.note_reliable(filter, &key);
            }
            Some(None) => {
                self.subscriptions.remove(filter);
                let removed = engine.session_mut().unsubscribe(filter);
                match removed {
                    Some(removed) if removed.is_shared => _ = self.leave_group(filter),
                    Some(removed) => _ = self.remove_path(&key, self.class_of(removed.options.qos)),
                    None => {}
                }
            }
            // A later request decides.
            None => {}
        }
    }

    /// Ends the lingering live subscriptions whose time is over.
    pub(super) fn end_lingering(&mut self) {
        while let Some(filter) = self.paths.next_over(self.at) {
            self.remove_path(&self.mapping.key(&filter), Class::Qos0);
        }
    }

    /// Consumes from the session's queue, if it exists.
    fn consume(&mut self, engine: &Engine) {
        if self.queue.is_there() {
            self.uplink.consume(&self.queue.name, engine.window());
            self.outbox.nudge();
        }
    }

    /// Restores the subscriptions of a resumed session.
    pub(super) fn resume(&mut self, engine: &Engine) {
        let all: Vec<(Box<str>, Subscription)> =
            engine.session().subscriptions().map(|(filter, one)| (filter.into(), *one)).collect();
        for (filter, subscription) in all {
            if subscription.is_shared {
                self.resume_group(&filter, subscription);
                continue;
            }
            let Ok(key) = self.binding_key(&filter, &subscription) else { continue };
            self.subscriptions.insert(&filter, subscription);
            let class = self.class_of(subscription.options.qos);
            self.paths.add(&key, class);
            // The session's queue has its bindings already.
            if class == Class::Qos0 {
                let number = self.pending.next_number();
                self.live.subscribe(&self.shared, &self.outbox, &key, number);
            }
        }
        self.pending.set_restored();
        self.consume(engine);
    }
}
