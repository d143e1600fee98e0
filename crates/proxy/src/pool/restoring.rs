//! Declaring again what a broker has lost, before anything else goes on (P7). See [`crate::topology`].

use std::sync::Arc;

use amqp::{Credentials, Fault, ReplyCode};

use super::places::Place;
use super::{Endpoint, Entered, Pool};
use crate::introduction::Introduction;
use crate::link::{ClientLink, Event};
use crate::metrics::add;
use crate::refusal::Refusal;
use crate::topology::{Plan, Step, Topologies};
use crate::upstream::Declaring;

/// No client: waits for what concerns everybody.
const NOBODY: u64 = 0;

/// A connection with these credentials, until all is declared.
struct Open {
    credentials: Arc<Credentials>,
    declaring: Declaring,
    endpoint: Endpoint,
    _place: Place,
}

impl Pool {
    /// What clients have declared that ends with a broker.
    pub(crate) fn topologies(&self) -> &Arc<Topologies> {
        &self.topologies
    }

    /// Waits until everything is declared again that was lost in a virtual host, or of one client there; by doing it, if
    /// nobody else does.
    ///
    /// # Errors
    /// When no broker lets the pool in, or it is lost meanwhile.
    pub(crate) async fn restored(self: &Arc<Self>, virtual_host: &str, client: u64) -> Result<(), Refusal> {
        while self.topologies.is_torn(virtual_host, client)
            && let Some(turn) = self.topologies.turn(virtual_host)
        {
            let _turn = turn.lock().await;
            let Some((plan, restoring)) = self.topologies.restore(virtual_host) else { continue };
            Box::pin(self.restore(virtual_host, &plan)).await?;
            restoring.done();
        }
        Ok(())
    }

    /// An upstream answers again: restores what was lost, whether somebody waits for it or not.
    pub(super) fn restore_soon(self: &Arc<Self>) {
        let torn = self.topologies.torn();
        if torn.is_empty() {
            return;
        }
        let pool = self.clone();
        tokio::spawn(async move {
            for virtual_host in torn {
                if let Err(error) = pool.restored(&virtual_host, NOBODY).await {
                    // It is tried again when an upstream answers next, or somebody needs it.
                    tracing::debug!(%error, "not declared again yet");
                }
            }
        });
    }

    /// Declares all that is planned, phase by phase, each client's with its own credentials.
    async fn restore(self: &Arc<Self>, virtual_host: &str, plan: &Plan) -> Result<(), Refusal> {
        for (link, why) in &plan.lost {
            let text = format!("the broker lost what this client declared, and it is not remembered: {why}");
            self.end_client(link, text);
        }
        let mut open = Vec::new();
        for phase in &plan.phases {
            let mut steps: Vec<&Step> = phase.iter().collect();
            steps.sort_by_key(|step| Arc::as_ptr(&step.credentials));
            let groups: Vec<_> =
                steps.chunk_by(|one, other| Arc::ptr_eq(&one.credentials, &other.credentials)).collect();
            for group in groups {
                self.restore_group(virtual_host, group, &mut open).await?;
            }
        }
        for Open { declaring, .. } in open {
            declaring.close().await;
        }
        let count: usize = plan.phases.iter().map(Vec::len).sum();
        tracing::info!(virtual_host, count, "declared again what the upstream may have lost");
        Ok(())
    }

    /// Declares what clients with the same credentials have declared. What the broker refuses ends those who declared it.
    async fn restore_group(
        self: &Arc<Self>,
        virtual_host: &str,
        mut steps: &[&Step],
        open: &mut Vec<Open>,
    ) -> Result<(), Refusal> {
        while let Some(first) = steps.first() {
            let at = match open.iter().position(|open| Arc::ptr_eq(&open.credentials, &first.credentials)) {
                Some(at) => at,
                None => match self.open_declaring(virtual_host, &first.credentials).await {
                    Ok(opened) => {
                        open.push(opened);
                        open.len() - 1
                    }
                    Err(refusal) if refusal.is_final() => {
                        let text = refusal.to_string();
                        steps.iter().for_each(|step| self.give_up(virtual_host, step, &text));
                        return Ok(());
                    }
                    Err(refusal) => return Err(refusal),
                },
            };
            let methods: Vec<_> = steps.iter().map(|step| step.method.clone()).collect();
            let declared = match open[at].declaring.declare(&methods, &self.config).await {
                Ok(declared) => declared,
                Err(refusal) => {
                    self.endpoints.failed(self, &open[at].endpoint);
                    return Err(refusal);
                }
            };
            add(&self.counters.declarations_repeated, declared.count as u64);
            if !declared.goes_on {
                open.swap_remove(at);
            }
            steps = &steps[declared.count..];
            let Some((refused, rest)) = steps.split_first() else { break };
            let text = declared.fault.map_or_else(String::new, |fault| fault.reply_text());
            self.give_up(virtual_host, refused, &text);
            steps = rest;
        }
        Ok(())
    }

    async fn open_declaring(
        self: &Arc<Self>,
        virtual_host: &str,
        credentials: &Arc<Credentials>,
    ) -> Result<Open, Refusal> {
        let nothing = || None::<()>;
        let entered = Box::pin(self.enter(credentials, true, self.arrival_end(), nothing)).await?;
        let Entered::Begin(_permit, place) = entered else {
            return Err(Refusal::unreachable("no permission to connect"));
        };
        let (begun, endpoint, place) = *self.begin(place, credentials, &Introduction::SHARED).await?;
        let declaring = match Declaring::open(begun, virtual_host, &self.config).await {
            Ok(declaring) => declaring,
            Err(refusal) => {
                if refusal.is_outage() {
                    self.endpoints.failed(self, &endpoint);
                }
                return Err(refusal);
            }
        };
        Ok(Open { credentials: credentials.clone(), declaring, endpoint, _place: place })
    }

    /// Ends the clients that have declared something which cannot be declared again.
    fn give_up(&self, virtual_host: &str, step: &Step, why: &str) {
        tracing::warn!(virtual_host, what = step.what, why, "could not be declared again");
        for link in self.topologies.give_up(virtual_host, step) {
            self.end_client(&link, format!("{} could not be declared again: {why}", step.what));
        }
    }

    fn end_client(&self, link: &ClientLink, text: String) {
        add(&self.counters.clients_not_restored, 1);
        link.tell(Event::NotRestored { fault: Fault::new(ReplyCode::ConnectionForced, text) });
    }
}
