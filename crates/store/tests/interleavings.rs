//! Sessions that wait for the journal, and the thread that writes it, in every interleaving (`make loom`).
//!
//! A session that waits and is not woken waits forever, which the model reports.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use store::Waiter;
use store::disk::simulated::SimDisk;
use store::journal::{
    CommitOutcome, Entry, Journal, JournalSettings, QueueId, RoundLoop, RoundsInTurns, open,
};
use sync::loom::future::block_on;
use sync::loom::thread;
use sync::work::{self, Turn};
use sync::{AtomicWaker, explore, explore_timeouts};

/// A session's waiter.
#[derive(Default)]
struct Session(AtomicWaker);

impl Waiter for Session {
    fn wake(&self) {
        self.0.wake();
    }
}

/// Publishes each message in a separate turn, and waits until it is on disk.
fn publish(journal: &Journal, id: u64, messages: usize) {
    let (queue, session) = (journal.queue(QueueId(id)), Arc::new(Session::default()));
    for position in 0..messages as u64 {
        let turn = Turn::begin_for(&*session);
        let message = journal.append(&[b"message"]).unwrap();
        let lsn = journal.enqueue(&queue, &[Entry { position, message, expires: 0, last: true }]);
        journal.wait(lsn, session.clone());
        work::run_deferred(Some(&|round| round()));
        drop(turn);
        block_on(std::future::poll_fn(|context| {
            session.0.register(context.waker());
            if journal.durable() >= lsn { Poll::Ready(()) } else { Poll::Pending }
        }));
    }
}

/// Runs publishers beside the thread that writes.
fn model(publishers: &[usize]) {
    let disk = SimDisk::new(1, 1 << 20);
    // The result must not depend on the duration of an operation.
    let in_turn = RoundsInTurns { sync_below: Duration::MAX, alone_for: Duration::ZERO };
    let settings = JournalSettings { segment_size: 1 << 16, pending_limit: 1 << 16, in_turn };
    let (mut committer, _) = open(Arc::new(disk), settings, Box::new(())).unwrap();
    let journal = committer.journal().clone();
    // The first round begins a file, which a turn does not.
    journal.append(&[b"before"]).unwrap();
    assert!(matches!(committer.step(), CommitOutcome::Committed));
    let rounds = RoundLoop::new(committer);
    let writing = rounds.clone();
    let writer = thread::spawn(move || writing.run());
    let others = (1..).zip(&publishers[1..]).map(|(id, &messages)| {
        let journal = journal.clone();
        thread::spawn(move || publish(&journal, id, messages))
    });
    let others: Vec<_> = others.collect();
    publish(&journal, 0, publishers[0]);
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_eq!(journal.durable(), journal.end());
    rounds.stop();
    writer.join().unwrap();
}

#[test]
fn a_session_that_runs_rounds_itself_is_woken_for_each_message() {
    explore(3, || model(&[2]));
}

#[test]
fn sessions_that_share_rounds_with_the_thread_are_woken() {
    explore(2, || model(&[1, 1]));
}

#[test]
fn a_thread_that_has_gone_to_sleep_is_woken() {
    explore_timeouts(2, || model(&[1, 1]));
}
