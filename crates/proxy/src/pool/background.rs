//! Work that goes on in the background. Sessions, and all else that is sans-IO, hand it over here: nothing else in this
//! crate starts a task.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Runs `work` as a task of the present runtime. Without one, as in a test that calls a session by itself, the work is
/// not done: returns `None`.
pub(crate) fn run(work: impl Future<Output = ()> + Send + 'static) -> Option<JoinHandle<()>> {
    Handle::try_current().ok().map(|runtime| runtime.spawn(work))
}
