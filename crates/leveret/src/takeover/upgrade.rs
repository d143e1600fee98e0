//! An upgrade in place: this process starts its successor, from the program that is on the disk now.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::spawn::Successor;
use super::{ANSWER_TIMEOUT, Offer};
use crate::notify;
use crate::signals::{ActionRequests, Drainer};

/// The program of this process and its arguments.
#[derive(Debug)]
struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

/// The kernel writes this behind the path of a program that has been replaced (proc(5), `/proc/pid/exe`).
const REPLACED: &[u8] = b" (deleted)";

/// The program of this process, as the kernel has it.
const RUNNING: &str = "/proc/self/exe";

/// The setting that makes a process take over.
const TAKE_OVER: &str = "--take-over=on";

impl Program {
    /// # Errors
    /// The system does not tell.
    fn of_process() -> io::Result<Self> {
        let path = std::fs::read_link(RUNNING)?;
        let bytes = path.as_os_str().as_bytes();
        let bytes = bytes.strip_suffix(REPLACED).unwrap_or(bytes);
        let path = OsString::from_vec(bytes.to_vec()).into();
        Ok(Self { path, arguments: std::env::args_os().skip(1).collect() })
    }

    /// Whether another file is in the place of the running program now.
    fn is_replaced(&self) -> bool {
        let identity = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let on_disk = identity(&self.path);
        on_disk.is_some() && on_disk != identity(Path::new(RUNNING))
    }

    /// Starts it again, to take over from this process. Variables that the service manager has set for this process alone are
    /// not passed on.
    fn start(&self) -> io::Result<Successor> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        if !self.arguments.iter().any(|argument| argument == TAKE_OVER) {
            command.arg(TAKE_OVER);
        }
        for variable in ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
            command.env_remove(variable);
        }
        let has_manager = std::env::var_os(notify::SOCKET).is_some();
        if has_manager { Successor::start_as_orphan(&command) } else { Successor::start(command) }
    }
}

/// Upgrades of this process, of which one at a time is under way.
#[derive(Debug)]
pub(crate) struct Upgrades {
    program: Program,
    offer: Offer,
    drainer: Drainer,
    last: Mutex<Option<Attempt>>,
    /// Notified when a successor has ended.
    ended: Notify,
}

/// How long a successor that was asked to end may take: more than its longest wait for the other process.
const END_TIMEOUT: Duration = ANSWER_TIMEOUT.saturating_add(Duration::from_secs(5));

#[derive(Debug)]
struct Attempt {
    process: u32,
    /// Why it has failed.
    failure: Option<String>,
}

/// Why there is no upgrade.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpgradeError {
    /// A successor starts already.
    #[error("process {0} is starting as the successor")]
    UnderWay(u32),
    /// The service is to end, or a successor has taken over.
    #[error("shutting down")]
    Ending,
    /// A container ends with its first process.
    #[error("running as process 1 of a container: replace the container instead")]
    FirstProcess,
    /// This process becomes a pool, and starts its successor itself.
    #[error("migration is finishing: upgrade afterwards")]
    CutOver,
    /// No successor could find this process.
    #[error("takeover needs a listener with a fixed TCP port")]
    NotFound,
    /// The program could not be started.
    #[error("{}: {error}", path.display())]
    Start {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
}

impl Upgrades {
    /// Upgrades of this process, whose place is on `offer`, at the `requests` of a signal. There is none once a `drain` is
    /// requested, but for that of a change to a pool, which a successor completes.
    ///
    /// # Errors
    /// The system does not tell which program it runs.
    pub(crate) fn serve_of_process(
        offer: &Offer,
        drainer: &Drainer,
        requests: ActionRequests,
    ) -> io::Result<Arc<Self>> {
        let program = Program::of_process()?;
        let (offer, drainer) = (offer.clone(), drainer.clone());
        let (last, ended) = (Mutex::default(), Notify::new());
        let upgrades = Arc::new(Self { program, offer, drainer, last, ended });
        tokio::spawn(Arc::clone(&upgrades).serve(requests));
        Ok(upgrades)
    }

    /// Starts a successor; returns its process id.
    ///
    /// # Errors
    /// There cannot be one now.
    pub(crate) fn start(self: &Arc<Self>) -> Result<u32, UpgradeError> {
        if std::process::id() == 1 {
            return Err(UpgradeError::FirstProcess);
        }
        if !self.offer.is_found() {
            return Err(UpgradeError::NotFound);
        }
        if self.offer.is_paused() {
            return Err(UpgradeError::CutOver);
        }
        let mut last = self.last.lock();
        if let Some(Attempt { process, failure: None }) = &*last {
            return Err(UpgradeError::UnderWay(*process));
        }
        let failed = |error| UpgradeError::Start { path: self.program.path.clone(), error };
        let start = || {
            let successor = self.program.start()?;
            let pidfd = successor.pidfd()?;
            Ok((successor, pidfd))
        };
        let started = self.drainer.start_successor(start).ok_or(UpgradeError::Ending)?;
        let successor = started.map_err(failed)?;
        let process = successor.process();
        *last = Some(Attempt { process, failure: None });
        drop(last);
        tracing::info!(process, program = %self.program.path.display(), "upgrade: successor started");
        let upgrades = Arc::clone(self);
        let watch = move || {
            let ended = successor.wait();
            if upgrades.drainer.is_for_service() {
                tracing::info!(process, %ended, "upgrade: successor ended as well");
            } else {
                tracing::error!(process, %ended, "upgrade: successor exited");
            }
            *upgrades.last.lock() = Some(Attempt { process, failure: Some(ended) });
            upgrades.ended.notify_one();
        };
        thread::Builder::new().name("upgrade".into()).spawn(watch).map_err(failed)?;
        Ok(process)
    }

    /// Waits until the successor has ended that was asked to when this process was; not for one that has taken over.
    pub(crate) async fn successor_ended(&self) {
        let ended = async {
            while self.drainer.is_for_service() && self.is_under_way() {
                self.ended.notified().await;
            }
        };
        if tokio::time::timeout(END_TIMEOUT, ended).await.is_err() {
            tracing::warn!("upgrade: successor does not end");
        }
    }

    fn is_under_way(&self) -> bool {
        matches!(&*self.last.lock(), Some(Attempt { failure: None, .. }))
    }

    /// Starts a successor on every request.
    async fn serve(self: Arc<Self>, requests: ActionRequests) {
        loop {
            requests.next().await;
            if let Err(error) = self.start() {
                tracing::error!(%error, "SIGUSR2: upgrade not started");
            }
        }
    }

    /// Starts a successor if another program is in the place of the running one.
    pub(crate) fn start_if_replaced(self: &Arc<Self>) {
        if self.program.is_replaced()
            && let Err(error) = self.start()
        {
            tracing::error!(%error, "binary on disk replaced: upgrade not started");
        }
    }

    /// This process, and what has become of the last attempt, as an object.
    pub(crate) fn status(&self) -> Value {
        let last = self.last.lock();
        let attempt = last
            .as_ref()
            .map(|Attempt { process, failure }| json!({ "process": process, "failure": failure }));
        json!({ "process": std::process::id(), "version": env!("CARGO_PKG_VERSION"), "upgrade": attempt })
    }
}
