//! A destination whose messages the broker accepts and never confirms.

use super::*;

impl Bench {
    /// Loses the connection because the broker has stopped reading it, and opens another one.
    fn stall(&mut self, is_isolated: bool) {
        self.forwarding.stalled(is_isolated);
        self.forwarding.lost(None);
        self.settled();
        [Fast, Careful].into_iter().for_each(|channel| self.forwarding.opened(channel));
    }

    /// Loads the messages `waiting` of a backlog in order; returns the messages that are published then.
    fn load(&mut self, waiting: &mut VecDeque<u64>, exchange: &str) -> Vec<u64> {
        while let Some(backlog) = self.forwarding.poll_load() {
            let number = waiting.pop_front().expect("the backlog has another message");
            self.forwarding.loaded(backlog, envelope(exchange, "k", number), number);
        }
        self.published()
    }
}

#[test]
fn a_destination_that_has_stalled_a_connection_waits_alone_with_one_message_in_flight() {
    let mut bench = Bench::new(&["dead", "a", "dead", "a", "b"]);
    assert_eq!(bench.published(), [0, 1, 2, 3, 4]);
    bench.acked(2, false);
    bench.acked(4, false);
    bench.stall(false);
    // Far more than may wait in memory.
    let (mut waiting, mut tag) = (VecDeque::new(), 0);
    for round in 0..2_000 {
        assert!(bench.forwarding.wants_more(), "in round {round}");
        let number = bench.next;
        ["dead", "a"].into_iter().for_each(|exchange| bench.read(exchange));
        assert_eq!(bench.published(), [number + 1], "other destinations continue");
        tag += 1;
        waiting.extend(bench.moved().into_iter().map(|(number, _)| number));
        let sent = bench.load(&mut waiting, "dead");
        assert_eq!(sent, if round == 0 { vec![number] } else { vec![] }, "one attempt");
        bench.acked(tag, false);
        tag += sent.len() as u64;
    }
    assert_eq!(bench.forwarding.in_flight(), 1);
    bench.read("b");
    assert_eq!(
        bench.published().len(),
        1,
        "its destination is not suspected: no later message was confirmed before it"
    );
    assert_eq!(bench.moved(), []);
    // Its queue has got a majority.
    bench.acked(2, false);
    assert_eq!(bench.load(&mut waiting, "dead"), [7, 9]);
    bench.acked(0, true);
    while bench.forwarding.deferred() > 0 {
        assert!(!bench.load(&mut waiting, "dead").is_empty());
        bench.acked(0, true);
    }
    assert!(waiting.is_empty());
    ["dead", "dead"].into_iter().for_each(|exchange| bench.read(exchange));
    assert_eq!(bench.published().len(), 2, "the destination is not suspected any more");
}

#[test]
fn the_first_destination_in_flight_is_suspected_only_on_an_isolated_connection() {
    for is_isolated in [false, true] {
        let mut bench = Bench::new(&["a", "b"]);
        bench.published();
        bench.stall(is_isolated);
        ["a", "b"].into_iter().for_each(|exchange| bench.read(exchange));
        assert_eq!(bench.published(), if is_isolated { vec![3] } else { vec![2, 3] });
    }
}

#[test]
fn a_stalling_destination_without_its_own_backlog_does_not_wait() {
    let mut bench = Bench::with(ForwardingLimits { backlogs: 0, ..LIMITS }, &["dead"]);
    bench.published();
    bench.stall(true);
    bench.read("dead");
    assert_eq!(bench.published(), [1], "in the backlog of its exchange, other destinations would wait");
}

#[test]
fn a_stalling_destination_is_still_suspected_after_a_local_failure() {
    let mut bench = Bench::new(&["dead"]);
    bench.published();
    bench.stall(true);
    bench.forwarding = bench.forwarding.begin_anew();
    bench.forwarding.opened(Fast);
    bench.read("dead");
    assert_eq!(bench.published(), []);
}

#[test]
fn large_messages_that_are_never_confirmed_leave_some_of_the_window_to_others() {
    let limits = ForwardingLimits { window: 1_000, window_bytes: 1_000, backlogs: 100, ..LIMITS };
    let names: Vec<String> = (0..50).map(|number| format!("dead {number}")).collect();
    let mut bench = Bench::with(ForwardingLimits { window_bytes: 1 << 20, ..limits }, &[]);
    names.iter().for_each(|name| bench.read(name));
    assert_eq!(bench.published().len(), 50);
    // All but the last one are passed over.
    bench.acked(50, false);
    bench.stall(false);
    bench.forwarding.limits = limits;
    let mut loaded = 0;
    for name in &names[..49] {
        bench.read(name);
        bench.published();
        for (number, _) in bench.moved() {
            let backlog = bench.forwarding.poll_load().unwrap();
            bench.forwarding.loaded(backlog, envelope(name, "k", number), number);
            loaded += 1;
        }
    }
    assert_eq!(loaded, 49);
    bench.published();
    let sent = bench.forwarding.in_flight();
    assert!((1..49).contains(&sent), "{sent} large messages fill their share of the window");
    bench.read("a");
    assert_eq!(bench.published().len(), 1, "other destinations continue");
}

/// Several quorum queues of a broker often lose their majority at the same time.
#[test]
fn each_stall_of_an_isolated_connection_finds_another_destination() {
    let mut bench = Bench::new(&["one", "two"]);
    bench.published();
    bench.stall(true);
    bench.read("one");
    bench.published();
    let mut waiting: VecDeque<_> = bench.moved().into_iter().map(|(number, _)| number).collect();
    assert_eq!(bench.load(&mut waiting, "one"), [2]);
    bench.read("two");
    assert_eq!(bench.published(), [3]);
    // No message is confirmed, and the first one in flight is that of the destination that is known.
    bench.stall(true);
    bench.read("two");
    assert_eq!(bench.published(), []);
}
