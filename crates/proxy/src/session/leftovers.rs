//! The leftovers of a client (P11): frames that waited for placement when their channel, or the client,
//! ended, and frames in flight on an upstream connection that is lost after that.

use std::sync::{Arc, Weak};
use std::time::Duration;

use amqp::{ContentHeader, Credentials, Fault, FrameKind, Method, ReplyCode};
use tokio::time::Instant;

use super::ProxySession;
use super::channel::Channel;
use super::output::Output;
use super::placement::PLACING_ATTEMPTS;
use super::side::{Route, Side};
use super::validate::{Need, is_publish, is_to_default, publish_need, validate, validate_properties};
use crate::client_properties::ClientProperties;
use crate::frames::{put_frame, stored_frames};
use crate::link::ClientLink;
use crate::metrics::add;
use crate::pool::{HandingOver, Pool, background};
use crate::quota::QuotaShare;
use crate::refusal::Refusal;
use crate::upstream::{Leased, Ledger, Left, Placed, Remains, Role, Upstream};

impl ProxySession {
    /// Hands over those held frames, and those lost with a connection, that may go to a shared one; replies
    /// to them are discarded.
    pub(super) fn hand_over_later(&self, channels: Vec<Channel>) {
        let departed = channels.into_iter().map(|channel| self.departed(channel)).collect();
        HandOver {
            handing_over: HandingOver::begin(&self.pool),
            credentials: self.credentials.clone(),
            virtual_host: self.virtual_host.clone(),
            alone: false,
        }
        .begin(departed);
    }

    /// The frames of a channel to be handed over, and the ledgers to wait for first.
    fn departed(&self, mut channel: Channel) -> Departed {
        let mut departed = Departed::default();
        departed.side.take_last_queue(&mut channel.general);
        let mut held = Vec::new();
        if channel.is_confirming() {
            departed.side.set_confirming();
        }
        let waits = !channel.in_line.is_empty();
        for side in channel.sides_mut() {
            let is_lost = side.route().is_some_and(|route| route.upstream.has_ended());
            let mut remains = Remains::default();
            if is_lost && !side.transactional {
                remains = side.take_remains();
                held.append(&mut remains.frames);
            }
            if is_lost || side.lost_since().is_some() {
                departed.side.depart(remains, self.output.now);
            } else if waits {
                departed.after.extend(side.under_way());
            }
            held.append(&mut side.held);
        }
        held.append(&mut channel.in_line);
        departed.side.held = harmless(&held, self.exclusive);
        departed
    }
}

/// A departed client's leftovers of one channel.
#[derive(Debug, Default)]
struct Departed {
    side: Side,
    /// Frames that the broker must have processed first. Each is gone, or empty, once it has.
    after: Vec<Weak<Ledger>>,
}

/// Sends again what departed clients had in flight on an upstream connection that is lost. A fault of the
/// broker may have been caused by any of it: then each channel continues on a connection of its own, and
/// frames that were already on one are given up.
pub(crate) fn send_again(
    pool: &Arc<Pool>,
    upstream: &Upstream,
    left: Vec<Left>,
    was_own: bool,
    fault: &Fault,
    now: std::time::Instant,
) {
    let alone = fault.code != ReplyCode::ConnectionForced;
    let mut channels = Vec::new();
    for mut left in left {
        add(&pool.counters().messages_departed_lost, left.remains.lost + left.remains.too_large.len() as u64);
        if left.remains.frames.is_empty() {
            continue;
        }
        if alone && was_own {
            tracing::warn!(%fault, "messages of a client that is gone are refused");
            add(&pool.counters().messages_departed_lost, left.remains.messages);
            continue;
        }
        add(&pool.counters().messages_departed_resent, left.remains.messages);
        // Exclusive queues of the client's own connection are gone with it.
        left.remains.frames = harmless(&left.remains.frames, was_own);
        channels.push(Departed { side: Side::of_departed(left, now), after: Vec::new() });
    }
    HandOver {
        handing_over: HandingOver::begin(pool),
        credentials: upstream.credentials.clone(),
        virtual_host: upstream.virtual_host.clone(),
        alone,
    }
    .begin(channels);
}

/// Hands over departed clients' leftovers, with the same credentials in a virtual host.
struct HandOver {
    handing_over: HandingOver,
    credentials: Arc<Credentials>,
    virtual_host: Box<str>,
    /// Whether each channel gets a connection of its own.
    alone: bool,
}

impl HandOver {
    fn begin(self, mut channels: Vec<Departed>) {
        channels.retain(|departed| !departed.side.held.is_empty());
        let pool = self.handing_over.pool();
        let mut kept = Vec::new();
        for departed in channels {
            if pool.departed_is_full() {
                self.give_up(&departed.side, "too much is kept of others");
                continue;
            }
            let bytes = QuotaShare::new(&pool.kept().departed, departed.side.held.len());
            kept.push((departed, bytes));
        }
        if kept.is_empty() {
            return;
        }
        background::run(async move {
            // Channels that wait for a broker that does not read must not delay others.
            let is_later = |(departed, _): &(Departed, _)| !departed.after.is_empty();
            let (later, now): (Vec<_>, Vec<_>) = kept.into_iter().partition(is_later);
            for (departed, bytes) in now.into_iter().chain(later) {
                wait_until_through(&departed.after).await;
                self.hand_over(departed.side, bytes).await;
            }
        });
    }

    fn give_up(&self, channel: &Side, why: &str) {
        let is_message =
            |(kind, payload): &(FrameKind, &[u8])| *kind == FrameKind::Method && is_publish(payload);
        let messages = stored_frames(&channel.held).filter(is_message).count();
        tracing::warn!(messages, why, "messages of a client that is gone could not be handed over");
        add(&self.handing_over.pool().counters().messages_departed_lost, messages as u64);
    }

    async fn hand_over(&self, mut channel: Side, mut bytes: QuotaShare) {
        let link = ClientLink::departed(self.handing_over.pool().kept().clone());
        loop {
            let (upstream, leased) = match self.lease(&mut channel, &link).await {
                Ok(leased) => leased,
                Err(error) => return self.give_up(&channel, &error.to_string()),
            };
            let mut output = Output::new(transport::now());
            let route = Route { upstream: upstream.clone(), channel: leased.channel, own: self.alone };
            if let Err(fault) = channel.start(&mut output, route, leased, 0) {
                tracing::warn!(%fault, "messages of a client that is gone do not fit");
            }
            output.hand_over();
            // From here on the ledger counts them.
            drop(bytes);
            if upstream.release(leased.channel, channel.usage(), transport::now()) {
                if self.alone {
                    upstream.give_back(false, transport::now());
                    self.wait_until_returned(&link).await;
                }
                return;
            }
            let remains = channel.take_remains();
            channel.depart(remains, transport::now());
            bytes = QuotaShare::new(&self.handing_over.pool().kept().departed, channel.held.len());
            if channel.held.is_empty() {
                return;
            }
        }
    }

    /// Waits for a channel, through an outage as well.
    async fn lease(
        &self,
        channel: &mut Side,
        link: &Arc<ClientLink>,
    ) -> Result<(Arc<Upstream>, Leased), Refusal> {
        let pool = self.handing_over.pool();
        let since = channel.lost_since().map_or_else(Instant::now, Instant::from_std);
        let end = since + pool.config().outage_max;
        let confirm = channel.is_confirming();
        let (credentials, virtual_host) = (&self.credentials, &*self.virtual_host);
        for _ in 0..PLACING_ATTEMPTS {
            let upstream = loop {
                pool.wait_while_failing(end).await;
                let announced = self.alone.then_some(&ClientProperties::SHARED);
                let role = Role::Publishing;
                let attempt = pool.connection_for(link, credentials, virtual_host, role, announced);
                match Box::pin(attempt).await {
                    Err(refusal) if refusal.is_outage() => pool.wait_out(refusal, end, link).await?,
                    other => break other?,
                }
            };
            if let Placed::On(leased) =
                upstream.lease(channel.new_lease(link, 0, 0, transport::now()), confirm, Role::Publishing)
            {
                return Ok((upstream, leased));
            }
        }
        Err(Refusal::unreachable("no channel is free"))
    }

    /// Waits until the broker has processed everything sent on a separate connection, or the connection is lost.
    async fn wait_until_returned(&self, link: &ClientLink) {
        while !link.has_events() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// Waits until the brokers have processed everything sent before.
async fn wait_until_through(ledgers: &[Weak<Ledger>]) {
    let is_under_way = |ledger: &Weak<Ledger>| ledger.upgrade().is_some_and(|ledger| ledger.has_entries());
    while ledgers.iter().any(is_under_way) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The frames of `held` that need no client to be present, and that cannot make the broker close a connection (P2):
/// whole messages, and methods that any connection can carry. Excludes consumers and gets, which would take
/// messages for a client that cannot acknowledge them, and frames behind `tx.select`, which are not committed.
fn harmless(held: &[u8], exclusive: bool) -> Vec<u8> {
    let mut kept = Vec::new();
    // The start of the current message, whether it is harmless, and the data needed to decide that.
    let mut message = None;
    let (mut is_harmless, mut to_default, mut missing) = (true, false, 0);
    for (kind, payload) in stored_frames(held) {
        match kind {
            FrameKind::Method if is_publish(payload) => {
                message = Some(kept.len());
                (is_harmless, to_default) = (publish_need(payload) == Need::Any, is_to_default(payload));
            }
            FrameKind::Method => match Method::decode(payload) {
                Ok(Method::TxSelect(_)) => break,
                Ok(method) if validate(&method, exclusive) == Ok(Need::Any) => {}
                _ => continue,
            },
            FrameKind::Header => {
                let header = ContentHeader::decode(payload).unwrap_or_default();
                is_harmless &= validate_properties(header.properties, to_default) == Ok(Need::Any);
                missing = header.body_size;
            }
            _ => missing = missing.saturating_sub(payload.len() as u64),
        }
        put_frame(&mut kept, kind, 0, payload, 0);
        if kind != FrameKind::Method
            && missing == 0
            && let Some(start) = message.take()
            && !is_harmless
        {
            kept.truncate(start);
        }
    }
    if let Some(start) = message {
        kept.truncate(start);
    }
    kept
}

/// Interval for checking whether the broker has processed frames: there are few of them.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use amqp::frame::{write_content_header, write_frame, write_method};
    use amqp::method::{basic, exchange, tx};
    use amqp::properties::NO_PROPERTIES;

    use super::*;

    fn method<'m>(method: impl Into<Method<'m>>) -> Vec<u8> {
        let mut out = Vec::new();
        write_method(&mut out, 0, method);
        out
    }

    fn message(body: &[u8]) -> Vec<u8> {
        let mut out = method(basic::Publish::default());
        write_content_header(&mut out, 0, body.len() as u64, NO_PROPERTIES);
        for piece in body.chunks(3) {
            write_frame(&mut out, FrameKind::Body, 0, |out| out.extend_from_slice(piece));
        }
        out
    }

    #[test]
    fn whole_messages_and_plain_declarations_are_kept_and_nothing_else() {
        let declare = |kind| method(exchange::Declare { exchange: "e", kind, ..Default::default() });
        let kept = [declare("direct"), message(b"first"), message(b"")].concat();
        let held = [
            method(basic::Consume { no_ack: true, ..Default::default() }),
            declare("direct"),
            declare("bogus"),
            message(b"first"),
            method(basic::Get::default()),
            message(b""),
        ]
        .concat();
        assert_eq!(harmless(&held, false), kept);
        let mut reply =
            method(basic::Publish { routing_key: "amq.rabbitmq.reply-to.x.y", ..Default::default() });
        reply.extend(&message(b"reply")[method(basic::Publish::default()).len()..]);
        assert_eq!(harmless(&[reply, held.clone()].concat(), false), kept);
        let half = message(b"half a message");
        for cut in [half.len() - 10, method(basic::Publish::default()).len()] {
            assert_eq!(harmless(&[&held[..], &half[..cut]].concat(), false), kept);
        }
    }

    #[test]
    fn what_was_never_committed_is_not_handed_over() {
        let held = [message(b"before"), method(tx::Select {}), message(b"uncommitted")].concat();
        assert_eq!(harmless(&held, false), message(b"before"));
    }
}
