//! The latency link: a TCP relay in this process that delays the bytes that pass, so that a server can be
//! measured as if it were far away, without privileges.
//!
//! One thread serves all connections. The kernel's timer file descriptor wakes it, which is exact to some tens of
//! microseconds, where timeouts of epoll are rounded up to milliseconds.
//!
//! Invariants: nothing arrives early or out of order; the bytes in transit are bounded, and beyond the bound
//! the sender is not read; a new connection's first bytes leave a round trip after it was accepted, as TCP's
//! handshake takes one; the ends of streams are delayed like bytes.

mod check;
mod command;
mod connection;
mod event_loop;
mod line;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mio::Waker;

use crate::latency::{Latencies, Percentiles};
use crate::metric::duration;
pub(crate) use command::{LinkArguments, milliseconds, resolve};
use event_loop::EventLoop;
pub(crate) use line::{IN_TRANSIT, LinkShape};

/// A running link. Dropping it ends its connections.
#[derive(Debug)]
pub(crate) struct Link {
    address: SocketAddr,
    commands: SyncSender<(LinkCommand, SyncSender<()>)>,
    waker: Arc<Waker>,
    late: Arc<Mutex<Latencies>>,
    thread: Option<JoinHandle<()>>,
    /// The limit of the bytes in transit that [`Self::set_round_trip`] keeps, by direction.
    in_transit: [usize; 2],
}

/// A command to the link's thread.
#[derive(Debug)]
enum LinkCommand {
    Reshape([LinkShape; 2]),
    Cut,
    Stall(bool),
    Stop,
}

impl Link {
    /// Listens at `listen` and joins each connection to a new one to `target`. `shapes` are those of the direction
    /// to the target and of the opposite one.
    ///
    /// # Errors
    /// The address cannot be bound, or the system has no descriptors left.
    pub(crate) fn start(listen: SocketAddr, target: SocketAddr, shapes: [LinkShape; 2]) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        // A caller waits until its command is executed, so there is seldom more than one.
        let (commands, received) = sync_channel(1);
        let late = Arc::<Mutex<Latencies>>::default();
        let (event_loop, waker) = EventLoop::new(listener, target, shapes, received, Arc::clone(&late))?;
        let thread = thread::Builder::new().name("link".into()).spawn(|| event_loop.run())?;
        Ok(Self {
            address,
            commands,
            waker: Arc::new(waker),
            late,
            thread: Some(thread),
            in_transit: shapes.map(|shape| shape.in_transit),
        })
    }

    /// The address that it listens on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the shape of both ways, also for open connections, before it returns.
    pub(crate) fn reshape(&self, shapes: [LinkShape; 2]) {
        self.send(LinkCommand::Reshape(shapes));
    }

    /// Sets the round trip time, half of it each way.
    pub(crate) fn set_round_trip(&self, time: Duration) {
        self.reshape(self.in_transit.map(|in_transit| LinkShape { in_transit, ..round_trip(time) }));
    }

    /// How late bytes were handed over after they were due, each way, so far: the accuracy of the link on this
    /// machine. `None` if there were none. Includes the time that bytes waited for a receiver without room.
    pub(crate) fn lateness(&self) -> Option<Percentiles> {
        // A poisoned histogram is still usable.
        self.late.lock().unwrap_or_else(PoisonError::into_inner).percentiles()
    }

    /// Breaks all connections; new ones are joined as before.
    pub(crate) fn cut(&self) {
        self.send(LinkCommand::Cut);
    }

    /// Stops all traffic, as if a cable were pulled, or resumes it.
    pub(crate) fn stall(&self, stalled: bool) {
        self.send(LinkCommand::Stall(stalled));
    }

    fn send(&self, command: LinkCommand) {
        let (done, wait) = sync_channel(1);
        // The thread outlives this value unless a system call has failed; then no bytes pass any more, which
        // the users of the link notice.
        if self.commands.send((command, done)).is_ok() && self.waker.wake().is_ok() {
            let _ = wait.recv();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.send(LinkCommand::Stop);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Describes the median lateness of a link each way, in seconds, for a report.
pub(crate) fn exactness(median: f64) -> String {
    format!("The latency link was late by {} each way, in the median.", duration(median))
}

/// The shape of either way of a round trip.
pub(crate) fn round_trip(time: Duration) -> LinkShape {
    LinkShape { delay: time / 2, ..LinkShape::default() }
}
