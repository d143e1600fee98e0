//! Signals: the first SIGTERM or SIGINT requests a drain, the second ends the process at once; SIGHUP requests
//! that files are read again. A drain can also be requested from within the process, which does not count as a
//! signal: a later SIGTERM or SIGINT is then still the first.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};

/// The exit code of a process that a second signal ends before its drain is complete.
const LEFT_AT_ONCE: i32 = 1;

/// Whether a drain has been requested. Clones see the same request.
#[derive(Debug, Clone)]
pub(crate) struct DrainRequest(watch::Receiver<bool>);

/// Whether a signal has requested the drain: if so, a successor may be waiting for the process's addresses.
#[derive(Debug)]
pub(crate) struct Signalled(watch::Receiver<bool>);

impl Signalled {
    /// Waits until a signal requests the drain; returns at once if one already has.
    pub(crate) async fn wait(&mut self) {
        if self.0.wait_for(|signalled| *signalled).await.is_err() {
            // The task that watches the signals is gone, so none will arrive.
            std::future::pending().await
        }
    }
}

/// Requests a drain from within the process.
#[derive(Debug, Clone)]
pub(crate) struct Drainer(Arc<watch::Sender<bool>>);

impl Drainer {
    /// Requests the drain; further calls have no effect.
    pub(crate) fn ask(&self) {
        self.0.send_replace(true);
    }
}

/// Requests to read files again; several in quick succession count as one.
#[derive(Debug)]
pub(crate) struct ReloadRequests(Arc<Notify>);

impl ReloadRequests {
    /// Waits for the next request.
    pub(crate) async fn next(&self) {
        self.0.notified().await;
    }
}

/// Installs handlers for the signals, each of which would end the process by default.
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

/// The effects of the signals.
pub(crate) struct Caught {
    pub(crate) drain: DrainRequest,
    pub(crate) signalled: Signalled,
    pub(crate) drainer: Drainer,
    pub(crate) reload: ReloadRequests,
}

impl DrainRequest {
    /// Waits until a drain is requested; returns at once if it already has been.
    pub(crate) async fn wait(&mut self) {
        // An error means that the task that watches the signals is gone. None can then arrive, and draining is
        // the safe response.
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
        tracing::info!(signal = name, "shutting down; a second signal exits immediately");
        self.signalled.send_replace(true);
        drainer.ask();
        let name = self.next().await;
        tracing::warn!(signal = name, "exiting immediately");
        std::process::exit(LEFT_AT_ONCE);
    }

    /// Waits for the next signal that requests the process to end, and forwards SIGHUP in the meantime.
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
