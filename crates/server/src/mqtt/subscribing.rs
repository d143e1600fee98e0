//! A client's subscriptions as queues and bindings, as in RabbitMQ's plugin: a queue for QoS 0, which is deleted with the
//! connection, and a queue for QoS 1 and 2, which is deleted with the session. A shared subscription is a queue that all
//! its clients consume from.

use std::collections::VecDeque;
use std::sync::Arc;

use amqp::{FieldTable, FieldValue, RawTable};
use broker::{Binding, BrokerError, ConsumerSpec, Queue, QueueDeclare, QueueKind, Section, Ticket};
use mqtt::server::ServerConnection as Engine;
use mqtt::session::Subscription;
use mqtt::topic::{TopicFilter, filter_to_binding_key};
use mqtt::{QoS, ReasonCode};
use sync::work;

use super::client::MqttClient;
use super::delivering::{ConsumedQueue, SourceKind};
use super::detached::lease;
use super::hub::{group_queue, queue_name};
use super::merging::merged_group_queue;
use super::message::MAX_SHORT;
use super::pending_retained::pending_key;
use super::repeating::{WaitingRequest, WaitingSubscribe, WaitingUnsubscribe};
use super::retained::RetainedSearch;
use super::session::{
    INVALID_FILTER, MAX_SHARED, MAX_SUBSCRIPTIONS, PendingReply, Refusal, Request, granted,
};
use super::subscriptions::Class;

/// The queue type of a QoS 0 queue that is deleted with its connection, by RabbitMQ's name. Here it is a classic queue.
const QOS0_QUEUE: &str = "rabbit_mqtt_qos0_queue";

/// Cost of a filter that is subscribed to, restored or unsubscribed from, in nanoseconds.
const FILTER: u32 = 4_000;

/// How often a group's queue is declared again because its last member has left, and deleted it, before it is consumed
/// from.
const MAX_ATTEMPTS: u32 = 5;

/// Cost of comparing the name of one of the client's queues, in nanoseconds.
const SCANNED_NAME: u32 = 10;

/// Cost of comparing a filter that may have the same binding key, in nanoseconds.
const SCANNED_FILTER: u32 = 100;

/// Cost of deriving the name of a filter's queue, in nanoseconds.
const PARSED_FILTER: u32 = 300;

/// Cost of a retained message that becomes pending, in nanoseconds.
const PENDING_TOPIC: u32 = 500;

impl MqttClient {
    /// Subscribes, and answers once the changes are on disk.
    pub(super) fn subscribe_all(&mut self, engine: &mut Engine, packet_id: u16, requests: Vec<Request>) {
        let reasons = Vec::with_capacity(requests.len());
        let (search, ticket) = (None, None);
        let subscribing = WaitingSubscribe { packet_id, requests: requests.into(), search, reasons, ticket };
        self.subscribe_rest(engine, subscribing);
    }

    /// Continues a SUBSCRIBE until the user's auth backend has to be asked, or the turn is over.
    pub(super) fn subscribe_rest(&mut self, engine: &mut Engine, mut subscribing: WaitingSubscribe) {
        while !subscribing.requests.is_empty() || subscribing.search.is_some() {
            if work::is_turn_over() {
                return self.leave_for_turn(WaitingRequest::Subscribe(subscribing));
            }
            if let Some((request, search)) = &mut subscribing.search {
                subscribing.ticket = subscribing.ticket.max(self.add_pending_retained(request, search));
                subscribing.search.take_if(|(_, search)| *search == RetainedSearch::Done);
                continue;
            }
            let Some(request) = subscribing.requests.pop_front() else { break };
            work::charge(FILTER, 1);
            let subscribed = match request.fault {
                Some(reason) => Err(Refusal { reason, text: "" }),
                None => self.subscribe_one(engine, &request),
            };
            if let Err(refusal) = subscribed
                && self.question.ask(refusal == Refusal::UNASKED, self.authorised.identity(), &self.outbox)
            {
                subscribing.requests.push_front(request);
                self.repeated = Some(WaitingRequest::Subscribe(subscribing));
                return;
            }
            self.question.over(self.authorised.identity());
            let WaitingSubscribe { reasons, ticket, search, .. } = &mut subscribing;
            match subscribed {
                Ok(bound) => {
                    *ticket = (*ticket).max(bound);
                    reasons.push(granted(request.options.qos));
                    *search = request.wants_retained.then_some((request, RetainedSearch::Begun));
                }
                Err(refusal) => reasons.push(refusal.reason),
            }
        }
        let WaitingSubscribe { packet_id, reasons, ticket, .. } = subscribing;
        let ticket = ticket.max(self.persist_subscriptions(engine.session()));
        self.wait(PendingReply::Subscribed { packet_id, reasons }, ticket.into());
    }

    fn subscribe_one(&mut self, engine: &mut Engine, request: &Request) -> Result<Option<Ticket>, Refusal> {
        let subscription = request.subscription(engine, self.is_bridge)?;
        let Subscription { options, is_shared, .. } = subscription;
        self.check_quota(&request.text, is_shared, engine)?;
        let mut ticket = self.establish(&request.text, subscription, engine)?;
        let before = engine.session_mut().subscribe(&request.text, subscription);
        if is_shared {
            // A client of MQTT 3.1.1 has made an ordinary subscription of this filter.
            if let Some(before) = before.filter(|before| !before.is_shared) {
                self.subscriptions.remove(&request.text);
                ticket = ticket.max(self.unbind(&request.text, Class::of(before.options.qos)));
            }
            return Ok(ticket);
        }
        self.subscriptions.insert(&request.text, subscription);
        // Until now its messages came through the other queue.
        if let Some(before) = before
            && Class::of(before.options.qos) != Class::of(options.qos)
        {
            self.unbind(&request.text, Class::of(before.options.qos));
        }
        Ok(ticket)
    }

    /// Whether the session may have another subscription with this filter.
    fn check_quota(&self, filter: &str, is_shared: bool, engine: &Engine) -> Result<(), Refusal> {
        const TOO_MANY: Refusal =
            Refusal { reason: ReasonCode::QuotaExceeded, text: "too many subscriptions" };
        let session = engine.session();
        let before = session.subscription(filter);
        if before.is_some_and(|before| before.is_shared == is_shared) {
            return Ok(());
        }
        let is_over = (before.is_none() && session.subscription_count() >= MAX_SUBSCRIPTIONS)
            || (is_shared && self.groups.len() >= MAX_SHARED);
        if is_over { Err(TOO_MANY) } else { Ok(()) }
    }

    /// Creates the queue and binding of a subscription. Returns the change to wait for.
    fn establish(
        &mut self,
        filter: &str,
        subscription: Subscription,
        engine: &mut Engine,
    ) -> Result<Option<Ticket>, Refusal> {
        const TOO_LONG: Refusal =
            Refusal { reason: ReasonCode::TopicFilterInvalid, text: "filter longer than 255 bytes" };
        let filter = subscription.filter(filter).ok_or(INVALID_FILTER)?;
        let key = filter_to_binding_key(filter.filter());
        if key.len() > MAX_SHORT {
            return Err(TOO_LONG);
        }
        let (name, kind) = match group_queue(filter) {
            None => {
                let class = Class::of(subscription.options.qos);
                (self.queue_of(class), SourceKind::Own(class))
            }
            Some(name) if name.len() > MAX_SHORT => return Err(TOO_LONG),
            Some(name) => (name, SourceKind::Shared(subscription)),
        };
        let hub = Arc::clone(&self.hub);
        let (source, destination) = (&*hub.config.exchange, &*name);
        let binding = Binding { source, destination, routing_key: &key, arguments: RawTable::default() };
        // Checked first: if the user may not bind the queue, it must not be declared or consumed from either.
        let checked = self.authorised.check_bind_queue(&binding);
        let checked = checked.and_then(|()| self.authorised.check_topic_of_binding(&binding));
        checked.inspect_err(|error| self.note_refused(error))?;
        let before = self.sources.iter().find(|source| **source.queue.name() == *name).map(|one| one.kind);
        let was_member = self.shares(&name);
        let attached = self.attach(&name, kind, Some(filter.filter()), engine);
        let bound = attached.and_then(|declared| {
            let bound = self.authorised.bind_queue(self.session_id, &binding)?;
            Ok(declared.max(bound))
        });
        if let Err(error) = &bound {
            self.note_refused(error);
            self.undo_sharing(&name, before, was_member);
        }
        Ok(Some(bound?))
    }

    /// Whether the session shares a queue.
    fn shares(&self, name: &str) -> bool {
        self.groups.iter().any(|group| **group == *name)
    }

    /// Called when a request has failed, so that a client without the shared subscription gets none of its messages.
    /// `before` is the source's kind before the request, if there was one, and `was_member` whether the session shared
    /// the queue then.
    fn undo_sharing(&mut self, name: &str, before: Option<SourceKind>, was_member: bool) {
        if !self.shares(name) {
            return;
        }
        match before {
            Some(kind) => {
                let source = self.sources.iter_mut().find(|source| **source.queue.name() == *name);
                source.into_iter().for_each(|source| source.kind = kind);
            }
            None => self.detach(name),
        }
        if !was_member {
            self.groups.retain(|group| **group != *name);
            // The queue is deleted only if empty: earlier messages must not be lost.
            self.hub.leave_group(&self.owner, self.vhost(), name, true);
        }
    }

    fn queue_of(&self, class: Class) -> String {
        queue_name(&self.owner.client_id, class.queue())
    }

    /// Declares a queue and consumes from it, unless the client does already. `filter` is the subscription's, without
    /// `$share/group/`.
    fn attach(
        &mut self,
        name: &str,
        kind: SourceKind,
        filter: Option<&str>,
        engine: &mut Engine,
    ) -> Result<Ticket, BrokerError> {
        work::charge(SCANNED_NAME, self.sources.len() + self.groups.len());
        let found = self.sources.iter_mut().find(|source| **source.queue.name() == *name);
        if let Some(source) = found {
            // The subscription may have new options.
            source.kind = kind;
            return Ok(Ticket::default());
        }
        self.authorised.check_read_queue(name)?;
        let is_shared = matches!(kind, SourceKind::Shared(_));
        if is_shared && !self.shares(name) {
            self.hub.join_group(&self.owner, self.vhost(), name);
            self.groups.push(name.into());
        }
        let filter = filter.filter(|_| is_shared);
        let mut attempts = 0;
        loop {
            let (queue, ticket) = self.find_or_declare(name, kind, engine)?;
            match self.consume(&queue, kind, filter, engine.window()) {
                // The last other member of the group has left in between, which deleted the queue.
                Err(BrokerError::NoQueue { .. }) if is_shared && attempts < MAX_ATTEMPTS => attempts += 1,
                consumed => return consumed.map(|()| ticket),
            }
        }
    }

    /// Returns a queue of the session or of a group, and the change to wait for.
    fn find_or_declare(
        &mut self,
        name: &str,
        kind: SourceKind,
        engine: &mut Engine,
    ) -> Result<(Arc<Queue>, Ticket), BrokerError> {
        let found = self.vhost().queue(self.session_id, name).ok();
        Ok(match found.filter(|queue| is_permanent(queue, kind.class())) {
            // It exists from an earlier connection, whose session may have had another expiry.
            Some(queue) if let SourceKind::Own(class) = kind => {
                if !self.owns[class as usize] {
                    // Somebody else declared the queue, and the session would delete it when it ends.
                    self.authorised.check_delete_queue(name)?;
                    self.owns[class as usize] = true;
                }
                let ticket = self.set_lease(&queue, self.expiry);
                (queue, ticket)
            }
            // Shared with other clients.
            Some(queue) => (queue, Ticket::default()),
            None => {
                let declared = self.declare(name, kind)?;
                if let SourceKind::Own(class) = kind {
                    self.owns[class as usize] = true;
                }
                if kind == SourceKind::Own(Class::Qos1) {
                    self.give_up_positions(engine);
                }
                declared
            }
        })
    }

    fn declare(&self, name: &str, kind: SourceKind) -> Result<(Arc<Queue>, Ticket), BrokerError> {
        let is_native = self.vhost().compatibility().mqtt_queues_follow_session();
        let is_own = matches!(kind, SourceKind::Own(_));
        let (durable, auto_delete) = match kind {
            SourceKind::Own(_) if is_native => (true, false),
            SourceKind::Own(Class::Qos0) => (false, true),
            SourceKind::Own(Class::Qos1) => (true, !self.is_persistent_session()),
            // Durable even if the first client's session is not, since a persistent session may share the queue later.
            SourceKind::Shared(_) => (true, false),
        };
        // As in RabbitMQ, the queue has the session's expiry. A group's queue is deleted with its last session instead.
        let is_leased = is_own && durable && self.is_persistent_session();
        let expires = lease(self.expiry).filter(|_| is_leased).and_then(|lease| i64::try_from(lease).ok());
        let expires = expires.map(|expires| ("x-expires", FieldValue::I64(expires)));
        let arguments = expires.into_iter().collect::<FieldTable>().encode();
        let arguments = RawTable::check(&arguments).unwrap_or_default();
        // Never the virtual host's default type: a quorum queue would drop a message after its delivery limit.
        let type_name = match kind {
            SourceKind::Own(Class::Qos0) if is_native && !self.is_persistent_session() => QOS0_QUEUE,
            _ => QueueKind::Classic.name(),
        };
        // A QoS 0 queue that is deleted with its connection.
        let is_bounded = kind == SourceKind::Own(Class::Qos0) && !(durable && self.is_persistent_session());
        let declare = QueueDeclare {
            name,
            durable,
            auto_delete,
            exclusive: is_native && is_own && !self.is_persistent_session(),
            arguments,
            type_name: Some(type_name),
            capacity: is_bounded.then(|| self.hub.config.queue_capacity()),
            ..QueueDeclare::default()
        };
        let declared = self.authorised.declare_queue(self.session_id, &declare, self.now)?;
        if !is_own {
            self.hub.note_group(self.vhost(), &declared.queue);
        }
        Ok((declared.queue, declared.ticket))
    }

    /// Sets the queue's expiry to the session's. Returns the change to wait for.
    fn set_lease(&self, queue: &Arc<Queue>, expiry: u32) -> Ticket {
        if expiry == 0 || queue.properties().auto_delete {
            // It is deleted with the connection.
            return Ticket::default();
        }
        self.vhost().set_queue_expires(queue, lease(expiry), self.now)
    }

    /// Applies a session expiry that the client has changed in its DISCONNECT.
    pub(super) fn renew_lease(&self, expiry: u32) {
        if expiry == self.expiry {
            return;
        }
        for class in Class::ALL.into_iter().filter(|class| self.owns[*class as usize]) {
            if let Ok(queue) = self.vhost().queue(self.session_id, &self.queue_of(class)) {
                self.set_lease(&queue, expiry);
            }
        }
    }

    fn consume(
        &mut self,
        queue: &Arc<Queue>,
        kind: SourceKind,
        filter: Option<&str>,
        window: u16,
    ) -> Result<(), BrokerError> {
        let no_ack = kind == SourceKind::Own(Class::Qos0);
        let limit = (!no_ack).then(|| usize::from(window));
        let tag = self.vhost().compatibility().mqtt_consumer_tag().unwrap_or(&self.owner.client_id);
        let serial = self.next_serial;
        self.next_serial += 1;
        let (key, consumer) = self.inbox.add(serial, limit);
        let spec = ConsumerSpec {
            consumer,
            session: self.session_id,
            tag,
            no_ack,
            exclusive: false,
            arguments: RawTable::default(),
        };
        let id = match queue.consume(spec) {
            Ok(id) => id,
            Err(error) => {
                self.inbox.remove(key);
                return Err(error);
            }
        };
        let pending_retained =
            self.unacked.values().filter(|unacked| Arc::ptr_eq(&unacked.queue, queue)).count();
        self.inbox.add_pending(key, pending_retained);
        let (queue_of, filter, settled) = (Arc::clone(queue), filter.map(Into::into), Vec::new());
        self.sources.push(ConsumedQueue { key, queue: queue_of, id, kind, filter, settled });
        if self.inbox.wants_resuming(key) {
            queue.resume(id, self.now);
        }
        Ok(())
    }

    /// Unsubscribes, and answers once the changes are on disk.
    pub(super) fn unsubscribe_all(&mut self, engine: &mut Engine, packet_id: u16, filters: Vec<Box<str>>) {
        let reasons = Vec::with_capacity(filters.len());
        let unsubscribing = WaitingUnsubscribe { packet_id, filters: filters.into(), reasons, ticket: None };
        self.unsubscribe_rest(engine, unsubscribing);
    }

    /// Continues with an UNSUBSCRIBE, until the turn is over.
    pub(super) fn unsubscribe_rest(&mut self, engine: &mut Engine, mut unsubscribing: WaitingUnsubscribe) {
        while !unsubscribing.filters.is_empty() {
            if work::is_turn_over() {
                return self.leave_for_turn(WaitingRequest::Unsubscribe(unsubscribing));
            }
            let WaitingUnsubscribe { filters, reasons, ticket, .. } = &mut unsubscribing;
            let Some(filter) = filters.pop_front() else { break };
            work::charge(FILTER, 1);
            let Some(before) = engine.session_mut().unsubscribe(&filter) else {
                reasons.push(ReasonCode::NoSubscriptionExisted);
                continue;
            };
            if before.is_shared {
                before.filter(&filter).into_iter().for_each(|filter| self.leave_group(filter, engine));
            } else {
                self.subscriptions.remove(&filter);
                *ticket = (*ticket).max(self.unbind(&filter, Class::of(before.options.qos)));
            }
            reasons.push(ReasonCode::Success);
        }
        let WaitingUnsubscribe { packet_id, reasons, ticket, .. } = unsubscribing;
        let ticket = ticket.max(self.persist_subscriptions(engine.session()));
        self.wait(PendingReply::Unsubscribed { packet_id, reasons }, ticket.into());
    }

    /// Unbinds the filter of a removed subscription, unless another one needs the same binding.
    fn unbind(&self, filter: &str, class: Class) -> Option<Ticket> {
        if self.subscriptions.are_scanned_for(filter, self.mapping()) {
            work::charge(SCANNED_FILTER, self.subscriptions.len());
        }
        if self.subscriptions.binds(filter, self.mapping(), |qos| Class::of(qos) == class) {
            return None;
        }
        let (name, key) = (self.queue_of(class), filter_to_binding_key(filter));
        let binding = Binding {
            source: &self.hub.config.exchange,
            destination: &name,
            routing_key: &key,
            arguments: RawTable::default(),
        };
        // If the queue was deleted meanwhile, the binding is gone as well.
        self.vhost().unbind_queue(self.session_id, &binding).ok()
    }

    /// The queue that an earlier version created for a shared subscription, if the session still shares it for this
    /// filter only.
    fn group_queue_before(&self, filter: TopicFilter<'_>, engine: &Engine) -> Option<String> {
        let name = merged_group_queue(filter)?;
        if !self.shares(&name) {
            return None;
        }
        work::charge(PARSED_FILTER, engine.session().subscription_count());
        let mut filters = engine.session().shared_filters();
        (!filters.any(|other| group_queue(other).is_some_and(|queue| queue == name))).then_some(name)
    }

    fn leave_group(&mut self, filter: TopicFilter<'_>, engine: &Engine) {
        let before = self.group_queue_before(filter, engine);
        for name in group_queue(filter).into_iter().chain(before) {
            if let Some(at) = self.groups.iter().position(|group| **group == *name) {
                self.detach(&name);
                self.groups.swap_remove(at);
                self.hub.leave_group(&self.owner, self.vhost(), &name, false);
            }
        }
    }

    /// Restores the subscriptions of a session, if it `is_resumed`. Those that do not fit into the turn follow in the
    /// next one, before any other request of the client.
    ///
    /// # Errors
    /// Fails if the user has lost permission for one of them, or its queue is not available.
    pub(super) fn resume(&mut self, engine: &mut Engine, is_resumed: bool) -> Result<(), Refusal> {
        let resumed = self.resume_all(engine, is_resumed);
        if !self.is_resuming() {
            self.authorised.identity().end_operation();
        }
        resumed
    }

    fn resume_all(&mut self, engine: &mut Engine, is_resumed: bool) -> Result<(), Refusal> {
        if is_resumed {
            // Done first, so that the queues get the session's expiry. A queue without subscriptions may still have
            // messages from before they were changed to QoS 0.
            for class in Class::ALL {
                let name = self.queue_of(class);
                let found = self.vhost().queue(self.session_id, &name);
                if found.is_ok_and(|queue| is_permanent(&queue, class)) {
                    self.attach(&name, SourceKind::Own(class), None, engine)?;
                }
            }
            let all = engine.session().subscriptions().map(|(filter, one)| (filter.into(), *one)).collect();
            return self.resume_rest(engine, all);
        }
        self.own_session();
        self.persist(engine.session());
        Ok(())
    }

    /// Continues to restore the subscriptions of a resumed session, until the turn is over.
    ///
    /// # Errors
    /// As for [`Self::resume`].
    pub(super) fn resume_rest(
        &mut self,
        engine: &mut Engine,
        mut subscriptions: VecDeque<(Box<str>, Subscription)>,
    ) -> Result<(), Refusal> {
        while let Some((filter, subscription)) = subscriptions.pop_front() {
            work::charge(FILTER, 1);
            self.establish(&filter, subscription, engine)?;
            if !subscription.is_shared {
                self.subscriptions.insert(&filter, subscription);
            } else if let Some(filter) = subscription.filter(&filter)
                && let Some(name) = self.group_queue_before(filter, engine)
                && self.vhost().queue(self.session_id, &name).is_ok()
            {
                // Consumes the messages that an earlier version queued for the group.
                self.attach(&name, SourceKind::Shared(subscription), Some(filter.filter()), engine)?;
            }
            if work::is_turn_over() && !subscriptions.is_empty() {
                self.leave_for_turn(WaitingRequest::Resume(subscriptions));
                return Ok(());
            }
        }
        self.own_session();
        if self.is_persistent_session() {
            self.persist(engine.session());
        } else {
            self.persist_as_ending(engine.session());
        }
        Ok(())
    }

    /// Makes the next retained messages that `search` finds pending for a new subscription. Returns the change to wait
    /// for.
    fn add_pending_retained(&mut self, request: &Request, search: &mut RetainedSearch) -> Option<Ticket> {
        let Ok(filter) = TopicFilter::parse(&request.text, false) else {
            *search = RetainedSearch::Done;
            return None;
        };
        let messages = self.hub.retained(self.vhost()).matching(&filter, search, self.now);
        work::charge(PENDING_TOPIC, messages.len());
        let filter: Arc<str> = (*request.text).into();
        let mut ticket = None;
        for message in messages {
            let is_needed = self.pending_retained.needs(&message.topic);
            let is_persistent =
                self.is_persistent() && request.options.qos.min(message.qos) != QoS::AtMostOnce;
            let is_noted = is_persistent && (is_needed || self.pending_retained.may_note());
            // A topic that is pending already is not written again.
            if is_noted && !is_needed {
                let key = pending_key(&self.owner, &message.topic);
                let noted = self
                    .vhost()
                    .note(|catalogue| catalogue.put(Section::MqttPendingRetained, key, Vec::new()));
                ticket = ticket.max(noted);
            }
            self.pending_retained.add(Arc::clone(&message.topic), is_noted, &filter);
        }
        ticket
    }
}

/// Whether an existing queue may be used again. RabbitMQ 3.10's QoS 0 queue is auto-delete, and ends with its connection.
pub(super) fn is_permanent(queue: &Queue, class: Class) -> bool {
    class != Class::Qos0 || !queue.properties().auto_delete
}
