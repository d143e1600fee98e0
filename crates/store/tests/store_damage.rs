//! Damage in each part of a data directory: it is reported with its location, it costs only itself, and the directory can be
//! opened again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use store::catalogue::Section;
use store::disk::simulated::SimDisk;
use store::disk::{Disk, DiskFile};
use store::journal::{Entry, JournalSettings, QueueId};
use store::{Recovered, Retirement, Rounds, Store, StoreError, StoreSettings, check, repair};

#[test]
fn an_unreadable_message_does_not_prevent_the_journal_from_shrinking() {
    let disk = SimDisk::new(1, CAPACITY);
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
    let (store, _, _) = open(&disk.kill()).expect("the damaged file was removed");
    assert!(positions(&store).into_iter().eq((0..40).filter(|position| *position != 2)));
}

#[test]
fn damage_in_the_journal_is_refused_with_its_location_and_repaired_without_further_loss() {
    damaged("journal/", 38);
}

#[test]
fn damage_in_a_queues_segment_is_refused_with_its_location_and_repaired_without_further_loss() {
    damaged("queues/", 2);
}

#[test]
fn a_damaged_byte_in_a_queues_segment_costs_that_message_while_the_broker_runs() {
    let disk = SimDisk::new(2, CAPACITY);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    fill(&store, &mut rounds, 40);
    while let Retirement::Done = rounds.retire() {}
    let (file, offset) = place_of(&disk, "queues/", 2);
    flip(&disk, &file, offset);
    // It is read again before it is dropped.
    let queue = store.queue(QueueId(1));
    for _ in 0..2 {
        queue.read(2, usize::MAX, usize::MAX).expect_err("damaged");
        assert_eq!(store.journal().figures().unreadable.load(Ordering::Relaxed), 0);
    }
    assert!(positions(&store).into_iter().eq((0..40).filter(|position| *position != 2)));
    assert_eq!(store.journal().figures().unreadable.load(Ordering::Relaxed), 1);
}

/// Flips a byte of the message at `position`, which lies in `directory`.
fn damaged(directory: &str, position: u64) {
    let disk = SimDisk::new(2, CAPACITY);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    fill(&store, &mut rounds, 40);
    while let Retirement::Done = rounds.retire() {}
    rounds.close().expect("closed");
    drop((store, rounds));
    let (file, offset) = place_of(&disk, directory, position);
    flip(&disk, &file, offset);
    let dynamic: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = check(&dynamic).expect("readable");
    assert_eq!(report.problems.len(), 1, "{report}");
    let problem = &report.problems[0];
    let numbers: Vec<u64> =
        problem.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    // The offset of the record, which begins a few bytes earlier.
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
fn damage_in_the_definitions_is_reported_and_the_messages_are_kept() {
    let disk = SimDisk::new(3, CAPACITY);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    for number in 0..300u64 {
        store.catalogue().put(Section::Bindings, number.to_be_bytes().to_vec(), b"a definition".to_vec());
    }
    store.catalogue().put(Section::Users, b"u".to_vec(), Vec::new());
    fill(&store, &mut rounds, 5);
    rounds.close().expect("closed");
    drop((store, rounds));
    let bytes = read(&disk, "definitions.redb");
    let at = bytes.windows(12).position(|window| window == b"a definition").expect("a definition");
    flip(&disk, "definitions.redb", at as u64);
    let dynamic: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = check(&dynamic).expect("readable");
    assert!(!report.is_sound() && report.problems[0].contains("definitions"), "{report}");
    let done = repair(&dynamic).expect("repaired");
    assert!(
        done.len() == 1 && done[0].contains("the damaged file is now definitions.redb.damaged"),
        "{done:?}"
    );
    assert_eq!(read(&disk, "definitions.redb.damaged").len(), bytes.len());
    assert!(check(&dynamic).expect("readable").is_sound());
    let (store, _, _) = open(&disk).expect("a store again");
    assert!(positions(&store).into_iter().eq(0..5));
    let count = |section| {
        let mut count = 0;
        store.catalogue().scan(section, |_, _| count += 1).expect("readable");
        count
    };
    // A changed byte of a value is no obstacle to reading: the code that interprets the value validates it.
    assert_eq!((count(Section::Queues), count(Section::Bindings)), (1, 300));
}

#[test]
fn an_unreadable_definitions_file_is_replaced_by_a_new_one() {
    let disk = SimDisk::new(4, CAPACITY);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    fill(&store, &mut rounds, 1);
    rounds.close().expect("closed");
    drop((store, rounds));
    disk.damage("definitions.redb", |bytes| bytes[..4096].fill(7));
    let before = read(&disk, "definitions.redb");
    let dynamic: Arc<dyn Disk> = Arc::new(disk.clone());
    assert!(!check(&dynamic).expect("readable").is_sound());
    let Err(error) = open(&disk) else { panic!("opened") };
    assert!(error.to_string().contains("definitions.redb"), "{error}");
    let done = repair(&dynamic).expect("repaired");
    assert!(done[0].contains("rebuilt from the 0 ") && done[1].contains("no user is left"), "{done:?}");
    assert!(read(&disk, "definitions.redb.damaged") == before);
    let (store, _, recovered) = open(&disk).expect("a store again");
    assert!(store.catalogue().was_empty() && recovered.queues().count() == 1);
}

#[test]
fn a_second_repair_keeps_the_files_put_aside_by_the_first() {
    let disk = SimDisk::new(4, CAPACITY);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    fill(&store, &mut rounds, 40);
    rounds.close().expect("closed");
    drop((store, rounds));
    let dynamic: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut before = Vec::new();
    for fill in [7, 9] {
        disk.damage("definitions.redb", |bytes| bytes[..4096].fill(fill));
        before.push(read(&disk, "definitions.redb"));
        let done = repair(&dynamic).expect("repaired");
        let name = if fill == 7 { "definitions.redb.damaged" } else { "definitions.redb.damaged-2" };
        assert!(done[0].ends_with(&format!("is now {name}")), "{done:?}");
    }
    assert!(read(&disk, "definitions.redb.damaged") == before[0]);
    assert!(read(&disk, "definitions.redb.damaged-2") == before[1]);
    // The same file of the journal loses its header, comes back from a backup, and loses it again.
    let files = disk.files().into_iter();
    let file =
        files.filter(|file| file.starts_with("journal/") && is_in_use(&disk, file)).min().expect("a file");
    let whole = read(&disk, &file);
    for fill in [7, 9] {
        let restored = disk.open(&file).expect("a file");
        restored.write_at(&whole, 0).expect("written");
        disk.damage(&file, |bytes| bytes[..4096].fill(fill));
        repair(&dynamic).expect("repaired");
    }
    assert_eq!(read(&disk, &format!("{file}.damaged"))[0], 7);
    assert_eq!(read(&disk, &format!("{file}.damaged-2"))[0], 9);
}

#[test]
fn a_truncated_definitions_file_is_refused_and_can_be_repaired() {
    for share in 0..8 {
        let disk = SimDisk::new(4, CAPACITY);
        let (store, mut rounds, _) = open(&disk).expect("a store");
        for number in 0..3000u64 {
            store.catalogue().put(Section::Users, number.to_be_bytes().to_vec(), vec![7; 100]);
        }
        fill(&store, &mut rounds, 5);
        rounds.close().expect("closed");
        drop((store, rounds));
        disk.damage("definitions.redb", |bytes| bytes.truncate(bytes.len() * share / 8));
        let dynamic: Arc<dyn Disk> = Arc::new(disk.clone());
        assert!(!check(&dynamic).expect("readable").is_sound());
        let Err(error) = open(&disk) else { panic!("opened") };
        assert!(error.is_damage() && error.to_string().contains("definitions.redb"), "{error}");
        let done = repair(&dynamic).expect("repaired");
        assert!(done[0].contains("rebuilt from the "), "{done:?}");
        assert!(check(&dynamic).expect("readable").is_sound(), "{share} eighths");
        let (store, _, _) = open(&disk).expect("a store again");
        let mut users = 0;
        store
            .catalogue()
            .scan(Section::Users, |_, value| users += usize::from(value == [7; 100]))
            .expect("readable");
        assert_eq!(users == 0, store.catalogue().was_empty(), "{share} eighths: {users} users");
        assert!(positions(&store).into_iter().eq(0..5));
    }
}

#[test]
fn a_missing_or_truncated_file_is_refused_by_name() {
    let segments = |disk: &SimDisk, directory: &str| {
        let files = disk.files().into_iter();
        let mut used: Vec<_> =
            files.filter(|file| file.starts_with(directory) && file.ends_with(".segment")).collect();
        used.retain(|file| is_in_use(disk, file));
        used
    };
    let of_journal = segments(&filled_and_closed(), "journal/").len();
    let of_queue = segments(&filled_and_closed(), "queues/").len();
    assert!(of_journal >= 2 && of_queue >= 1);
    for (directory, count) in [("journal/", of_journal), ("queues/", of_queue)] {
        for at in 0..count {
            for cut in [false, true] {
                let disk = filled_and_closed();
                let file = segments(&disk, directory)[at].clone();
                match cut {
                    false => disk.remove(&file).expect("removed"),
                    // Half of its contents.
                    true => disk.damage(&file, |bytes| {
                        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
                        bytes.truncate(used / 2);
                    }),
                }
                is_refused_and_repaired(&disk, &file);
            }
        }
    }
}

#[test]
fn a_missing_directory_is_refused() {
    for directory in ["journal", "queues"] {
        let disk = filled_and_closed();
        disk.remove_dir(directory).expect("removed");
        is_refused_and_repaired(&disk, directory);
    }
}

#[test]
fn a_file_missing_after_a_kill_is_refused_by_name() {
    let disk = SimDisk::new(8, CAPACITY);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    fill(&store, &mut rounds, 40);
    while let Retirement::Done = rounds.retire() {}
    let disk = disk.kill();
    let files = disk.files().into_iter().filter(|file| file.starts_with("journal/"));
    let used: Vec<_> = files.filter(|file| is_in_use(&disk, file)).collect();
    for file in used {
        let disk = disk.kill();
        disk.remove(&file).expect("removed");
        is_refused_and_repaired(&disk, &file);
    }
}

#[test]
fn a_log_with_a_gap_that_was_given_up_is_retired_and_started_again() {
    let disk = SimDisk::new(9, CAPACITY);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    fill(&store, &mut rounds, 40);
    rounds.close().expect("closed");
    drop((store, rounds));
    let files = disk.files().into_iter().filter(|file| file.starts_with("journal/"));
    let mut used: Vec<_> = files.filter(|file| is_in_use(&disk, file)).collect();
    used.sort_unstable();
    disk.remove(&used[1]).expect("removed");
    is_refused_and_repaired(&disk, &used[1]);
    let (store, mut rounds, _) = open(&disk).expect("a store again");
    let left = positions(&store);
    let mut retired = 0;
    while let Retirement::Done = rounds.retire() {
        retired += 1;
        let (store, _, _) = open(&disk.kill()).expect("nothing is missing that was not given up");
        assert_eq!(positions(&store), left);
    }
    assert!(retired > 1);
}

/// Whether this is no spare file of the journal: the header of a file in use has the number that is its name.
fn is_in_use(disk: &SimDisk, file: &str) -> bool {
    let Some(name) = file.strip_prefix("journal/") else { return true };
    let Some(number) = name.strip_suffix(".segment") else { return false };
    let number = u64::from_str_radix(number, 16).expect("a number");
    read(disk, file).get(16..24).is_some_and(|bytes| bytes == number.to_le_bytes())
}

/// Forty messages, spread over several files.
fn filled_and_closed() -> SimDisk {
    let disk = SimDisk::new(7, CAPACITY);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    fill(&store, &mut rounds, 40);
    while let Retirement::Done = rounds.retire() {}
    rounds.close().expect("closed");
    disk
}

fn is_refused_and_repaired(disk: &SimDisk, file: &str) {
    let dynamic: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = check(&dynamic).expect("readable");
    assert!(report.problems.iter().any(|problem| problem.contains(file)), "{file}: {report}");
    let Err(error) = open(disk) else { panic!("opened without {file}") };
    assert!(error.is_damage() && error.to_string().contains(file), "{file}: {error}");
    let done = repair(&dynamic).expect("repaired");
    assert!(done.iter().any(|done| done.contains(file)), "{file}: {done:?}");
    let report = check(&dynamic).expect("readable");
    assert!(report.is_sound(), "{file}: {report}");
    let (store, _, _) = open(disk).expect("a store again");
    assert!(positions(&store).len() < 40);
}

#[test]
fn a_new_queue_does_not_inherit_the_messages_of_one_whose_definition_is_lost() {
    let disk = SimDisk::new(5, CAPACITY);
    let (store, mut rounds, _) = open(&disk).expect("a store");
    assert_eq!(store.catalogue().new_id(), 1);
    fill(&store, &mut rounds, 5);
    rounds.close().expect("closed");
    drop((store, rounds));
    disk.remove("definitions.redb").expect("removed");
    let dynamic: Arc<dyn Disk> = Arc::new(disk.clone());
    let Err(error) = open(&disk) else { panic!("opened as if it were new") };
    assert!(error.is_damage() && error.to_string().starts_with("definitions.redb is missing"), "{error}");
    let report = check(&dynamic).expect("readable");
    assert!(report.problems[0].starts_with("definitions.redb is missing"), "{report}");
    assert_eq!(repair(&dynamic).expect("repaired").len(), 2);
    let (store, _, _) = open(&disk).expect("a store");
    assert!(store.catalogue().new_id() > 1 && store.catalogue().was_empty());
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

/// The positions of the messages, which must be intact.
fn positions(store: &Arc<Store>) -> Vec<u64> {
    let queue = store.queue(QueueId(1));
    let mut positions = Vec::new();
    // Messages before a damaged location come first.
    loop {
        let from = positions.last().map_or(0, |last| last + 1);
        let found = queue.read(from, usize::MAX, usize::MAX).expect("readable");
        assert!(found.iter().all(|message| message.payload == body(message.position)));
        if found.is_empty() {
            return positions;
        }
        positions.extend(found.iter().map(|message| message.position));
    }
}

fn body(position: u64) -> Vec<u8> {
    format!("<message {position}>").repeat(50).into_bytes()
}

/// The file in `directory`, and the offset, of a byte of a message.
fn place_of(disk: &SimDisk, directory: &str, position: u64) -> (String, u64) {
    let body = body(position);
    for file in disk.files().into_iter().filter(|file| file.starts_with(directory)) {
        let bytes = read(disk, &file);
        if let Some(at) = bytes.windows(body.len()).position(|window| window == body) {
            return (file, at as u64 + 20);
        }
    }
    panic!("no message {position} in {directory}")
}

fn read(disk: &SimDisk, path: &str) -> Vec<u8> {
    let file: Box<dyn DiskFile> = disk.open(path).expect("a file");
    let mut bytes = vec![0; file.len().expect("a length") as usize];
    let read = file.read_at(&mut bytes, 0).expect("readable");
    bytes.truncate(read);
    bytes
}

fn flip(disk: &SimDisk, path: &str, offset: u64) {
    disk.damage(path, |bytes| bytes[offset as usize] ^= 1);
}

fn open(disk: &SimDisk) -> Result<(Arc<Store>, Rounds, Recovered), StoreError> {
    let journal =
        JournalSettings { segment_size: 12 << 10, pending_limit: 1 << 16, ..JournalSettings::default() };
    let settings = StoreSettings { journal_segments: BUDGET, ..journal.into() };
    Store::open(Arc::new(disk.clone()), settings)
}

const CAPACITY: u64 = 1 << 30;
const BUDGET: usize = 2;
