//! Damage in each part of a data folder: it is told with its place, it costs only itself, and there is a way to go on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use store::catalogue::Section;
use store::disk::simulated::SimDisk;
use store::disk::{Disk, DiskFile};
use store::journal::{Entry, QueueId, Settings};
use store::{Recovered, Retirement, Rounds, Store, StoreError, StoreSettings, check, repair};

#[test]
fn a_message_that_cannot_be_read_does_not_keep_the_journal_from_getting_shorter() {
    let disk = SimDisk::new(1, ROOM);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    fill(&store, &mut rounds, 40);
    let before = store.journal().segments().len();
    assert!(before > 3);
    let (file, offset) = place_of(&disk, "journal/", 2);
    flip(&disk, &file, offset);
    while let Retirement::Done = rounds.retire() {}
    assert_eq!(store.journal().segments().len(), BUDGET);
    assert_eq!(store.journal().figures().unreadable.load(Ordering::Relaxed), 1);
    assert!(positions(&store).into_iter().eq((0..40).filter(|position| *position != 2)));
    drop((store, rounds));
    let (store, _, _) = open(&disk.kill()).expect("what is damaged is gone");
    assert!(positions(&store).into_iter().eq((0..40).filter(|position| *position != 2)));
}

#[test]
fn damage_in_the_journal_is_refused_with_its_place_and_repaired_without_further_loss() {
    damaged("journal/", 38);
}

#[test]
fn damage_in_a_queues_segment_is_refused_with_its_place_and_repaired_without_further_loss() {
    damaged("queues/", 2);
}

/// Flips an octet of the message at `position`, which lies in `folder`.
fn damaged(folder: &str, position: u64) {
    let disk = SimDisk::new(2, ROOM);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    fill(&store, &mut rounds, 40);
    while let Retirement::Done = rounds.retire() {}
    rounds.close().expect("closed");
    drop((store, rounds));
    let (file, offset) = place_of(&disk, folder, position);
    flip(&disk, &file, offset);
    let dynamic: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = check(&dynamic).expect("readable");
    assert_eq!(report.problems.len(), 1, "{report}");
    let problem = &report.problems[0];
    let numbers: Vec<u64> =
        problem.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    // That of the record, which begins a few octets earlier.
    let near = numbers.iter().any(|number| (offset - 80..=offset).contains(number));
    assert!(problem.contains(&file) && near, "{problem} instead of {file}, {offset}");
    let Err(error) = open(&disk) else { panic!("opened") };
    assert!(error.to_string().contains(&file), "{error}");
    let done = repair(&dynamic).expect("repaired");
    assert!(done.len() == 1 && done[0].contains(&file), "{done:?}");
    assert!(check(&dynamic).expect("readable").is_sound());
    let (store, _, _) = open(&disk).expect("a store again");
    assert!(positions(&store).into_iter().eq((0..40).filter(|other| *other != position)));
}

#[test]
fn damage_in_the_definitions_is_told_and_the_messages_stay() {
    let disk = SimDisk::new(3, ROOM);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    for number in 0..300u64 {
        store.catalogue().put(Section::Bindings, number.to_be_bytes().to_vec(), b"a definition".to_vec());
    }
    fill(&store, &mut rounds, 5);
    rounds.close().expect("closed");
    drop((store, rounds));
    let octets = read(&disk, "definitions.redb");
    let at = octets.windows(12).position(|window| window == b"a definition").expect("a definition");
    flip(&disk, "definitions.redb", at as u64);
    let dynamic: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = check(&dynamic).expect("readable");
    assert!(!report.is_sound() && report.problems[0].contains("definitions"), "{report}");
    let done = repair(&dynamic).expect("repaired");
    assert!(
        done.len() == 1 && done[0].contains("the damaged file is now definitions.redb.damaged"),
        "{done:?}"
    );
    assert_eq!(read(&disk, "definitions.redb.damaged").len(), octets.len());
    assert!(check(&dynamic).expect("readable").is_sound());
    let (store, _, _) = open(&disk).expect("a store again");
    assert!(positions(&store).into_iter().eq(0..5));
    let count = |section| {
        let mut count = 0;
        store.catalogue().scan(section, |_, _| count += 1).expect("readable");
        count
    };
    // An octet of a value is no obstacle to reading: whoever knows what it means judges it.
    assert_eq!((count(Section::Queues), count(Section::Bindings)), (1, 300));
}

#[test]
fn a_file_of_definitions_of_which_nothing_can_be_read_is_left_as_it_is() {
    let disk = SimDisk::new(4, ROOM);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    fill(&store, &mut rounds, 1);
    rounds.close().expect("closed");
    drop((store, rounds));
    disk.damage("definitions.redb", |octets| octets[..4096].fill(7));
    let before = read(&disk, "definitions.redb");
    let dynamic: Arc<dyn Disk> = Arc::new(disk.clone());
    assert!(!check(&dynamic).expect("readable").is_sound());
    let Err(error) = open(&disk) else { panic!("opened") };
    assert!(error.to_string().contains("definitions.redb"), "{error}");
    assert!(repair(&dynamic).is_err());
    assert!(read(&disk, "definitions.redb") == before);
}

#[test]
fn a_new_queue_does_not_inherit_the_messages_of_one_whose_definition_is_lost() {
    let disk = SimDisk::new(5, ROOM);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    assert_eq!(store.catalogue().new_id(), 1);
    fill(&store, &mut rounds, 5);
    rounds.close().expect("closed");
    drop((store, rounds));
    disk.remove("definitions.redb").expect("removed");
    let (store, _, _) = open(&disk).expect("a store");
    assert_eq!(store.catalogue().new_id(), 2);
}

fn fill(store: &Arc<Store>, rounds: &mut Rounds, count: u64) {
    let queue = store.queue(QueueId(1));
    store.catalogue().put(Section::Queues, b"q".to_vec(), Vec::new());
    for position in 0..count {
        let message = store.append(&[&body(position)]).message;
        queue.enqueue(&[Entry { position, message, expires: 0, last: true }]);
        rounds.step();
    }
}

/// The positions of the messages, which must be whole.
fn positions(store: &Arc<Store>) -> Vec<u64> {
    let queue = store.queue(QueueId(1));
    let found = queue.read(0, usize::MAX, usize::MAX).expect("readable");
    assert!(found.iter().all(|message| message.payload == body(message.position)));
    found.iter().map(|message| message.position).collect()
}

fn body(position: u64) -> Vec<u8> {
    format!("<message {position}>").repeat(50).into_bytes()
}

/// File in `folder`, and offset, of an octet of a message.
fn place_of(disk: &SimDisk, folder: &str, position: u64) -> (String, u64) {
    let body = body(position);
    for file in disk.files().into_iter().filter(|file| file.starts_with(folder)) {
        let octets = read(disk, &file);
        if let Some(at) = octets.windows(body.len()).position(|window| window == body) {
            return (file, at as u64 + 20);
        }
    }
    panic!("no message {position} in {folder}")
}

fn read(disk: &SimDisk, path: &str) -> Vec<u8> {
    let file: Box<dyn DiskFile> = disk.open(path).expect("a file");
    let mut octets = vec![0; file.len().expect("a length") as usize];
    let read = file.read_at(&mut octets, 0).expect("readable");
    octets.truncate(read);
    octets
}

fn flip(disk: &SimDisk, path: &str, offset: u64) {
    disk.damage(path, |octets| octets[offset as usize] ^= 1);
}

fn open(disk: &SimDisk) -> Result<(Arc<Store>, Rounds, Recovered), StoreError> {
    let journal = Settings { segment_size: 12 << 10, pending_limit: 1 << 16 };
    let settings = StoreSettings { journal_segments: BUDGET, ..journal.into() };
    Store::open(Arc::new(disk.clone()), settings)
}

const ROOM: u64 = 1 << 30;
const BUDGET: usize = 2;
