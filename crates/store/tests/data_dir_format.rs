//! Whole data directories, which every later version has to open: definitions, journal and queue segments.
//!
//! | fixture | journal | queue segments |
//! |---|---|---|
//! | `data_dir_1` | version 1 | version 2 |
//! | `data_dir_2` | version 2 | version 2 |
//!
//! A new version of a format gets a fixture beside the old ones, which becomes the last in `FIXTURES`:
//! `LEVERET_FIXTURE=write cargo test -p store --test data_dir_format` writes it. Existing ones are never written again.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use store::catalogue::Section;
use store::disk::Disk;
use store::disk::simulated::SimDisk;
use store::journal::{Entry, JournalSettings, QueueId, Range};
use store::{Recovered, Rounds, Store, StoreSettings, check};

#[test]
fn a_data_directory_of_any_version_keeps_its_contents() {
    for (fixture, journal, segments) in FIXTURES {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(fixture);
        if std::env::var("LEVERET_FIXTURE").is_ok_and(|wanted| wanted == "write") && !path.exists() {
            std::fs::write(&path, to_text(&filled())).expect("written");
        }
        let disk = from_text(&std::fs::read_to_string(path).expect("the fixture"));
        assert_eq!(versions(&disk), (journal, segments), "{fixture}");
        check_contents(&disk);
    }
}

#[test]
fn a_data_directory_of_the_current_version_keeps_its_contents() {
    let disk = from_text(&to_text(&filled()));
    check_contents(&disk);
}

#[test]
fn the_last_fixture_has_the_versions_of_today() {
    let (_, journal, segments) = FIXTURES[FIXTURES.len() - 1];
    assert_eq!(versions(&filled()), (journal, segments), "a new version needs a new fixture");
}

/// The versions in the headers of the first file of the journal and of the first queue segment.
fn versions(disk: &SimDisk) -> (u8, u8) {
    let version = |directory: &str, at: u64| {
        let path =
            disk.files().into_iter().find(|file| file.starts_with(directory) && file.ends_with(".segment"));
        let mut version = [0];
        let file = disk.open(&path.expect("a segment")).expect("a file");
        file.read_at(&mut version, at).expect("readable");
        version[0]
    };
    (version("journal/", 8), version("queues/", 7))
}

fn check_contents(disk: &SimDisk) {
    let dynamic: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = check(&dynamic).expect("readable");
    assert!(report.is_sound(), "{report}");
    let (store, _, recovered) = open(disk);
    let queues: Vec<_> = recovered.queues().map(|queue| (queue.id.0, queue.next_position)).collect();
    assert_eq!(queues, [(1, 20), (2, 6)]);
    let found = |id| {
        let read = store.queue(QueueId(id)).read(0, usize::MAX, usize::MAX).expect("readable");
        assert!(read.iter().all(|message| message.payload == body(message.position)));
        let reported =
            |message: &store::pages::Stored| (message.position, message.expires, message.deliveries);
        read.iter().map(reported).collect::<Vec<_>>()
    };
    let expected = (0..20).filter(|position| ![1, 4, 15].contains(position)).map(|position| {
        let deliveries = if [2, 3, 17].contains(&position) { 2 } else { 0 };
        (position, (position % 5 == 0).then_some(EXPIRES + position), deliveries)
    });
    assert_eq!(found(1), expected.collect::<Vec<_>>());
    assert_eq!(found(2), [(5, None, 0)]);
    let mut definitions = Vec::new();
    for section in [Section::VirtualHosts, Section::Queues, Section::Bindings] {
        let each = |key: &[u8], value: &[u8]| definitions.push((section, key.to_vec(), value.to_vec()));
        store.catalogue().scan(section, each).expect("readable");
    }
    let expected = DEFINITIONS.map(|(section, key, value)| (section, key.to_vec(), value.to_vec()));
    assert_eq!(definitions, expected);
    assert_eq!(store.catalogue().new_id(), 3);
}

/// Messages in queue segments and in the journal; some of each are settled, some delivered, some expire.
fn filled() -> SimDisk {
    let disk = SimDisk::new(1, 1 << 30);
    let (store, mut rounds, _) = open(&disk);
    let catalogue = store.catalogue();
    for (section, key, value) in DEFINITIONS {
        catalogue.put(section, key.to_vec(), value.to_vec());
    }
    assert_eq!((catalogue.new_id(), catalogue.new_id()), (1, 2));
    catalogue.put(Section::Policies, b"gone".to_vec(), Vec::new());
    catalogue.delete(Section::Policies, b"gone".to_vec());
    let (queue, other) = (store.queue(QueueId(1)), store.queue(QueueId(2)));
    for position in 0..20 {
        let message = store.append(&[&body(position)]).message;
        let shared = position == 5;
        let expires = if position % 5 == 0 { EXPIRES + position } else { 0 };
        queue.enqueue(&[Entry { position, message, expires, last: !shared }]);
        if shared {
            other.enqueue(&[Entry { position, message, expires: 0, last: true }]);
        }
        rounds.step();
        if position == 13 {
            queue.settle(&[Range::one(1)]);
            while !disk.files().iter().any(|file| file.starts_with("queues/1/")) {
                rounds.retire();
                rounds.step();
            }
        }
    }
    queue.settle(&[Range::one(4), Range::one(15)]);
    queue.delivered(&[Range { first: 2, last: 3 }, Range::one(17)], 2);
    rounds.close().expect("closed");
    disk
}

fn body(position: u64) -> Vec<u8> {
    format!("message {position}; ").repeat(40).into_bytes()
}

fn open(disk: &SimDisk) -> (Arc<Store>, Rounds, Recovered) {
    let journal =
        JournalSettings { segment_size: 8 << 10, pending_limit: 1 << 16, ..JournalSettings::default() };
    let settings = StoreSettings { journal_segments: 1, ..journal.into() };
    Store::open(Arc::new(disk.clone()), settings).expect("a store")
}

/// Each file's name and length, and its bytes other than zeros: their offsets, and how often they are repeated.
fn to_text(disk: &SimDisk) -> String {
    let mut text = String::new();
    for path in disk.files() {
        let file = disk.open(&path).expect("a file");
        let mut bytes = vec![0; file.len().expect("a length") as usize];
        file.read_at(&mut bytes, 0).expect("readable");
        writeln!(text, "file {path} {}", bytes.len()).expect("a text");
        let mut at = 0;
        for same in bytes.chunks(LINE).collect::<Vec<_>>().chunk_by(|one, next| one == next) {
            if same[0].iter().any(|byte| *byte != 0) {
                let hex: String = same[0].iter().map(|byte| format!("{byte:02x}")).collect();
                writeln!(text, "{at:x} {hex} {}", same.len()).expect("a text");
            }
            at += same.len() * LINE;
        }
    }
    text
}

fn from_text(text: &str) -> SimDisk {
    let disk = SimDisk::new(2, 1 << 30);
    let mut file = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match (&words[..], &file) {
            (["file", path, len], _) => {
                disk.create_dir(path.rsplit_once('/').map_or("", |(directory, _)| directory))
                    .expect("a directory");
                let opened = disk.open(path).expect("a file");
                opened.set_len(len.parse().expect("a length")).expect("a length");
                file = Some(opened);
            }
            ([at, hex, times], Some(file)) => {
                let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("a byte");
                let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
                let bytes = bytes.repeat(times.parse().expect("a number"));
                file.write_at(&bytes, u64::from_str_radix(at, 16).expect("an offset")).expect("written");
            }
            _ => panic!("not a line of a fixture: {line}"),
        }
    }
    disk
}

/// The fixtures, with the versions of their journals and queue segments.
const FIXTURES: [(&str, u8, u8); 2] = [("data_dir_1.txt", 1, 2), ("data_dir_2.txt", 2, 2)];
const DEFINITIONS: [(Section, &[u8], &[u8]); 4] = [
    (Section::VirtualHosts, b"/", b"a virtual host"),
    (Section::Queues, b"/\0q", b"a queue"),
    (Section::Queues, b"/\0r", b"another"),
    (Section::Bindings, b"/\0amq.direct\0q\0key", b"a binding"),
];
/// In milliseconds since 1970.
const EXPIRES: u64 = 1_900_000_000_000;
const LINE: usize = 64;
