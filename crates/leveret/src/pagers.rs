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
pub(crate) struct PagerNotifier {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    requested: bool,
    stop: bool,
}

/// The paging threads. Dropping this stops each of them after its current step.
pub(crate) struct Pagers {
    notifier: Arc<PagerNotifier>,
    threads: Vec<JoinHandle<()>>,
}

impl Pagers {
    /// # Errors
    ///
    /// A thread cannot be started.
    pub(crate) fn start(
        broker: &Arc<Broker>,
        notifier: Arc<PagerNotifier>,
        clock: Clock,
    ) -> io::Result<Self> {
        let mut pagers = Self { notifier, threads: Vec::with_capacity(THREADS) };
        for _ in 0..THREADS {
            let (broker, notifier) = (Arc::clone(broker), Arc::clone(&pagers.notifier));
            let thread = Builder::new().name("paging".to_owned());
            pagers.threads.push(thread.spawn(move || run(&broker, &notifier, clock))?);
        }
        Ok(pagers)
    }
}

impl Drop for Pagers {
    fn drop(&mut self) {
        self.notifier.state.lock().stop = true;
        self.notifier.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic in the thread has already been reported.
            drop(thread.join());
        }
    }
}

impl Waiter for PagerNotifier {
    fn wake(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.requested, true) {
            drop(state);
            self.changed.notify_one();
        }
    }
}

impl PagerNotifier {
    fn is_stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// Waits for a notification; returns false when the thread is to stop.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.requested && !state.stop);
        state.requested = false;
        !state.stop
    }
}

fn run(broker: &Broker, notifier: &PagerNotifier, clock: Clock) {
    while notifier.wait() {
        while !notifier.is_stopping() && broker.page(clock.timestamp(Instant::now())) {}
    }
}
