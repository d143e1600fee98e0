//! `leveret ctl store`: verifies a data directory, and discards damaged parts of it.

use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use store::DirectoryLock;
use store::disk::{Disk, RealDisk};

use crate::Failure;

/// Actions on a data directory.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Read everything and verify it, changing nothing; exit code 1 when something is damaged
    Check(Directory),
    /// Discard damaged data, and nothing else, so that a broker starts again
    Repair(Directory),
}

/// Which one.
#[derive(Debug, Args)]
pub(crate) struct Directory {
    /// The data directory
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

pub(super) fn run(command: &StoreCommand) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    let sound = match command {
        StoreCommand::Check(Directory { data_dir }) => check(data_dir, &mut output),
        StoreCommand::Repair(Directory { data_dir }) => repair(data_dir, &mut output),
    };
    output.flush().map_err(Failure::run)?;
    match sound? {
        true => Ok(()),
        false => Err(Failure::Run("the data directory is damaged".to_owned())),
    }
}

fn check(directory: &Path, output: &mut impl io::Write) -> Result<bool, Failure> {
    let (_lock, disk) = open(directory)?;
    report(directory, &disk, output)
}

fn repair(directory: &Path, output: &mut impl io::Write) -> Result<bool, Failure> {
    let (_lock, disk) = open(directory)?;
    let done = store::repair(&disk).map_err(|error| at_fault(directory, &error))?;
    for line in &done {
        writeln!(output, "{line}").map_err(Failure::run)?;
    }
    report(directory, &disk, output)
}

fn report(directory: &Path, disk: &Arc<dyn Disk>, output: &mut impl io::Write) -> Result<bool, Failure> {
    let report = store::check(disk).map_err(|error| at_fault(directory, &error))?;
    write!(output, "{report}").map_err(Failure::run)?;
    Ok(report.is_sound())
}

/// Opens and locks an existing directory.
fn open(directory: &Path) -> Result<(DirectoryLock, Arc<dyn Disk>), Failure> {
    if !directory.is_dir() {
        return Err(at_fault(directory, &"not a directory"));
    }
    let lock = DirectoryLock::take(directory).map_err(|error| at_fault(directory, &error))?;
    let disk = RealDisk::new(directory).map_err(|error| at_fault(directory, &error))?;
    Ok((lock, Arc::new(disk)))
}

fn at_fault(directory: &Path, error: &dyn fmt::Display) -> Failure {
    Failure::Run(format!("{}: {error}", directory.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use store::journal::{Entry, JournalSettings, QueueId};
    use store::{Rounds, Store};

    use super::*;

    /// A data directory with three messages in two groups.
    fn filled() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::new(RealDisk::new(directory.path()).unwrap());
        let settings = JournalSettings { segment_size: 64 << 10, ..JournalSettings::default() };
        let (store, mut rounds, _): (_, Rounds, _) = Store::open(disk, settings).unwrap();
        let queue = store.queue(QueueId(1));
        for position in 0..3 {
            let message = store.append(&[b"a message to be damaged"]).message;
            queue.enqueue(&[Entry { position, message, expires: 0, last: true }]);
            rounds.step();
        }
        directory
    }

    fn text(outcome: Result<bool, Failure>, output: Vec<u8>) -> (bool, String) {
        let Ok(sound) = outcome else { panic!("not checked") };
        (sound, String::from_utf8(output).unwrap())
    }

    fn checked(directory: &Path) -> (bool, String) {
        let mut output = Vec::new();
        let outcome = check(directory, &mut output);
        text(outcome, output)
    }

    #[test]
    fn a_sound_store_is_reported_in_a_few_lines_and_left_unchanged() {
        let directory = filled();
        let (sound, report) = checked(directory.path());
        assert!(sound, "{report}");
        assert!(report.contains("journal: 6 records") && report.ends_with("no damage found\n"), "{report}");
        assert_eq!(checked(directory.path()), (true, report));
    }

    #[test]
    fn damage_is_named_and_repaired() {
        let directory = filled();
        let journal = directory.path().join("journal");
        let mut segments = fs::read_dir(journal).unwrap().map(|entry| entry.unwrap().path());
        let segment = segments.find(|path| path.extension().is_some_and(|kind| kind == "segment")).unwrap();
        let mut bytes = fs::read(&segment).unwrap();
        let at = bytes.windows(7).position(|window| window == b"message").unwrap();
        bytes[at] ^= 1;
        fs::write(&segment, bytes).unwrap();
        let (sound, report) = checked(directory.path());
        assert!(!sound);
        assert!(
            report.contains("DAMAGED journal: journal/") && report.ends_with("1 damaged place\n"),
            "{report}"
        );
        let mut output = Vec::new();
        let outcome = repair(directory.path(), &mut output);
        let (sound, report) = text(outcome, output);
        assert!(sound && report.starts_with("journal: discarded journal/"), "{report}");
        assert!(checked(directory.path()).0);
    }

    #[test]
    fn a_directory_in_use_or_missing_is_not_touched() {
        let directory = filled();
        let _lock = DirectoryLock::take(directory.path()).unwrap();
        let refused = |path: &Path| match check(path, &mut Vec::new()) {
            Err(Failure::Run(line)) => line,
            _ => panic!("not refused"),
        };
        assert!(refused(directory.path()).contains("in use by process"));
        let missing = directory.path().join("missing");
        assert!(refused(&missing).ends_with("not a directory"));
        assert!(!missing.exists());
    }
}
