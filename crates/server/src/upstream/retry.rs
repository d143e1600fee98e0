//! Pauses before an upstream that has failed is tried again.

use std::time::Duration;

use sync::BackOff;

/// The pauses between attempts. The pool itself waits for an unresponsive upstream.
pub(crate) const RETRY: BackOff = BackOff::new(Duration::from_millis(100), Duration::from_secs(5));
