//! Messages that the broker refuses permanently, by closing a channel or the connection.

use super::*;
use crate::refused_exchanges::REFUSAL_TTL;

#[test]
fn a_refusal_that_names_an_exchange_costs_other_messages_one_attempt() {
    let mut bench = Bench::new(&["a", "b", "a", "gone", "a", "gone", "b"]);
    assert_eq!(bench.published(), [0, 1, 2, 3, 4, 5, 6]);
    bench.refuse(Fast, no_exchange("gone"));
    assert_eq!(
        bench.published(),
        [0, 1, 2, 4, 6],
        "the messages of the suspicious exchange use the other channel"
    );
    assert_eq!(bench.published_on(Careful), [3], "alone");
    bench.refuse(Careful, no_exchange("gone"));
    assert_eq!(bench.published_on(Careful), [], "the refusal is known");
    bench.acked(0, true);
    assert_eq!(bench.settled(), (vec![0, 1, 2, 4, 6], vec![3, 5]));
    assert_eq!(bench.forwarding.deferred(), 0);
}

#[test]
fn messages_for_a_refused_exchange_are_attempted_again_after_a_second() {
    let mut bench = Bench::new(&["gone"]);
    assert_eq!(bench.published(), [0]);
    bench.refuse(Fast, no_exchange("gone"));
    bench.now += REFUSAL_TTL;
    bench.read("gone");
    assert_eq!((bench.published(), bench.published_on(Careful)), (vec![], vec![1]));
    bench.forwarding.acked(Careful, 1, false, bench.now);
    assert_eq!(bench.settled(), (vec![1], vec![0]));
}

#[test]
fn a_refusal_can_be_forgotten() {
    let mut bench = Bench::new(&["gone"]);
    assert_eq!(bench.published(), [0]);
    bench.refuse(Fast, no_exchange("gone"));
    bench.forwarding.forget_refusals();
    bench.read("gone");
    assert_eq!((bench.published(), bench.published_on(Careful)), (vec![], vec![1]));
    bench.forwarding.acked(Careful, 1, false, bench.now);
    assert_eq!(bench.settled(), (vec![1], vec![0]));
}

#[test]
fn a_refused_message_without_a_named_exchange_is_found_by_bisection() {
    let mut bench = Bench::new(&["a"; 16]);
    let culprit = 11;
    let mut attempts = 0;
    let mut done = (Vec::new(), Vec::new());
    loop {
        let sent: Vec<_> = [Fast, Careful].map(|channel| bench.published_on(channel)).concat();
        attempts += sent.len();
        if sent.is_empty() {
            break;
        }
        for channel in [Fast, Careful] {
            if sent.contains(&culprit) && bench.forwarding.in_flight_on(channel) > 0 {
                bench.refuse(channel, too_large());
            } else {
                bench.forwarding.acked(channel, 0, true, bench.now);
            }
        }
        let (forwarded, parked) = bench.settled();
        done.0.extend(forwarded);
        done.1.extend(parked);
    }
    assert_eq!(done.1, [culprit]);
    assert_eq!(done.0, (0..16).filter(|number| *number != culprit).collect::<Vec<_>>());
    assert!(attempts < 60, "{attempts}");
}

/// 10,000 messages of four exchanges, of which every tenth is refused by a text without the exchange's name. Only the
/// messages that are in flight when an exchange becomes suspicious are published again.
#[test]
fn a_thousand_poison_messages_cost_few_extra_attempts() {
    let total: u64 = 10_000;
    let limits = ForwardingLimits { window: 2_000, ..LIMITS };
    let mut bench = Bench::with(limits, &[]);
    let exchange_of =
        |number: u64| if number % 10 == 7 { "poisoned" } else { ["a", "b", "c"][number as usize % 3] };
    let (mut published, mut done, mut parked) = (0, 0, 0);
    while done + parked < total {
        let mut sent = Vec::new();
        loop {
            if let Some(envelope) = bench.forwarding.poll_publish(Fast, bench.now) {
                sent.push(envelope);
            } else if bench.next < total && bench.forwarding.wants_more() {
                bench.read(exchange_of(bench.next));
            } else {
                break;
            }
        }
        let careful: Vec<_> =
            std::iter::from_fn(|| bench.forwarding.poll_publish(Careful, bench.now)).collect();
        published += (sent.len() + careful.len()) as u64;
        for (channel, sent) in [(Fast, sent), (Careful, careful)] {
            if sent.iter().any(|envelope| envelope.exchange() == "poisoned") {
                bench.refuse(channel, too_large());
            } else {
                bench.forwarding.acked(channel, 0, true, bench.now);
            }
        }
        while let Some(settled) = bench.forwarding.poll_settled() {
            match settled {
                Settled::Forwarded(_) => done += 1,
                Settled::Parked(..) => parked += 1,
                Settled::Deferred(backlog, number) => {
                    bench.forwarding.loaded(backlog, envelope(exchange_of(number), "k", number), number)
                }
                _ => {}
            }
        }
        bench.now += MIN_PAUSE;
    }
    assert_eq!((done, parked), (9_000, 1_000));
    let again = published - total;
    assert!(again <= 2 * limits.window as u64 + 100, "{again} messages were published again");
}

#[test]
fn confirms_clear_a_refused_exchange() {
    let mut bench = Bench::new(&["a"]);
    assert_eq!(bench.published(), [0]);
    bench.refuse(Fast, too_large());
    let mut careful = 0;
    loop {
        bench.read("a");
        if !bench.published().is_empty() {
            break;
        }
        careful += bench.published_on(Careful).len();
        bench.forwarding.acked(Careful, 0, true, bench.now);
    }
    assert_eq!(careful, 256);
}

#[test]
fn an_exchange_that_is_suspicious_again_lets_its_messages_in_flight_be_confirmed_first() {
    let mut bench = Bench::with_confirms_to_clear(4);
    let read = |bench: &mut Bench, key: &str| {
        bench.forwarding.read(envelope("a", key, bench.next), bench.next);
        bench.next += 1;
    };
    read(&mut bench, "x");
    assert_eq!(bench.published(), [0]);
    bench.refuse(Fast, too_large());
    ["x", "y", "z", "u", "v"].into_iter().for_each(|key| read(&mut bench, key));
    assert_eq!((bench.published(), bench.published_on(Careful)), (vec![], vec![1]));
    for tag in 1..4 {
        bench.forwarding.acked(Careful, tag, false, bench.now);
        assert_eq!(bench.published_on(Careful).len(), [0, 2, 1, 1][tag as usize]);
    }
    bench.forwarding.acked(Careful, 4, false, bench.now);
    read(&mut bench, "x");
    assert_eq!(bench.published(), [6], "not suspicious any more");
    bench.refuse(Careful, too_large());
    read(&mut bench, "x");
    assert_eq!((bench.published(), bench.published_on(Careful)), (vec![], vec![]));
    bench.acked(1, false);
    assert_eq!((bench.published(), bench.published_on(Careful)), (vec![], vec![7]));
}

/// Closes the connection whenever `culprit` is published. Returns the number of connections until it was parked.
fn connections_until_parked(code: u16, culprit: u64) -> Option<u32> {
    let close = MessageRefusal { code, text: "the end".into() };
    let mut forwarding = Forwarding::new(LIMITS);
    let mut ready: VecDeque<u64> = (0..16).collect();
    for connection in 1..50 {
        forwarding.opened(Fast);
        let mut is_closed = false;
        while !is_closed && (!ready.is_empty() || forwarding.in_flight() > 0) {
            while forwarding.wants_more()
                && let Some(number) = ready.pop_front()
            {
                forwarding.read(envelope("a", "k", number), number);
                while let Some(sent) = forwarding.poll_publish(Fast, Instant::now()) {
                    is_closed |= number_of(&sent) == culprit;
                }
            }
            if !is_closed {
                forwarding.acked(Fast, 0, true, Instant::now());
            }
        }
        let mut released = Vec::new();
        forwarding.lost(is_closed.then(|| close.clone()));
        while let Some(settled) = forwarding.poll_settled() {
            match settled {
                Settled::Parked(_, number, _) => {
                    assert_eq!(number, culprit);
                    return Some(connection);
                }
                Settled::Released(number) => released.push(number),
                _ => {}
            }
        }
        released.sort_unstable();
        released.into_iter().rev().for_each(|number| ready.push_front(number));
    }
    None
}

#[test]
fn a_message_for_which_the_connection_is_closed_is_found_and_parked() {
    assert!(connections_until_parked(501, 11).is_some_and(|connections| connections <= 12));
    assert!(connections_until_parked(504, 11).is_some_and(|connections| connections <= 15));
}

#[test]
fn a_message_at_which_the_upstream_fails_again_and_again_is_parked_and_takes_longer() {
    let sure = connections_until_parked(504, 11).unwrap();
    let failing = connections_until_parked(541, 11).unwrap();
    assert!((sure + 1..20).contains(&failing), "{sure} {failing}");
}

#[test]
fn an_upstream_that_shuts_down_or_refuses_the_login_parks_nothing() {
    for code in [320, 403, 506, 530] {
        assert_eq!(connections_until_parked(code, 11), None);
    }
}

#[test]
fn a_destination_that_waited_changes_its_channel_without_another_event() {
    let mut bench = Bench::with_confirms_to_clear(1);
    let read = |bench: &mut Bench, key: &str| {
        bench.forwarding.read(envelope("e", key, bench.next), bench.next);
        bench.next += 1;
    };
    read(&mut bench, "gone");
    assert_eq!(bench.published(), [0]);
    bench.refuse(Fast, no_exchange("e"));
    assert_eq!(bench.settled().1, [0]);
    // After that refusal has expired.
    bench.now += Duration::from_secs(2);
    read(&mut bench, "full");
    assert_eq!((bench.published(), bench.published_on(Careful)), (vec![], vec![1]));
    bench.forwarding.nacked(Careful, 1, false, bench.now, Some(bench.at));
    read(&mut bench, "other");
    assert_eq!((bench.published(), bench.published_on(Careful)), (vec![], vec![2]));
    bench.forwarding.acked(Careful, 2, false, bench.now);
    bench.now = bench.forwarding.next_deadline().unwrap();
    let published = ForwardingChannel::POLL_ORDER.map(|channel| bench.published_on(channel));
    assert_eq!(published, [vec![], vec![], vec![1]], "on the fast channel again");
}

#[test]
fn messages_with_a_known_refusal_are_parked_a_few_at_a_time() {
    let mut bench = Bench::with(ForwardingLimits { window: 1_000, ..LIMITS }, &["gone"; 600]);
    assert_eq!(bench.published().len(), 600);
    bench.refuse(Fast, no_exchange("gone"));
    let mut parked = bench.settled().1;
    loop {
        assert_eq!(
            (bench.published(), bench.published_on(Careful).len()),
            (vec![], usize::from(parked.is_empty()))
        );
        if parked.is_empty() {
            bench.refuse(Careful, no_exchange("gone"));
        }
        let more = bench.settled().1;
        assert!(more.len() <= 2 * PARKED_AT_ONCE + 1, "{}", more.len());
        if more.is_empty() {
            break;
        }
        parked.extend(more);
    }
    assert_eq!(parked, Vec::from_iter(0..600));
}
