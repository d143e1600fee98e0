//! Damage, repair and the edges of reading, on a small simulated disk.

use std::sync::Arc;

use super::*;
use crate::disk::Disk;
use crate::disk::simulated::{SimDisk, SimRandom};

const QUEUE: QueueId = QueueId(5);

#[test]
fn a_message_is_read_before_during_and_after_its_write() {
    let disk = SimDisk::new(1, 1 << 20);
    let mut committer = start(&disk);
    let journal = committer.journal().clone();
    let message = journal.append(&[b"hel", b"lo"]).unwrap();
    assert_eq!(journal.read(message).unwrap(), b"hello");
    disk.fail_sync(0);
    assert!(matches!(committer.step(), CommitOutcome::Failed(_)));
    assert!(journal.failing().is_some_and(|failing| failing.attempts == 1));
    assert_eq!(journal.read(message).unwrap(), b"hello");
    assert!(journal.durable() < journal.end());
    assert!(matches!(committer.step(), CommitOutcome::Committed));
    assert_eq!(journal.failing(), None);
    assert_eq!(journal.read(message).unwrap(), b"hello");
    assert!(matches!(journal.read(MessageRef::from_u64(1)), Err(ReadError::Gone)));
}

#[test]
fn too_many_pending_bytes_are_refused_until_they_are_written() {
    let disk = SimDisk::new(1, 1 << 20);
    let mut committer = start(&disk);
    let journal = committer.journal().clone();
    while journal.append(&[&[1; 5000]]).is_ok() {}
    assert!(journal.pending_bytes() > LIMIT);
    while !matches!(committer.step(), CommitOutcome::Idle) {}
    assert!(journal.append(&[b"again"]).is_ok());
}

#[test]
fn any_changed_byte_of_a_closed_journal_is_refused_and_costs_one_record_to_repair() {
    let mut random = SimRandom::new(9);
    for _ in 0..300 {
        let disk = closed(40);
        let files = disk.files();
        let file = &files[random.below(files.len() as u64) as usize];
        let flip = 1 << random.below(8);
        let mut in_records = false;
        disk.damage(file, |bytes| {
            let at = random.below(bytes.len() as u64) as usize;
            in_records = at >= 4096;
            bytes[at] ^= flip;
        });
        let found = match open_again(&disk) {
            Ok(found) => found,
            Err(OpenError::Damaged(report)) => {
                assert_eq!(check(&disk).unwrap(), *report);
                assert_eq!(repair(&disk).unwrap(), *report);
                assert!(in_records, "{report:?}");
                let found = open_again(&disk).unwrap();
                assert!(found.len() < 40);
                found
            }
            Err(error) => panic!("{error}"),
        };
        // One damaged enqueue record costs its ten messages.
        assert!(found.len() >= 30, "{} of 40 left", found.len());
    }
}

#[test]
fn a_torn_end_is_reported_with_its_offset_and_is_not_damage() {
    let disk = SimDisk::new(1, 1 << 20);
    let mut committer = start(&disk);
    let journal = committer.journal().clone();
    let mut offsets = Vec::new();
    for number in 0..3 {
        let message = journal.append(&[&[number; 700]]).unwrap();
        offsets.push(4096 + message.to_u64() - journal.segments()[0].first.0);
        journal.enqueue(
            &journal.queue(QUEUE),
            &[Entry { position: number.into(), message, expires: 0, last: true }],
        );
        committer.step();
    }
    assert_eq!(check(&disk).unwrap().torn, None);
    let (file, last) = (disk.files()[0].clone(), offsets[2]);
    disk.damage(&file, |bytes| bytes[last as usize + 20] ^= 1);
    let report = check(&disk).unwrap();
    // The message of 700 bytes and its enqueue record, each with a header of 12.
    let torn = report.torn.expect("torn");
    assert_eq!((&torn.file, torn.offset, torn.records), (&file, last, 2));
    assert!((725..740).contains(&torn.bytes), "{torn}");
    assert_eq!(report.problems, Vec::new());
    assert_eq!(open_again(&disk).unwrap().len(), 2);
    disk.damage(&file, |bytes| bytes[last as usize..].fill(0));
    assert_eq!(check(&disk).unwrap().torn, None);
    assert_eq!(open_again(&disk).unwrap().len(), 2);
}

#[test]
fn any_bytes_in_the_files_are_survived() {
    let mut random = SimRandom::new(3);
    for _ in 0..200 {
        let disk = closed(40);
        for file in disk.files() {
            disk.damage(&file, |bytes| {
                for _ in 0..random.below(4) {
                    let from = random.below(bytes.len() as u64) as usize;
                    let len = random.below(3000) as usize;
                    bytes.iter_mut().skip(from).take(len).for_each(|byte| *byte = random.next_u64() as u8);
                }
                if random.chance(200) {
                    bytes.truncate(random.below(bytes.len() as u64) as usize);
                }
            });
        }
        if random.chance(200) {
            disk.remove(&disk.files()[0]).unwrap();
        }
        if open_again(&disk).is_err() {
            repair(&disk).unwrap();
            open_again(&disk).unwrap();
        }
    }
}

#[test]
fn an_unknown_version_is_refused() {
    let disk = closed(1);
    disk.damage(&disk.files()[0], |bytes| {
        bytes[8] = 9;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&bytes[..12]);
        hasher.update(&bytes[16..56]);
        bytes[12..16].copy_from_slice(&hasher.finalize().to_le_bytes());
    });
    assert!(matches!(open_again(&disk), Err(OpenError::UnknownVersion { version: 9, .. })));
}

#[test]
fn a_segment_retires_when_its_messages_are_settled_and_is_written_over() {
    let disk = SimDisk::new(1, 1 << 20);
    let mut committer = start(&disk);
    let journal = committer.journal().clone();
    let queue = journal.queue(QUEUE);
    for position in 0..60 {
        let message = journal.append(&[&[1; 1000]]).unwrap();
        journal.enqueue(&queue, &[Entry { position, message, expires: 0, last: true }]);
        committer.step();
    }
    let used = disk.used();
    let oldest = journal.segments()[0];
    assert!(matches!(journal.retire(oldest), Err(RetireError::Busy(now)) if now.live == oldest.live));
    journal.settle(&queue, &[Range { first: 0, last: 59 }]);
    committer.step();
    journal.retire(oldest).unwrap();
    for position in 60..70 {
        let message = journal.append(&[&[1; 1000]]).unwrap();
        journal.enqueue(&queue, &[Entry { position, message, expires: 0, last: true }]);
        committer.step();
    }
    assert_eq!(disk.used(), used);
}

#[test]
fn a_disk_without_preallocation_stores_messages_and_recovers_from_being_full() {
    let disk = SimDisk::new(1, 1 << 20);
    disk.refuse_reservations();
    let mut committer = start(&disk);
    let journal = committer.journal().clone();
    let publish = |position: u64| {
        let message = journal.append(&[&[position as u8; 700]]).unwrap();
        journal.enqueue(&journal.queue(QUEUE), &[Entry { position, message, expires: 0, last: true }]);
    };
    for position in 0..30 {
        publish(position);
        assert!(matches!(committer.step(), CommitOutcome::Committed), "{position}");
        // Both ways to prepare a segment in advance.
        journal.prepare_segment().unwrap();
        journal.spares.prepare(Preallocation::Reserved).unwrap();
    }
    assert!(journal.segments().len() > 1);
    assert!(!journal.measure_space() && !journal.needs_space());

    disk.set_capacity(disk.used());
    let mut position = 30;
    publish(position);
    // The rest of the current segment, and files that can be removed, still provide some space.
    while matches!(committer.step(), CommitOutcome::Committed) {
        position += 1;
        publish(position);
    }
    assert!(journal.failing().is_some_and(|failing| failing.full) && journal.needs_space());
    assert!(matches!(committer.step(), CommitOutcome::Failed(_)));
    disk.set_capacity(1 << 20);
    assert!(matches!(committer.step(), CommitOutcome::Committed));
    assert!(!journal.measure_space() && !journal.needs_space());
    assert_eq!(open_again(&disk.crash()).unwrap().len() as u64, position + 1);
}

#[test]
fn the_threads_commit_records_with_and_without_a_waiter() {
    struct Unpark(std::thread::Thread);
    impl Waiter for Unpark {
        fn wake(&self) {
            self.0.unpark();
        }
    }
    let disk = SimDisk::new(1, 1 << 20);
    let committer = start(&disk);
    let journal = committer.journal().clone();
    let running = committer.start().unwrap();
    for _ in 0..20 {
        journal.append(&[b"one"]).unwrap();
        let end = journal.end();
        journal.wait(end, Arc::new(Unpark(std::thread::current())));
        while journal.durable() < end {
            std::thread::park();
        }
    }
    journal.append(&[b"nobody waits"]).unwrap();
    running.close().unwrap();
    assert_eq!(journal.durable(), journal.end());
    assert_eq!(check(&disk).unwrap().records, 22);
}

/// A journal that was closed in order, with `messages` messages, ten to an enqueue record, in several segments.
fn closed(messages: u64) -> SimDisk {
    let disk = SimDisk::new(1, 1 << 20);
    let mut committer = start(&disk);
    let journal = committer.journal().clone();
    let mut entries = Vec::new();
    for position in 0..messages {
        let message = journal.append(&[&[position as u8; 700]]).unwrap();
        entries.push(Entry { position, message, expires: 0, last: true });
        if entries.len() == 10 {
            journal.enqueue(&journal.queue(QUEUE), &entries);
            entries.clear();
            committer.step();
        }
    }
    committer.close().unwrap();
    disk
}

fn start(disk: &SimDisk) -> Committer {
    let settings =
        JournalSettings { segment_size: 12 << 10, pending_limit: LIMIT, ..JournalSettings::default() };
    open(Arc::new(disk.clone()), settings, Box::new(())).unwrap().0
}

/// The messages that an opened journal has for the queue; every one of them is read.
fn open_again(disk: &SimDisk) -> Result<Vec<LiveMessage>, OpenError> {
    let settings =
        JournalSettings { segment_size: 12 << 10, pending_limit: LIMIT, ..JournalSettings::default() };
    let (committer, _) = open(Arc::new(disk.clone()), settings, Box::new(()))?;
    let journal = committer.journal();
    let live = journal.queue(QUEUE).messages_from(0, usize::MAX);
    for message in &live {
        assert_eq!(journal.read(message.message).unwrap(), [message.position as u8; 700]);
    }
    Ok(live)
}

const LIMIT: usize = 1 << 16;
