//! Confirms of channels that were given back become overdue, not counting time in which the broker could not send them.

use amqp::Credentials;
use amqp::frame::write_method;
use amqp::method::connection;
use transport::Protocol;

use super::super::stall::AnswerCheck;
use super::*;
use crate::PoolConfig;
use crate::pool::Pool;
use crate::upstream::{Ledger, MovedState, OVERDUE_AFTER, Peer};

const LONG: Duration = Duration::from_secs(20);

/// A shared connection with this number of channels that were given back, each with an unconfirmed message.
fn peer(channels: usize, now: Instant) -> Peer {
    let pool = Pool::new(PoolConfig::new(Vec::new()));
    let credentials = Arc::new(Credentials::plain("user", "password"));
    let mut peer = Peer::new(&pool, &credentials, None, Role::Publishing, now);
    let link = ClientLink::departed(Arc::default());
    let upstream = peer.connection.upstream.clone();
    let place = || {
        let ledger = Ledger::new(&link, MovedState::default());
        ledger.messages(b"a message", 1);
        let lease = Lease::new(link.clone(), ledger, 1, 1, now);
        let Placed::On(leased) = upstream.lease(lease, true, Role::Publishing, true) else {
            panic!("no channel")
        };
        upstream.send(leased.channel, channel::Open::default());
        leased.channel
    };
    let numbers: Vec<u16> = (0..channels).map(|_| place()).collect();
    for number in numbers {
        assert!(upstream.release(number, Usage { published: 1, ..Usage::default() }, now));
    }
    peer.read();
    while peer.deliver(now).is_some() {}
    peer
}

impl Peer {
    fn is_overdue(&self, now: Instant) -> bool {
        self.connection.upstream.give_up_overdue(Role::Publishing, now)
    }

    fn send(&mut self, method: impl Into<amqp::Method<'static>>, now: Instant) {
        let mut bytes = Vec::new();
        write_method(&mut bytes, 0, method);
        self.connection.handle_input(&bytes, now);
    }
}

#[test]
fn time_under_an_alarm_does_not_count() {
    let begin = Instant::now();
    let mut peer = peer(1, begin);
    assert!(!peer.is_overdue(begin));
    peer.send(connection::Blocked { reason: "low on memory" }, begin);
    let end = begin + LONG;
    assert!(!peer.is_overdue(end));
    peer.send(connection::Unblocked {}, end);
    assert!(!peer.is_overdue(end));
    assert!(peer.is_overdue(end + OVERDUE_AFTER));
}

#[test]
fn time_in_which_the_broker_does_not_read_does_not_count() {
    let begin = Instant::now();
    let mut peer = peer(2, begin);
    let upstream = peer.connection.upstream.clone();
    let check = |after| upstream.check_answers(begin + Duration::from_secs(after), false);
    assert_eq!([check(0), check(1), check(2)], [AnswerCheck::Due, AnswerCheck::Due, AnswerCheck::Stalled]);
    let end = begin + LONG;
    assert!(!peer.is_overdue(end));
    peer.read();
    assert_eq!(peer.deliver(end), Some("channel.flow-ok"));
    assert!(!upstream.is_stalled());
    assert!(!peer.is_overdue(end));
    assert!(peer.is_overdue(end + OVERDUE_AFTER));
}
