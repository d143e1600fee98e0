//! Work in the background. Sessions, and all else that is sans-IO, hand it over here: nothing else in this
//! crate starts a task.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::link::{ClientLink, Event};

/// Runs `work` as a task of the present runtime. Without one, as in a test that calls a session by itself, the work is
/// not done: returns `None`.
pub(crate) fn run(work: impl Future<Output = ()> + Send + 'static) -> Option<JoinHandle<()>> {
    Handle::try_current().ok().map(|runtime| runtime.spawn(work))
}

/// Sends [`Event::Retry`] to a session after a pause.
pub(crate) fn remind(link: &Arc<ClientLink>, pause: Duration) {
    let link = Arc::downgrade(link);
    run(async move {
        tokio::time::sleep(pause).await;
        if let Some(link) = link.upgrade() {
            link.notify(Event::Retry);
        }
    });
}
