use amqp::method::{exchange, queue};
use amqp::{FieldTable, FieldValue, Method, RawTable};

use super::*;

struct Client {
    link: Arc<ClientLink>,
    declarer: Declarer,
}

impl Client {
    fn new(topologies: &Arc<Topologies>) -> Self {
        let credentials = Arc::new(Credentials::plain("user", "right"));
        Self { link: ClientLink::nobody(), declarer: Declarer::new(topologies.clone(), "/", credentials) }
    }

    fn did<'m>(&self, method: impl Into<Method<'m>>) {
        self.declarer.carried_out(Some(&self.link), &method.into(), None);
    }
}

fn exchange(name: &str) -> exchange::Declare<'_> {
    exchange::Declare { exchange: name, kind: "fanout", ..Default::default() }
}

fn queue(name: &str) -> queue::Declare<'_> {
    queue::Declare { queue: name, ..Default::default() }
}

fn auto_delete(name: &str) -> queue::Declare<'_> {
    queue::Declare { auto_delete: true, ..queue(name) }
}

fn bind<'m>(queue: &'m str, exchange: &'m str) -> queue::Bind<'m> {
    queue::Bind { queue, exchange, ..Default::default() }
}

/// The steps of a restoration, in order; nothing is torn afterwards.
fn restored(topologies: &Topologies) -> Vec<String> {
    let Some((plan, restoring)) = topologies.restore("/") else { return Vec::new() };
    restoring.done();
    let mut all = Vec::new();
    for phase in plan.phases {
        let mut names: Vec<_> = phase.into_iter().map(|step| step.what).collect();
        names.sort();
        all.extend(names);
    }
    all
}

fn all(topologies: &Topologies) -> Vec<String> {
    topologies.lost("/");
    restored(topologies)
}

#[test]
fn exchanges_come_before_queues_and_those_before_bindings() {
    let topologies = Arc::<Topologies>::default();
    let client = Client::new(&topologies);
    client.did(exchange("e"));
    client.did(bind("q", "e"));
    client.did(queue("q"));
    client.did(exchange::Bind { destination: "e", source: "amq.topic", ..Default::default() });
    let expected = [
        "exchange 'e'",
        "queue 'q'",
        "a binding of exchange 'e' to exchange 'amq.topic'",
        "a binding of queue 'q' to exchange 'e'",
    ];
    assert_eq!(all(&topologies), expected);
    assert_eq!(restored(&topologies), [""; 0], "once");
}

#[test]
fn bindings_between_durable_objects_are_not_remembered() {
    let topologies = Arc::<Topologies>::default();
    let client = Client::new(&topologies);
    client.did(exchange::Declare { durable: true, ..exchange("lasts") });
    client.did(queue::Declare { durable: true, ..queue("lasts") });
    client.did(bind("lasts", "lasts"));
    client.did(bind("lasts", "amq.topic"));
    client.did(queue::Declare { exclusive: true, ..queue("own") });
    client.did(bind("own", "lasts"));
    assert!(!topologies.knows("/"));
    // This client does not know whether another client's exchange is durable.
    client.did(bind("lasts", "others"));
    assert_eq!(all(&topologies), ["a binding of queue 'lasts' to exchange 'others'"]);
}

#[test]
fn declarations_of_several_clients_are_kept_until_the_last_one_leaves() {
    let topologies = Arc::<Topologies>::default();
    let clients = [Client::new(&topologies), Client::new(&topologies)];
    for client in &clients {
        client.did(exchange("e"));
        client.did(queue("q"));
        client.did(bind("q", "e"));
    }
    let twice = topologies.bytes();
    clients[0].declarer.leave();
    assert_eq!(topologies.bytes() * 2, twice);
    assert_eq!(all(&topologies).len(), 3);
    clients[1].declarer.leave();
    assert_eq!(topologies.bytes(), 0);
    assert!(!topologies.knows("/"));
}

#[test]
fn deleting_an_exchange_or_queue_removes_bindings_made_by_any_client() {
    let topologies = Arc::<Topologies>::default();
    let (one, other) = (Client::new(&topologies), Client::new(&topologies));
    one.did(exchange("e"));
    one.did(queue("q"));
    other.did(bind("q", "e"));
    other.did(queue("q2"));
    other.did(bind("q2", "e"));
    one.did(exchange::Delete { exchange: "e", ..Default::default() });
    assert_eq!(all(&topologies), ["queue 'q'", "queue 'q2'"]);
    one.did(exchange("e"));
    other.did(bind("q", "e"));
    one.did(queue::Delete { queue: "q", ..Default::default() });
    assert_eq!(all(&topologies), ["exchange 'e'", "queue 'q2'"]);
    other.did(queue::Delete { queue: "q2", ..Default::default() });
    one.did(exchange::Delete { exchange: "e", ..Default::default() });
    assert_eq!(topologies.bytes(), 0);
}

#[test]
fn an_exchange_bound_to_itself_can_be_deleted() {
    let topologies = Arc::<Topologies>::default();
    let client = Client::new(&topologies);
    client.did(exchange("e"));
    client.did(exchange::Bind { destination: "e", source: "e", ..Default::default() });
    client.did(exchange::Delete { exchange: "e", ..Default::default() });
    assert_eq!((topologies.bytes(), all(&topologies)), (0, Vec::new()));
}

#[test]
fn a_queue_deleted_with_its_last_consumer_is_forgotten() {
    let topologies = Arc::<Topologies>::default();
    let (client, consumer) = (Client::new(&topologies), Client::new(&topologies));
    client.did(auto_delete("q"));
    client.did(bind("q", "amq.topic"));
    assert_eq!(all(&topologies).len(), 2, "it never had one");
    let one = consumer.declarer.consuming("q").unwrap();
    let moved = one.clone();
    let other = client.declarer.consuming("q").unwrap();
    drop(one);
    drop(other);
    assert_eq!(all(&topologies).len(), 2, "one is left");
    drop(moved);
    assert_eq!(all(&topologies), [""; 0]);
    assert!(client.declarer.consuming("q").is_none());
}

#[test]
fn a_client_that_lost_its_connection_has_its_own_queues_declared_again_and_no_others() {
    let topologies = Arc::<Topologies>::default();
    let (client, other) = (Client::new(&topologies), Client::new(&topologies));
    client.did(exchange("e"));
    client.did(auto_delete("q"));
    client.did(bind("q", "e"));
    other.did(auto_delete("others"));
    let consumer = Client::new(&topologies);
    let consuming = consumer.declarer.consuming("others");
    topologies.lost_client("/", consumer.declarer.id);
    assert_eq!(restored(&topologies), ["queue 'others'"], "it only consumed from that queue");
    drop(consuming);
    topologies.lost_client("/", client.declarer.id);
    assert!(topologies.is_torn("/", client.declarer.id));
    assert!(!topologies.is_torn("/", other.declarer.id));
    assert_eq!(restored(&topologies), ["queue 'q'", "a binding of queue 'q' to exchange 'e'"]);
    assert!(!topologies.is_torn("/", client.declarer.id));
}

#[test]
fn a_restoration_that_fails_leaves_everything_torn() {
    let topologies = Arc::<Topologies>::default();
    let client = Client::new(&topologies);
    client.did(exchange("e"));
    topologies.lost_all();
    let (_, restoring) = topologies.restore("/").unwrap();
    assert!(topologies.is_torn("/", client.declarer.id));
    assert!(topologies.restore("/").is_none(), "one at a time");
    drop(restoring);
    assert_eq!(topologies.torn(), ["/".into()]);
    assert_eq!(restored(&topologies), ["exchange 'e'"]);
    assert_eq!(topologies.torn(), [] as [Box<str>; 0]);
}

#[test]
fn declarations_over_the_limit_are_dropped_and_reported_once_at_a_loss() {
    let topologies = Arc::<Topologies>::default();
    let client = Client::new(&topologies);
    for number in 0..10_000 {
        client.did(queue(&format!("{number}")));
        assert!(topologies.bytes() <= CLIENT_BYTES_MAX);
    }
    assert_eq!(topologies.bytes(), 0);
    topologies.lost("/");
    let (plan, restoring) = topologies.restore("/").unwrap();
    assert_eq!(plan.lost.len(), 1);
    restoring.done();
    topologies.lost("/");
    assert!(topologies.restore("/").unwrap().0.lost.is_empty(), "each client is reported once");
    client.declarer.leave();
    assert!(!topologies.knows("/"));
}

#[test]
fn bindings_of_exclusive_queues_are_not_remembered_whatever_their_source() {
    let topologies = Arc::<Topologies>::default();
    let client = Client::new(&topologies);
    client.did(queue::Declare { exclusive: true, ..queue("own") });
    client.did(bind("own", "others"));
    assert!(!topologies.knows("/"));
    for number in 0..1000 {
        client.did(queue::Declare { durable: true, ..queue(&format!("{number}")) });
    }
    client.did(bind("own", "others"));
    assert!(!topologies.knows("/"), "however much was declared since");
    client.did(queue::Delete { queue: "own", ..Default::default() });
    client.did(queue("own"));
    client.did(bind("own", "others"));
    assert_eq!(all(&topologies), ["queue 'own'", "a binding of queue 'own' to exchange 'others'"]);
}

#[test]
fn declarations_answered_after_the_client_left_are_not_remembered() {
    let topologies = Arc::<Topologies>::default();
    let client = Client::new(&topologies);
    client.declarer.leave();
    // The broker's replies arrive after the client is gone.
    client.did(queue("q"));
    client.did(bind("q", "e"));
    assert!(!topologies.knows("/"));
    assert_eq!(topologies.bytes(), 0);
}

#[test]
fn differing_declarations_of_a_queue_are_charged_equally_to_each_owner() {
    let topologies = Arc::<Topologies>::default();
    let clients = [Client::new(&topologies), Client::new(&topologies)];
    let arguments: FieldTable = [("x-max-length", FieldValue::I64(1))].into_iter().collect();
    let arguments = arguments.encode();
    let longer = queue::Declare { arguments: RawTable::check(&arguments).unwrap(), ..queue("q") };
    for [first, second] in [[queue("q"), longer], [longer, queue("q")]] {
        clients[0].did(first);
        clients[1].did(second);
        clients[0].did(queue::Delete { queue: "q", ..Default::default() });
        assert_eq!(topologies.bytes(), 0);
    }
}

fn auto_delete_exchange(name: &str) -> exchange::Declare<'_> {
    exchange::Declare { auto_delete: true, ..exchange(name) }
}

#[test]
fn an_auto_delete_exchange_is_forgotten_with_its_last_binding_and_may_cascade() {
    let topologies = Arc::<Topologies>::default();
    let client = Client::new(&topologies);
    let inner = exchange::Bind { destination: "inner", source: "outer", ..Default::default() };
    let declare = || {
        for name in ["outer", "inner"] {
            client.did(auto_delete_exchange(name));
        }
        client.did(inner);
        client.did(queue("q"));
        client.did(bind("q", "inner"));
    };
    declare();
    client.did(queue("other"));
    client.did(bind("other", "inner"));
    client.did(queue::Delete { queue: "q", ..Default::default() });
    let left = ["exchange 'inner'", "exchange 'outer'", "queue 'other'"];
    assert_eq!(all(&topologies)[..3], left, "one binding is left");
    client.did(queue::Unbind { queue: "other", exchange: "inner", ..Default::default() });
    assert_eq!(all(&topologies), ["queue 'other'"]);
    client.did(queue::Delete { queue: "other", ..Default::default() });

    declare();
    client.did(exchange::Unbind { destination: "inner", source: "outer", ..Default::default() });
    assert_eq!(all(&topologies)[..2], ["exchange 'inner'", "queue 'q'"]);
    client.did(exchange::Delete { exchange: "inner", ..Default::default() });
    assert_eq!(all(&topologies), ["queue 'q'"]);
    client.did(auto_delete_exchange("outer"));
    assert_eq!(all(&topologies), ["exchange 'outer'", "queue 'q'"], "it has had no binding yet");
    client.did(exchange("inner"));
    client.did(inner);
    client.did(exchange::Delete { exchange: "inner", ..Default::default() });
    client.did(queue::Delete { queue: "q", ..Default::default() });
    assert_eq!((topologies.bytes(), all(&topologies)), (0, Vec::new()));
}

#[test]
fn an_auto_delete_exchange_stays_while_unremembered_bindings_may_exist() {
    let unbind = || queue::Unbind { queue: "q", exchange: "e", ..Default::default() };
    for case in 0..3 {
        let topologies = Arc::<Topologies>::default();
        let (client, other) = (Client::new(&topologies), Client::new(&topologies));
        client.did(auto_delete_exchange("e"));
        client.did(queue("q"));
        client.did(bind("q", "e"));
        match case {
            0 => {
                other.did(queue::Declare { exclusive: true, ..queue("own") });
                other.did(bind("own", "e"));
            }
            // The binding outlives the client.
            1 => {
                other.did(bind("lasts", "e"));
                other.declarer.leave();
            }
            // Its reply arrives after the client has left.
            _ => {
                other.declarer.leave();
                other.did(bind("lasts", "e"));
            }
        }
        client.did(unbind());
        assert_eq!(all(&topologies), ["exchange 'e'", "queue 'q'"], "case {case}");
    }
}

#[test]
fn a_long_chain_of_auto_delete_exchanges_can_go_at_once() {
    let topologies = Arc::<Topologies>::default();
    let client = Client::new(&topologies);
    let names: Vec<String> = (0..1500).map(|number| number.to_string()).collect();
    for name in &names {
        client.did(auto_delete_exchange(name));
    }
    for pair in names.windows(2) {
        client.did(exchange::Bind { source: &pair[0], destination: &pair[1], ..Default::default() });
    }
    client.did(exchange::Delete { exchange: &names[1499], ..Default::default() });
    assert_eq!((topologies.bytes(), all(&topologies)), (0, Vec::new()));
}

#[test]
fn durable_objects_that_are_declared_again_keep_their_bindings() {
    let topologies = Arc::<Topologies>::default();
    let (client, other) = (Client::new(&topologies), Client::new(&topologies));
    let durable_objects = [
        Method::from(queue::Declare { durable: true, ..queue("q") }),
        exchange::Declare { durable: true, ..exchange("d") }.into(),
    ];
    let declare = |client: &Client| durable_objects.iter().for_each(|method| client.did(*method));
    client.did(auto_delete_exchange("e"));
    declare(&client);
    client.did(bind("q", "e"));
    client.did(queue("transient"));
    client.did(bind("transient", "d"));
    let expected = all(&topologies);
    assert_eq!(expected.len(), 4);
    declare(&client);
    declare(&other);
    assert_eq!(all(&topologies), expected);
    client.did(queue::Delete { queue: "q", ..Default::default() });
    assert!(!all(&topologies).contains(&"exchange 'e'".to_owned()), "its last binding is gone");
}

#[test]
fn a_transient_queue_declared_again_as_durable_loses_its_bindings() {
    let topologies = Arc::<Topologies>::default();
    let client = Client::new(&topologies);
    client.did(exchange("e"));
    client.did(queue("q"));
    client.did(bind("q", "e"));
    client.did(queue::Declare { durable: true, ..queue("q") });
    assert_eq!(all(&topologies), ["exchange 'e'"]);
}

#[test]
fn an_exclusive_queue_that_is_declared_again_may_still_keep_an_exchange() {
    let topologies = Arc::<Topologies>::default();
    let client = Client::new(&topologies);
    client.did(auto_delete_exchange("e"));
    // The pool does not know yet that the queue is exclusive, so it remembers the binding.
    client.did(bind("own", "e"));
    client.did(queue::Declare { exclusive: true, ..queue("own") });
    assert_eq!(all(&topologies), ["exchange 'e'"]);
}

/// Has the client bind a queue to an exchange, and unbind it again.
fn bind_and_unbind(client: &Client) {
    client.did(queue("q"));
    client.did(bind("q", "e"));
    client.did(queue::Unbind { queue: "q", exchange: "e", ..Default::default() });
}

#[test]
fn unremembered_bindings_outlast_the_client_that_declared_the_exchange() {
    for other_is_first in [false, true] {
        let topologies = Arc::<Topologies>::default();
        let [first, other, last] = [(); 3].map(|()| Client::new(&topologies));
        let bind_own = || {
            other.did(queue::Declare { exclusive: true, ..queue("own") });
            other.did(bind("own", "e"));
        };
        if other_is_first {
            bind_own();
        }
        first.did(auto_delete_exchange("e"));
        if !other_is_first {
            bind_own();
        }
        first.declarer.leave();
        assert!(!topologies.knows("/"));
        last.did(auto_delete_exchange("e"));
        bind_and_unbind(&last);
        assert_eq!(all(&topologies), ["exchange 'e'", "queue 'q'"], "{other_is_first}");
        // The broker deletes it with all its bindings.
        last.did(exchange::Delete { exchange: "e", ..Default::default() });
        last.did(auto_delete_exchange("e"));
        bind_and_unbind(&last);
        assert_eq!(all(&topologies), ["queue 'q'"], "{other_is_first}");
    }
}

#[test]
fn an_exchange_declared_in_another_process_may_have_bindings_of_others() {
    let [old, new] = [(); 2].map(|()| Arc::<Topologies>::default());
    let (there, here) = (Client::new(&old), Client::new(&new));
    there.did(auto_delete_exchange("e"));
    for method in there.declarer.declarations().unwrap() {
        here.declarer.remember_again(&here.link, &method);
    }
    bind_and_unbind(&here);
    assert_eq!(all(&new), ["exchange 'e'", "queue 'q'"]);
}

#[test]
fn a_binding_sent_before_its_durable_ends_are_declared_is_forgotten_then() {
    let topologies = Arc::<Topologies>::default();
    let (client, other) = (Client::new(&topologies), Client::new(&topologies));
    let declare = |client: &Client| client.did(queue::Declare { durable: true, ..queue("q") });
    for client in [&client, &other] {
        client.did(bind("q", "amq.topic"));
        client.did(bind("q", "others"));
    }
    declare(&client);
    let [durable_objects, others] =
        ["amq.topic", "others"].map(|from| format!("a binding of queue 'q' to exchange '{from}'"));
    assert_eq!(
        all(&topologies),
        [durable_objects, others.clone()],
        "the other client may not know that the queue is durable"
    );
    declare(&other);
    assert_eq!(all(&topologies), [others]);
    client.declarer.leave();
    other.declarer.leave();
    assert_eq!(topologies.bytes(), 0);
}
