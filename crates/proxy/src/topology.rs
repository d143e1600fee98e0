//! What clients have declared that a restart of their broker undoes, to be declared again before anything else goes on (P7).
//!
//! Exchanges and queues that are transient or deleted automatically are remembered, and bindings unless both their ends
//! last, for as long as one of the clients that declared them is there: exactly what a client library's recovery would
//! declare again after a connection of its own. One declaration of many clients is kept once. What somebody deletes,
//! unbinds, or has the broker delete by cancelling the last consumer, is forgotten for all of them; without an answer of its
//! own, when the broker has answered something behind it, for it may have refused.
//!
//! A virtual host is *torn* when that may be gone: when no broker answered, when the last connection to it ended, or for one
//! client when a connection that it used was lost. Then no channel of it is placed until [`crate::pool`] has declared
//! everything again: first all exchanges, then all queues, then all bindings, whoever declared them, so that the order in
//! which clients come back does not matter. A client whose part of that fails, or was too much to remember, hears 320 and
//! declares it itself when it is back. What a broker refuses to one client, another that declared it is asked to.

mod change;
mod declarer;
mod vhost;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use amqp::Credentials;
use parking_lot::Mutex;

use self::change::Node;
pub(crate) use self::declarer::Declarer;
use self::vhost::Vhost;
use crate::link::ClientLink;

/// What is remembered, by virtual host. Its lock is a leaf.
#[derive(Debug, Default)]
pub(crate) struct Topologies {
    state: Mutex<State>,
    /// Some virtual host is torn; so that placing a channel costs no lock while none is.
    torn: AtomicBool,
    /// Something is remembered at all; likewise.
    any: AtomicBool,
    /// Bytes remembered for all clients.
    bytes: AtomicUsize,
    /// The number of the next client, or declaration.
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    vhosts: HashMap<Box<str>, Vhost>,
    /// How many of them are torn.
    torn: usize,
}

/// Something to be declared again.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// The method, encoded, that asks for an answer.
    pub(crate) method: Arc<[u8]>,
    /// The login of one who declared it.
    pub(crate) credentials: Arc<Credentials>,
    /// All who did, by the numbers of their declarers.
    owners: Vec<u64>,
    /// For the log, and the client when it fails.
    pub(crate) what: String,
}

/// All that is to be declared again in a virtual host, and in what order.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Exchanges, queues, bindings.
    pub(crate) phases: [Vec<Step>; 3],
    /// Clients that cannot be helped, and why.
    pub(crate) lost: Vec<(Arc<ClientLink>, &'static str)>,
}

/// A restoration that is under way. What it was to restore is torn again when it ends without [`Self::done`].
#[derive(Debug)]
pub(crate) struct Restoring<'t> {
    topologies: &'t Topologies,
    virtual_host: &'t str,
    done: bool,
}

/// A consumer of a queue that goes with its last one. Clones are the same consumer; the last one to go takes the queue with
/// it.
#[derive(Debug, Clone)]
pub(crate) struct Consuming {
    _count: Arc<Counted>,
}

#[derive(Debug)]
struct Counted {
    topologies: Arc<Topologies>,
    virtual_host: Box<str>,
    client: u64,
    queue: Node,
    /// Of the queue's declaration.
    declaration: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.topologies.with(&self.virtual_host, |vhost| {
            vhost.consumer_gone(self.client, &self.queue, self.declaration);
        });
    }
}

impl Topologies {
    /// Bytes remembered for all clients.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a client's channels have to wait until what was declared in the virtual host is declared again.
    pub(crate) fn is_torn(&self, virtual_host: &str, client: u64) -> bool {
        self.torn.load(Ordering::Acquire)
            && self.state.lock().vhosts.get(virtual_host).is_some_and(|vhost| vhost.is_torn_for(client))
    }

    /// The virtual hosts of which everything may be gone.
    pub(crate) fn torn(&self) -> Vec<Box<str>> {
        if !self.torn.load(Ordering::Acquire) {
            return Vec::new();
        }
        let state = self.state.lock();
        state.vhosts.iter().filter(|(_, vhost)| vhost.is_torn_for(0)).map(|(name, _)| name.clone()).collect()
    }

    /// Whether something is remembered of a virtual host.
    pub(crate) fn knows(&self, virtual_host: &str) -> bool {
        self.any.load(Ordering::Acquire) && self.state.lock().vhosts.contains_key(virtual_host)
    }

    /// No broker answers: nothing is left anywhere.
    pub(crate) fn lost_all(&self) {
        let mut state = self.state.lock();
        state.vhosts.values_mut().for_each(|vhost| vhost.lost_all());
        state.torn = state.vhosts.len();
        self.torn.store(state.torn > 0, Ordering::Release);
    }

    /// The last connection to a virtual host has ended: whatever happens now is not seen.
    pub(crate) fn lost(&self, virtual_host: &str) {
        self.with(virtual_host, Vhost::lost_all);
    }

    /// A client has lost a connection, and with it the consumers that kept some queues.
    pub(crate) fn lost_client(&self, virtual_host: &str, client: u64) {
        self.with(virtual_host, |vhost| vhost.lost_client(client));
    }

    /// What is to be declared again in a virtual host; nothing is torn meanwhile but by what is lost from now on, and its
    /// clients still wait. `None` when there is nothing to do. One at a time for each virtual host.
    pub(crate) fn restore<'t>(&'t self, virtual_host: &'t str) -> Option<(Plan, Restoring<'t>)> {
        let plan = self.with(virtual_host, Vhost::begin_restoring).flatten()?;
        Some((plan, Restoring { topologies: self, virtual_host, done: false }))
    }

    /// Held by the one who restores a virtual host.
    pub(crate) fn turn(&self, virtual_host: &str) -> Option<Arc<tokio::sync::Mutex<()>>> {
        self.state.lock().vhosts.get(virtual_host).map(Vhost::turn)
    }

    /// A broker has refused what a step was to declare to these credentials. Those of its owners who have them are forgotten;
    /// returns them, and the step as another owner asks for it.
    pub(crate) fn pass_on(
        &self,
        virtual_host: &str,
        step: &Step,
        credentials: &Credentials,
    ) -> (Vec<Arc<ClientLink>>, Option<Step>) {
        self.with(virtual_host, |vhost| vhost.pass_on(step, credentials)).unwrap_or_default()
    }

    /// What a step was to declare could not be. Those who declared it are forgotten; returns them.
    pub(crate) fn give_up(&self, virtual_host: &str, step: &Step) -> Vec<Arc<ClientLink>> {
        self.with(virtual_host, |vhost| vhost.give_up(&step.owners)).unwrap_or_default()
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Changes what is known of a virtual host, if anything is.
    fn with<T>(&self, virtual_host: &str, change: impl FnOnce(&mut Vhost) -> T) -> Option<T> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.change(&mut self.state.lock(), virtual_host, change)
    }

    fn change<T>(
        &self,
        state: &mut State,
        virtual_host: &str,
        change: impl FnOnce(&mut Vhost) -> T,
    ) -> Option<T> {
        let vhost = state.vhosts.get_mut(virtual_host)?;
        let (bytes, torn) = (vhost.bytes(), vhost.is_torn());
        let result = change(vhost);
        self.bytes.fetch_add(vhost.bytes(), Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        state.torn += usize::from(vhost.is_torn());
        state.torn -= usize::from(torn);
        if vhost.is_empty() {
            state.torn -= usize::from(vhost.is_torn());
            state.vhosts.remove(virtual_host);
        }
        self.any.store(!state.vhosts.is_empty(), Ordering::Release);
        self.torn.store(state.torn > 0, Ordering::Release);
        Some(result)
    }
}

impl Restoring<'_> {
    /// Everything is there again.
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Restoring<'_> {
    fn drop(&mut self) {
        self.topologies.with(self.virtual_host, |vhost| vhost.end_restoring(self.done));
    }
}

/// Bytes remembered for one client, some hundreds for each declaration. Beyond that nothing is remembered of it any more,
/// and it hears 320 when something is lost: an application whose topology ends with the broker has tens of things, or
/// some thousands of bindings.
pub(crate) const CLIENT_BYTES_MAX: usize = 1024 * 1024;
/// Bytes remembered for all clients together: a sixteenth of a gigabyte, for which hundreds of thousands of usual
/// declarations have room. Who comes to declare beyond that is treated as one beyond [`CLIENT_BYTES_MAX`].
pub(crate) const TOTAL_BYTES_MAX: usize = 64 * 1024 * 1024;

#[cfg(test)]
mod tests;
