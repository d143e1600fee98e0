//! Signals: the first SIGTERM or SIGINT requests a drain, the second ends the process at once; SIGHUP requests
//! that files are read again, SIGUSR2 an upgrade. A drain can also be requested from within the process, which does not
//! count as a signal: a later SIGTERM or SIGINT is then still the first.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};

use crate::logs::ProcessLog;

/// The exit code of a process that a second signal ends before its drain is complete.
const LEFT_AT_ONCE: i32 = 1;

/// Maximum time to write the last line.
const LAST_LINE_TIMEOUT: Duration = Duration::from_millis(100);

/// Why the process drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainReason {
    /// A signal or an operator has requested it.
    Asked,
    /// Everything except what clients hold has moved to another broker. A successor takes over once that has moved as well.
    CutOver,
    /// A successor has taken over; with `at_once` it waits for this process to exit.
    TakenOver { at_once: bool },
}

/// Whether a drain has been requested. Clones see the same request.
#[derive(Debug, Clone)]
pub(crate) struct DrainRequest(watch::Receiver<Option<DrainReason>>);

/// Whether a signal, or a successor, has requested the drain: if so, another process may be waiting for the addresses.
#[derive(Debug)]
pub(crate) struct AddressesWanted(watch::Receiver<bool>);

impl AddressesWanted {
    /// Waits for such a request; returns at once if there has been one.
    pub(crate) async fn wait(&mut self) {
        if self.0.wait_for(|wanted| *wanted).await.is_err() {
            // The task that watches the signals is gone, so none will arrive.
            std::future::pending().await
        }
    }
}

/// Requests a drain from within the process. The first request counts, until a successor makes one.
#[derive(Debug, Clone)]
pub(crate) struct Drainer {
    reason: Arc<watch::Sender<Option<DrainReason>>>,
    addresses_wanted: Arc<watch::Sender<bool>>,
}

impl Drainer {
    /// Requests the drain for an operator.
    pub(crate) fn ask(&self) {
        self.reason.send_if_modified(|reason| {
            let is_first = reason.is_none();
            reason.get_or_insert(DrainReason::Asked);
            is_first
        });
    }

    /// Requests the drain after which the rest moves to another broker, unless another has been requested.
    /// Returns whether it is.
    pub(crate) fn cut_over(&self) -> bool {
        self.reason.send_if_modified(|reason| {
            let is_first = reason.is_none();
            reason.get_or_insert(DrainReason::CutOver);
            is_first
        })
    }

    /// Requests the drain for a signal, also in the middle of a change to a pool, which is not completed then.
    fn interrupt(&self) {
        self.reason.send_if_modified(|reason| {
            let counts = matches!(reason, None | Some(DrainReason::CutOver));
            if counts {
                *reason = Some(DrainReason::Asked);
            }
            counts
        });
    }

    /// Requests the drain for a successor, which waits for the end if it is to be `at_once`.
    pub(crate) fn hand_over(&self, at_once: bool) {
        self.reason.send_replace(Some(DrainReason::TakenOver { at_once }));
        self.addresses_wanted.send_replace(true);
    }
}

/// Requests for something that a signal asks for; several in quick succession count as one.
#[derive(Debug)]
pub(crate) struct ActionRequests(Arc<Notify>);

impl ActionRequests {
    /// Waits for the next request.
    pub(crate) async fn next(&self) {
        self.0.notified().await;
    }
}

/// Installs handlers for the signals, each of which would end the process by default. `log` is written before a second one
/// does.
///
/// # Errors
///
/// A handler could not be installed.
pub(crate) fn catch(log: &ProcessLog) -> io::Result<Caught> {
    let (reload, upgrade) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (addresses_sender, addresses_wanted) = watch::channel(false);
    let (request, requested) = watch::channel(None);
    let drainer = Drainer { reason: Arc::new(request), addresses_wanted: Arc::new(addresses_sender) };
    let signals = Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
        hang_up: signal(SignalKind::hangup())?,
        upgrade_asked: signal(SignalKind::user_defined2())?,
        reload: Arc::clone(&reload),
        upgrade: Arc::clone(&upgrade),
    };
    tokio::spawn(signals.watch(drainer.clone(), log.clone()));
    Ok(Caught {
        drain: DrainRequest(requested),
        addresses_wanted: AddressesWanted(addresses_wanted),
        drainer,
        reload: ActionRequests(reload),
        upgrade: ActionRequests(upgrade),
    })
}

/// The effects of the signals.
pub(crate) struct Caught {
    pub(crate) drain: DrainRequest,
    pub(crate) addresses_wanted: AddressesWanted,
    pub(crate) drainer: Drainer,
    pub(crate) reload: ActionRequests,
    pub(crate) upgrade: ActionRequests,
}

impl DrainRequest {
    /// Waits until a drain is requested, and returns why; at once if it already has been.
    pub(crate) async fn wait(&mut self) -> DrainReason {
        // An error means that the task that watches the signals is gone. None can then arrive, and draining is
        // the safe response.
        self.0.wait_for(Option::is_some).await.ok().and_then(|reason| *reason).unwrap_or(DrainReason::Asked)
    }

    /// Whether a drain is requested.
    pub(crate) fn is_made(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Whether the change to a pool is over for this process: a successor has taken over, or a signal has come. Without such
    /// a change, whether a drain is requested.
    pub(crate) fn is_cut_over_done(&self) -> bool {
        is_cut_over_done(*self.0.borrow())
    }

    /// Waits for that.
    pub(crate) async fn cut_over_done(&mut self) {
        // An error means that the task that watches the signals is gone.
        let _ = self.0.wait_for(|reason| is_cut_over_done(*reason)).await;
    }

    /// Waits for as long as the `delay` of the drain, or until a successor has taken over.
    pub(crate) async fn delayed(&mut self, delay: Duration) {
        let taken_over = self.0.wait_for(|reason| matches!(reason, Some(DrainReason::TakenOver { .. })));
        // Either way, the delay is over.
        let _ = tokio::time::timeout(delay, taken_over).await;
    }
}

fn is_cut_over_done(reason: Option<DrainReason>) -> bool {
    matches!(reason, Some(DrainReason::TakenOver { .. } | DrainReason::Asked))
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    upgrade_asked: Signal,
    reload: Arc<Notify>,
    upgrade: Arc<Notify>,
}

impl Signals {
    async fn watch(mut self, drainer: Drainer, log: ProcessLog) {
        let name = self.next().await;
        drainer.interrupt();
        drainer.addresses_wanted.send_replace(true);
        tracing::info!(signal = name, "shutting down; a second signal exits immediately");
        let name = self.next().await;
        tracing::warn!(signal = name, "exiting immediately");
        log.flush(LAST_LINE_TIMEOUT);
        std::process::exit(LEFT_AT_ONCE);
    }

    /// Waits for the next signal that requests the process to end, and forwards SIGHUP and SIGUSR2 in the meantime.
    async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                // If several signals are pending, a shutdown takes precedence: an upgrade would start the service again.
                biased;
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => self.reload.notify_one(),
                _ = self.upgrade_asked.recv() => self.upgrade.notify_one(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_a_change_to_a_pool_and_an_operator_does_not() {
        let (request, requested) = watch::channel(None);
        let (addresses, _) = watch::channel(false);
        let drainer = Drainer { reason: Arc::new(request), addresses_wanted: Arc::new(addresses) };
        let drain = DrainRequest(requested);
        drainer.cut_over();
        drainer.ask();
        assert!(drain.is_made() && !drain.is_cut_over_done());
        drainer.interrupt();
        assert!(drain.is_cut_over_done());
        // A successor that has come counts more than a signal after it.
        drainer.hand_over(true);
        drainer.interrupt();
        assert_eq!(*drain.0.borrow(), Some(DrainReason::TakenOver { at_once: true }));
    }
}
