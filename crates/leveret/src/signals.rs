//! Signals: the first SIGTERM or SIGINT requests a drain, the second ends the process at once; SIGHUP requests
//! that files are read again, SIGUSR2 an upgrade. A drain can also be requested from within the process, which does not
//! count as a signal: a later SIGTERM or SIGINT is then still the first.
//!
//! A request to end is for the service: the successor that this process has started ends as well, unless it has taken over.
//! From then on it is the service, and such a request means this process alone.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::pidfd_send_signal;
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
    /// The process that was started as the successor, which may have ended since.
    successor: Arc<Mutex<Option<OwnedFd>>>,
}

impl Drainer {
    /// A drainer, and what it requests.
    fn new() -> (Self, DrainRequest, AddressesWanted) {
        let (addresses_sender, addresses_wanted) = watch::channel(false);
        let (request, requested) = watch::channel(None);
        let drainer = Self {
            reason: Arc::new(request),
            addresses_wanted: Arc::new(addresses_sender),
            successor: Arc::default(),
        };
        (drainer, DrainRequest(requested), AddressesWanted(addresses_wanted))
    }

    /// Requests the drain for an operator.
    pub(crate) fn ask(&self) {
        if self.request(DrainReason::Asked) {
            self.end_successor();
        }
    }

    /// Requests the drain after which the rest moves to another broker, unless another has been requested.
    /// Returns whether it is.
    pub(crate) fn cut_over(&self) -> bool {
        self.request(DrainReason::CutOver)
    }

    /// Requests a drain, unless another has been requested. Returns whether it is.
    fn request(&self, wanted: DrainReason) -> bool {
        self.reason.send_if_modified(|reason| {
            let is_first = reason.is_none();
            reason.get_or_insert(wanted);
            is_first
        })
    }

    /// Requests the drain for a signal, also in the middle of a change to a pool, which is not completed then.
    fn interrupt(&self) {
        let counts = self.reason.send_if_modified(|reason| {
            let counts = matches!(reason, None | Some(DrainReason::CutOver));
            if counts {
                *reason = Some(DrainReason::Asked);
            }
            counts
        });
        if counts {
            self.end_successor();
        }
    }

    /// Passes a second signal on, after which nobody waits for a drain.
    fn interrupt_again(&self) {
        if self.is_for_service() {
            self.end_successor();
        }
    }

    /// Starts a process that is to take over. Returns `None` if the service is to end, or another process has taken over;
    /// otherwise the process also ends when the service is to, until it has taken over.
    pub(crate) fn start_successor<T>(
        &self,
        start: impl FnOnce() -> io::Result<(T, Option<OwnedFd>)>,
    ) -> Option<io::Result<T>> {
        // Either the request to end is seen here, or the one who makes it finds the process.
        let mut successor = self.successor.lock();
        if is_cut_over_done(*self.reason.borrow()) {
            return None;
        }
        Some(start().map(|(started, pidfd)| {
            *successor = pidfd;
            started
        }))
    }

    /// Passes the request to end on to the successor.
    fn end_successor(&self) {
        let Some(pidfd) = &*self.successor.lock() else { return };
        match pidfd_send_signal(pidfd, rustix::process::Signal::TERM) {
            // It has ended already.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => tracing::warn!(%error, "cannot end the successor"),
        }
    }

    /// Whether the service is to end, and no successor has taken over.
    pub(crate) fn is_for_service(&self) -> bool {
        *self.reason.borrow() == Some(DrainReason::Asked)
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
    let (drainer, drain, addresses_wanted) = Drainer::new();
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
        drain,
        addresses_wanted,
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
        drainer.interrupt_again();
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
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn a_signal_ends_a_change_to_a_pool_and_an_operator_does_not() {
        let (drainer, drain, _) = Drainer::new();
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

    /// A process that ends with exit code 0 at the end of its input.
    fn successor() -> io::Result<(Child, Option<OwnedFd>)> {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn()?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        Ok((child, Some(pidfd)))
    }

    #[test]
    fn a_request_to_end_ends_a_successor_that_has_not_taken_over() {
        let requests: [fn(&Drainer); 2] = [Drainer::interrupt, Drainer::ask];
        for request in requests {
            let (drainer, ..) = Drainer::new();
            let mut child = drainer.start_successor(successor).unwrap().unwrap();
            request(&drainer);
            assert_eq!(child.wait().unwrap().signal(), Some(15));
            // It has ended, and is not sent anything again.
            drainer.end_successor();
            assert!(drainer.start_successor(successor).is_none());
        }
    }

    #[test]
    fn a_successor_that_has_taken_over_is_left_alone() {
        let (drainer, ..) = Drainer::new();
        let mut child = drainer.start_successor(successor).unwrap().unwrap();
        drainer.hand_over(false);
        drainer.interrupt();
        drainer.ask();
        drainer.interrupt_again();
        // Closes its input.
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(drainer.start_successor(successor).is_none());
    }

    #[test]
    fn a_second_signal_reaches_the_successor_as_well() {
        let (drainer, ..) = Drainer::new();
        let mut shell = Command::new("/bin/sh");
        // The first signal is noted, the second one ends it.
        shell.args(["-c", "trap 'trap - TERM; echo noted' TERM; echo ready; while :; do read line; done"]);
        let start = || {
            let child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
            Ok((child, Some(pidfd)))
        };
        let mut child = drainer.start_successor(start).unwrap().unwrap();
        let mut lines = io::BufRead::lines(io::BufReader::new(child.stdout.take().unwrap()));
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        drainer.interrupt();
        assert_eq!(lines.next().unwrap().unwrap(), "noted");
        drainer.interrupt_again();
        assert_eq!(child.wait().unwrap().signal(), Some(15));
    }
}
