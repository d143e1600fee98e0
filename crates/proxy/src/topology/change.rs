//! The effect of a completed method on the topology, as far as it does not survive a broker restart.

use std::sync::Arc;

use amqp::method::{exchange, queue};
use amqp::{FieldTable, FieldValue, Method, RawTable};

/// An exchange or a queue, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) name: Arc<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Exchange,
    Queue,
}

/// The effect of a method. The methods in it are encoded, request a reply, and name everything explicitly.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TopologyChange {
    /// An exchange or a queue that may not survive a broker restart.
    Declare { node: Node, method: Vec<u8>, auto_delete: bool },
    /// An exchange or a queue that survives a restart.
    Settled(Node),
    /// A queue that ends with the client's own connection, together with its bindings.
    Exclusive(Node),
    /// A binding; whether its ends are durable is not known here.
    Bind { from: Node, to: Node, method: Vec<u8> },
    /// The binding that this method would make is gone.
    Unbind { from: Node, to: Node, method: Vec<u8> },
    /// An exchange or a queue is deleted, with its bindings.
    Delete(Node),
    /// A declaration whose name is not known.
    Unknown,
}

impl Node {
    pub(super) fn exchange(name: &str) -> Self {
        Self { kind: Kind::Exchange, name: name.into() }
    }

    pub(super) fn queue(name: &str) -> Self {
        Self { kind: Kind::Queue, name: name.into() }
    }

    /// Whether it is a predeclared exchange, which every broker has.
    pub(super) fn is_built_in(&self) -> bool {
        self.kind == Kind::Exchange && (self.name.is_empty() || self.name.starts_with("amq."))
    }
}

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            Kind::Exchange => "exchange",
            Kind::Queue => "queue",
        };
        write!(f, "{kind} '{}'", self.name)
    }
}

/// The effect of a method that was carried out, or was sent with no-wait. `queue` is what an empty queue name
/// in it means: the name that the broker generated, or the last queue declared on the channel.
pub(super) fn change_of(method: &Method<'_>, queue: Option<&str>) -> Option<TopologyChange> {
    let named = |name: &str| if name.is_empty() { queue.map(Node::queue) } else { Some(Node::queue(name)) };
    Some(match method {
        Method::ExchangeDeclare(declare) if !declare.passive => {
            let node = Node::exchange(declare.exchange);
            if node.is_built_in() {
                return None;
            }
            if declare.durable && !declare.auto_delete {
                return Some(TopologyChange::Settled(node));
            }
            let method = encoded(exchange::Declare { no_wait: false, ..*declare });
            TopologyChange::Declare { node, method, auto_delete: declare.auto_delete }
        }
        Method::QueueDeclare(declare) if !declare.passive => {
            let Some(node) = named(declare.queue) else { return Some(TopologyChange::Unknown) };
            if declare.exclusive {
                return Some(TopologyChange::Exclusive(node));
            }
            if declare.durable && !declare.auto_delete {
                return Some(TopologyChange::Settled(node));
            }
            // A server-named queue cannot be declared by its name, so it is declared passively: it is restored only if
            // it still exists.
            let (queue, passive) = (&*node.name, declare.queue.is_empty());
            let method = encoded(queue::Declare { queue, passive, no_wait: false, ..*declare });
            TopologyChange::Declare { method, auto_delete: declare.auto_delete, node }
        }
        Method::QueueBind(bind) => {
            let Some(to) = named(bind.queue) else { return Some(TopologyChange::Unknown) };
            let key = if bind.queue.is_empty() && bind.routing_key.is_empty() {
                &*to.name
            } else {
                bind.routing_key
            };
            let method = queue_binding(&to, bind.exchange, key, bind.arguments);
            TopologyChange::Bind { from: Node::exchange(bind.exchange), to, method }
        }
        Method::QueueUnbind(unbind) => {
            let to = named(unbind.queue)?;
            let is_short = unbind.queue.is_empty() && unbind.routing_key.is_empty();
            let key = if is_short { &*to.name } else { unbind.routing_key };
            let method = queue_binding(&to, unbind.exchange, key, unbind.arguments);
            TopologyChange::Unbind { from: Node::exchange(unbind.exchange), to, method }
        }
        Method::ExchangeBind(bind) => {
            let method = exchange_binding(bind.destination, bind.source, bind.routing_key, bind.arguments);
            TopologyChange::Bind {
                from: Node::exchange(bind.source),
                to: Node::exchange(bind.destination),
                method,
            }
        }
        Method::ExchangeUnbind(unbind) => {
            let exchange::Unbind { destination, source, routing_key, arguments, .. } = *unbind;
            let method = exchange_binding(destination, source, routing_key, arguments);
            TopologyChange::Unbind { from: Node::exchange(source), to: Node::exchange(destination), method }
        }
        // Without a reply the outcome of the condition is unknown.
        Method::QueueDelete(delete) if !delete.no_wait || !(delete.if_unused || delete.if_empty) => {
            TopologyChange::Delete(named(delete.queue)?)
        }
        Method::ExchangeDelete(delete) if !delete.no_wait || !delete.if_unused => {
            TopologyChange::Delete(Node::exchange(delete.exchange))
        }
        _ => return None,
    })
}

fn queue_binding(queue: &Node, exchange: &str, routing_key: &str, arguments: RawTable<'_>) -> Vec<u8> {
    let arguments = sorted(arguments);
    let arguments = RawTable::check(&arguments).unwrap_or_default();
    encoded(queue::Bind { queue: &queue.name, exchange, routing_key, arguments, ..Default::default() })
}

fn exchange_binding(destination: &str, source: &str, routing_key: &str, arguments: RawTable<'_>) -> Vec<u8> {
    let arguments = sorted(arguments);
    let arguments = RawTable::check(&arguments).unwrap_or_default();
    encoded(exchange::Bind { destination, source, routing_key, arguments, ..Default::default() })
}

/// The arguments of a binding in sorted order: brokers distinguish bindings by their arguments, whatever the order.
fn sorted(arguments: RawTable<'_>) -> Vec<u8> {
    if arguments.is_empty() {
        return FieldTable::new().encode();
    }
    let table = arguments.decode();
    let mut entries: Vec<(&str, &FieldValue)> = table.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    entries.into_iter().map(|(key, value)| (key, value.clone())).collect::<FieldTable>().encode()
}

fn encoded<'m>(method: impl Into<Method<'m>>) -> Vec<u8> {
    let mut out = Vec::new();
    method.into().encode(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(declare: queue::Declare<'_>, name: Option<&str>) -> Option<TopologyChange> {
        change_of(&declare.into(), name)
    }

    #[test]
    fn declarations_that_a_broker_restart_undoes_are_distinguished() {
        let declare = queue::Declare { queue: "q", ..Default::default() };
        let durable = queue::Declare { durable: true, ..declare };
        for transient in [declare, queue::Declare { auto_delete: true, ..durable }] {
            assert!(
                matches!(declared(transient, None), Some(TopologyChange::Declare { .. })),
                "{transient:?}"
            );
        }
        let q = || Node::queue("q");
        assert_eq!(declared(durable, None), Some(TopologyChange::Settled(q())));
        for exclusive in [declare, durable] {
            let exclusive = queue::Declare { exclusive: true, ..exclusive };
            assert_eq!(declared(exclusive, None), Some(TopologyChange::Exclusive(q())));
        }
        assert_eq!(declared(queue::Declare { passive: true, ..declare }, None), None);
        let built_in = exchange::Declare { exchange: "amq.topic", kind: "topic", ..Default::default() };
        assert_eq!(change_of(&built_in.into(), None), None);
    }

    #[test]
    fn a_server_named_queue_is_redeclared_passively() {
        let declare = queue::Declare { auto_delete: true, no_wait: false, ..Default::default() };
        let Some(TopologyChange::Declare { node, method, .. }) = declared(declare, Some("amq.gen-1")) else {
            panic!("not remembered")
        };
        assert_eq!(node, Node::queue("amq.gen-1"));
        let Ok(Method::QueueDeclare(again)) = Method::decode(&method) else { panic!("{method:?}") };
        assert_eq!((again.queue, again.passive), ("amq.gen-1", true));
        assert_eq!(declared(declare, None), Some(TopologyChange::Unknown));
    }

    #[test]
    fn equivalent_bind_and_unbind_methods_name_the_same_binding() {
        let table = |pairs: [(&str, &str); 2]| {
            pairs
                .into_iter()
                .map(|(key, value)| (key, FieldValue::text(value)))
                .collect::<FieldTable>()
                .encode()
        };
        let (one, other) = (table([("a", "1"), ("b", "2")]), table([("b", "2"), ("a", "1")]));
        let bind = queue::Bind {
            exchange: "e",
            no_wait: true,
            arguments: RawTable::check(&one).unwrap(),
            ..Default::default()
        };
        let unbind = queue::Unbind {
            queue: "q",
            exchange: "e",
            routing_key: "q",
            arguments: RawTable::check(&other).unwrap(),
            ..Default::default()
        };
        let Some(TopologyChange::Bind { from, to, method }) = change_of(&bind.into(), Some("q")) else {
            panic!()
        };
        assert_eq!(change_of(&unbind.into(), None), Some(TopologyChange::Unbind { from, to, method }));
    }

    #[test]
    fn a_conditional_delete_without_a_reply_changes_nothing() {
        let delete = queue::Delete { queue: "q", ..Default::default() };
        let gone = Some(TopologyChange::Delete(Node::queue("q")));
        assert_eq!(change_of(&delete.into(), None), gone);
        assert_eq!(change_of(&queue::Delete { no_wait: true, ..delete }.into(), None), gone);
        assert_eq!(change_of(&queue::Delete { if_unused: true, ..delete }.into(), None), gone);
        assert_eq!(change_of(&queue::Delete { if_empty: true, no_wait: true, ..delete }.into(), None), None);
    }
}
