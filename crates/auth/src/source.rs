//! The sources of keys, and when they are read again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::error::KeySetError;
use crate::keys::{KeyOrigin, KeySet};
use crate::service::ServiceClient;

/// The most bytes of a set of keys: enough for 100 keys with a certificate chain each.
const MAX_BYTES: usize = 1 << 20;

/// Interval between two requests for keys, so that tokens with invented key identifiers cause no load.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

/// Age of a service's keys at which tokens wait for a new request, so that a withdrawn key does not stay in use.
const MAX_AGE: Duration = Duration::from_mins(10);

/// Age of a service's keys at which the next token triggers a request in the background, so that frequent tokens need not
/// wait.
const RENEWAL_AGE: Duration = Duration::from_mins(5);

/// Intervals and ages for reading keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyTimes {
    /// Time between two reads.
    pub(crate) interval: Duration,
    /// Age at which they are read in the background.
    pub(crate) renewal_age: Duration,
    /// Age at which tokens wait for them to be read again.
    pub(crate) max_age: Duration,
}

impl Default for KeyTimes {
    fn default() -> Self {
        Self { interval: MIN_INTERVAL, renewal_age: RENEWAL_AGE, max_age: MAX_AGE }
    }
}

/// The source of a set of keys.
pub enum KeySource {
    /// A file, which is read again on request.
    File(PathBuf),
    /// A service, whose keys are cached.
    Service(Box<ServiceClient>),
}

/// A set of keys, read on demand.
pub(crate) struct CachedKeys {
    source: KeySource,
    times: KeyTimes,
    /// Empty until the first successful read.
    current: ArcSwap<KeySet>,
    reading: tokio::sync::Mutex<()>,
    reads: Mutex<Reads>,
}

/// The history of reading.
#[derive(Default)]
struct Reads {
    /// Number of attempts that have ended.
    done: u64,
    /// When the last attempt ended.
    last: Option<Instant>,
    /// When the last successful attempt ended, from which the keys' age counts.
    last_success: Option<Instant>,
    /// A background task is about to read the keys, or does so.
    renewing: bool,
}

impl KeySource {
    async fn read(&self) -> Result<KeySet, KeySetError> {
        match self {
            Self::File(path) => {
                let path = path.clone();
                let reading = tokio::task::spawn_blocking(move || read_file(path));
                reading.await.unwrap_or(Err(KeySetError::NoKeys))
            }
            Self::Service(client) => {
                let body = client.get(MAX_BYTES).await?;
                KeySet::parse(&body, KeyOrigin::Network)
            }
        }
    }
}

fn read_file(path: PathBuf) -> Result<KeySet, KeySetError> {
    let size = std::fs::metadata(&path).map(|metadata| metadata.len());
    let json = match size {
        Ok(size) if size > MAX_BYTES as u64 => return Err(KeySetError::TooLarge(MAX_BYTES)),
        Ok(_) => std::fs::read(&path),
        Err(error) => Err(error),
    };
    KeySet::parse(&json.map_err(|error| KeySetError::File { path, error })?, KeyOrigin::File)
}

impl CachedKeys {
    /// Reads a file at once, but a service only for the first token: it may start after this server.
    ///
    /// # Errors
    /// The file cannot be used.
    pub(crate) fn new(source: KeySource) -> Result<Self, KeySetError> {
        Self::with_times(source, KeyTimes::default())
    }

    pub(crate) fn with_times(source: KeySource, times: KeyTimes) -> Result<Self, KeySetError> {
        let current = match &source {
            KeySource::File(path) => read_file(path.clone())?,
            KeySource::Service(_) => KeySet::empty(KeyOrigin::Network),
        };
        Ok(Self {
            source,
            times,
            current: ArcSwap::from_pointee(current),
            reading: tokio::sync::Mutex::default(),
            reads: Mutex::default(),
        })
    }

    /// The keys that have been read last.
    pub(crate) fn current(&self) -> Arc<KeySet> {
        self.current.load_full()
    }

    /// Reads a file again; a service is queried again when a token needs it.
    ///
    /// # Errors
    /// The file cannot be used; the keys are unchanged then.
    pub(crate) fn reload(&self) -> Result<(), KeySetError> {
        if let KeySource::File(path) = &self.source {
            self.current.store(Arc::new(read_file(path.clone())?));
        }
        Ok(())
    }

    /// Number of reads so far, for [`Self::read_after`].
    pub(crate) fn reads(&self) -> u64 {
        self.reads.lock().done
    }

    /// Whether enough time has passed to read them again.
    pub(crate) fn may_read(&self, now: Instant) -> bool {
        let last = self.reads.lock().last;
        last.is_none_or(|last| now.saturating_duration_since(last) >= self.times.interval)
    }

    /// Reads them, unless that happened after read number `seen`, or too recently. A failure is logged and leaves the keys
    /// unchanged.
    pub(crate) async fn read_after(&self, seen: u64) {
        let _turn = self.reading.lock().await;
        if self.reads() != seen || !self.may_read(Instant::now()) {
            return;
        }
        let keys = self.source.read().await;
        let mut reads = self.reads.lock();
        reads.done += 1;
        reads.last = Some(Instant::now());
        match keys {
            Ok(keys) => {
                reads.last_success = reads.last;
                self.current.store(Arc::new(keys));
            }
            Err(error) => tracing::warn!(%error, "cannot load token verification keys (oauth2_jwks)"),
        }
    }

    /// Whether a service's keys are so old that they may be used only if the service does not answer.
    pub(crate) fn are_outdated(&self, now: Instant) -> bool {
        self.are_older_than(self.times.max_age, self.reads.lock().last_success, now)
    }

    fn are_older_than(&self, age: Duration, read_at: Option<Instant>, now: Instant) -> bool {
        matches!(self.source, KeySource::Service(_))
            && read_at.is_some_and(|read_at| now.saturating_duration_since(read_at) >= age)
    }

    /// Starts to read a service's keys in the background once they are old.
    pub(crate) fn renew_old(self: &Arc<Self>, now: Instant) {
        if !self.may_read(now) {
            return;
        }
        let mut reads = self.reads.lock();
        let are_old = self.are_older_than(self.times.renewal_age, reads.last_success, now);
        if !are_old || std::mem::replace(&mut reads.renewing, true) {
            return;
        }
        let (renewal, seen) = (Renewal(Arc::clone(self)), reads.done);
        drop(reads);
        tokio::spawn(async move { renewal.0.read_after(seen).await });
    }
}

/// A background task that reads keys. However it ends, it allows the next one to start.
struct Renewal(Arc<CachedKeys>);

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.reads.lock().renewing = false;
    }
}
