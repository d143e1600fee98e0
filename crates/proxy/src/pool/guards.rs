//! Guards that release something on drop.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Pool;

/// Keeps [`Pool::drain`] waiting until a client's leftovers are handed over.
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
