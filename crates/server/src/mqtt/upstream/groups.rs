//! Shared subscriptions in front of an upstream: the members of a group compete for the messages of one queue there,
//! regardless of the Leveret server that they are connected to.
//!
//! The queue is durable and has the same arguments for all members, since they cannot be changed. It expires when no
//! member has consumed from it for the longest session expiry. A member with a persistent session binds its own queue to
//! an exchange of the group (the *mark*), which the upstream deletes with the last binding. A member that leaves deletes
//! the group's queue unless that has other consumers or a mark. So the queue ends with the last member, but not while a
//! persistent session is detached. If servers fail, the queue expires.

use amqp::{Fault, ReplyCode};
use hashbrown::HashMap;
use mqtt::ReasonCode;
use mqtt::server::ServerConnection as Engine;
use mqtt::session::Subscription;
use mqtt::topic::TopicFilter;

use super::group_consumers::{GroupEvent, MAX_GROUPS};
use super::group_table::GroupMember;
use super::pending::Subscribed;
use super::queue_requests::QueueRequest;
use super::session::{MIN_EXPIRES, UpstreamSession, of_fault};
use crate::mqtt::hub::QUEUE_PREFIX;
use crate::mqtt::message::MAX_SHORT;
use crate::mqtt::session::{Refusal, Request, granted};
use crate::mqtt::subscriptions::{FilterMatch, is_for, matches_only_by_star};

/// Suffix of the names of groups' queues. Sessions' queues end in `qos0` or `qos1`, so no client identifier yields such a
/// name.
const SUFFIX: &str = "-shared";

/// How often a queue is declared again because another member has left, and deleted it, before it is consumed from.
const MAX_ATTEMPTS: u32 = 5;

/// The groups that a client is a member of.
#[derive(Default)]
pub(super) struct Groups {
    /// By queue name.
    groups: HashMap<Box<str>, Group>,
    /// The names of groups whose queues are being bound, by request number.
    binding: HashMap<u64, Box<str>>,
    /// The names of groups with a consumer, by consumer key.
    consumers: HashMap<usize, Box<str>>,
    /// Cancelled consumers whose messages the client has yet to acknowledge, with their queues' names.
    draining: HashMap<usize, Box<str>>,
    /// The consumer and delivery tag of each message that the client has not acknowledged, by the client's tag for it.
    in_flight: HashMap<u64, (usize, u64)>,
}

struct Group {
    key: Box<str>,
    /// Several filters if the upstream treats dots as slashes. Empty once the client leaves the group.
    filters: Vec<Box<str>>,
    /// The latest subscription.
    subscription: Subscription,
    stage: GroupStage,
    attempts: u32,
    /// Whether the client is subscribed by its session or by SUBACK, so that losing the group disconnects it.
    is_member: bool,
    /// The requests that are answered once the client consumes from the queue, and once it has left the group.
    joining: Vec<u64>,
    leaving: Vec<u64>,
    /// The membership in the operators' list.
    member: GroupMember,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupStage {
    Binding,
    /// Until basic.consume-ok for the consumer with this key.
    Opening(usize),
    Consuming(usize),
    /// Until basic.cancel-ok.
    Cancelling(usize),
}

impl Groups {
    /// How messages of a consumer are sent; `None` if its group has been left.
    pub(super) fn verdict(&self, consumer: usize) -> Option<FilterMatch> {
        let group = self.groups.get(self.consumers.get(&consumer)?)?;
        Some(FilterMatch::of(&group.subscription))
    }

    /// Whether a message that reached a consumer through the group's binding matches one of the client's filters.
    pub(super) fn matches(&self, consumer: usize, topic: &str) -> bool {
        let group = self.consumers.get(&consumer).and_then(|name| self.groups.get(name));
        let filters = group.into_iter().flat_map(|group| &group.filters);
        filters
            .filter_map(|text| TopicFilter::parse(text, true).ok())
            .any(|one| is_for(one.filter(), topic) && !matches_only_by_star(one.filter(), topic))
    }

    /// Counts a message of a consumer that was sent to the client.
    pub(super) fn count_delivered(&self, consumer: usize) {
        let group = self.consumers.get(&consumer).and_then(|name| self.groups.get(name));
        group.inspect(|group| group.member.count_delivered());
    }

    /// Records a message that was sent and has to be acknowledged by the client.
    pub(super) fn sent(&mut self, tag: u64, consumer: usize, delivery_tag: u64) {
        self.in_flight.insert(tag, (consumer, delivery_tag));
    }

    /// The request that follows a cancelled consumer once the client has acknowledged all its messages: deletes the queue
    /// if no member needs it.
    fn drained(&mut self, consumer: usize) -> Option<QueueRequest> {
        if !self.draining.contains_key(&consumer) || self.in_flight.values().any(|(of, _)| *of == consumer) {
            return None;
        }
        let queue = self.draining.remove(&consumer)?;
        Some(QueueRequest::LeaveGroup { mark: queue.clone(), queue })
    }

    /// Forgets a lost consumer and its messages in flight, which the upstream delivers to other members.
    fn forget(&mut self, consumer: usize) -> Option<Box<str>> {
        self.in_flight.retain(|_, (of, _)| *of != consumer);
        self.consumers.remove(&consumer)
    }
}

impl UpstreamSession {
    /// The queue of a shared subscription's group, and its binding key.
    fn group_of(&self, filter: &str) -> Option<(Box<str>, String)> {
        let filter = TopicFilter::parse(filter, true).ok()?;
        let (group, filter) = (filter.group()?, filter.filter());
        let key = self.mapping.key(filter);
        // A level `*` is a wildcard in AMQP alone: messages that come by it are discarded, which the members of a filter with
        // `+` in its place would miss. So each has a queue of its own, and `*` is `+` in the name, as in no binding key.
        let word = |level| if level == "*" { "+".to_owned() } else { self.mapping.key(level) };
        let words: Vec<_> = filter.split('/').map(word).collect();
        Some((format!("{QUEUE_PREFIX}{group}/{}{SUFFIX}", words.join(".")).into(), key))
    }

    /// Subscribes to a shared filter. The SUBACK waits for the client's consumer.
    pub(super) fn share_one(&mut self, engine: &mut Engine, request: &Request, subscription: Subscription) {
        const TOO_LONG: Refusal =
            Refusal { reason: ReasonCode::TopicFilterInvalid, text: "filter longer than 255 bytes" };
        const TOO_MANY: Refusal =
            Refusal { reason: ReasonCode::QuotaExceeded, text: "too many shared subscriptions" };
        let filter = &*request.text;
        let Some((name, key)) = self.group_of(filter) else { return };
        let groups = &self.groups.made().groups;
        let is_known = groups.contains_key(&name);
        let refused = match () {
            () if name.len() > MAX_SHORT => Some(TOO_LONG),
            () if !is_known && groups.len() >= usize::from(MAX_GROUPS) => Some(TOO_MANY),
            () => None,
        };
        if let Some(refusal) = refused {
            return self.pending.resolve(refusal.reason, &[], None);
        }
        let number = self.pending.next_number();
        let mut before = engine.session_mut().subscribe(filter, subscription);
        // A client of MQTT 3.1.1 may have made an ordinary subscription of this filter.
        let ordinary = before.take_if(|before| !before.is_shared);
        let unbound = ordinary.and_then(|ordinary| self.end_ordinary(filter, ordinary));
        self.pending.begin(filter, number, before);
        let mut numbers = self.join(&name, &key, filter, subscription);
        numbers.extend(unbound);
        let qos = granted(subscription.options.qos);
        match self.groups.made().groups.get_mut(&name) {
            Some(group) if !matches!(group.stage, GroupStage::Consuming(_)) => {
                group.joining.push(number);
                numbers.push(number);
                let subscribed = Subscribed { filter: filter.into(), subscription };
                self.pending.resolve(qos, &numbers, Some(subscribed));
            }
            _ => {
                self.pending.forget(filter);
                self.pending.resolve(qos, &numbers, None);
            }
        }
    }

    /// Makes the client a member of a group. Returns the numbers of the requests for the queue; the consumer's follows.
    fn join(&mut self, name: &str, key: &str, filter: &str, subscription: Subscription) -> Vec<u64> {
        if let Some(group) = self.groups.made().groups.get_mut(name) {
            group.subscription = subscription;
            if !group.filters.iter().any(|other| **other == *filter) {
                group.filters.push(filter.into());
            }
            return Vec::new();
        }
        let (joining, leaving) = Default::default();
        let member = self.hub.groups.join(&self.owner.vhost, name, filter);
        let group = Group {
            key: key.into(),
            filters: vec![filter.into()],
            subscription,
            stage: GroupStage::Binding,
            attempts: 0,
            is_member: false,
            joining,
            leaving,
            member,
        };
        self.groups.made().groups.insert(name.into(), group);
        self.bind_group(name, key)
    }

    /// Requests the group's queue and binding, and for a persistent session the mark.
    fn bind_group(&mut self, name: &str, key: &str) -> Vec<u64> {
        let mut numbers = Vec::new();
        if self.is_persistent_session() {
            numbers.extend(self.declare_queue());
            let (mark, queue) = (name.into(), self.queue.name.clone());
            numbers.push(self.request(QueueRequest::DeclareMark { mark }));
            numbers.push(self.request(QueueRequest::BindMark { queue, mark: name.into() }));
        }
        let expires = Some(self.hub.longest_lease().max(MIN_EXPIRES));
        numbers.push(self.request(QueueRequest::Declare { queue: name.into(), expires }));
        let bound = self.request(QueueRequest::Bind { queue: name.into(), key: key.into() });
        self.groups.made().binding.insert(bound, name.into());
        numbers
    }

    fn request(&mut self, request: QueueRequest) -> u64 {
        let number = self.pending.next_number();
        self.uplink.request(number, request);
        number
    }

    /// Handles the answer to a request that has bound a group's queue, and starts the consumer.
    pub(super) fn group_bound(&mut self, number: u64, answer: &Result<(), Fault>, engine: &mut Engine) {
        let Some(groups) = self.groups.get_mut() else { return };
        let Some(name) = groups.binding.remove(&number) else { return };
        if let Err(fault) = answer {
            return self.group_refused(&name, fault, engine);
        }
        let Some(group) = self.groups.made().groups.get_mut(&name) else { return };
        let consumer = self.uplink.consume_shared(&name, engine.window());
        group.stage = GroupStage::Opening(consumer);
        self.groups.made().consumers.insert(consumer, name);
        self.outbox.nudge();
    }

    /// Handles a consumer's event.
    pub(super) fn handle_group(&mut self, consumer: usize, event: GroupEvent, engine: &mut Engine) {
        match event {
            GroupEvent::Consuming => {
                let Some(group) = self.group_mut(consumer) else { return };
                (group.stage, group.attempts) = (GroupStage::Consuming(consumer), 0);
                let (mut answered, is_left) = (std::mem::take(&mut group.joining), group.filters.is_empty());
                group.is_member |= !is_left;
                if !is_left {
                    // The client has left the group and joined it again meanwhile.
                    answered.append(&mut group.leaving);
                }
                answered.into_iter().for_each(|number| self.answered(number, Ok(()), engine));
                if is_left {
                    self.close_group(consumer);
                }
            }
            GroupEvent::Cancelled => {
                let Some(name) = self.groups.made().consumers.remove(&consumer) else { return };
                self.groups.made().draining.insert(consumer, name.clone());
                self.drain_group(consumer);
                self.group_left(&name, engine);
            }
            GroupEvent::Lost(fault) => {
                let name = self.groups.made().forget(consumer);
                if let Some(left) = self.groups.made().drained(consumer) {
                    self.uplink.request(0, left);
                }
                if let Some(name) = name {
                    self.group_lost(&name, &fault, engine);
                }
            }
            GroupEvent::Closed => {}
        }
    }

    /// Acknowledges a message of a shared subscription upstream, once the client has acknowledged it.
    pub(super) fn delivered_shared(&mut self, tag: u64) {
        let Some(groups) = self.groups.get_mut() else { return };
        let Some((consumer, delivery_tag)) = groups.in_flight.remove(&tag) else { return };
        self.uplink.acknowledge_shared(consumer, delivery_tag);
        self.drain_group(consumer);
    }

    /// Closes a cancelled consumer's channel once the client has acknowledged all its messages.
    fn drain_group(&mut self, consumer: usize) {
        if let Some(left) = self.groups.made().drained(consumer) {
            self.uplink.stop_shared(consumer, vec![left]);
            self.outbox.nudge();
        }
    }

    fn group_mut(&mut self, consumer: usize) -> Option<&mut Group> {
        let Groups { groups, consumers, .. } = self.groups.get_mut()?;
        groups.get_mut(consumers.get(&consumer)?)
    }

    /// Handles a consumer that the upstream has refused or ended.
    fn group_lost(&mut self, name: &str, fault: &Fault, engine: &mut Engine) {
        let Some(group) = self.groups.made().groups.get_mut(name) else { return };
        group.attempts += 1;
        if group.filters.is_empty() {
            self.leave_unused(name);
            return self.group_left(name, engine);
        }
        if fault.code != ReplyCode::NotFound || group.attempts > MAX_ATTEMPTS {
            return self.group_refused(name, fault, engine);
        }
        // Another member has left and deleted the queue, or an operator deleted it.
        group.stage = GroupStage::Binding;
        let key = group.key.clone();
        self.bind_group(name, &key);
        self.outbox.nudge();
    }

    /// Handles a group that cannot be joined. If the client is a member of it, the client is disconnected.
    fn group_refused(&mut self, name: &str, fault: &Fault, engine: &mut Engine) {
        let Some(group) = self.groups.made().groups.get_mut(name) else { return };
        if group.is_member && !group.filters.is_empty() {
            // The session may be persistent: it remains a member, and leaves the group when it ends.
            group.stage = GroupStage::Binding;
            return self.fail(of_fault(fault), fault);
        }
        let Some(group) = self.groups.made().groups.remove(name) else { return };
        self.leave_unused(name);
        // Always reported as a refusal: an existing queue with other arguments is of no use.
        let fault = match fault.code {
            ReplyCode::PreconditionFailed => Fault::new(ReplyCode::InternalError, fault.text.clone()),
            _ => fault.clone(),
        };
        group.joining.into_iter().for_each(|number| self.answered(number, Err(fault.clone()), engine));
        group.leaving.into_iter().for_each(|number| self.answered(number, Ok(()), engine));
    }

    /// Called when the client no longer consumes from a group's queue. Joins the group again if the client has subscribed
    /// meanwhile.
    fn group_left(&mut self, name: &str, engine: &mut Engine) {
        let Some(group) = self.groups.made().groups.get_mut(name) else { return };
        let (mut joined, leaving) = (Vec::new(), std::mem::take(&mut group.leaving));
        if group.filters.is_empty() {
            // The client has joined the group and left it again meanwhile.
            joined = std::mem::take(&mut group.joining);
            self.groups.made().groups.remove(name);
        } else {
            group.stage = GroupStage::Binding;
            let key = group.key.clone();
            self.bind_group(name, &key);
            self.outbox.nudge();
        }
        joined.into_iter().chain(leaving).for_each(|number| self.answered(number, Ok(()), engine));
    }

    /// Ends a shared subscription. Returns a request number if the UNSUBACK has to wait.
    pub(super) fn leave_group(&mut self, filter: &str) -> Option<u64> {
        let (name, _) = self.group_of(filter)?;
        let group = self.groups.get_mut()?.groups.get_mut(&name)?;
        group.filters.retain(|other| **other != *filter);
        if !group.filters.is_empty() {
            return None;
        }
        group.is_member = false;
        let number = self.pending.next_number();
        group.leaving.push(number);
        if let GroupStage::Consuming(consumer) = group.stage {
            self.close_group(consumer);
        }
        Some(number)
    }

    /// Leaves a consumer's group.
    fn close_group(&mut self, consumer: usize) {
        let Some(name) = self.groups.made().consumers.get(&consumer).cloned() else { return };
        if let Some(group) = self.groups.made().groups.get_mut(&name) {
            group.stage = GroupStage::Cancelling(consumer);
        }
        self.uplink.cancel_shared(consumer);
        self.unmark(&name);
        self.outbox.nudge();
    }

    /// Removes the session's mark of a group.
    fn unmark(&mut self, name: &str) {
        if self.uses_queue() && !self.queue.is_absent() {
            let (queue, mark) = (self.queue.name.clone(), name.into());
            self.request(QueueRequest::UnbindMark { queue, mark });
        }
    }

    /// Leaves a group without a consumer. Its queue may have been declared for this client alone.
    fn leave_unused(&mut self, name: &str) {
        self.unmark(name);
        self.request(QueueRequest::LeaveGroup { mark: name.into(), queue: name.into() });
        self.outbox.nudge();
    }

    /// Makes a resumed session a member of its group again.
    pub(super) fn resume_group(&mut self, filter: &str, subscription: Subscription) {
        if let Some((name, key)) = self.group_of(filter) {
            self.join(&name, &key, filter, subscription);
            if let Some(group) = self.groups.made().groups.get_mut(&name) {
                group.is_member = true;
            }
        }
    }
}

impl Groups {
    /// Called when the connection has ended. Returns the requests that follow each consumer, and those for groups without
    /// one. Groups are left if `is_left`; if the session continues it remains a member. `marked` is the session's queue,
    /// which may be bound to the marks.
    pub(super) fn ends(
        self,
        is_left: bool,
        marked: Option<&str>,
    ) -> (Vec<(usize, Vec<QueueRequest>)>, Vec<QueueRequest>) {
        let leave = |name: Box<str>| {
            let unbind =
                marked.map(|queue| QueueRequest::UnbindMark { queue: queue.into(), mark: name.clone() });
            let leave = QueueRequest::LeaveGroup { mark: name.clone(), queue: name.clone() };
            unbind.into_iter().chain([leave]).collect::<Vec<_>>()
        };
        let mut consumers: Vec<_> =
            self.draining.into_iter().map(|(consumer, name)| (consumer, leave(name))).collect();
        let mut others = Vec::new();
        for (name, group) in self.groups {
            let is_left = is_left || group.filters.is_empty();
            let then = if is_left { leave(name) } else { Vec::new() };
            match group.stage {
                GroupStage::Binding => others.extend(then),
                GroupStage::Opening(consumer)
                | GroupStage::Consuming(consumer)
                | GroupStage::Cancelling(consumer) => consumers.push((consumer, then)),
            }
        }
        (consumers, others)
    }
}
