//! The threads that page messages of the embedded broker out of memory and back.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use broker::{Broker, Waiter};
use parking_lot::{Condvar, Mutex};
use server::Clock;

/// One can wait for the disk while the other processes loaded messages.
const THREADS: usize = 2;

/// Wakes the threads when there is work.
#[derive(Default)]
pub(crate) struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    rung: bool,
    stop: bool,
}

/// The paging threads. Dropping this stops each of them after its current step.
pub(crate) struct Pagers {
    bell: Arc<Bell>,
    threads: Vec<JoinHandle<()>>,
}

impl Pagers {
    /// # Errors
    ///
    /// A thread cannot be started.
    pub(crate) fn start(broker: &Arc<Broker>, bell: Arc<Bell>, clock: Clock) -> io::Result<Self> {
        let mut pagers = Self { bell, threads: Vec::with_capacity(THREADS) };
        for _ in 0..THREADS {
            let (broker, bell) = (Arc::clone(broker), Arc::clone(&pagers.bell));
            let thread = Builder::new().name("paging".to_owned());
            pagers.threads.push(thread.spawn(move || run(&broker, &bell, clock))?);
        }
        Ok(pagers)
    }
}

impl Drop for Pagers {
    fn drop(&mut self) {
        self.bell.state.lock().stop = true;
        self.bell.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic in the thread has already been reported.
            drop(thread.join());
        }
    }
}

impl Waiter for Bell {
    fn wake(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.rung, true) {
            drop(state);
            self.changed.notify_one();
        }
    }
}

impl Bell {
    fn is_stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// Waits until the bell is rung; returns false when the thread is to stop.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.rung && !state.stop);
        state.rung = false;
        !state.stop
    }
}

fn run(broker: &Broker, bell: &Bell, clock: Clock) {
    while bell.wait() {
        while !bell.is_stopping() && broker.page(clock.timestamp(Instant::now())) {}
    }
}
