//! Selection of the connection that a client is placed on, and of the number of connections.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use amqp::{Credentials, Fault, ReplyCode};
use sync::{Mutex, Rank};
use tokio::time::Instant;

use super::{PermitOutcome, Pool, background};
use crate::client_properties::ClientProperties;
use crate::link::{BlockedNotice, ClientLink, Event};
use crate::refusal::Refusal;
use crate::upstream::{Role, Upstream};

impl Pool {
    /// The least loaded shared connection for this role that has a channel for this client; among equally loaded ones
    /// the newest, so that older connections drain and can be closed. If the least loaded one is busy, another is
    /// opened for later clients.
    ///
    /// If none has a channel and no further connection may be opened, a channel is closed whose departed client's confirms
    /// are overdue.
    ///
    /// With `patience`, only a resting channel is accepted while the brokers have many channels to open: see [`OPENING_MAX`].
    /// Connections to other nodes than `sought.near` are considered only if no connection to that node can be opened. A
    /// stalled connection is chosen only if there is no other.
    pub(crate) fn find_shared(
        self: &Arc<Self>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        sought: PlacementRequest,
        patience: bool,
    ) -> Option<Arc<Upstream>> {
        let node = sought.near.filter(|node| self.endpoints.is_up(*node));
        let [mut near, mut far, mut stalled] = <[LeastLoaded; 3]>::default();
        let (mut shared, mut opening) = (0, 0);
        self.each(credentials, virtual_host, |upstream| {
            let Some(found) = upstream.shared(sought.confirm, sought.role) else { return };
            let is_near = node.is_none_or(|node| upstream.endpoint.socket == node);
            let least = match found.is_stalled {
                true => &mut stalled,
                false if is_near => &mut near,
                false => &mut far,
            };
            if let Some(load) = found.load {
                least.add(load, found.rests, upstream);
            }
            if !found.is_stalled {
                shared += 1;
                opening += found.opening;
            }
        });
        if shared == 0 {
            // Stalled connections are used until another one is open. If the broker as a whole has frozen, that never happens.
            return stalled.into_least(false);
        }
        let only_rested = patience && opening >= OPENING_MAX;
        let may_grow = shared < self.config.max_shared_connections;
        let upstream = match near.into_least(only_rested) {
            Some(upstream) => upstream,
            // Another node's connection is used only if no connection can be opened.
            None if may_grow && !self.is_full() => return None,
            None if only_rested => far.into_least(true)?,
            None => far
                .into_least(false)
                .or_else(|| self.give_up_overdue(credentials, virtual_host, sought.role))
                .or_else(|| stalled.into_least(false))?,
        };
        let is_busy = upstream.outbox.backlog() > BUSY_BACKLOG || upstream.channels_in_use() >= BUSY_CHANNELS;
        if may_grow && is_busy {
            self.grow(credentials, virtual_host, sought);
        }
        Some(upstream)
    }

    /// Takes an unused connection as the client's own: at the client's node while that node is up. With `keep_warm`, the
    /// newest shared connection with a free channel is left for other clients, so that they still need no handshake (P6).
    pub(crate) fn find_own(
        &self,
        credentials: &Credentials,
        virtual_host: &str,
        link: &Arc<ClientLink>,
        keep_warm: bool,
    ) -> Option<Arc<Upstream>> {
        let mut warm = !keep_warm;
        let mut found = None;
        let node = link.home().filter(|node| self.endpoints.is_up(*node));
        self.each(credentials, virtual_host, |upstream| {
            let is_near = node.is_none_or(|node| upstream.endpoint.socket == node);
            if !warm {
                warm = upstream.is_shared().1;
            } else if found.is_none() && is_near && upstream.try_own(link) {
                found = Some(upstream.clone());
            }
        });
        found
    }

    /// Opens a connection for a session that waits for it, after a pause; waits out an outage. An event reports the
    /// result. While the broker blocks publishers, a session that finds no channel waits like blocked publishers,
    /// without a timeout.
    pub(crate) fn open_for(
        self: &Arc<Self>,
        link: Arc<ClientLink>,
        credentials: Arc<Credentials>,
        virtual_host: Box<str>,
        role: Role,
        announced: Option<ClientProperties>,
        pause: Duration,
    ) {
        let pool = self.clone();
        background::run(async move {
            let own = announced.is_some();
            let mut end = Instant::now() + pool.config.outage_max;
            let mut notice = None;
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            let result = loop {
                pool.wait_while_failing(end).await;
                let attempt =
                    pool.connection_for(&link, &credentials, &virtual_host, role, announced.as_ref());
                match Box::pin(attempt).await {
                    Err(refusal) if refusal.is_outage() => {
                        if let Err(refusal) = pool.wait_out(refusal, end, &link).await {
                            break Err(refusal);
                        }
                    }
                    Err(refusal) if !own && refusal.is_shortage(&credentials.username) => {
                        let reason = pool.publishers_blocked(&credentials, &virtual_host, role);
                        let Some(reason) = reason.filter(|_| !link.is_gone()) else { break Err(refusal) };
                        notice.get_or_insert_with(|| BlockedNotice::new(&link, &reason));
                        end = Instant::now() + pool.config.outage_max;
                        tokio::time::sleep(BLOCKED_PAUSE).await;
                    }
                    other => break other,
                }
            };
            if let Err(Event::Ready { own: true, result: Ok(upstream), .. }) =
                link.push(Event::Ready { own, role, result })
            {
                upstream.give_back(false, transport::now());
            }
        });
    }

    /// A connection for a session: its own if `announced` is set, otherwise a shared one for this role. The topology
    /// that clients rely on has been declared there.
    pub(crate) async fn connection_for(
        self: &Arc<Self>,
        link: &Arc<ClientLink>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        role: Role,
        announced: Option<&ClientProperties>,
    ) -> Result<Arc<Upstream>, Refusal> {
        // Restore first, because that may take a connection while all permits are taken.
        self.restored(virtual_host, link.declarer_id()).await?;
        let upstream = match announced {
            Some(announced) => {
                self.own_connection(credentials, virtual_host, announced, link.clone()).await?
            }
            None => {
                let sought = PlacementRequest { confirm: false, role, near: link.home() };
                self.shared_connection(credentials, virtual_host, sought).await?
            }
        };
        if self.topologies().is_torn(virtual_host, link.declarer_id()) {
            if announced.is_some() {
                upstream.give_back(false, transport::now());
            }
            return Err(Refusal::unreachable("lost again"));
        }
        Ok(upstream)
    }

    /// Closes a channel with overdue confirms on a shared connection for this role, and returns that connection.
    fn give_up_overdue(
        &self,
        credentials: &Credentials,
        virtual_host: &str,
        role: Role,
    ) -> Option<Arc<Upstream>> {
        let (mut found, now) = (None, transport::now());
        self.each(credentials, virtual_host, |upstream| {
            if found.is_none() && upstream.give_up_overdue(role, now) {
                found = Some(upstream.clone());
            }
        });
        found
    }

    /// The broker's reason for not reading a connection that clients share for this role, if there is one.
    pub(crate) fn publishers_blocked(
        &self,
        credentials: &Credentials,
        virtual_host: &str,
        role: Role,
    ) -> Option<Box<str>> {
        let mut reason = None;
        self.each(credentials, virtual_host, |upstream| {
            if reason.is_none() && upstream.shared(false, role).is_some() {
                reason = upstream.stopped_for();
            }
        });
        reason
    }

    /// A shared connection with a free channel, opened if there is none and another one is allowed. While all channels are
    /// in use, waits for a channel for as long as for a connection permit.
    pub(crate) async fn shared_connection(
        self: &Arc<Self>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        sought: PlacementRequest,
    ) -> Result<Arc<Upstream>, Refusal> {
        if let Some(upstream) = self.wait_for_rest(credentials, virtual_host, sought).await {
            return Ok(upstream);
        }
        let most = self.config.max_shared_connections;
        let (began, end) = (Instant::now(), self.arrival_end());
        loop {
            if self.count_shared(credentials, virtual_host, Some(sought.role)) < most
                && let Some(upstream) = self.open_shared(credentials, virtual_host, sought).await?
            {
                return Ok(upstream);
            }
            if let Some(upstream) = self.find_shared(credentials, virtual_host, sought, false) {
                return Ok(upstream);
            }
            if self.draining.load(Ordering::Acquire) {
                return Err(Refusal::unreachable("shutting down"));
            }
            let now = Instant::now();
            if now >= end {
                let text =
                    format!("all channels of the {most} upstream connections that clients share are in use");
                return Err(Refusal::Fault(Fault::new(ReplyCode::ResourceError, text)));
            }
            // As for a permit: the longer it has waited, the less often it polls.
            tokio::time::sleep_until(end.min(now + (now - began).max(CHECK_INTERVAL))).await;
        }
    }

    /// Opens a connection that clients share, unless one with a free channel appears meanwhile. Returns `None` if the limit of
    /// shared connections is reached by then.
    async fn open_shared(
        self: &Arc<Self>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        sought: PlacementRequest,
    ) -> Result<Option<Arc<Upstream>>, Refusal> {
        let role = sought.role;
        let found = || self.find_shared(credentials, virtual_host, sought, false);
        // Many clients may arrive at once: the connection that the first of them opens serves them all if it is ready soon.
        let turn = self.opening.turn(credentials, virtual_host, role);
        let turn = tokio::time::timeout(self.config.opening_patience, turn.lock()).await;
        if let Some(upstream) = found() {
            return Ok(Some(upstream));
        }
        let (destination, end) = (self.destination(sought.near, virtual_host), self.arrival_end());
        let (_handshake, permit) = match self.enter(credentials, true, &destination, end, found).await? {
            PermitOutcome::Instead(upstream) => return Ok(Some(upstream)),
            PermitOutcome::Begin(handshake, permit) => (handshake, permit),
        };
        if self.count_shared(credentials, virtual_host, Some(role)) >= self.config.max_shared_connections {
            return Ok(None);
        }
        let opening = self.connect_preferring(sought.near, permit, credentials, &ClientProperties::SHARED);
        let begun = Box::pin(opening).await?;
        let opened = self.finish(begun, credentials, virtual_host, None, Some(role)).await;
        drop(turn);
        opened.map(Some)
    }

    /// While the brokers have many channels to open, waits up to `opening_patience` for a channel that rests or was
    /// opened; returns its connection.
    async fn wait_for_rest(
        self: &Arc<Self>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        sought: PlacementRequest,
    ) -> Option<Arc<Upstream>> {
        let end = Instant::now() + self.config.opening_patience;
        loop {
            let mut busiest = None::<(usize, Arc<Upstream>)>;
            self.each(credentials, virtual_host, |upstream| {
                // Channels on other clients' own connections are irrelevant here.
                let shared = upstream.shared(sought.confirm, sought.role);
                let opening = shared.filter(|shared| !shared.is_stalled).map_or(0, |shared| shared.opening);
                if opening > busiest.as_ref().map_or(0, |(most, _)| *most) {
                    busiest = Some((opening, upstream.clone()));
                }
            });
            let (_, busiest) = busiest?;
            let mut news = std::pin::pin!(busiest.news());
            news.as_mut().enable();
            if let Some(upstream) = self.find_shared(credentials, virtual_host, sought, true) {
                return Some(upstream);
            }
            // Polls as well: the notification may concern another connection, or have gone to a waiter that no longer
            // needed it.
            let next_check = end.min(Instant::now() + CHECK_INTERVAL);
            if tokio::time::timeout_at(next_check, news).await.is_err() && next_check == end {
                return None;
            }
        }
    }

    /// A connection that belongs to one client: a new one, or one that has become unused meanwhile.
    async fn own_connection(
        self: &Arc<Self>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        announced: &ClientProperties,
        owner: Arc<ClientLink>,
    ) -> Result<Arc<Upstream>, Refusal> {
        // If no connection can be opened, even the last unused one is taken.
        let found = || self.find_own(credentials, virtual_host, &owner, !self.is_full());
        let (destination, end) = (self.destination(owner.home(), virtual_host), self.arrival_end());
        let (_handshake, permit) = match self.enter(credentials, true, &destination, end, found).await? {
            PermitOutcome::Instead(upstream) => return Ok(upstream),
            PermitOutcome::Begin(handshake, permit) => (handshake, permit),
        };
        if owner.is_gone() {
            // The client is gone; leave the permit to others.
            return Err(Refusal::unreachable("client disconnected"));
        }
        let begun = Box::pin(self.connect_preferring(owner.home(), permit, credentials, announced)).await?;
        self.finish(begun, credentials, virtual_host, Some(owner), None).await
    }

    /// Whether an idle connection is one of the last that are kept open.
    pub(crate) fn is_kept_idle(&self, upstream: &Upstream) -> bool {
        let least = self.config.min_shared_connections;
        least > 0 && self.count_shared(&upstream.credentials(), &upstream.virtual_host, None) <= least
    }

    /// Number of connections that clients share: for one role, excluding stalled ones, or for any role.
    fn count_shared(&self, credentials: &Credentials, virtual_host: &str, role: Option<Role>) -> usize {
        let mut count = 0;
        self.each(credentials, virtual_host, |upstream| {
            count += usize::from(match role {
                Some(role) => upstream.shared(false, role).is_some_and(|shared| !shared.is_stalled),
                None => upstream.is_shared().0,
            });
        });
        count
    }

    /// Opens another connection in the background, one at a time for a user, virtual host and role.
    fn grow(self: &Arc<Self>, credentials: &Arc<Credentials>, virtual_host: &str, sought: PlacementRequest) {
        let group = (credentials.username.clone(), virtual_host.into(), sought.role);
        if !self.growing.begin(&group) {
            return;
        }
        let (pool, credentials, virtual_host) = (self.clone(), credentials.clone(), virtual_host.to_owned());
        background::run(async move {
            // Failures are in the log.
            let _ = Box::pin(pool.open_another(&credentials, &virtual_host, sought)).await;
            pool.growing.end(&group);
        });
    }

    /// Opens another connection to be shared, if a permit is free.
    pub(super) async fn open_another(
        self: &Arc<Self>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        PlacementRequest { near, role, .. }: PlacementRequest,
    ) -> Result<Arc<Upstream>, Refusal> {
        let opening = async {
            let (destination, end) = (self.destination(near, virtual_host), self.arrival_end());
            let _permit = self.auth_gate.enter(credentials, &destination, end).await?;
            let permit = self.permit_at_once()?;
            let opening = self.connect_preferring(near, permit, credentials, &ClientProperties::SHARED);
            let begun = Box::pin(opening).await?;
            self.finish(begun, credentials, virtual_host, None, Some(role)).await
        };
        let opened = opening.await;
        if let Err(error) = &opened {
            tracing::warn!(%error, "could not open another upstream connection");
        }
        opened
    }

    /// Calls `visit` for all connections with exactly these credentials, compared in constant time, in a virtual host,
    /// newest first.
    pub(super) fn each(
        &self,
        credentials: &Credentials,
        virtual_host: &str,
        mut visit: impl FnMut(&Arc<Upstream>),
    ) {
        let connections = self.connections.lock();
        for upstream in connections.get(&credentials.username).into_iter().flatten().rev() {
            if *upstream.virtual_host == *virtual_host && upstream.is_of(credentials) {
                visit(upstream);
            }
        }
    }
}

/// Locks that serialise opening shared connections. The same credentials, virtual host and role always map to
/// the same lock; a collision costs a short delay.
#[derive(Debug, Default)]
pub(super) struct Opening([tokio::sync::Mutex<()>; 32]);

impl Opening {
    fn turn(&self, credentials: &Credentials, virtual_host: &str, role: Role) -> &tokio::sync::Mutex<()> {
        let mut hasher = DefaultHasher::new();
        (&credentials.username, virtual_host, role == Role::Publishing).hash(&mut hasher);
        &self.0[(hasher.finish() % self.0.len() as u64) as usize]
    }
}

/// The users, virtual hosts and roles for which a further connection is being opened because the existing ones are
/// busy. One such attempt is made at a time for each of them, independently of the others.
#[derive(Debug, Default)]
pub(super) struct Growing(Mutex<HashSet<Group>, { Rank::Leaf as u8 }>);

/// The clients that share connections. Their passwords may differ for a while after a change.
type Group = (String, Box<str>, Role);

impl Growing {
    /// Returns false if a connection is already being opened for the group.
    fn begin(&self, group: &Group) -> bool {
        self.0.lock().insert(group.clone())
    }

    fn end(&self, group: &Group) {
        self.0.lock().remove(group);
    }
}

/// The requirements for the shared connection on which a client's channel is placed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacementRequest {
    /// Whether the channel is in confirm mode.
    pub(crate) confirm: bool,
    pub(crate) role: Role,
    /// The client's node: [`ClientLink::home`].
    pub(crate) near: Option<SocketAddr>,
}

/// The connections with the least load: of all, and of those on which a channel rests.
#[derive(Default)]
struct LeastLoaded {
    of_all: Option<(usize, Arc<Upstream>)>,
    rested: Option<(usize, Arc<Upstream>)>,
}

impl LeastLoaded {
    fn add(&mut self, load: usize, rests: bool, upstream: &Arc<Upstream>) {
        min_by_load(&mut self.of_all, load, upstream);
        if rests {
            min_by_load(&mut self.rested, load, upstream);
        }
    }

    fn into_least(self, only_rested: bool) -> Option<Arc<Upstream>> {
        let least = if only_rested { self.rested } else { self.of_all };
        least.map(|(_, upstream)| upstream)
    }
}

/// Keeps the connection with the least load.
fn min_by_load(least: &mut Option<(usize, Arc<Upstream>)>, load: usize, upstream: &Arc<Upstream>) {
    if least.as_ref().is_none_or(|(least, _)| load < *least) {
        *least = Some((load, upstream.clone()));
    }
}

/// Number of channels that the brokers are still to open, or to prove clean after they were given back, for
/// clients with the same credentials in a virtual host, from which on the next client waits a moment for one
/// to rest. Opening a channel costs a broker several times as much as a publish does. Once the broker is a
/// little behind, clients that publish one message each and leave would otherwise request channels faster
/// than it can open them, until none are left: the replies that let channels rest would come later and later.
pub(crate) const OPENING_MAX: usize = 128;
/// The pause between two searches for a channel while the broker blocks publishers, each of which takes
/// [`crate::PoolConfig::arrival_max`].
const BLOCKED_PAUSE: Duration = Duration::from_millis(250);
/// Interval at which a waiter polls.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes waiting for a connection from which on another one is worthwhile: as much as one client may have
/// waiting before it has to wait itself.
const BUSY_BACKLOG: usize = 128 * 1024;
/// Channels in use from which on another connection is worthwhile: brokers read and write each connection in
/// one process.
const BUSY_CHANNELS: usize = 100;
