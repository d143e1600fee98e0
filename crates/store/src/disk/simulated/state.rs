//! Names, capacity and faults of the simulated disk.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::Faults;
use super::file::Content;
use super::random::SimRandom;

/// The state of a simulated disk.
#[derive(Debug, Clone)]
pub(super) struct State {
    /// Path to file, as programs see it.
    pub(super) names: BTreeMap<String, u64>,
    pub(super) faults: Faults,
    /// How many calls of `sync` succeed before one fails.
    pub(super) fail_sync: Option<u64>,
    pub(super) capacity: u64,
    pub(super) syncs: u64,
    pub(super) lies: bool,
    /// Whether it can reserve space.
    pub(super) reserves: bool,
    /// Path to file, as on the medium.
    safe_names: BTreeMap<String, u64>,
    /// Changes of names since their directory was synced, in order.
    unsynced: Vec<Change>,
    directories: BTreeSet<String>,
    files: BTreeMap<u64, Content>,
    random: SimRandom,
}

#[derive(Debug, Clone)]
enum Change {
    Create(String, u64),
    Remove(String, u64),
    Rename { from: String, to: String, file: u64 },
}

impl State {
    pub(super) fn new(seed: u64, capacity: u64) -> Self {
        Self {
            names: BTreeMap::new(),
            faults: Faults::default(),
            fail_sync: None,
            capacity,
            syncs: 0,
            lies: false,
            reserves: true,
            safe_names: BTreeMap::new(),
            unsynced: Vec::new(),
            directories: BTreeSet::new(),
            files: BTreeMap::new(),
            random: SimRandom::new(seed),
        }
    }

    pub(super) fn after_power_loss(&mut self) -> Self {
        let mut names = self.safe_names.clone();
        for change in self.unsynced.clone() {
            if self.random.chance(500) {
                change.apply(&mut names);
            }
        }
        let mut files = BTreeMap::new();
        for number in names.values() {
            files.insert(*number, self.files[number].after_power_loss(&mut self.random));
        }
        Self {
            safe_names: names.clone(),
            names,
            unsynced: Vec::new(),
            files,
            faults: Faults::default(),
            fail_sync: None,
            random: SimRandom::new(self.random.next_u64()),
            directories: self.directories.clone(),
            ..*self
        }
    }

    pub(super) fn used(&self) -> u64 {
        self.names.values().map(|number| self.files[number].allocated()).sum()
    }

    pub(super) fn content(&self, number: u64) -> &Content {
        &self.files[&number]
    }

    pub(super) fn open(&mut self, path: &str) -> io::Result<u64> {
        self.fail_at(self.faults.names)?;
        if let Some(number) = self.names.get(path) {
            return Ok(*number);
        }
        let parent = parent(path);
        if !parent.is_empty() && !self.directories.contains(parent) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let number = self.files.keys().next_back().map_or(1, |last| last + 1);
        self.files.insert(number, Content::default());
        self.change(Change::Create(path.to_owned(), number));
        Ok(number)
    }

    pub(super) fn list(&self, directory: &str) -> Vec<String> {
        let paths = self.names.keys().chain(&self.directories);
        paths.filter(|path| parent(path) == directory).map(|path| name(path).to_owned()).collect()
    }

    /// Directories count as durable at once: they are created only at the first start.
    pub(super) fn create_dir(&mut self, directory: &str) -> io::Result<()> {
        self.fail_at(self.faults.names)?;
        let mut directory = directory;
        while !directory.is_empty() {
            self.directories.insert(directory.to_owned());
            directory = parent(directory);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &str) -> io::Result<()> {
        self.fail_at(self.faults.names)?;
        if let Some(number) = self.names.get(path) {
            self.change(Change::Remove(path.to_owned(), *number));
        }
        Ok(())
    }

    pub(super) fn remove_dir(&mut self, directory: &str) -> io::Result<()> {
        self.fail_at(self.faults.names)?;
        let inside = format!("{directory}/");
        for path in self.names.keys().filter(|path| path.starts_with(&inside)).cloned().collect::<Vec<_>>() {
            let number = self.names[&path];
            self.change(Change::Remove(path, number));
        }
        self.directories.retain(|path| path != directory && !path.starts_with(&inside));
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.fail_at(self.faults.names)?;
        let Some(&file) = self.names.get(from) else { return Err(io::ErrorKind::NotFound.into()) };
        self.change(Change::Rename { from: from.to_owned(), to: to.to_owned(), file });
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, directory: &str) -> io::Result<()> {
        if self.lies {
            return Ok(());
        }
        let failed = self.fail_at(self.faults.sync);
        let mut later: Vec<Change> = Vec::new();
        for change in std::mem::take(&mut self.unsynced) {
            // Changes of one name never overtake each other.
            let waits = || later.iter().any(|earlier| earlier.touches(&change));
            if change.directory() != directory || failed.is_err() && (self.random.chance(500) || waits()) {
                later.push(change);
            } else {
                change.apply(&mut self.safe_names);
            }
        }
        self.unsynced = later;
        failed
    }

    pub(super) fn write(&mut self, number: u64, bytes: &[u8], offset: u64) -> io::Result<()> {
        let allocated = self.files[&number].allocated();
        let space = allocated + self.capacity.saturating_sub(self.used());
        let end = offset + bytes.len() as u64;
        let mut outcome = Ok(());
        let mut written = bytes.len() as u64;
        if end > space {
            written = space.saturating_sub(offset).min(written);
            outcome = Err(io::ErrorKind::StorageFull.into());
        }
        if self.fail_at(self.faults.write).is_err() {
            written = self.random.below(written + 1);
            outcome = Err(input_output());
        }
        self.file(number).write(&bytes[..written as usize], offset);
        outcome
    }

    pub(super) fn sync(&mut self, number: u64) -> io::Result<()> {
        if self.lies {
            return Ok(());
        }
        let scheduled = self.fail_sync.is_some_and(|left| left == 0);
        self.fail_sync = self.fail_sync.and_then(|left| left.checked_sub(1));
        if scheduled || self.random.chance(self.faults.sync) {
            if let Some(content) = self.files.get_mut(&number) {
                content.fail_sync(&mut self.random);
            }
            return Err(input_output());
        }
        self.file(number).sync();
        self.syncs += 1;
        Ok(())
    }

    pub(super) fn set_len(&mut self, number: u64, len: u64) -> io::Result<()> {
        self.fail_at(self.faults.names)?;
        self.file(number).set_len(len);
        Ok(())
    }

    pub(super) fn reserve(&mut self, number: u64, len: u64) -> io::Result<()> {
        if !self.reserves {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.fail_at(self.faults.names)?;
        let more = len.saturating_sub(self.files[&number].allocated());
        if self.used() + more > self.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file(number).reserve(len);
        Ok(())
    }

    pub(super) fn damage(&mut self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(number) = self.names.get(path).copied() {
            self.file(number).damage(change);
        }
    }

    fn file(&mut self, number: u64) -> &mut Content {
        self.files.entry(number).or_default()
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.unsynced.push(change);
    }

    fn fail_at(&mut self, rate: u64) -> io::Result<()> {
        if self.random.chance(rate) { Err(input_output()) } else { Ok(()) }
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Create(path, file) => {
                names.insert(path.clone(), *file);
            }
            Self::Remove(path, file) => remove_if(names, path, *file),
            Self::Rename { from, to, file } => {
                remove_if(names, from, *file);
                names.insert(to.clone(), *file);
            }
        }
    }

    fn names(&self) -> [&str; 2] {
        match self {
            Self::Create(path, _) | Self::Remove(path, _) => [path, path],
            Self::Rename { from, to, .. } => [from, to],
        }
    }

    /// Whether the two changes have a name in common.
    fn touches(&self, other: &Self) -> bool {
        self.names().iter().any(|name| other.names().contains(name))
    }

    fn directory(&self) -> &str {
        match self {
            Self::Create(path, _) | Self::Remove(path, _) | Self::Rename { to: path, .. } => parent(path),
        }
    }
}

fn remove_if(names: &mut BTreeMap<String, u64>, path: &str, file: u64) {
    if names.get(path) == Some(&file) {
        names.remove(path);
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn input_output() -> io::Error {
    io::Error::other("simulated input/output error")
}
