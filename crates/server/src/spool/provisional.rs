//! Clients admitted before the upstream has decided about their login.
//!
//! The upstream is asked about each of them as soon as possible, independently of the forwarder of their messages.
//! Clients with the same credentials and virtual host share one request.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, OnceLock, Weak};

use amqp::{Credentials, Fault, ReplyCode};
use parking_lot::Mutex;
use transport::Outbox;

use super::admission::Asking;
use super::local::SpoolQueue;
use super::logins::Fingerprint;
use super::refusals::is_permanent;
use crate::backend::LoginError;
use crate::upstream::retry::RETRY;

/// A client's provisional login, shared with its session.
pub(super) struct ProvisionalLogin {
    outbox: Arc<Outbox>,
    /// Set once.
    decision: OnceLock<Result<(), Fault>>,
}

impl ProvisionalLogin {
    /// The upstream's decision, once there is one. A fault ends the connection.
    pub(super) fn decision(&self) -> Option<&Result<(), Fault>> {
        self.decision.get()
    }
}

/// Requests the upstream's decision about credentials in a virtual host, as soon as it can be asked.
pub(super) type AskUpstream = Arc<dyn Fn(Arc<Credentials>, Box<str>) -> Asking<()> + Send + Sync>;

/// Virtual host and credentials.
type ProvisionalKey = (Box<str>, Fingerprint);

/// All provisional logins. A session that ends drops its own.
#[derive(Default)]
pub(super) struct ProvisionalLogins(Mutex<HashMap<ProvisionalKey, Vec<Weak<ProvisionalLogin>>>>);

impl ProvisionalLogins {
    /// Number of clients about which the upstream has not decided.
    pub(super) fn count(&self) -> usize {
        self.0.lock().values().flatten().filter(|login| login.strong_count() > 0).count()
    }

    /// Adds a client. Also returns whether it is the first with its key, for which the upstream has to be asked.
    fn add(&self, key: ProvisionalKey, outbox: &Arc<Outbox>) -> (Arc<ProvisionalLogin>, bool) {
        let login = Arc::new(ProvisionalLogin { outbox: Arc::clone(outbox), decision: OnceLock::new() });
        let mut logins = self.0.lock();
        let (same, is_first) = match logins.entry(key) {
            Entry::Occupied(same) => (same.into_mut(), false),
            Entry::Vacant(none) => (none.insert(Vec::new()), true),
        };
        // Keeps the list within twice the number of present clients.
        if same.len() == same.capacity() {
            same.retain(|login| login.strong_count() > 0);
        }
        same.push(Arc::downgrade(&login));
        (login, is_first)
    }

    /// Ends the request if all of its clients have disconnected; returns whether it has ended.
    fn end_if_unused(&self, key: &ProvisionalKey) -> bool {
        let mut logins = self.0.lock();
        let is_used = logins.get(key).is_some_and(|same| same.iter().any(|login| login.strong_count() > 0));
        if !is_used {
            logins.remove(key);
        }
        !is_used
    }

    fn decide(&self, key: &ProvisionalKey, decision: &Result<(), Fault>) {
        let same = self.0.lock().remove(key).unwrap_or_default();
        for login in same.iter().filter_map(Weak::upgrade) {
            // Set here only.
            let _ = login.decision.set(decision.clone());
            login.outbox.nudge();
        }
    }
}

/// Adds a client to a queue's provisional ones. `asking` is the request, in progress or yet to start.
pub(super) fn verify_later(
    logins: &Arc<ProvisionalLogins>,
    (queue, fingerprint): (&Arc<SpoolQueue>, Fingerprint),
    (credentials, outbox): (&Arc<Credentials>, &Arc<Outbox>),
    asking: Asking<()>,
    ask: &AskUpstream,
) -> Arc<ProvisionalLogin> {
    let key = (Box::from(queue.vhost()), fingerprint);
    let (login, is_first) = logins.add(key.clone(), outbox);
    if is_first {
        let (logins, queue, ask) = (Arc::clone(logins), Arc::clone(queue), Arc::clone(ask));
        let credentials = Arc::clone(credentials);
        tokio::spawn(async move { verify(&logins, &key, &queue, &credentials, asking, &ask).await });
    }
    login
}

/// Asks until the upstream decides, or until no client waits for the decision.
async fn verify(
    logins: &ProvisionalLogins,
    key: &ProvisionalKey,
    queue: &SpoolQueue,
    credentials: &Arc<Credentials>,
    mut asking: Asking<()>,
    ask: &AskUpstream,
) {
    let mut back_off = RETRY;
    let decision = loop {
        match asking.await {
            Ok(()) => break Ok(()),
            Err(LoginError::Refused { text, .. }) => break Err(Fault::new(ReplyCode::AccessRefused, text)),
            Err(LoginError::Failed(fault)) if is_permanent(&fault, queue.vhost()) => break Err(fault),
            Err(LoginError::Failed(fault)) => {
                tracing::debug!(user = queue.user(), vhost = queue.vhost(), %fault, "login not verified yet");
            }
        }
        if logins.end_if_unused(key) {
            return;
        }
        tokio::time::sleep(back_off.pause()).await;
        asking = ask(Arc::clone(credentials), queue.vhost().into());
    };
    if decision.is_ok() {
        queue.logged_in(Arc::clone(credentials));
    }
    logins.decide(key, &decision.map_err(Fault::on_connection));
}
