//! Repeating declarations that a broker has lost, before anything else continues (P7). See [`crate::topology`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use amqp::{Credentials, Fault, ReplyCode};
use tokio::time::Instant;

use super::connection_permits::ConnectionPermit;
use super::{Endpoint, PermitOutcome, Pool, background, is_same};
use crate::client_properties::ClientProperties;
use crate::link::{ClientLink, Event};
use crate::metrics::add;
use crate::refusal::Refusal;
use crate::topology::{Plan, Step, Topologies};
use crate::upstream::Declaring;

/// No client: a restoration for this id waits only for losses that concern all clients.
const NO_CLIENT: u64 = 0;

/// The progress of restoring a virtual host.
#[derive(Default)]
struct Progress {
    /// One connection per set of credentials, oldest first; fewer when no permits are free.
    open: Vec<Open>,
    /// Credentials that a broker has refused meanwhile, and its reply text: they are not tried again.
    refused: Vec<(Arc<Credentials>, String)>,
}

/// A connection with these credentials. Closed when everything is declared, or when another set of credentials needs
/// its permit.
struct Open {
    credentials: Arc<Credentials>,
    declaring: Declaring,
    endpoint: Endpoint,
    _permit: ConnectionPermit,
}

impl Pool {
    /// Client declarations that do not survive a broker restart.
    pub(crate) fn topologies(&self) -> &Arc<Topologies> {
        &self.topologies
    }

    /// Waits until everything that was lost in a virtual host, or of one client there, is declared again;
    /// does it itself if no other task does.
    ///
    /// # Errors
    /// If no broker accepts a connection of the pool, or the connection is lost meanwhile.
    pub(crate) async fn restored(self: &Arc<Self>, virtual_host: &str, client: u64) -> Result<(), Refusal> {
        while self.topologies.is_torn(virtual_host, client)
            && let Some(turn) = self.topologies.turn(virtual_host)
        {
            let _turn = turn.lock().await;
            let Some((plan, restoring)) = self.topologies.restore(virtual_host) else { continue };
            Box::pin(self.restore(virtual_host, plan)).await?;
            restoring.done();
        }
        Ok(())
    }

    /// Restores what was lost now that an upstream answers again, whether a client waits for it or not.
    pub(super) fn restore_soon(self: &Arc<Self>) {
        let torn = self.topologies.torn();
        if torn.is_empty() {
            return;
        }
        let pool = self.clone();
        background::run(async move {
            for virtual_host in torn {
                if let Err(error) = pool.restored(&virtual_host, NO_CLIENT).await {
                    // Retried when an upstream answers again, or when a client needs it.
                    tracing::debug!(%error, "topology not restored yet");
                }
            }
        });
    }

    /// Carries out the plan, phase by phase, each client's declarations with its own credentials.
    async fn restore(self: &Arc<Self>, virtual_host: &str, plan: Plan) -> Result<(), Refusal> {
        for (link, why) in &plan.lost {
            let text = format!("transient topology of this client was lost and cannot be restored: {why}");
            self.end_client(link, text);
        }
        let count: usize = plan.phases.iter().map(Vec::len).sum();
        let mut progress = Progress::default();
        for mut steps in plan.phases {
            // A step refused to one owner is retried with the next one's credentials.
            while !steps.is_empty() {
                let mut again = Vec::new();
                for group in by_credentials(steps) {
                    again.extend(self.restore_group(virtual_host, &group, &mut progress).await?);
                }
                steps = again;
            }
        }
        for Open { declaring, .. } in progress.open {
            declaring.close().await;
        }
        tracing::info!(virtual_host, count, "topology restored");
        Ok(())
    }

    /// Repeats declarations of clients with the same credentials. Closes clients whose declarations the
    /// broker refuses; returns steps refused to these credentials that other owners are to retry.
    async fn restore_group(
        self: &Arc<Self>,
        virtual_host: &str,
        mut steps: &[Step],
        progress: &mut Progress,
    ) -> Result<Vec<Step>, Refusal> {
        let mut again = Vec::new();
        while let Some(Step { credentials, .. }) = steps.first() {
            let at = match self.declaring(virtual_host, credentials, progress).await? {
                ForDeclaring::Open(at) => at,
                ForDeclaring::Refused(text) => {
                    again.extend(steps.iter().filter_map(|step| self.pass_on(virtual_host, step, &text)));
                    break;
                }
            };
            let Open { declaring, endpoint, .. } = &mut progress.open[at];
            let methods: Vec<_> = steps.iter().map(|step| step.method.clone()).collect();
            let declared = match declaring.declare(&methods, &self.config).await {
                Ok(declared) => declared,
                Err(refusal) => {
                    self.endpoints.failed(self, endpoint);
                    return Err(refusal);
                }
            };
            add(&self.counters.declarations_repeated, declared.count as u64);
            if !declared.goes_on {
                progress.open.remove(at);
            }
            steps = &steps[declared.count..];
            let Some((refused, rest)) = steps.split_first() else { break };
            again.extend(declared.fault.and_then(|fault| self.refused(virtual_host, refused, &fault)));
            steps = rest;
        }
        Ok(again)
    }

    /// Handles a step that a broker refused; returns it with another owner's credentials, if it is to be retried.
    fn refused(&self, virtual_host: &str, step: &Step, fault: &Fault) -> Option<Step> {
        let text = fault.reply_text();
        match fault.code {
            ReplyCode::AccessRefused => return self.pass_on(virtual_host, step, &text),
            // The queue belongs to an open connection, so it was never lost, nor were its bindings.
            ReplyCode::ResourceLocked if fault.method == QUEUE_BIND => {
                tracing::debug!(virtual_host, what = step.what, "queue not restored: in use");
            }
            _ => self.give_up(virtual_host, step, &text),
        }
        None
    }

    /// The connection with these credentials, opened if there is none.
    async fn declaring(
        self: &Arc<Self>,
        virtual_host: &str,
        credentials: &Arc<Credentials>,
        progress: &mut Progress,
    ) -> Result<ForDeclaring, Refusal> {
        let Progress { open, refused } = progress;
        if let Some(at) = open.iter().position(|open| is_same(&open.credentials, credentials)) {
            return Ok(ForDeclaring::Open(at));
        }
        if let Some((_, text)) = refused.iter().find(|(other, _)| is_same(other, credentials)) {
            return Ok(ForDeclaring::Refused(text.clone()));
        }
        if self.is_full() && !open.is_empty() {
            let Open { declaring, _permit, .. } = open.remove(0);
            declaring.close().await;
        }
        match self.open_declaring(virtual_host, credentials).await {
            Ok(opened) => {
                open.push(opened);
                Ok(ForDeclaring::Open(open.len() - 1))
            }
            Err(refusal) if refusal.is_final() => {
                let text = refusal.to_string();
                refused.push((credentials.clone(), text.clone()));
                Ok(ForDeclaring::Refused(text))
            }
            Err(refusal) => Err(refusal),
        }
    }

    async fn open_declaring(
        self: &Arc<Self>,
        virtual_host: &str,
        credentials: &Arc<Credentials>,
    ) -> Result<Open, Refusal> {
        let (nothing, end) = (|| None::<()>, self.arrival_end().max(Instant::now() + PERMIT_TIMEOUT));
        let destination = self.destination(None, virtual_host);
        let entered = match Box::pin(self.enter(credentials, true, &destination, end, nothing)).await {
            // Treated as an outage, which clients wait for: nothing that they sent is at fault.
            Err(Refusal::Fault(fault)) if fault.code == ReplyCode::ResourceError => {
                return Err(Refusal::unreachable(fault.text));
            }
            entered => entered?,
        };
        let PermitOutcome::Begin(handshake, permit) = entered else {
            return Err(Refusal::unreachable("no permission to connect"));
        };
        let (begun, endpoint, permit) = *self.begin(permit, credentials, &ClientProperties::SHARED).await?;
        let declaring = match Declaring::open(begun, virtual_host, &self.config).await {
            Ok(declaring) => declaring,
            Err(refusal) if refusal.is_connection_limit() => {
                drop((permit, handshake));
                tokio::time::sleep(LIMIT_PAUSE).await;
                // As above.
                return Err(Refusal::unreachable(refusal));
            }
            Err(refusal) => {
                self.endpoints.blame(self, &endpoint, &refusal);
                return Err(refusal);
            }
        };
        Ok(Open { credentials: credentials.clone(), declaring, endpoint, _permit: permit })
    }

    /// Closes the clients that own a declaration which cannot be repeated.
    fn give_up(&self, virtual_host: &str, step: &Step, why: &str) {
        self.end_owners(virtual_host, step, self.topologies.give_up(virtual_host, step), why);
    }

    /// Closes only the owners with the refused credentials; returns the step with another owner's.
    fn pass_on(&self, virtual_host: &str, step: &Step, why: &str) -> Option<Step> {
        let (refused, again) = self.topologies.pass_on(virtual_host, step, &step.credentials);
        self.end_owners(virtual_host, step, refused, why);
        again
    }

    fn end_owners(&self, virtual_host: &str, step: &Step, owners: Vec<Arc<ClientLink>>, why: &str) {
        tracing::warn!(virtual_host, what = step.what, why, "topology restore failed");
        for link in owners {
            self.end_client(&link, format!("{} could not be declared again: {why}", step.what));
        }
    }

    fn end_client(&self, link: &ClientLink, text: String) {
        add(&self.counters.clients_not_restored, 1);
        link.notify(Event::NotRestored { fault: Fault::new(ReplyCode::ConnectionForced, text) });
    }
}

/// The connection on which declarations with some credentials are repeated.
enum ForDeclaring {
    /// The one with this index.
    Open(usize),
    /// None: the broker has refused the credentials for this reason.
    Refused(String),
}

/// Groups steps by credentials. Clients that log in at the same time each have a copy of theirs.
fn by_credentials(steps: Vec<Step>) -> Vec<Vec<Step>> {
    let mut groups = BTreeMap::<String, Vec<Vec<Step>>>::new();
    for step in steps {
        let of_user = groups.entry(step.credentials.username.clone()).or_default();
        let is_theirs = |group: &&mut Vec<Step>| is_same(&group[0].credentials, &step.credentials);
        match of_user.iter_mut().find(is_theirs) {
            Some(group) => group.push(step),
            None => of_user.push(vec![step]),
        }
    }
    groups.into_values().flatten().collect()
}

/// Class and method of `queue.bind`.
const QUEUE_BIND: (u16, u16) = (50, 20);
/// Minimum time a restoration waits for a permit. While clients need it, it is retried at once, so this is the pause
/// between attempts if `arrival_max` is zero.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after an upstream has refused a connection over a connection limit.
const LIMIT_PAUSE: Duration = Duration::from_secs(1);
