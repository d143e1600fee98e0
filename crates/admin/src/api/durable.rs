//! Waits for the disk, so that every change acknowledged by a response survives a crash.

use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{DiskPoint, Store, Waiter};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::Api;
use super::call::Reply;
use super::error::ApiError;

/// Returns once everything that a reply waits for is on disk, or fails after `DISK_TIMEOUT`.
pub(super) async fn wait(api: &Api, reply: &Reply) -> Result<(), ApiError> {
    let of_broker = || api.broker.as_ref().and_then(|broker| broker.store());
    let Some(store) = reply.store.as_ref().or_else(of_broker) else { return Ok(()) };
    let woken = Arc::new(Woken::default());
    tokio::time::timeout(DISK_TIMEOUT, wait_for(store, reply.until, &woken))
        .await
        .map_err(|_| ApiError::not_yet("the change is in effect but not on disk, and may be lost in a crash"))
}

async fn wait_for(store: &Store, until: DiskPoint, woken: &Arc<Woken>) {
    let waiter: Arc<dyn Waiter> = Arc::clone(woken) as _;
    loop {
        let missing = store.missing(until);
        if missing.is_empty() {
            return;
        }
        store.wait_for(missing, &waiter);
        woken.0.notified().await;
    }
}

#[derive(Default)]
struct Woken(Notify);

impl Waiter for Woken {
    fn wake(&self) {
        self.0.notify_one();
    }
}

/// A thread that waits until it is woken.
#[derive(Default)]
pub(super) struct Parked {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl Parked {
    /// Waits until woken or the deadline; returns whether it was woken.
    pub(super) fn wait(&self, deadline: Instant) -> bool {
        let mut is_woken = self.is_woken.lock();
        while !*is_woken {
            if self.changed.wait_until(&mut is_woken, deadline).timed_out() {
                break;
            }
        }
        std::mem::take(&mut *is_woken)
    }
}

impl Waiter for Parked {
    fn wake(&self) {
        *self.is_woken.lock() = true;
        self.changed.notify_one();
    }
}

/// Time for the disk to take a change. A write takes milliseconds, but a full disk may be freed in the
/// meantime.
const DISK_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_before_the_wait_is_not_lost() {
        let parked = Parked::default();
        parked.wake();
        assert!(parked.wait(Instant::now()));
        assert!(!parked.wait(Instant::now()), "once only");
    }
}
