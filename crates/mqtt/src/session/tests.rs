use super::*;
use crate::packet::RetainHandling;
use crate::properties::Property;

fn message(qos: QoS) -> OutgoingMessage {
    OutgoingMessage {
        topic: "a/b".into(),
        qos,
        retain: true,
        redelivered: false,
        properties: PropertyList::new().with(Property::MessageExpiryInterval(5)),
        payload: Bytes::from_static(b"hello"),
    }
}

fn session() -> Session {
    let mut session = Session::new();
    let options = SubscribeOptions {
        qos: QoS::ExactlyOnce,
        no_local: true,
        retain_as_published: true,
        retain_handling: RetainHandling::IfNew,
    };
    session.subscribe("a/+", Subscription { options, identifier: Some(9), is_shared: false });
    session.subscribe("$share/g/x", Subscription { options, identifier: None, is_shared: true });
    session.subscribe("$share/g/y", Subscription::of(options));
    session.subscribe("$share", Subscription::of(options));
    session.outgoing.add(70, message(QoS::AtLeastOnce));
    session.outgoing.add(71, message(QoS::ExactlyOnce));
    session.outgoing.find(2).expect("it was added").stage = Stage::Released;
    session.receive(5);
    session.receive(6);
    session.accepted(5);
    session
}

#[test]
fn a_session_comes_back_from_disk_as_it_was() {
    let (session, mut bytes) = (session(), Vec::new());
    session.encode(&mut bytes);
    let back = Session::decode(&bytes).expect("it was a session");
    assert!(back.subscriptions().eq(session.subscriptions()));
    assert!(back.in_flight().eq(session.in_flight()));
    assert_eq!(back.received().collect::<Vec<_>>(), [5], "what was not accepted comes again");
    assert!(back.holds(70) && back.holds(71) && !back.holds(72));
    let mut again = Vec::new();
    back.encode(&mut again);
    assert_eq!(again, bytes);
}

#[test]
fn messages_that_are_stored_elsewhere_come_back_in_their_order() {
    let (mut session, mut bytes) = (session(), Vec::new());
    session.outgoing.remove(1);
    session.outgoing.add(72, message(QoS::ExactlyOnce));
    session.encode_without_messages(&mut bytes);
    let mut back = Session::decode(&bytes).expect("it was a session");
    assert!(back.subscriptions().eq(session.subscriptions()));
    assert_eq!((back.in_flight().count(), back.received().count()), (0, 0));
    for entry in session.in_flight().filter(|entry| entry.is_exactly_once()) {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        for cut in 0..bytes.len() {
            assert!(InFlight::decode(&bytes[..cut], 0).is_err(), "{cut} bytes");
        }
        back.restore_in_flight(InFlight::decode(&bytes, entry.sequence).expect("it was a message"));
    }
    back.restore_received(5);
    assert_eq!(back.received().collect::<Vec<_>>(), [5]);
    assert!(back.in_flight().eq(session.in_flight()));
    let last = back.in_flight().last().map(|entry| entry.sequence);
    while back.outgoing.next_unsent().is_some() {}
    back.outgoing.add(73, message(QoS::ExactlyOnce));
    assert!(back.in_flight().last().map(|entry| entry.sequence) > last);
}

#[test]
fn damaged_bytes_are_refused() {
    let mut bytes = Vec::new();
    session().encode(&mut bytes);
    for cut in 0..bytes.len() {
        assert!(Session::decode(&bytes[..cut]).is_err(), "{cut} bytes");
    }
    bytes.push(0);
    assert!(Session::decode(&bytes).is_err());
    bytes[0] = 2;
    assert!(Session::decode(&bytes).is_err(), "a layout of the future");
}

#[test]
fn a_shared_subscription_stays_one_for_a_client_of_3_1_1_and_an_ordinary_one_is_replaced_by_a_client_of_5() {
    let session = session();
    let group = |text, is_5| session.parse_filter(text, is_5).map(|filter| filter.group());
    assert_eq!((group("$share/g/x", false), group("$share/g/x", true)), (Ok(Some("g")), Ok(Some("g"))));
    assert_eq!((group("$share/g/y", false), group("$share/g/y", true)), (Ok(None), Ok(Some("g"))));
    assert_eq!((group("$share/g/z", false), group("$share/g/z", true)), (Ok(None), Ok(Some("g"))));
    assert!(group("$share", false) == Ok(None) && group("$share", true).is_err());
    assert_eq!(session.shared_filters().map(|filter| filter.filter()).collect::<Vec<_>>(), ["x"]);
}

#[test]
fn a_stored_filter_that_says_nothing_of_its_kind_is_shared_if_it_can_be() {
    let stored = |filter| Subscription::from_stored(filter, 1, None).map(|found| found.is_shared);
    assert_eq!(["$share/g/x", "$share/x", "a/#"].map(stored), [Some(true), Some(false), Some(false)]);
    assert_eq!(Subscription::from_stored("a", 0x40, None), None);
}

#[test]
fn identifiers_in_use_are_passed_over() {
    let mut outgoing = Outgoing::default();
    for tag in 0..3 {
        outgoing.add(tag, message(QoS::AtLeastOnce));
    }
    outgoing.remove(1);
    outgoing.remove(3);
    let mut last = 0;
    for tag in 0..65_534 {
        last = outgoing.add(tag, message(QoS::AtLeastOnce));
        assert!(last != 0 && last != 2);
        outgoing.remove(last);
    }
    assert_eq!(last, 3, "all the others were used once");
}

#[test]
fn messages_are_found_in_any_order_of_acknowledgement() {
    const WINDOW: u16 = 300;
    let mut outgoing = Outgoing::default();
    let mut ids: Vec<u16> = Vec::new();
    // Three times around all identifiers, which are acknowledged from the front, from the back, and in between.
    for tag in 0..200_000u64 {
        let id = outgoing.add(tag, message(QoS::AtLeastOnce));
        assert!(id != 0 && !ids.contains(&id), "{id}");
        ids.push(id);
        if ids.len() == usize::from(WINDOW) {
            for at in [0, 0, 0, ids.len() - 4, 7, 150, 0] {
                let id = ids.remove(at);
                assert_eq!(outgoing.find(id).map(|entry| entry.packet_id), Some(id));
                assert_eq!(outgoing.remove(id).map(|entry| entry.packet_id), Some(id));
                assert!(outgoing.find(id).is_none() && outgoing.remove(id).is_none());
            }
        }
    }
    assert!(outgoing.iter().map(|entry| entry.packet_id).eq(ids));
}

#[test]
fn a_session_without_messages_is_small() {
    assert!(size_of::<Session>() <= 128, "{}", size_of::<Session>());
}
