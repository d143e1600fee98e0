//! When the predecessor is asked to go: as late as a start allows.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use server::{Backend, Server};
use transport::Inherited;

use super::{Predecessor, clients};
use crate::config::Config;
use crate::definitions;
use crate::serve::ServeError;
use crate::signals::DrainRequest;

/// The start of a process that may take the place of another.
pub(crate) struct Succession {
    /// The process that still runs.
    predecessor: Option<Predecessor>,
    /// Whether there was one, which has left.
    has_replaced: bool,
}

impl Succession {
    /// Finds the process whose place this one is to take, if it is to take one. If that has to end before this one can start,
    /// it has ended on return. Returns `None` if it has, and this process is to end, too.
    ///
    /// # Errors
    ///
    /// It does not answer, or a signal has come; or there is a mistake that a start would find when nobody serves any more.
    pub(crate) async fn begin(
        config: &Config,
        inherited: &Inherited,
        drain: &DrainRequest,
    ) -> Result<Option<Self>, ServeError> {
        let predecessor = Predecessor::find(config, inherited).map_err(ServeError::TakeOver)?;
        if config.take_over.0 && drain.is_made() {
            // Also if there is no predecessor any more: a signal that has ended it was for both.
            return Err(ServeError::Interrupted);
        }
        let mut begun = Self { predecessor, has_replaced: false };
        if let Some(predecessor) =
            begun.predecessor.as_mut().filter(|predecessor| predecessor.must_end_first())
        {
            check_definitions(config, predecessor, drain).await?;
            // Its clients connect again.
            begun.replace(drain).await?;
            if drain.is_made() {
                tracing::info!("take_over: interrupted: this process ends as well");
                return Ok(None);
            }
        }
        Ok(Some(begun))
    }

    /// Asks the predecessor, if there is one left, to go, now that this process can serve; not if that cannot reach its
    /// upstream. `server` then continues with those of its clients that can.
    ///
    /// # Errors
    ///
    /// The predecessor continues.
    pub(crate) async fn complete(
        &mut self,
        backend: &Backend,
        server: &Server,
        drain: &DrainRequest,
    ) -> Result<(), ServeError> {
        if let Backend::Upstream(pool) = backend
            && self.predecessor.is_some()
        {
            let mut drain = drain.clone();
            let is_reachable = tokio::select! {
                is_reachable = pool.check() => is_reachable,
                _ = drain.wait() => return Err(ServeError::Interrupted),
            };
            if !is_reachable {
                return Err(ServeError::NotReady);
            }
        }
        if let Some(stream) = self.replace(drain).await? {
            clients::take_over(stream, server);
        }
        Ok(())
    }

    /// Whether another process has left its place to this one.
    pub(crate) fn has_replaced(&self) -> bool {
        self.has_replaced
    }

    async fn replace(&mut self, drain: &DrainRequest) -> Result<Option<UnixStream>, ServeError> {
        let Some(predecessor) = self.predecessor.take() else { return Ok(None) };
        if drain.is_made() {
            return Err(ServeError::Interrupted);
        }
        let stream = predecessor.replace().await.map_err(ServeError::TakeOver)?;
        self.has_replaced = true;
        Ok(stream)
    }
}

/// Checks the definitions that this process will load, beside those of its predecessor. A signal ends the wait for the list of
/// these.
async fn check_definitions(
    config: &Config,
    predecessor: &mut Predecessor,
    drain: &DrainRequest,
) -> Result<(), ServeError> {
    let connection = predecessor.connection().map_err(ServeError::TakeOver)?;
    let mut requested = drain.clone();
    let interrupting = tokio::spawn(async move {
        requested.wait().await;
        // The answer that is waited for is now the end of the connection.
        let _ = connection.shutdown(Shutdown::Both);
    });
    let checked = definitions::check(config, |only_if_untouched| predecessor.existing(only_if_untouched));
    interrupting.abort();
    let _ = interrupting.await;
    if drain.is_made() { Err(ServeError::Interrupted) } else { checked }
}
