//! Where keys come from, and when they are read again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use crate::error::KeySetError;
use crate::keys::{KeyOrigin, KeySet};
use crate::service::ServiceClient;

/// Bytes of a set of keys: a certificate chain with each of 100 keys takes no more.
const MAX_BYTES: usize = 1 << 20;

/// Time between two requests for keys, so that tokens with invented key identifiers load nobody.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

/// Age of keys from a service at which they are requested again, in the background, so that one that the service has
/// withdrawn does not stay.
const MAX_AGE: Duration = Duration::from_mins(10);

/// The source of a set of keys.
pub enum KeySource {
    /// A file, which is read again on request.
    File(PathBuf),
    /// A service, whose keys are cached.
    Service(ServiceClient),
}

/// A set of keys, read when they are needed.
pub(crate) struct CachedKeys {
    source: KeySource,
    /// Time between two reads.
    interval: Duration,
    /// `None` until they have been read once.
    current: ArcSwapOption<KeySet>,
    reading: tokio::sync::Mutex<()>,
    reads: Mutex<Reads>,
}

/// The history of reading.
#[derive(Default)]
struct Reads {
    /// Number of attempts that have ended.
    done: u64,
    last: Option<Instant>,
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
        Self::with_interval(source, MIN_INTERVAL)
    }

    pub(crate) fn with_interval(source: KeySource, interval: Duration) -> Result<Self, KeySetError> {
        let current = match &source {
            KeySource::File(path) => Some(Arc::new(read_file(path.clone())?)),
            KeySource::Service(_) => None,
        };
        Ok(Self {
            source,
            interval,
            current: ArcSwapOption::new(current),
            reading: tokio::sync::Mutex::default(),
            reads: Mutex::default(),
        })
    }

    /// The keys that have been read last.
    pub(crate) fn current(&self) -> Option<Arc<KeySet>> {
        self.current.load_full()
    }

    /// Reads a file again; a service is asked anew when a token needs it.
    ///
    /// # Errors
    /// The file cannot be used, and the keys stay as they were.
    pub(crate) fn reload(&self) -> Result<(), KeySetError> {
        if let KeySource::File(path) = &self.source {
            self.current.store(Some(Arc::new(read_file(path.clone())?)));
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
        last.is_none_or(|last| now.saturating_duration_since(last) >= self.interval)
    }

    /// Reads them, unless that has been done since `seen` reads, or too lately. A failure is logged, and the keys then stay
    /// as they were.
    pub(crate) async fn read_after(&self, seen: u64) {
        let _turn = self.reading.lock().await;
        if self.reads() != seen || !self.may_read(Instant::now()) {
            return;
        }
        match self.source.read().await {
            Ok(keys) => self.current.store(Some(Arc::new(keys))),
            Err(error) => tracing::warn!(%error, "keys that verify tokens could not be read (oauth2_jwks)"),
        }
        let mut reads = self.reads.lock();
        reads.done += 1;
        reads.last = Some(Instant::now());
    }

    /// Starts to read the keys of a service again in the background once they are old.
    pub(crate) fn renew_old(self: &Arc<Self>, now: Instant) {
        if matches!(self.source, KeySource::File(_)) {
            return;
        }
        let mut reads = self.reads.lock();
        let is_old = reads.last.is_some_and(|last| now.saturating_duration_since(last) >= MAX_AGE);
        if !is_old || std::mem::replace(&mut reads.renewing, true) {
            return;
        }
        let (this, seen) = (Arc::clone(self), reads.done);
        tokio::spawn(async move {
            this.read_after(seen).await;
            this.reads.lock().renewing = false;
        });
    }
}
