//! `leveret ctl store`: verifies a data folder, and discards damaged parts of it.

use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use store::FolderLock;
use store::disk::{Disk, RealDisk};

use crate::Failure;

/// Actions on a data folder.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Read everything and verify it, changing nothing; exit code 1 when something is damaged
    Check(Folder),
    /// Discard damaged data, and nothing else, so that a broker starts again
    Repair(Folder),
}

/// Which one.
#[derive(Debug, Args)]
pub(crate) struct Folder {
    /// The data directory
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

pub(super) fn run(command: &StoreCommand) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    let sound = match command {
        StoreCommand::Check(Folder { data_dir }) => check(data_dir, &mut output),
        StoreCommand::Repair(Folder { data_dir }) => repair(data_dir, &mut output),
    };
    output.flush().map_err(Failure::run)?;
    match sound? {
        true => Ok(()),
        false => Err(Failure::Run("the data directory is damaged".to_owned())),
    }
}

fn check(folder: &Path, output: &mut impl io::Write) -> Result<bool, Failure> {
    let (_lock, disk) = open(folder)?;
    report(folder, &disk, output)
}

fn repair(folder: &Path, output: &mut impl io::Write) -> Result<bool, Failure> {
    let (_lock, disk) = open(folder)?;
    let done = store::repair(&disk).map_err(|error| at_fault(folder, &error))?;
    for line in &done {
        writeln!(output, "{line}").map_err(Failure::run)?;
    }
    report(folder, &disk, output)
}

fn report(folder: &Path, disk: &Arc<dyn Disk>, output: &mut impl io::Write) -> Result<bool, Failure> {
    let report = store::check(disk).map_err(|error| at_fault(folder, &error))?;
    write!(output, "{report}").map_err(Failure::run)?;
    Ok(report.is_sound())
}

/// Opens and locks an existing folder.
fn open(folder: &Path) -> Result<(FolderLock, Arc<dyn Disk>), Failure> {
    if !folder.is_dir() {
        return Err(at_fault(folder, &"not a directory"));
    }
    let lock = FolderLock::take(folder).map_err(|error| at_fault(folder, &error))?;
    let disk = RealDisk::new(folder).map_err(|error| at_fault(folder, &error))?;
    Ok((lock, Arc::new(disk)))
}

fn at_fault(folder: &Path, error: &dyn fmt::Display) -> Failure {
    Failure::Run(format!("{}: {error}", folder.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use store::journal::{Entry, JournalSettings, QueueId};
    use store::{Rounds, Store};

    use super::*;

    /// A data folder with three messages in two groups.
    fn filled() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(RealDisk::new(folder.path()).unwrap());
        let settings = JournalSettings { segment_size: 64 << 10, ..JournalSettings::default() };
        let (store, mut rounds, _): (_, Rounds, _) = Store::open(disk, settings).unwrap();
        let queue = store.queue(QueueId(1));
        for position in 0..3 {
            let message = store.append(&[b"a message to be damaged"]).message;
            queue.enqueue(&[Entry { position, message, expires: 0, last: true }]);
            rounds.step();
        }
        folder
    }

    fn text(outcome: Result<bool, Failure>, output: Vec<u8>) -> (bool, String) {
        let Ok(sound) = outcome else { panic!("not checked") };
        (sound, String::from_utf8(output).unwrap())
    }

    fn checked(folder: &Path) -> (bool, String) {
        let mut output = Vec::new();
        let outcome = check(folder, &mut output);
        text(outcome, output)
    }

    #[test]
    fn a_sound_folder_is_told_in_a_few_lines_and_left_as_it_is() {
        let folder = filled();
        let (sound, report) = checked(folder.path());
        assert!(sound, "{report}");
        assert!(report.contains("journal: 6 records") && report.ends_with("all is well\n"), "{report}");
        assert_eq!(checked(folder.path()), (true, report));
    }

    #[test]
    fn damage_is_named_and_repaired() {
        let folder = filled();
        let journal = folder.path().join("journal");
        let mut segments = fs::read_dir(journal).unwrap().map(|entry| entry.unwrap().path());
        let segment = segments.find(|path| path.extension().is_some_and(|kind| kind == "segment")).unwrap();
        let mut bytes = fs::read(&segment).unwrap();
        let at = bytes.windows(7).position(|window| window == b"message").unwrap();
        bytes[at] ^= 1;
        fs::write(&segment, bytes).unwrap();
        let (sound, report) = checked(folder.path());
        assert!(!sound);
        assert!(
            report.contains("DAMAGED journal: journal/") && report.ends_with("damaged places: 1\n"),
            "{report}"
        );
        let mut output = Vec::new();
        let outcome = repair(folder.path(), &mut output);
        let (sound, report) = text(outcome, output);
        assert!(sound && report.starts_with("journal: gave up journal/"), "{report}");
        assert!(checked(folder.path()).0);
    }

    #[test]
    fn a_folder_in_use_or_missing_is_not_touched() {
        let folder = filled();
        let _lock = FolderLock::take(folder.path()).unwrap();
        let refused = |path: &Path| match check(path, &mut Vec::new()) {
            Err(Failure::Run(line)) => line,
            _ => panic!("not refused"),
        };
        assert!(refused(folder.path()).contains("in use by process"));
        let missing = folder.path().join("missing");
        assert!(refused(&missing).ends_with("not a directory"));
        assert!(!missing.exists());
    }
}
