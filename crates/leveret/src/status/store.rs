//! Metrics of the store of the embedded broker or the spool, and whether its disk fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use admin::{MetricKind, MetricsWriter};
use broker::Store;

/// Explains to an operator why durable operations make no progress; `None` while they do.
pub(super) fn impairment(store: &Store) -> Option<String> {
    let failing = store.failing()?;
    let seconds = failing.since.elapsed().unwrap_or_default().as_secs();
    let cause = if failing.full { "disk full" } else { "an error" };
    Some(format!("disk writes failing for {seconds} s ({cause})"))
}

pub(super) fn write(store: &Store, out: &mut MetricsWriter) {
    let failing = store.failing();
    let because = |full| u64::from(failing.as_ref().is_some_and(|failing| failing.full == full));
    let help = "1 while writes to the data directory fail for this cause and nothing persistent is confirmed, else 0.";
    out.family("leveret_store_failing", help, MetricKind::Gauge)
        .sample(&[("cause", "full")], because(true))
        .sample(&[("cause", "error")], because(false));
    let since = failing.and_then(|failing| failing.since.duration_since(UNIX_EPOCH).ok());
    let help = "Time since when writes to the data directory fail, in seconds since the epoch; 0 while they succeed.";
    out.gauge("leveret_store_failing_since_seconds", help, since.map_or(0, |since| since.as_secs()));
    let journal = store.journal();
    let figures = journal.figures();
    let count = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    for (name, help, figure) in [
        ("leveret_store_failures_total", "Failed attempts to write or sync the journal.", &figures.failures),
        ("leveret_store_syncs_total", "Journal writes followed by a sync.", &figures.rounds),
        ("leveret_store_journal_bytes_total", "Bytes written to the journal.", &figures.bytes),
        (
            "leveret_store_unreadable_messages_total",
            "Messages discarded because their records on disk are damaged.",
            &figures.unreadable,
        ),
    ] {
        out.counter(name, help, count(figure));
    }
    let help = "Committed transactions of definitions, such as declarations and deletions.";
    out.counter("leveret_store_definition_commits_total", help, store.catalogue().commits());
    let pending = journal.pending_bytes() as u64;
    out.gauge("leveret_store_pending_bytes", "Bytes waiting to be written to the journal.", pending);
    let segments = journal.segments().len() as u64;
    out.gauge("leveret_store_journal_segments", "Journal segments in use.", segments);
}
