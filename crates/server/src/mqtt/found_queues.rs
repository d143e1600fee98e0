//! Queues of a client that exist without a session: RabbitMQ's plugin created them before a migration to this broker, or
//! an AMQP client did. As in RabbitMQ they become the client's session, and their bindings its subscriptions.

use std::sync::Arc;

use amqp::RawTable;
use broker::{AuthorisedSession, Binding, BrokerError, Queue, VirtualHost};
use mqtt::QoS;
use mqtt::packet::SubscribeOptions;
use mqtt::session::Subscription;
use mqtt::topic::{TopicFilter, routing_key_to_topic};

use super::detached::DetachedSession;
use super::hub::{NOBODY, queue_name};
use super::session::MAX_SUBSCRIPTIONS;
use super::subscribing::is_permanent;
use super::subscriptions::Class;

/// The client's queues that outlive its connection.
fn queues(vhost: &VirtualHost, client_id: &str) -> impl Iterator<Item = (Class, Arc<Queue>)> {
    Class::ALL.into_iter().filter_map(move |class| {
        let queue = vhost.queue(NOBODY, &queue_name(client_id, class.queue())).ok()?;
        is_permanent(&queue, class).then_some((class, queue))
    })
}

/// The session that is made from a client's queues, if there are any. Has its subscriptions only if `is_wanted`.
pub(super) fn session(
    authorised: &AuthorisedSession,
    client_id: &str,
    exchange: &str,
    is_wanted: bool,
) -> Option<Box<DetachedSession>> {
    let vhost = authorised.vhost();
    let mut found: Vec<_> = queues(vhost, client_id).collect();
    let mut detached_session = (!found.is_empty()).then(|| Box::new(DetachedSession::of_queues()))?;
    if !is_wanted || check(authorised, client_id, is_wanted).is_err_and(|error| error != BrokerError::Unasked)
    {
        // The session will be refused or deleted, and so needs no subscriptions.
        found.clear();
    }
    for (class, queue) in found {
        let qos = if class == Class::Qos0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
        let subscription = Subscription::of(SubscribeOptions::of_qos(qos));
        let bindings = vhost.bindings_to_queue(queue.name()).unwrap_or_default();
        let keys = bindings.iter().filter(|binding| *binding.source == *exchange);
        for filter in keys.filter_map(|binding| filter_of(&binding.routing_key)) {
            if detached_session.session.subscription_count() < MAX_SUBSCRIPTIONS {
                detached_session.session.subscribe(&filter, subscription);
            }
        }
    }
    Some(detached_session)
}

/// The filter of a binding key, if it has one. A key that would read as a shared subscription was not bound by this
/// broker.
fn filter_of(key: &str) -> Option<String> {
    let levels =
        key.split('.').map(|word| if word == "*" { "+".to_owned() } else { routing_key_to_topic(word) });
    let filter = levels.collect::<Vec<_>>().join("/");
    let is_valid = TopicFilter::parse(&filter, true).is_ok_and(|parsed| parsed.group().is_none());
    is_valid.then_some(filter)
}

/// Whether the user may resume these queues as a session or, with a clean start, delete them.
///
/// # Errors
/// 403 without the configure permission on them, or if `is_wanted` without the read permission.
pub(super) fn check(
    authorised: &AuthorisedSession,
    client_id: &str,
    is_wanted: bool,
) -> Result<(), BrokerError> {
    queues(authorised.vhost(), client_id).try_for_each(|(_, queue)| {
        authorised.check_delete_queue(queue.name())?;
        if is_wanted { authorised.check_read_queue(queue.name()) } else { Ok(()) }
    })
}

/// Replaces bindings with arguments, in which RabbitMQ 4 keeps a subscription's options, by bindings without any.
pub(super) fn rebind(vhost: &VirtualHost, client_id: &str, exchange: &str) {
    for (_, queue) in queues(vhost, client_id) {
        for binding in vhost.bindings_to_queue(queue.name()).unwrap_or_default() {
            if *binding.source != *exchange
                || binding.arguments.is_empty()
                || filter_of(&binding.routing_key).is_none()
            {
                continue;
            }
            let (source, destination, routing_key) = (exchange, &**queue.name(), &*binding.routing_key);
            let bare = Binding { source, destination, routing_key, arguments: RawTable::default() };
            let arguments = binding.arguments.encode();
            let arguments = RawTable::check(&arguments).unwrap_or_default();
            // If the binding was removed meanwhile, so was the subscription.
            if vhost.bind_queue(NOBODY, &bare).is_ok() {
                let _ = vhost.unbind_queue(NOBODY, &Binding { arguments, ..bare });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mqtt::topic::filter_to_binding_key;

    use super::*;

    #[test]
    fn a_binding_key_is_that_of_its_filter() {
        for filter in ["a/b", "+/b.c", "a/#", "#", "/", "a//b", "*x/y"] {
            assert_eq!(filter_of(&filter_to_binding_key(filter)).as_deref(), Some(filter));
        }
        for key in ["a.#.b", "", "a+b", "$share.g.a"] {
            assert_eq!(filter_of(key), None, "{key}");
        }
    }
}
