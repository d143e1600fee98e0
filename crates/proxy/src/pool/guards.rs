//! What is given back when it is dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Pool;

/// One of [`crate::PoolConfig::max_connections`], given back when dropped.
#[derive(Debug)]
pub(super) struct Reserved(Option<Arc<Pool>>);

impl Reserved {
    /// The caller has counted it.
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self(Some(pool))
    }

    /// The connection exists now; [`Pool::remove`] will give the place back.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(pool) = &self.0 {
            pool.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Keeps [`Pool::drain`] waiting until what a client left behind is handed over.
#[derive(Debug)]
pub(crate) struct HandingOver(Arc<Pool>);

impl HandingOver {
    pub(crate) fn begin(pool: &Arc<Pool>) -> Self {
        pool.handing_over.fetch_add(1, Ordering::AcqRel);
        Self(pool.clone())
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.0
    }
}

impl Drop for HandingOver {
    fn drop(&mut self) {
        self.0.handing_over.fetch_sub(1, Ordering::AcqRel);
        self.0.removed.notify_waiters();
    }
}
