//! Sending departed clients' remaining frames on another upstream connection (P11). The pool does this in the background.

use std::sync::{Arc, Weak};
use std::time::Duration;

use amqp::{Credentials, FrameKind};
use sync::BackOff;
use tokio::time::Instant;

use super::output::Output;
use super::side::{Route, Side};
use super::validate::is_publish;
use crate::client_properties::ClientProperties;
use crate::frames::stored_frames;
use crate::link::ClientLink;
use crate::metrics::add;
use crate::pool::{HandingOver, background};
use crate::quota::QuotaShare;
use crate::refusal::Refusal;
use crate::upstream::{Leased, Ledger, Placed, Role, Upstream};

/// Sends the remaining frames of departed clients with the same credentials in a virtual host.
pub(super) struct HandOver {
    pub(super) handing_over: HandingOver,
    pub(super) credentials: Arc<Credentials>,
    pub(super) virtual_host: Box<str>,
    /// Whether each channel gets a connection of its own.
    pub(super) alone: bool,
}

/// A departed client's remaining frames of one channel.
#[derive(Debug, Default)]
pub(super) struct DepartedChannel {
    pub(super) side: Side,
    /// Ledgers of frames that the broker must have processed first. A ledger is then dropped or empty.
    pub(super) after: Vec<Weak<Ledger>>,
}

impl HandOver {
    /// Starts to send the remaining frames of departed clients' channels.
    pub(super) fn begin(self, mut channels: Vec<DepartedChannel>) {
        channels.retain(|departed| !departed.side.queued.is_empty());
        let pool = self.handing_over.pool();
        let mut accepted = Vec::new();
        for departed in channels {
            if pool.departed_is_full() {
                self.give_up(&departed.side, "limit of kept messages reached");
                continue;
            }
            let bytes = QuotaShare::new(&pool.replay_totals().departed, kept_bytes(&departed.side));
            accepted.push((departed, bytes));
        }
        if accepted.is_empty() {
            return;
        }
        // Channels that wait for a broker that does not read must not delay others.
        let is_later = |(departed, _): &(DepartedChannel, _)| !departed.after.is_empty();
        let (later, now): (Vec<_>, Vec<_>) = accepted.into_iter().partition(is_later);
        let this = Arc::new(self);
        for (departed, bytes) in later {
            let this = this.clone();
            background::run(async move {
                wait_until_processed(&departed.after).await;
                this.hand_over(departed.side, bytes).await;
            });
        }
        background::run(async move {
            for (departed, bytes) in now {
                this.hand_over(departed.side, bytes).await;
            }
        });
    }

    fn give_up(&self, channel: &Side, why: &str) {
        let is_message =
            |(kind, payload): &(FrameKind, &[u8])| *kind == FrameKind::Method && is_publish(payload);
        let messages = stored_frames(&channel.queued).filter(is_message).count();
        tracing::warn!(messages, why, "messages of a disconnected client not republished");
        add(&self.handing_over.pool().counters().messages_departed_lost, messages as u64);
    }

    async fn hand_over(&self, mut channel: Side, mut bytes: QuotaShare) {
        let link = ClientLink::departed(self.handing_over.pool().replay_totals().clone());
        loop {
            let (upstream, leased) = match self.lease(&mut channel, &link).await {
                Ok(leased) => leased,
                Err(error) => return self.give_up(&channel, &error.to_string()),
            };
            let mut output = Output::new(transport::now());
            let route = Route { upstream: upstream.clone(), channel: leased.channel, own: self.alone };
            if let Err(fault) = channel.start(&mut output, route, leased, 0) {
                tracing::warn!(%fault, "cannot republish messages of a disconnected client");
            }
            output.hand_over();
            // From here on the ledger counts the bytes.
            drop(bytes);
            if upstream.release(leased.channel, channel.usage(), transport::now()) {
                if self.alone {
                    upstream.give_back(false, transport::now());
                    // Connections are used one after the other, unless the broker does not answer.
                    let returned = wait_until_returned(&upstream, &link);
                    let _ = tokio::time::timeout(ANSWER_TIMEOUT, returned).await;
                }
                return;
            }
            let remains = channel.take_remains();
            channel.depart(remains, transport::now());
            bytes = QuotaShare::new(&self.handing_over.pool().replay_totals().departed, kept_bytes(&channel));
            if channel.queued.is_empty() {
                return;
            }
        }
    }

    /// Waits for a channel: through an outage, and while all channels are in use. While the broker blocks publishers, this wait
    /// has no timeout.
    async fn lease(
        &self,
        channel: &mut Side,
        link: &Arc<ClientLink>,
    ) -> Result<(Arc<Upstream>, Leased), Refusal> {
        let pool = self.handing_over.pool();
        let (credentials, virtual_host) = (&self.credentials, &*self.virtual_host);
        let since = channel.lost_since().map_or_else(Instant::now, Instant::from_std);
        let mut end = since + pool.config().outage_max;
        let mut back_off = BackOff::new(CHECK_INTERVAL, SHORTAGE_PAUSE_MAX);
        loop {
            pool.wait_while_failing(end).await;
            let refusal = match self.lease_once(channel, link).await {
                Ok(leased) => return Ok(leased),
                Err(refusal) => refusal,
            };
            if refusal.is_outage() {
                pool.wait_out(refusal, end, link).await?;
                continue;
            }
            if !refusal.is_shortage(&credentials.username) {
                return Err(refusal);
            }
            if pool.publishers_blocked(credentials, virtual_host, Role::Publishing).is_some() {
                end = Instant::now() + pool.config().outage_max;
            }
            if Instant::now() >= end {
                return Err(refusal);
            }
            tokio::time::sleep(back_off.pause()).await;
        }
    }

    async fn lease_once(
        &self,
        channel: &mut Side,
        link: &Arc<ClientLink>,
    ) -> Result<(Arc<Upstream>, Leased), Refusal> {
        let pool = self.handing_over.pool();
        let role = Role::Publishing;
        let announced = self.alone.then_some(&ClientProperties::SHARED);
        let attempt = pool.connection_for(link, &self.credentials, &self.virtual_host, role, announced);
        let upstream = Box::pin(attempt).await?;
        let new_lease = channel.new_lease(link, 0, 0, transport::now());
        match pool.lease(&upstream, new_lease, channel.is_confirming(), role) {
            Ok(Placed::On(leased)) => Ok((upstream, leased)),
            refused => {
                if self.alone {
                    upstream.give_back(false, transport::now());
                }
                Err(refused.map_or_else(Refusal::Fault, |_| Refusal::no_channel()))
            }
        }
    }
}

/// The memory that the leftovers of a channel take while they wait.
fn kept_bytes(channel: &Side) -> usize {
    channel.queued.len() + OVERHEAD
}

/// Waits until the broker has processed everything sent on the dedicated connection, or the connection is lost.
async fn wait_until_returned(upstream: &Upstream, link: &Arc<ClientLink>) {
    while upstream.is_own_of(link) {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Waits until the brokers have processed everything sent before.
async fn wait_until_processed(ledgers: &[Weak<Ledger>]) {
    let is_under_way = |ledger: &Weak<Ledger>| ledger.upgrade().is_some_and(|ledger| ledger.has_entries());
    let mut back_off = BackOff::new(CHECK_INTERVAL, CHECK_INTERVAL_MAX);
    while ledgers.iter().any(is_under_way) {
        tokio::time::sleep(back_off.pause()).await;
    }
}

/// How long the next channel with a dedicated connection waits for the broker's replies to the previous channel: the previous
/// channel's queue may never confirm.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest pause between two searches for a free channel. Thousands may wait, and each search locks the pool's table.
const SHORTAGE_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Memory in bytes of the task that sends a channel's remaining frames. A client that publishes one small message may cause
/// one.
const OVERHEAD: usize = 4096;
/// The first interval for checking whether the broker has processed frames, which usually takes a few round trips.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The longest such interval: thousands of channels may wait for a broker that does not read.
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PoolConfig;
    use crate::link::Event;
    use crate::pool::Pool;
    use crate::upstream::Peer;

    #[tokio::test(start_paused = true)]
    async fn the_return_of_an_earlier_connection_does_not_count_for_the_next() {
        let pool = Pool::new(PoolConfig::new(Vec::new()));
        let credentials = Arc::new(Credentials::plain("user", "password"));
        let (link, now) = (ClientLink::departed(Arc::default()), transport::now());
        // An earlier connection was given back unused.
        link.notify(Event::Returned);
        let peer = Peer::new(&pool, &credentials, Some(link.clone()), Role::General, now);
        let upstream = &peer.connection.upstream;
        let returned = || tokio::time::timeout(ANSWER_TIMEOUT, wait_until_returned(upstream, &link));
        assert!(returned().await.is_err());
        upstream.give_back(false, now);
        assert!(returned().await.is_ok());
    }
}
