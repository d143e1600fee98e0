//! Signals: the first SIGTERM or SIGINT asks for a drain, the second leaves at once; SIGHUP
//! asks for files to be read again. A drain may be asked for from within, too, which is no signal: whoever runs this
//! process sends its first one later.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};

/// The exit code of a process that was told to leave before its drain was over.
const LEFT_AT_ONCE: i32 = 1;

/// Whether the process was asked to drain. Clones see the same request.
#[derive(Debug, Clone)]
pub(crate) struct DrainRequest(watch::Receiver<bool>);

/// Whether a signal has asked for the drain: then a successor may be waiting for the process's addresses.
#[derive(Debug)]
pub(crate) struct Signalled(watch::Receiver<bool>);

impl Signalled {
    /// Returns when a signal has asked, or at once if one has.
    pub(crate) async fn wait(&mut self) {
        if self.0.wait_for(|signalled| *signalled).await.is_err() {
            // The task that watches the signals is gone, and none will ask.
            std::future::pending().await
        }
    }
}

/// Asks for a drain from within the process.
#[derive(Debug, Clone)]
pub(crate) struct Drainer(Arc<watch::Sender<bool>>);

impl Drainer {
    /// Asks for it; once is enough.
    pub(crate) fn ask(&self) {
        self.0.send_replace(true);
    }
}

/// Requests to read files again; several that come close together are one.
#[derive(Debug)]
pub(crate) struct ReloadRequests(Arc<Notify>);

impl ReloadRequests {
    /// Returns at the next request.
    pub(crate) async fn next(&self) {
        self.0.notified().await;
    }
}

/// Catches the signals from now on; the default of each would have ended the process.
///
/// # Errors
///
/// A handler could not be installed.
pub(crate) fn catch() -> io::Result<Caught> {
    let reload = Arc::new(Notify::new());
    let (signal_sender, signalled) = watch::channel(false);
    let signals = Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
        hang_up: signal(SignalKind::hangup())?,
        reload: Arc::clone(&reload),
        signalled: signal_sender,
    };
    let (request, requested) = watch::channel(false);
    let drainer = Drainer(Arc::new(request));
    tokio::spawn(signals.watch(drainer.clone()));
    Ok(Caught {
        drain: DrainRequest(requested),
        signalled: Signalled(signalled),
        drainer,
        reload: ReloadRequests(reload),
    })
}

/// What signals lead to.
pub(crate) struct Caught {
    pub(crate) drain: DrainRequest,
    pub(crate) signalled: Signalled,
    pub(crate) drainer: Drainer,
    pub(crate) reload: ReloadRequests,
}

impl DrainRequest {
    /// Returns when a drain is asked for, or at once if it was.
    pub(crate) async fn wait(&mut self) {
        // An error means the task that watches the signals is gone; then none can arrive and draining is the safe answer.
        let _ = self.0.wait_for(|requested| *requested).await;
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    reload: Arc<Notify>,
    signalled: watch::Sender<bool>,
}

impl Signals {
    async fn watch(mut self, drainer: Drainer) {
        let name = self.next().await;
        tracing::info!(signal = name, "draining; a second signal leaves at once");
        self.signalled.send_replace(true);
        drainer.ask();
        let name = self.next().await;
        tracing::warn!(signal = name, "leaving at once");
        std::process::exit(LEFT_AT_ONCE);
    }

    /// The next signal that asks the process to end.
    async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => self.reload.notify_one(),
            }
        }
    }
}
