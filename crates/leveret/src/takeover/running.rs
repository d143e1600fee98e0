//! The predecessor's side of a takeover.

use std::os::fd::AsFd as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{fmt, io};

use broker::Broker;
use parking_lot::{Condvar, Mutex};
use rustix::process::Pid;
use server::Server;
use transport::SharedSockets;

use super::clients;
use super::messages::{
    Acceptable, Hello, Leave, Left, ListObjects, SuccessorRequest, Welcome, receive, send, send_objects,
    send_with_sockets,
};
use super::{ANSWER_TIMEOUT, check_peer, socket_name};
use crate::config::Config;
use crate::definitions::ExistingObjects;
use crate::notify::Notifier;
use crate::signals::Drainer;

/// Pause before another attempt to listen where the predecessor still does.
pub(super) const BIND_PAUSE: Duration = Duration::from_millis(20);

/// How long to attempt this before a warning is logged.
const BIND_WARNING_AFTER: Duration = Duration::from_secs(60);

/// A successor that has waited nearly until its own timeout is not answered any more.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);

/// Pause between later attempts.
const LATER_PAUSE: Duration = Duration::from_secs(1);

/// The offer of this process's place to a successor.
#[derive(Debug, Clone)]
pub(crate) struct Offer(Arc<Offered>);

#[derive(Debug)]
struct Offered {
    place: Mutex<Place>,
    /// Notified when the place is on offer or no longer is.
    changed: Condvar,
    /// The connection to the successor, by whose end it detects that this process has ended.
    successor: Mutex<Option<UnixStream>>,
    drainer: Drainer,
    notifier: Notifier,
    /// Whether a successor can find this process.
    is_found: bool,
    /// The clients that this process has.
    clients: Acceptable,
    /// Set while successors wait: this process is about to become a pool. Changed under the lock of `place`.
    is_paused: AtomicBool,
}

/// The place of this process, as a successor finds it.
#[derive(Debug, Clone)]
enum Place {
    /// The successor waits, since this process does not serve yet.
    Starting,
    Open(Arc<Serving>),
    /// There is no offer, since this process is shutting down.
    Withdrawn,
}

/// The parts of a process that serve clients.
struct Serving {
    sockets: Vec<SharedSockets>,
    server: Server,
    /// The embedded broker, if there is one.
    broker: Option<Arc<Broker>>,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("sockets", &self.sockets).finish_non_exhaustive()
    }
}

impl Offer {
    /// Starts to wait for a successor, before anybody can know that this process is there. Without a listener that has a fixed
    /// address nobody can find it.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(crate) fn start(config: &Config, drainer: &Drainer, notifier: &Notifier) -> io::Result<Self> {
        let name = socket_name(config);
        let offer = Self(Arc::new(Offered {
            place: Mutex::new(Place::Starting),
            changed: Condvar::new(),
            successor: Mutex::default(),
            drainer: drainer.clone(),
            notifier: notifier.clone(),
            is_found: name.is_some(),
            clients: Acceptable::of(config),
            is_paused: AtomicBool::new(false),
        }));
        if let Some(name) = name {
            let listener = UnixListener::bind_addr(&name);
            let waiting = offer.clone();
            thread::Builder::new().name("takeover".into()).spawn(move || waiting.wait_at(listener, &name))?;
        }
        Ok(offer)
    }

    /// Called when `server` serves from these sockets. If this process `has_replaced` another, the files of Unix sockets are
    /// its own now; those of a service manager's are not.
    pub(crate) fn open(
        &self,
        sockets: Vec<SharedSockets>,
        server: Server,
        broker: Option<Arc<Broker>>,
        has_replaced: bool,
    ) {
        if has_replaced {
            set_own(&sockets, true);
        }
        self.set(Place::Open(Arc::new(Serving { sockets, server, broker })));
    }

    /// Whether a successor can find this process.
    pub(crate) fn is_found(&self) -> bool {
        self.0.is_found
    }

    /// Makes successors wait: one that started now would not know yet whether it is to be a broker. Clients wait as well: at
    /// the sockets that are held for a successor, with their files, when listeners have ended.
    pub(crate) fn pause(&self) {
        self.set_paused(true);
    }

    /// Lets a successor take over again.
    pub(crate) fn resume(&self) {
        self.set_paused(false);
    }

    /// Whether successors have to wait.
    pub(crate) fn is_paused(&self) -> bool {
        self.0.is_paused.load(Ordering::Acquire)
    }

    fn set_paused(&self, is_paused: bool) {
        let _place = self.0.place.lock();
        self.0.is_paused.store(is_paused, Ordering::Release);
        self.0.changed.notify_all();
    }

    /// Closes the sockets that are held for a successor, so that no other process holds them while this one drains; one that
    /// has come has them already. The files of Unix sockets go with the last of their holders, unless a successor has come.
    pub(crate) fn withdraw(&self) {
        self.set(Place::Withdrawn);
    }

    fn set(&self, place: Place) {
        *self.0.place.lock() = place;
        self.0.changed.notify_all();
    }

    /// Waits for a successor that makes its request to end.
    fn wait_at(&self, bound: io::Result<UnixListener>, name: &SocketAddr) {
        let listener = match bound.or_else(|_| listen(name)) {
            Ok(listener) => listener,
            Err(error) => return tracing::warn!(%error, "takeover and upgrades not possible"),
        };
        for stream in listener.incoming() {
            match stream.and_then(|stream| self.serve(stream)) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "successor refused");
                    thread::sleep(BIND_PAUSE);
                }
            }
        }
    }

    /// Handles a successor; returns whether it has replaced this process.
    fn serve(&self, mut stream: UnixStream) -> io::Result<bool> {
        let pid = check_peer(&stream)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let Some(Hello { version }) = receive(&mut stream)? else { return Ok(false) };
        let Some(serving) = self.serving() else { return Ok(false) };
        // It may accept from now on, so that files of Unix sockets stay whatever becomes of this process.
        set_own(&serving.sockets, false);
        let is_replaced = self.serve_welcomed(stream, &serving, &version, pid);
        if !matches!(is_replaced, Ok(true)) {
            set_own(&serving.sockets, true);
        }
        is_replaced
    }

    fn serve_welcomed(
        &self,
        mut stream: UnixStream,
        serving: &Serving,
        version: &str,
        pid: Pid,
    ) -> io::Result<bool> {
        welcome(&mut stream, serving)?;
        let process = pid.as_raw_nonzero();
        tracing::info!(process, version, "successor starting");
        stream.set_read_timeout(None)?;
        let Leave { at_once, clients } = loop {
            match (receive(&mut stream)?, &serving.broker) {
                (Some(SuccessorRequest::Leave(leave)), _) => break leave,
                (
                    Some(SuccessorRequest::ListObjects(ListObjects { only_if_untouched, .. })),
                    Some(broker),
                ) => {
                    send_objects(&mut stream, &ExistingObjects::of(broker, only_if_untouched))?;
                }
                // A pool has not announced that it lists objects.
                (Some(SuccessorRequest::ListObjects(_)), None) => return Ok(false),
                (None, _) => {
                    tracing::warn!(process, "successor exited before serving; this process continues");
                    return Ok(false);
                }
            }
        };
        self.wait_while_paused()?;
        tracing::info!(process, version, "successor takes over; shutting down");
        self.0.notifier.hand_over(process.get());
        self.hand_clients_over(&stream, &serving.server, clients.as_ref());
        send(&mut stream, &Left {})?;
        *self.0.successor.lock() = Some(stream);
        self.0.drainer.hand_over(at_once);
        Ok(true)
    }

    /// Waits until a successor may take over.
    ///
    /// # Errors
    /// That took longer than the successor waits for its answer.
    fn wait_while_paused(&self) -> io::Result<()> {
        let asked = Instant::now();
        let mut place = self.0.place.lock();
        while self.is_paused() && !matches!(*place, Place::Withdrawn) {
            self.0.changed.wait(&mut place);
        }
        drop(place);
        if asked.elapsed() + ANSWER_MARGIN < ANSWER_TIMEOUT {
            return Ok(());
        }
        // It would take the end of this connection, if it still waited, for that of this process.
        thread::sleep((ANSWER_TIMEOUT + ANSWER_MARGIN).saturating_sub(asked.elapsed()));
        Err(io::Error::new(io::ErrorKind::TimedOut, "migration is finishing: try again afterwards"))
    }

    /// Has the clients leave for the successor in the drain, if it can continue with them.
    fn hand_clients_over(&self, stream: &UnixStream, server: &Server, acceptable: Option<&Acceptable>) {
        let Some(acceptable) = acceptable else { return };
        if let Some(why) = acceptable.refuses(&self.0.clients) {
            return tracing::warn!(error = why, "successor cannot take over clients: connections closed");
        }
        if let Err(error) = stream.try_clone().and_then(|stream| clients::hand_over(stream, server)) {
            tracing::warn!(%error, "client hand-over failed: connections closed");
        }
    }

    /// The parts that serve, once this process does; `None` if it shuts down.
    fn serving(&self) -> Option<Arc<Serving>> {
        let mut place = self.0.place.lock();
        loop {
            match &*place {
                Place::Starting => self.0.changed.wait(&mut place),
                Place::Open(_) if self.is_paused() => self.0.changed.wait(&mut place),
                Place::Open(serving) => return Some(Arc::clone(serving)),
                Place::Withdrawn => return None,
            }
        }
    }
}

fn set_own(shared: &[SharedSockets], is_own: bool) {
    shared.iter().for_each(|sockets| sockets.set_own(is_own));
}

fn welcome(stream: &mut UnixStream, serving: &Serving) -> io::Result<()> {
    let sockets: Vec<_> =
        serving.sockets.iter().flat_map(SharedSockets::sockets).map(|socket| socket.as_fd()).collect();
    let (version, can_list_objects) = (env!("CARGO_PKG_VERSION").to_owned(), serving.broker.is_some());
    let welcome = Welcome { version, sockets: sockets.len(), can_list_objects };
    send_with_sockets(stream, &welcome, &sockets)
}

/// Listens where a predecessor still does so, until it has left.
fn listen(name: &SocketAddr) -> io::Result<UnixListener> {
    let end = Instant::now() + BIND_WARNING_AFTER;
    let mut pause = BIND_PAUSE;
    loop {
        match UnixListener::bind_addr(name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if pause == BIND_PAUSE && Instant::now() > end {
                    tracing::warn!(
                        "another process already offers these listeners for takeover: take_over reaches that one"
                    );
                    pause = LATER_PAUSE;
                }
                thread::sleep(pause);
            }
            bound => return bound,
        }
    }
}
