//! Metrics of the embedded broker's store, and whether its disk fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use admin::{MetricKind, MetricsWriter};
use broker::Store;

/// Explains to an operator why durable operations make no progress; `None` while they do.
pub(super) fn impairment(store: &Store) -> Option<String> {
    let failing = store.failing()?;
    let seconds = failing.since.elapsed().unwrap_or_default().as_secs();
    let cause = if failing.full { "no room" } else { "an error" };
    Some(format!("disk writes failing for {seconds} s ({cause})"))
}

pub(super) fn write(store: &Store, out: &mut MetricsWriter) {
    let failing = store.failing();
    let because = |full| u64::from(failing.as_ref().is_some_and(|failing| failing.full == full));
    let help = "Whether the data folder cannot be written for this cause: nothing persistent is confirmed meanwhile.";
    out.family("leveret_store_failing", help, MetricKind::Gauge)
        .sample(&[("cause", "full")], because(true))
        .sample(&[("cause", "error")], because(false));
    let since = failing.and_then(|failing| failing.since.duration_since(UNIX_EPOCH).ok());
    let help = "Since when that is so, in seconds since 1970; 0 while all is well.";
    out.gauge("leveret_store_failing_since_seconds", help, since.map_or(0, |since| since.as_secs()));
    let journal = store.journal();
    let figures = journal.figures();
    let count = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    for (name, help, figure) in [
        ("leveret_store_failures_total", "Attempts to write or sync that failed.", &figures.failures),
        ("leveret_store_syncs_total", "Groups of records written and synced.", &figures.rounds),
        ("leveret_store_journal_bytes_total", "Bytes written to the journal.", &figures.bytes),
        (
            "leveret_store_unreadable_messages_total",
            "Messages whose records were found damaged, and that are given up on disk.",
            &figures.unreadable,
        ),
    ] {
        out.counter(name, help, count(figure));
    }
    let help = "Transactions that wrote declarations, deletions and other changes of definitions.";
    out.counter("leveret_store_definition_commits_total", help, store.catalogue().commits());
    let pending = journal.pending_bytes() as u64;
    out.gauge("leveret_store_pending_bytes", "Bytes that wait to be written to the journal.", pending);
    let segments = journal.segments().len() as u64;
    out.gauge("leveret_store_journal_segments", "Segments of the journal that are still needed.", segments);
}
