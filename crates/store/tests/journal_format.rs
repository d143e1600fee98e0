//! The bytes of the current journal format, which every later version has to read.

use std::sync::Arc;

use store::disk::Disk;
use store::disk::simulated::SimDisk;
use store::journal::{Committer, Entry, JournalSettings, QueueId, Range, RecoveredJournal, Transfer, open};

/// Version 1, which earlier releases wrote: offsets and contents of all bytes of the file that are not zeros.
const JOURNAL_1: &[(usize, &str)] = &[(0, HEADER_1), (2048, HEADER_1), (4096, RECORDS_1)];
const HEADER_1: &str = concat!(
    "6c7672746a726e6c010000009b5e86890100000000000000",
    "0100000000000000001000000000000000100000000000000010",
);
const RECORDS_1: &str = concat!(
    "0900000081573a1022ad0bd77468652066697273740a00000001a4fdd910fabb7a746865207365636f6e640d00000002",
    "8f7c9706ab8c9f07050a2b00001680d095ffbc310300000003c9cd0c9bd897c70714000400000004bb19e9ac78f75007",
    "0316000000000085f914338c045766",
);

/// The same of version 2, which has transfers.
const JOURNAL: &[(usize, &str)] = &[(0, HEADER), (2048, HEADER), (4096, RECORDS)];
const HEADER: &str = concat!(
    "6c7672746a726e6c020000003d16fef70100000000000000",
    "0100000000000000001000000000000000100000000000000010",
);
const RECORDS: &str = concat!(
    "0900000081573a1022ad0bd77468652066697273740a00000001a4fdd910fabb7a746865207365636f6e640d00000002",
    "8f7c9706ab8c9f07050a2b00001680d095ffbc310300000003c9cd0c9bd897c70714000400000004bb19e9ac78f75007",
    "03160009000000013c62b8f8882d127468652074686972640400000007836e0daed6b23d0802051505000000084241a4",
    "ac42c9060110071800000000008531013b8bcaf09a",
);

#[test]
fn the_bytes_of_a_journal_are_these() {
    let disk = SimDisk::new(1, 1 << 20);
    let (mut committer, _) = open_on(&disk);
    write(&mut committer);
    let file = disk.open(PATH).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(&mut bytes, 0).unwrap();
    let pieces = pieces(&bytes);
    let pieces: Vec<_> = pieces.iter().map(|(at, hex)| (*at, hex.as_str())).collect();
    assert_eq!(pieces, JOURNAL);
}

#[test]
fn todays_journal_is_read() {
    let (committer, recovered) = read(JOURNAL);
    let [found, other] = &recovered.queues[..] else { panic!("{} queues", recovered.queues.len()) };
    assert_eq!((found.queue.id(), found.next_position), (QueueId(7), 13));
    assert_eq!((other.queue.id(), other.next_position), (QueueId(8), 6));
    let [live] = other.queue.messages_from(0, 9)[..] else { panic!("not one message") };
    assert_eq!(committer.journal().read(live.message).unwrap(), b"the third");
}

#[test]
fn a_journal_of_version_1_is_read() {
    let (committer, recovered) = read(JOURNAL_1);
    let [found] = &recovered.queues[..] else { panic!("{} queues", recovered.queues.len()) };
    assert_eq!((found.queue.id(), found.next_position), (QueueId(7), 12));
    assert_eq!(found.settled, [Range::one(10)]);
    assert_eq!(found.delivered, [(Range::one(11), 3)]);
    let [live] = found.queue.messages_from(0, 9)[..] else { panic!("not one message") };
    assert_eq!((live.position, live.expires, live.deliveries), (11, 1_700_000_000_000, 3));
    assert_eq!(committer.journal().read(live.message).unwrap(), b"the second");
}

fn read(journal: &[(usize, &str)]) -> (Committer, RecoveredJournal) {
    let disk = SimDisk::new(1, 1 << 20);
    disk.create_dir("journal").unwrap();
    let file = disk.open(PATH).unwrap();
    file.set_len(SEGMENT).unwrap();
    for (at, hex) in journal {
        file.write_at(&bytes(hex), *at as u64).unwrap();
    }
    open_on(&disk)
}

fn write(committer: &mut Committer) {
    let journal = committer.journal().clone();
    let queue = journal.queue(QueueId(7));
    let first = journal.append(&[b"the ", b"first"]).unwrap();
    let second = journal.append(&[b"the second"]).unwrap();
    let entry = |position, message, expires| Entry { position, message, expires, last: true };
    journal.enqueue(&queue, &[entry(10, first, 0), entry(11, second, 1_700_000_000_000)]);
    journal.settle(&queue, &[Range::one(10)]);
    journal.delivered(&queue, &[Range::one(11)], 3);
    let third = journal.append(&[b"the third"]).unwrap();
    let mut transfer = Transfer::default();
    journal.enqueue_in_transfer(&journal.queue(QueueId(8)), &[entry(5, third, 0)], &mut transfer);
    journal.transfer(&queue, &[Range::one(12)], &transfer);
    committer.close().unwrap();
}

fn open_on(disk: &SimDisk) -> (Committer, RecoveredJournal) {
    let settings =
        JournalSettings { segment_size: SEGMENT, pending_limit: 1 << 16, ..JournalSettings::default() };
    open(Arc::new(disk.clone()), settings, Box::new(())).unwrap()
}

/// Stretches that are not zeros; a few zeros do not end one.
fn pieces(bytes: &[u8]) -> Vec<(usize, String)> {
    let mut pieces: Vec<(usize, Vec<u8>)> = Vec::new();
    for (at, &byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        match pieces.last_mut() {
            Some((start, piece)) if at - *start < piece.len() + 16 => {
                piece.resize(at - *start, 0);
                piece.push(byte);
            }
            _ => pieces.push((at, vec![byte])),
        }
    }
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    pieces.into_iter().map(|(at, bytes)| (at, hex(&bytes))).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

const PATH: &str = "journal/0000000000000001.segment";
const SEGMENT: u64 = 8 << 10;
