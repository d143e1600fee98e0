use std::sync::Arc;

use super::*;
use crate::catalogue::Section;
use crate::disk::simulated::SimDisk;
use crate::journal::{CommitOutcome, JournalSettings};

fn open(disk: &SimDisk) -> (Arc<Store>, Rounds, Recovered) {
    Store::open(Arc::new(disk.clone()), JournalSettings::default()).expect("a store")
}

fn entry(position: u64, message: MessageRef, last: bool) -> Entry {
    Entry { position, message, expires: 0, last }
}

/// Payloads and their entries.
fn read(recovered: Recovered) -> Vec<(Vec<u8>, Vec<StoredLocation>)> {
    let mut found = Vec::new();
    recovered
        .read(|_| true, |payload, places| found.push((payload.to_vec(), places.to_vec())))
        .expect("readable");
    found
}

#[test]
fn a_message_is_recovered_once_with_all_its_locations() {
    let disk = SimDisk::new(1, 1 << 30);
    let (store, mut rounds, _) = open(&disk);
    let (one, other) = (store.queue(QueueId(1)), store.queue(QueueId(2)));
    let Appended { message, full } = store.append(&[b"he", b"llo"]);
    assert!(!full);
    one.enqueue(&[entry(5, message, false)]);
    let lsn = other.enqueue(&[entry(7, message, true)]);
    one.delivered(&[Range::one(5)], 2);
    assert!(store.durable() < lsn);
    assert!(matches!(rounds.step(), CommitOutcome::Committed));
    assert!(store.durable() >= lsn);
    let (_, _, recovered) = open(&disk.crash());
    let queues: Vec<_> = recovered.queues().map(|queue| (queue.id.0, queue.next_position)).collect();
    assert_eq!(queues, [(1, 6), (2, 8)]);
    let place = |queue, position, deliveries| StoredLocation {
        queue: QueueId(queue),
        position,
        expires: 0,
        deliveries,
    };
    assert_eq!(read(recovered), [(b"hello".to_vec(), vec![place(1, 5, 2), place(2, 7, 0)])]);
}

#[test]
fn a_definition_is_on_disk_before_a_message_that_needs_it() {
    let disk = SimDisk::new(2, 1 << 30);
    let (store, mut rounds, _) = open(&disk);
    let ticket = store.catalogue().put(Section::Queues, b"q".to_vec(), Vec::new());
    assert!(matches!(rounds.step(), CommitOutcome::Committed), "a definition alone is worth a round");
    assert!(store.catalogue().is_committed(ticket));
}

#[test]
fn a_deleted_queues_messages_are_removed_when_its_deletion_is_on_disk() {
    let disk = SimDisk::new(3, 1 << 30);
    let (store, mut rounds, _) = open(&disk);
    let queue = store.queue(QueueId(1));
    let message = store.append(&[b"m"]).message;
    queue.enqueue(&[entry(0, message, true)]);
    store.catalogue().delete(Section::Queues, b"q".to_vec());
    queue.forget();
    let live = || store.journal().segments().iter().map(|segment| segment.live).sum::<u64>();
    assert_eq!(live(), 1);
    assert!(matches!(rounds.step(), CommitOutcome::Committed));
    assert_eq!(live(), 0);
}

#[test]
fn the_thread_retires_an_overlong_journal_and_messages_remain_readable() {
    let disk = SimDisk::new(4, 1 << 30);
    let settings = StoreSettings {
        journal_segments: 1,
        ..JournalSettings { segment_size: 16 << 10, pending_limit: 1 << 20, ..JournalSettings::default() }
            .into()
    };
    let (store, rounds, _) = Store::open(Arc::new(disk.clone()), settings).expect("a store");
    let (queue, running) = (store.queue(QueueId(1)), rounds.start().expect("threads"));
    let body = [7; 1000];
    let first = store.append(&[&body]).message;
    queue.enqueue(&[entry(0, first, true)]);
    let mut position = 0;
    // It is no longer in the journal once its segment is retired.
    while store.journal().read(first).is_ok() {
        position += 1;
        let lsn = queue.enqueue(&[entry(position, store.append(&[&body]).message, true)]);
        let (sender, committed) = std::sync::mpsc::sync_channel(1);
        store.wait(lsn, Arc::new(NotifySender(sender)));
        committed.recv().expect("committed");
    }
    running.close().expect("closed");
    let read = queue.read(0, usize::MAX, usize::MAX).expect("readable");
    assert!(read.iter().map(|message| message.position).eq(0..=position));
    assert!(read.iter().all(|message| message.payload == body));
}

#[test]
fn publishers_pause_while_the_journal_is_far_too_long() {
    let disk = SimDisk::new(5, 1 << 30);
    let settings = StoreSettings {
        journal_segments: 1,
        ..JournalSettings { segment_size: 16 << 10, pending_limit: 1 << 20, ..JournalSettings::default() }
            .into()
    };
    let (store, mut rounds, _) = Store::open(Arc::new(disk), settings).expect("a store");
    let queue = store.queue(QueueId(1));
    for position in 0..100 {
        queue.enqueue(&[entry(position, store.append(&[&[7; 1000]]).message, true)]);
        rounds.step();
    }
    assert!(matches!(rounds.retire(), Retirement::Done));
    assert!(store.append(&[b"m"]).full && !store.has_capacity());
    let (sender, reported) = std::sync::mpsc::sync_channel(1);
    store.wait_for_capacity(Arc::new(NotifySender(sender)));
    while reported.try_recv().is_err() {
        assert!(!store.has_capacity());
        assert!(matches!(rounds.retire(), Retirement::Done), "it is woken before all is done");
    }
    assert!(store.has_capacity() && !store.append(&[b"m"]).full);
}

#[test]
fn publishers_pause_while_too_many_bytes_of_definitions_wait() {
    let settings = JournalSettings { pending_limit: 16 << 10, ..JournalSettings::default() };
    let (store, mut rounds, _) = Store::open(Arc::new(SimDisk::new(5, 1 << 30)), settings).expect("a store");
    for _ in 0..2 {
        let mut puts = 0;
        while store.has_capacity() {
            store.catalogue().put(Section::MqttRetained, b"topic".to_vec(), vec![0; 1000]);
            puts += 1;
        }
        assert!((14..=16).contains(&puts), "{puts}");
        let (sender, reported) = std::sync::mpsc::sync_channel(1);
        store.wait_for_capacity(Arc::new(NotifySender(sender)));
        assert!(reported.try_recv().is_err());
        rounds.step();
        assert!(reported.try_recv().is_ok() && store.has_capacity());
    }
}

struct NotifySender(std::sync::mpsc::SyncSender<()>);

impl Waiter for NotifySender {
    fn wake(&self) {
        // A receiver waits for each.
        let _ = self.0.send(());
    }
}
