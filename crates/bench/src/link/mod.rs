//! The latency link: a TCP relay in this process that delays what passes, so that a server can be measured as if it
//! were far away, without privileges.
//!
//! One thread serves all connections. The kernel's timer file descriptor wakes it, which is exact to some tens of
//! microseconds, where time-outs of epoll are rounded up to milliseconds.
//!
//! What always holds: nothing arrives early or out of order; what is under way is bounded, and then the sender is not
//! read; a new connection's first bytes leave a round trip after it was accepted, as TCP's handshake takes one;
//! the ends of streams take as long as bytes do.

mod check;
mod command;
mod event_loop;
mod joint;
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
pub use line::Shape;

/// A running link. Connections end when it is dropped.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    orders: SyncSender<(Order, SyncSender<()>)>,
    waker: Arc<Waker>,
    late: Arc<Mutex<Latencies>>,
    thread: Option<JoinHandle<()>>,
}

/// What the link's thread is told.
#[derive(Debug)]
enum Order {
    Reshape([Shape; 2]),
    Cut,
    Stall(bool),
    Stop,
}

impl Link {
    /// Listens at `listen` and joins each connection to a new one to `target`. `shapes` are of the way there and of
    /// the way back.
    ///
    /// # Errors
    /// The address cannot be listened at, or the system has no descriptors left.
    pub fn start(listen: SocketAddr, target: SocketAddr, shapes: [Shape; 2]) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        // Who gives an order waits until it is carried out, so there is seldom more than one.
        let (orders, received) = sync_channel(1);
        let late = Arc::<Mutex<Latencies>>::default();
        let (event_loop, waker) = EventLoop::new(listener, target, shapes, received, Arc::clone(&late))?;
        let thread = thread::Builder::new().name("link".into()).spawn(|| event_loop.run())?;
        Ok(Self { address, orders, waker: Arc::new(waker), late, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the way there and the way back, of open connections too, before it returns.
    pub fn reshape(&self, shapes: [Shape; 2]) {
        self.order(Order::Reshape(shapes));
    }

    /// Makes the round trip take so long, half of it each way.
    pub fn set_round_trip(&self, time: Duration) {
        self.reshape([round_trip(time); 2]);
    }

    /// By how much bytes were handed over after they were due, each way, so far: how exact the link is on this machine.
    /// `None` until some were. It does not tell waits for a receiver with no room from its own.
    pub fn lateness(&self) -> Option<Percentiles> {
        // A poisoned histogram is as good as any.
        self.late.lock().unwrap_or_else(PoisonError::into_inner).percentiles()
    }

    /// Breaks all connections; new ones are joined as before.
    pub fn cut(&self) {
        self.order(Order::Cut);
    }

    /// Lets nothing pass, as when a cable is pulled, or lets it pass again.
    pub fn stall(&self, stalled: bool) {
        self.order(Order::Stall(stalled));
    }

    fn order(&self, order: Order) {
        let (done, wait) = sync_channel(1);
        // The thread ends before this does only if the kernel fails it; then nothing passes any more, and whoever
        // uses the link sees that.
        if self.orders.send((order, done)).is_ok() && self.waker.wake().is_ok() {
            let _ = wait.recv();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Tells a reader how late a link was, in seconds, each way.
pub(crate) fn exactness(median: f64) -> String {
    format!("The latency link was late by {} each way, in the median.", duration(median))
}

/// Half of a round trip.
pub(crate) fn round_trip(time: Duration) -> Shape {
    Shape { delay: time / 2, ..Shape::default() }
}
