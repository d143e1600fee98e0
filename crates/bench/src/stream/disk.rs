//! The best rate that a disk allows a synchronous writer: a plain loop writes and syncs messages one after
//! the other, into space that the file has already.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread;

use super::arguments::DISK;
use super::producer::Produced;
use super::round::{Progress, coordinate, guarded, result};
use super::shared::RoundState;
use super::workload::{Length, Workload};
use crate::error::ClientError;
use crate::report::{Round, StreamSystem};
use crate::watched::Watched;

/// A report without rounds.
pub(super) fn report(directory: &Path) -> StreamSystem {
    StreamSystem {
        name: DISK.to_owned(),
        uri: directory.display().to_string(),
        server: "write and fdatasync, one by one".to_owned(),
        pids: Vec::new(),
        rounds: Vec::new(),
        summary: Vec::new(),
    }
}

/// Runs one round in `directory`; each sync counts as a confirm.
pub(super) fn run(
    directory: &Path,
    workload: &Workload,
    watch: &mut dyn FnMut(Progress),
) -> Result<Round, ClientError> {
    let workload = Workload { producers: 1, consumers: 0, confirms: 1, rate: None, ..workload.clone() };
    let path = directory.join(format!("leveret-bench-{}", std::process::id()));
    let failed = ClientError::io("preparing a file");
    let file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
    let (shared, no_processes) = (RoundState::new(0, 0), Watched::default());
    if let Length::Messages(_) = workload.length {
        shared.measure_from.store(0, SeqCst);
    }
    let outcome = thread::scope(|scope| {
        fill(&file).map_err(ClientError::io("preparing a file"))?;
        shared.begin();
        let writing = scope.spawn(|| guarded(&shared, || write(&file, &workload, &shared)));
        let mut window = coordinate(&no_processes, &workload, &shared, watch, || writing.is_finished());
        let produced = writing.join().map_err(|_| ClientError::Panicked("disk"))?;
        let end = window.end.take().unwrap_or_else(|| window.sampler.snapshot_at_end(&shared));
        match (produced, shared.take_failure()) {
            (Some(produced), None) => Ok(result(&workload, &shared, &window, &end, (&[produced], &[]))),
            (_, failure) => Err(failure.unwrap_or(ClientError::Panicked("disk"))),
        }
    });
    // A failure to remove the file does not invalidate the measurement.
    let _ = std::fs::remove_file(&path);
    outcome
}

/// Allocates the file's space, so that a sync has to write nothing but data.
fn fill(file: &File) -> std::io::Result<()> {
    let zeros = vec![0; FILL_STEP as usize];
    for at in (0..FILE_SIZE).step_by(FILL_STEP as usize) {
        file.write_all_at(&zeros, at)?;
    }
    file.sync_all()
}

fn write(file: &File, workload: &Workload, shared: &RoundState) -> Result<Produced, ClientError> {
    let body = vec![b'x'; workload.size];
    let capacity = (FILE_SIZE / workload.size.max(1) as u64).max(1);
    let mut produced = Produced::default();
    while !shared.stop_publishing.load(Relaxed) && workload.length != Length::Messages(produced.published) {
        let begin = shared.now();
        let at = produced.published % capacity * workload.size as u64;
        file.write_all_at(&body, at).and_then(|()| file.sync_data()).map_err(ClientError::io("syncing"))?;
        let now = shared.now();
        if shared.measures(begin) {
            produced.confirm_latencies.record(now - begin);
        }
        produced.published += 1;
        shared.published.fetch_add(1, Relaxed);
        shared.confirmed.fetch_add(1, Relaxed);
        shared.last_publish.fetch_max(now, Relaxed);
        shared.last_confirm.fetch_max(now, Relaxed);
    }
    Ok(produced)
}

/// The size of a segment of Leveret's journal; it is written over and over.
const FILE_SIZE: u64 = 64 << 20;
/// Bytes of each write that fills the file.
const FILL_STEP: u64 = 1 << 20;
