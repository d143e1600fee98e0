use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;
use crate::disk::{DiskFile, RealDisk};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn content(catalogue: &Catalogue, section: Section) -> Model {
    let mut found = Model::new();
    let each = |key: &[u8], value: &[u8]| drop(found.insert(key.to_vec(), value.to_vec()));
    catalogue.scan(section, each).expect("scan");
    found
}

fn real_disk(directory: &tempfile::TempDir) -> Arc<dyn Disk> {
    Arc::new(RealDisk::new(directory.path()).expect("a data directory"))
}

/// A disk whose files fail to sync while a flag is set.
struct Failing {
    disk: Arc<dyn Disk>,
    fails: Arc<AtomicBool>,
}

struct FailingFile {
    file: Box<dyn DiskFile>,
    fails: Arc<AtomicBool>,
}

impl Disk for Failing {
    fn open(&self, path: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(FailingFile { file: self.disk.open(path)?, fails: self.fails.clone() }))
    }
    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        self.disk.list(directory)
    }
    fn create_dir(&self, directory: &str) -> io::Result<()> {
        self.disk.create_dir(directory)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn remove_dir(&self, directory: &str) -> io::Result<()> {
        self.disk.remove_dir(directory)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        self.disk.sync_dir(directory)
    }
    fn free_space(&self) -> io::Result<u64> {
        self.disk.free_space()
    }
}

impl DiskFile for FailingFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(into, offset)
    }
    fn sync(&self) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.sync()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn reserve(&self, len: u64) -> io::Result<()> {
        self.file.reserve(len)
    }
}

#[test]
fn only_committed_entries_are_present_after_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let catalogue = Catalogue::open(real_disk(&directory)).expect("open");
    assert!(catalogue.was_empty());
    catalogue.put(Section::Queues, b"/\0q".to_vec(), b"1".to_vec());
    let ticket = catalogue.put(Section::Queues, b"/\0r".to_vec(), b"2".to_vec());
    let id = catalogue.new_id();
    assert!(!catalogue.is_committed(ticket));
    catalogue.commit_pending().expect("commit");
    assert!(catalogue.is_committed(ticket));
    assert_eq!(catalogue.last_noted(), ticket);
    catalogue.commit_pending().expect("nothing to commit");
    assert_eq!(catalogue.commits(), 1);
    catalogue.delete(Section::Queues, b"/\0q".to_vec());
    drop(catalogue);

    let catalogue = Catalogue::open(real_disk(&directory)).expect("open again");
    assert!(!catalogue.was_empty());
    assert_eq!(content(&catalogue, Section::Queues).len(), 2);
    assert!(content(&catalogue, Section::Bindings).is_empty());
    assert!(catalogue.new_id() > id);
}

#[test]
fn the_loaded_flag_is_stored_once_the_definitions_are_committed() {
    let directory = tempfile::tempdir().expect("a directory");
    for is_committed in [false, true] {
        let catalogue = Catalogue::open(real_disk(&directory)).expect("open");
        assert!(!catalogue.was_loaded());
        catalogue.put(Section::Users, b"u".to_vec(), b"1".to_vec());
        catalogue.note_loaded();
        if is_committed {
            catalogue.commit_pending().expect("commit");
        }
    }
    assert!(Catalogue::open(real_disk(&directory)).expect("open again").was_loaded());
}

#[test]
fn deleting_a_prefix_removes_entries_on_disk_and_pending_ones_but_no_later_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let catalogue = Catalogue::open(real_disk(&directory)).expect("open");
    let put = |key: &[u8]| catalogue.put(Section::Queues, key.to_vec(), Vec::new());
    let keys = || content(&catalogue, Section::Queues).into_keys().collect::<Vec<_>>();
    for key in [&b"a"[..], b"a\xff", b"a\xff\x00", b"b", b"a\xfe\xff", b"\xff", b"\xff\xff1"] {
        put(key);
    }
    catalogue.commit_pending().expect("commit");
    put(b"a\xff\xff");
    catalogue.delete_all(Section::Queues, b"a\xff".to_vec());
    put(b"a\xff2");
    catalogue.delete_all(Section::Bindings, b"b".to_vec());
    catalogue.commit_pending().expect("commit");
    assert_eq!(keys(), [&b"a"[..], b"a\xfe\xff", b"a\xff2", b"b", b"\xff", b"\xff\xff1"]);
    catalogue.delete_all(Section::Queues, b"\xff\xff".to_vec());
    catalogue.delete_all(Section::Queues, b"a".to_vec());
    catalogue.commit_pending().expect("commit");
    assert_eq!(keys(), [&b"b"[..], b"\xff"]);
}

#[test]
fn changes_that_could_not_be_committed_are_committed_later_and_in_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let fails = Arc::new(AtomicBool::new(false));
    let disk = Arc::new(Failing { disk: real_disk(&directory), fails: fails.clone() });
    let catalogue = Catalogue::open(disk).expect("open");
    fails.store(true, Ordering::Relaxed);
    let key = || b"k".to_vec();
    let first = catalogue.put(Section::Exchanges, key(), b"1".to_vec());
    assert!(matches!(catalogue.commit_pending(), Err(CatalogueError::Database(_))));
    let second = catalogue.put(Section::Exchanges, key(), b"2".to_vec());
    assert!(catalogue.commit_pending().is_err());
    assert!(!catalogue.is_committed(first));
    fails.store(false, Ordering::Relaxed);
    catalogue.commit_pending().expect("the disk works again");
    assert!(catalogue.is_committed(second));
    assert_eq!(content(&catalogue, Section::Exchanges).into_values().collect::<Vec<_>>(), [b"2"]);
}

#[test]
fn a_newer_schema_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    drop(Catalogue::open(real_disk(&directory)).expect("open"));
    let database = Database::open(directory.path().join(FILE)).expect("the file");
    let transaction = database.begin_write().expect("a transaction");
    let mut meta = transaction.open_table(META).expect("a table");
    meta.insert(SCHEMA, KNOWN_SCHEMA + 1).expect("insert");
    drop(meta);
    transaction.commit().expect("commit");
    drop(database);
    let Err(error) = Catalogue::open(real_disk(&directory)) else { panic!("opened") };
    let text = error.to_string();
    assert!(text.contains("newer version (schema 3, the newest known here is 2)"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_catalogue_matches_a_model_of_its_committed_changes(
        steps in prop::collection::vec((0u8..8, 0u8..12, any::<bool>()), 1..60),
    ) {
        let directory = tempfile::tempdir().expect("a directory");
        let mut catalogue = Catalogue::open(real_disk(&directory)).expect("open");
        let sections = [Section::Users, Section::Bindings];
        let mut noted = [Model::new(), Model::new()];
        let mut committed = noted.clone();
        for (step, key, second) in steps {
            let which = usize::from(second);
            let at = vec![key];
            match step {
                0..4 => {
                    catalogue.put(sections[which], at.clone(), vec![step, key]);
                    noted[which].insert(at, vec![step, key]);
                }
                4 | 5 => {
                    catalogue.delete(sections[which], at.clone());
                    noted[which].remove(&at);
                }
                6 => {
                    catalogue.commit_pending().expect("commit");
                    committed = noted.clone();
                }
                _ => {
                    drop(catalogue);
                    catalogue = Catalogue::open(real_disk(&directory)).expect("open again");
                    noted = committed.clone();
                }
            }
            prop_assert_eq!(&content(&catalogue, sections[which]), &committed[which]);
        }
    }
}

#[test]
fn changes_that_are_submitted_together_are_committed_together() {
    const GROUPS: u64 = 300;
    const OF: u64 = 20;
    let directory = tempfile::tempdir().expect("a directory");
    let catalogue = Catalogue::open(real_disk(&directory)).expect("open");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                catalogue.commit_pending().expect("commit");
            }
        });
        for group in 0..GROUPS {
            let key = |number: u64| (group * OF + number).to_be_bytes().to_vec();
            let changes = (0..OF).map(|number| Change::put(Section::Users, key(number), Vec::new()));
            let last = catalogue.note(changes);
            let first = Ticket(last.0 - OF + 1);
            while !catalogue.is_committed(first) {
                std::thread::yield_now();
            }
            assert!(catalogue.is_committed(last));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(content(&catalogue, Section::Users).len() as u64, GROUPS * OF);
}
