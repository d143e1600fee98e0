//! Which connection a client is placed on, and how many there are.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use amqp::{Credentials, Fault, ReplyCode};

use super::{Pool, SHARED_NAME};
use crate::link::{ClientLink, Event};
use crate::refusal::Refusal;
use crate::upstream::Upstream;

impl Pool {
    /// The connection with the least to do of those that share their channels among clients and have one for this client;
    /// among equals the newest one, so that the older ones empty and can be closed. When even that one is busy, another
    /// one is opened for those who come next.
    pub(crate) fn find_shared(
        self: &Arc<Self>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        confirm: bool,
    ) -> Option<Arc<Upstream>> {
        let (mut best, mut shared) = (None::<(usize, Arc<Upstream>)>, 0);
        self.each(credentials, virtual_host, |upstream| {
            let Some(load) = upstream.shared_load(confirm) else { return };
            shared += 1;
            if let Some(load) = load
                && best.as_ref().is_none_or(|(least, _)| load < *least)
            {
                best = Some((load, upstream.clone()));
            }
        });
        let (_, upstream) = best?;
        let is_busy = upstream.outbox.backlog() > BUSY_BACKLOG || upstream.channels_in_use() >= BUSY_CHANNELS;
        if shared < self.config.max_shared_connections && is_busy {
            self.grow(credentials, virtual_host);
        }
        Some(upstream)
    }

    /// A connection that nobody uses, made the client's own. The newest one with room for others is left to them, so that
    /// the warm path stays warm (P6).
    pub(crate) fn find_own(
        &self,
        credentials: &Credentials,
        virtual_host: &str,
        link: &Arc<ClientLink>,
    ) -> Option<Arc<Upstream>> {
        let mut warm = false;
        let mut found = None;
        self.each(credentials, virtual_host, |upstream| {
            if !warm {
                warm = matches!(upstream.shared_load(false), Some(Some(_)));
            } else if found.is_none() && upstream.try_own(link) {
                found = Some(upstream.clone());
            }
        });
        found
    }

    /// Opens a connection for a session that waits for it, after a pause, and through an outage as well; an event tells it
    /// when that is done.
    pub(crate) fn open_for(
        self: &Arc<Self>,
        link: Arc<ClientLink>,
        credentials: Arc<Credentials>,
        virtual_host: Box<str>,
        own_name: Option<String>,
        pause: Duration,
    ) {
        let pool = self.clone();
        tokio::spawn(async move {
            let own = own_name.is_some();
            let end = tokio::time::Instant::now() + pool.config.outage_max;
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            let result = loop {
                pool.wait_while_failing(end).await;
                let attempt = match &own_name {
                    Some(name) => pool.own_connection(&credentials, &virtual_host, name, link.clone()).await,
                    None => pool.shared_connection(&credentials, &virtual_host, false).await,
                };
                match attempt {
                    Err(refusal) if refusal.is_outage() => {
                        if let Err(refusal) = pool.wait_out(refusal, end, &link).await {
                            break Err(refusal);
                        }
                    }
                    other => break other,
                }
            };
            if let Err(Event::Ready { own: true, result: Ok(upstream) }) =
                link.push(Event::Ready { own, result })
            {
                upstream.give_back(false);
            }
        });
    }

    /// A connection with room, opened if there is none and there may be one more.
    pub(crate) async fn shared_connection(
        self: &Arc<Self>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        confirm: bool,
    ) -> Result<Arc<Upstream>, Refusal> {
        let _permit = self.doorkeeper.enter(credentials).await;
        // Somebody else may have opened one meanwhile.
        if let Some(upstream) = self.find_shared(credentials, virtual_host, confirm) {
            return Ok(upstream);
        }
        let most = self.config.max_shared_connections;
        if self.count_shared(credentials, virtual_host) >= most {
            let text =
                format!("all channels of the {most} upstream connections that clients share are in use");
            return Err(Refusal::Fault(Fault::new(ReplyCode::ResourceError, text)));
        }
        let begun = self.begin(credentials, SHARED_NAME).await?;
        self.finish(begun, credentials, virtual_host, None).await
    }

    /// A new connection that belongs to one client.
    async fn own_connection(
        self: &Arc<Self>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        name: &str,
        owner: Arc<ClientLink>,
    ) -> Result<Arc<Upstream>, Refusal> {
        let _permit = self.doorkeeper.enter(credentials).await;
        let begun = self.begin(credentials, name).await?;
        self.finish(begun, credentials, virtual_host, Some(owner)).await
    }

    /// Whether an idle connection is one of the last that are kept.
    pub(crate) fn keeps_warm(&self, upstream: &Upstream) -> bool {
        let least = self.config.min_shared_connections;
        least > 0 && self.count_shared(&upstream.credentials, &upstream.virtual_host) <= least
    }

    fn count_shared(&self, credentials: &Credentials, virtual_host: &str) -> usize {
        let mut count = 0;
        self.each(credentials, virtual_host, |upstream| {
            count += usize::from(upstream.shared_load(false).is_some());
        });
        count
    }

    /// Opens another connection in the background, one at a time.
    fn grow(self: &Arc<Self>, credentials: &Arc<Credentials>, virtual_host: &str) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.growing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (pool, credentials, virtual_host) = (self.clone(), credentials.clone(), virtual_host.to_owned());
        runtime.spawn(async move {
            let result = async {
                let _permit = pool.doorkeeper.enter(&credentials).await;
                let begun = pool.begin(&credentials, SHARED_NAME).await?;
                pool.finish(begun, &credentials, &virtual_host, None).await
            };
            if let Err(error) = result.await {
                tracing::warn!(%error, "no further upstream connection for a busy one");
            }
            pool.growing.store(false, Ordering::Release);
        });
    }

    /// Shows all connections with these very credentials, compared in constant time, in a virtual host, newest first.
    fn each(&self, credentials: &Credentials, virtual_host: &str, mut show: impl FnMut(&Arc<Upstream>)) {
        let connections = self.connections.lock();
        for upstream in connections.get(&credentials.username).into_iter().flatten().rev() {
            if *upstream.virtual_host == *virtual_host && super::is_same(&upstream.credentials, credentials) {
                show(upstream);
            }
        }
    }
}

/// Octets waiting for a connection from which on it is worth having another one: as much as one client may have waiting
/// before it has to wait itself.
const BUSY_BACKLOG: usize = 128 * 1024;
/// Channels in use from which on it is: brokers read and write each connection in one process.
const BUSY_CHANNELS: usize = 100;
