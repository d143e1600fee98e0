//! Where keys come from, and when they are read again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::error::KeySetError;
use crate::keys::{KeyOrigin, KeySet};
use crate::service::ServiceClient;

/// Bytes of a set of keys: a certificate chain with each of 100 keys takes no more.
const MAX_BYTES: usize = 1 << 20;

/// Time between two requests for keys, so that tokens with invented key identifiers load nobody.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

/// Age of keys from a service from which a token waits until they have been requested again, so that one that the service
/// has withdrawn does not stay.
const MAX_AGE: Duration = Duration::from_mins(10);

/// Age of keys from a service at which the next token has them requested again in the background, so that tokens which come
/// often wait for nobody.
const RENEWAL_AGE: Duration = Duration::from_mins(5);

/// When keys are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyTimes {
    /// Time between two reads.
    pub(crate) interval: Duration,
    /// Age at which they are read in the background.
    pub(crate) renewal_age: Duration,
    /// Age from which tokens wait for them to be read.
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

/// A set of keys, read when they are needed.
pub(crate) struct CachedKeys {
    source: KeySource,
    times: KeyTimes,
    /// Empty until they have been read once.
    current: ArcSwap<KeySet>,
    reading: tokio::sync::Mutex<()>,
    reads: Mutex<Reads>,
}

/// The history of reading.
#[derive(Default)]
struct Reads {
    /// Number of attempts that have ended.
    done: u64,
    /// The end of the last attempt.
    last: Option<Instant>,
    /// The end of the last attempt that has found keys: they are as old as that.
    last_success: Option<Instant>,
    /// A task in the background is about to read, or does.
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
    /// Reads a file at once, and a service when the first token comes: it may start after this server.
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

    /// Reads a file again; a service is asked again when a token needs it.
    ///
    /// # Errors
    /// The file cannot be used, and the keys stay as they were.
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

    /// Whether reading them again may be worth it now.
    pub(crate) fn may_read(&self, now: Instant) -> bool {
        let last = self.reads.lock().last;
        last.is_none_or(|last| now.saturating_duration_since(last) >= self.times.interval)
    }

    /// Reads them, unless that has been done since `seen` reads, or too lately. A failure is logged, and the keys then stay
    /// as they were.
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

    /// Whether the keys of a service are so old that they are not to be relied on unless the service does not answer.
    pub(crate) fn are_outdated(&self, now: Instant) -> bool {
        self.are_older_than(self.times.max_age, self.reads.lock().last_success, now)
    }

    fn are_older_than(&self, age: Duration, read_at: Option<Instant>, now: Instant) -> bool {
        matches!(self.source, KeySource::Service(_))
            && read_at.is_some_and(|read_at| now.saturating_duration_since(read_at) >= age)
    }

    /// Starts to read the keys of a service again in the background once they are old.
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

/// A task that reads keys in the background. However it ends, another one may then begin.
struct Renewal(Arc<CachedKeys>);

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.reads.lock().renewing = false;
    }
}
