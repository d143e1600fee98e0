//! The link's thread: sockets, the timer, and commands.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use slab::Slab;

use super::LinkCommand;
use super::connection::{LinkedConnection, Next};
use super::line::LinkShape;
use crate::latency::Latencies;

const WAKER: Token = Token(0);
const TIMER: Token = Token(1);
const LISTENER: Token = Token(2);
/// The first token of connections, each of which has two.
const CONNECTION_TOKENS: usize = 3;
/// The largest read in bytes.
const SCRATCH_BYTES: usize = 64 * 1024;

pub(super) struct EventLoop {
    poll: Poll,
    listener: TcpListener,
    target: SocketAddr,
    shapes: [LinkShape; 2],
    commands: Receiver<(LinkCommand, SyncSender<()>)>,
    connections: Slab<LinkedConnection>,
    timer: Timer,
    /// How late bytes were handed over after they were due.
    late: Arc<Mutex<Latencies>>,
    scratch: Box<[u8]>,
    /// Incremented for each connection; the seed of its jitter.
    seed: u64,
    stalled: bool,
}

impl EventLoop {
    pub(super) fn new(
        listener: std::net::TcpListener,
        target: SocketAddr,
        shapes: [LinkShape; 2],
        commands: Receiver<(LinkCommand, SyncSender<()>)>,
        late: Arc<Mutex<Latencies>>,
    ) -> io::Result<(Self, Waker)> {
        let poll = Poll::new()?;
        let registry = poll.registry();
        let waker = Waker::new(registry, WAKER)?;
        let timer = Timer::new()?;
        registry.register(&mut SourceFd(&timer.descriptor.as_raw_fd()), TIMER, Interest::READABLE)?;
        let mut listener = TcpListener::from_std(listener);
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        let (connections, scratch) = (Slab::new(), vec![0; SCRATCH_BYTES].into_boxed_slice());
        let event_loop = Self {
            poll,
            listener,
            target,
            shapes,
            commands,
            connections,
            timer,
            late,
            scratch,
            seed: 0,
            stalled: false,
        };
        Ok((event_loop, waker))
    }

    /// Runs until it receives the command to stop.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        loop {
            match self.poll.poll(&mut events, None) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            }
            for event in &events {
                match event.token() {
                    WAKER => {
                        if !self.execute_commands() {
                            return;
                        }
                    }
                    TIMER => self.timer.rang(),
                    LISTENER => self.accept(),
                    Token(number) => {
                        let (key, end) = ((number - CONNECTION_TOKENS) / 2, (number - CONNECTION_TOKENS) % 2);
                        if let Some(connection) = self.connections.get_mut(key) {
                            connection.ready(end, event.is_readable(), event.is_writable());
                        }
                        self.advance(key);
                    }
                }
            }
            while let Some(key) = self.timer.take_due() {
                self.advance(key);
            }
            self.timer.set();
        }
    }

    /// Executes pending commands; returns whether to continue.
    fn execute_commands(&mut self) -> bool {
        while let Ok((command, done)) = self.commands.try_recv() {
            match command {
                LinkCommand::Reshape(shapes) => {
                    self.shapes = shapes;
                    self.connections.iter_mut().for_each(|(_, connection)| connection.reshape(shapes));
                }
                LinkCommand::Cut => self.connections.clear(),
                LinkCommand::Stall(stalled) => {
                    self.stalled = stalled;
                    let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
                    keys.into_iter().for_each(|key| self.advance(key));
                }
                LinkCommand::Stop => {
                    self.connections.clear();
                    let _ = done.send(());
                    return false;
                }
            }
            // The caller is waiting for this.
            let _ = done.send(());
        }
        true
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((client, _)) => {
                    self.seed += 1;
                    let connection =
                        LinkedConnection::new(client, self.target, self.shapes, Instant::now(), self.seed);
                    // If the connection to the target fails at once, the client's is dropped.
                    let Ok(mut connection) = connection else { continue };
                    let entry = self.connections.vacant_entry();
                    let tokens = [0, 1].map(|end| Token(CONNECTION_TOKENS + 2 * entry.key() + end));
                    if connection.register(self.poll.registry(), tokens).is_ok() {
                        entry.insert(connection);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // No connection is pending, or the system is out of resources: the next arrival tries again.
                Err(_) => return,
            }
        }
    }

    fn advance(&mut self, key: usize) {
        if self.stalled {
            return;
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        // A poisoned histogram is still usable.
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        match connection.advance(&mut self.scratch, &mut late) {
            Next::Wait(Some(due)) => self.timer.add(due, key),
            Next::Wait(None) => {}
            Next::Over => drop(self.connections.remove(key)),
        }
    }
}

/// The times at which bytes of connections are due, and the timer's descriptor, which becomes readable at the first of them.
struct Timer {
    descriptor: OwnedFd,
    /// May contain duplicates and closed connections: a spurious wake-up is harmless.
    alarms: BinaryHeap<Reverse<(Instant, usize)>>,
    set_for: Option<Instant>,
}

impl Timer {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { descriptor, alarms: BinaryHeap::new(), set_for: None })
    }

    fn add(&mut self, due: Instant, key: usize) {
        self.alarms.push(Reverse((due, key)));
    }

    fn take_due(&mut self) -> Option<usize> {
        let Reverse((due, _)) = *self.alarms.peek()?;
        if due > Instant::now() {
            return None;
        }
        self.alarms.pop().map(|Reverse((_, key))| key)
    }

    /// Arms the descriptor for the first alarm.
    fn set(&mut self) {
        let first = self.alarms.peek().map(|Reverse((due, _))| *due);
        if first == self.set_for {
            return;
        }
        let Some(due) = first else { return };
        // Zero would disarm it.
        let left = due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        // Both conversions fit: delays are short, and nanoseconds are below a second.
        let it_value =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        match timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &once) {
            Ok(_) => self.set_for = Some(due),
            Err(_) => self.set_for = None,
        }
    }

    /// Clears the descriptor's readability.
    fn rang(&mut self) {
        self.set_for = None;
        let mut count = [0; 8];
        while rustix::io::read(&self.descriptor, &mut count) == Err(Errno::INTR) {}
    }
}

#[cfg(test)]
mod tests {
    use rustix::time::timerfd_gettime;

    use super::*;

    /// The time by which the descriptor would fire later than `due`.
    fn too_long(timer: &Timer, due: Instant) -> Duration {
        let spec = timerfd_gettime(&timer.descriptor).unwrap().it_value;
        let view = Duration::new(spec.tv_sec as u64, spec.tv_nsec as u32);
        // Less time is left by the time this is computed.
        let left = due.duration_since(Instant::now());
        view.checked_sub(left).expect("the timer is never early")
    }

    #[test]
    fn the_timer_is_set_for_the_first_alarm_and_rounds_nothing() {
        // Far enough away not to fire during the test; rounding to whole milliseconds would lose half a millisecond.
        let wanted = Duration::new(3600, 500_000);
        let try_once = || {
            let mut timer = Timer::new().unwrap();
            let due = Instant::now() + wanted;
            timer.add(due + wanted, 1);
            timer.add(due, 2);
            timer.set();
            let excess = too_long(&timer, due);
            assert_eq!(timer.take_due(), None);
            excess
        };
        // A busy machine may preempt this thread between two readings of the clock, but not every time.
        let least = (0..200).map(|_| try_once()).min().unwrap();
        assert!(least < Duration::from_micros(100), "{least:?}");
    }
}
