//! The remaining frames of a departed client or closed channel (P11): frames that still waited for placement, and
//! frames in flight on an upstream connection that is lost afterwards.

use std::sync::Arc;
use std::time::Instant;

use amqp::{ContentHeader, Fault, FrameKind, Method, ReplyCode};

use super::ProxySession;
use super::channel::Channel;
use super::hand_over::{DepartedChannel, HandOver};
use super::side::{Side, without_removals};
use super::validate::{
    Need, is_publish, is_to_default, names_last_queue, publish_need, validate, validate_properties,
};
use crate::frames::{put_frame, stored_frames};
use crate::metrics::add;
use crate::pool::{HandingOver, Pool, channel_limit};
use crate::upstream::{DepartedLedger, UnsettledEntries, Upstream};

impl ProxySession {
    /// Hands over the held frames, and those lost with a connection, that may be sent on any connection. Replies to them
    /// are discarded. The frames of a suspect are sent on dedicated connections.
    pub(super) fn hand_over_later(&self, channels: Vec<Channel>) {
        if !self.link.replay_buffer.keeps_messages() {
            // The client republishes them itself.
            return;
        }
        let departed = channels.into_iter().map(|channel| self.departed(channel)).collect();
        HandOver {
            handing_over: HandingOver::begin(&self.pool),
            credentials: self.credentials.clone(),
            virtual_host: self.virtual_host.clone(),
            alone: self.suspect,
        }
        .begin(departed);
    }

    /// The frames of a channel to hand over, and the ledgers to wait for first.
    fn departed(&self, mut channel: Channel) -> DepartedChannel {
        let mut departed = DepartedChannel::default();
        departed.side.take_last_queue(&mut channel.general);
        let mut queued = Vec::new();
        if channel.is_confirming() {
            departed.side.set_confirming();
        }
        let waits = !channel.in_line.is_empty() || channel.general.is_deferred();
        for side in channel.sides_mut() {
            let is_lost = side.route().is_some_and(|route| route.upstream.has_ended());
            let mut remains = UnsettledEntries::default();
            if is_lost && !side.transactional {
                remains = side.take_remains();
                queued.append(&mut without_removals(&std::mem::take(&mut remains.frames)));
            }
            if is_lost || side.lost_since().is_some() {
                departed.side.depart(remains, self.output.now);
            } else if waits {
                departed.after.extend(side.under_way());
            }
            queued.append(&mut side.queued);
        }
        queued.append(&mut channel.in_line);
        departed.side.queued = harmless(&queued, self.exclusive, departed.side.knows_last_queue());
        departed
    }
}

/// Sends again the frames that departed clients had in flight on a lost upstream connection. If the broker closed the
/// connection for a fault, any of these frames may have caused it: each channel's frames are sent on a dedicated
/// connection, and frames that were on one already are dropped. Frames that may have stalled the connection are sent on
/// a dedicated connection as well.
pub(crate) fn send_again(
    pool: &Arc<Pool>,
    upstream: &Upstream,
    left: Vec<DepartedLedger>,
    was_own: bool,
    fault: &Fault,
    now: Instant,
) {
    // Exceeding the user's channel limit is not caused by frames on the channels that were open.
    let alone = fault.code != ReplyCode::ConnectionForced
        && channel_limit(fault, &upstream.credentials().username).is_none();
    let (mut channels, mut suspects) = (Vec::new(), Vec::new());
    for mut left in left {
        add(&pool.counters().messages_departed_lost, left.remains.lost + left.remains.too_large.len() as u64);
        if left.remains.frames.is_empty() {
            continue;
        }
        if alone && was_own {
            tracing::warn!(%fault, "messages of a disconnected client are refused");
            add(&pool.counters().messages_departed_lost, left.remains.messages);
            continue;
        }
        add(&pool.counters().messages_departed_resent, left.remains.messages);
        // Whether the meaning of an empty queue name at the start of the frames is known.
        let knows_queue = left.remains.carried.last_queue.is_some();
        left.remains.frames = harmless(&left.remains.frames, was_own, knows_queue);
        let list = if left.is_suspect { &mut suspects } else { &mut channels };
        list.push(DepartedChannel { side: Side::for_departed(left, now), after: Vec::new() });
    }
    for (channels, alone) in [(channels, alone), (suspects, true)] {
        HandOver {
            handing_over: HandingOver::begin(pool),
            credentials: upstream.credentials(),
            virtual_host: upstream.virtual_host.clone(),
            alone,
        }
        .begin(channels);
    }
}

/// The frames of `queued` that are useful without the client, and that cannot make the broker close a connection (P2):
/// complete messages, and methods that may be sent on any connection. Excludes consumers and gets, which would take
/// messages that the departed client cannot acknowledge, cancels of its former consumers, and frames after `tx.select`,
/// which are not committed. Excludes methods with an empty queue name unless the queue is known: from an earlier
/// declaration in `queued`, or from the start if `knows_queue`. A server-named queue is of no use without the client,
/// and on the new upstream channel the name may mean another client's queue.
fn harmless(queued: &[u8], exclusive: bool, mut knows_queue: bool) -> Vec<u8> {
    let mut harmless_frames = Vec::new();
    // The start of the current message, whether it is harmless, and the data needed to decide that.
    let mut message = None;
    let (mut is_harmless, mut to_default, mut missing) = (true, false, 0);
    for (kind, payload) in stored_frames(queued) {
        match kind {
            FrameKind::Method if is_publish(payload) => {
                message = Some(harmless_frames.len());
                (is_harmless, to_default) = (publish_need(payload) == Need::Any, is_to_default(payload));
            }
            FrameKind::Method => match Method::decode(payload) {
                Ok(Method::TxSelect(_)) => break,
                Ok(Method::BasicCancel(_)) => continue,
                Ok(method) => {
                    let is_harmless = (knows_queue || !names_last_queue(&method))
                        && validate(&method, exclusive) == Ok(Need::Any);
                    if let Method::QueueDeclare(declare) = method {
                        knows_queue = is_harmless && !declare.queue.is_empty();
                    }
                    if !is_harmless {
                        continue;
                    }
                }
                Err(_) => continue,
            },
            FrameKind::Header => {
                let header = ContentHeader::decode(payload).unwrap_or_default();
                is_harmless &= validate_properties(header.properties, to_default) == Ok(Need::Any);
                missing = header.body_size;
            }
            _ => missing = missing.saturating_sub(payload.len() as u64),
        }
        put_frame(&mut harmless_frames, kind, 0, payload, 0);
        if kind != FrameKind::Method
            && missing == 0
            && let Some(start) = message.take()
            && !is_harmless
        {
            harmless_frames.truncate(start);
        }
    }
    if let Some(start) = message {
        harmless_frames.truncate(start);
    }
    harmless_frames
}

#[cfg(test)]
mod tests {
    use amqp::frame::{write_content_header, write_frame, write_method};
    use amqp::method::{basic, exchange, queue, tx};
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
        let harmless_frames = [declare("direct"), message(b"first"), message(b"")].concat();
        let queued = [
            method(basic::Consume { no_ack: true, ..Default::default() }),
            declare("direct"),
            declare("bogus"),
            message(b"first"),
            method(basic::Get::default()),
            message(b""),
        ]
        .concat();
        assert_eq!(harmless(&queued, false, false), harmless_frames);
        let mut reply =
            method(basic::Publish { routing_key: "amq.rabbitmq.reply-to.x.y", ..Default::default() });
        reply.extend(&message(b"reply")[method(basic::Publish::default()).len()..]);
        assert_eq!(harmless(&[reply, queued.clone()].concat(), false, false), harmless_frames);
        let half = message(b"half a message");
        for cut in [half.len() - 10, method(basic::Publish::default()).len()] {
            assert_eq!(harmless(&[&queued[..], &half[..cut]].concat(), false, false), harmless_frames);
        }
    }

    #[test]
    fn uncommitted_messages_are_not_handed_over() {
        let queued = [message(b"before"), method(tx::Select {}), message(b"uncommitted")].concat();
        assert_eq!(harmless(&queued, false, false), message(b"before"));
    }

    #[test]
    fn methods_with_an_empty_queue_name_are_kept_only_if_the_queue_is_known() {
        let declare = |queue| method(queue::Declare { queue, ..Default::default() });
        let bind = || method(queue::Bind { exchange: "e", ..Default::default() });
        let named = [declare("q"), bind()].concat();
        assert_eq!(harmless(&named, false, false), named);
        assert_eq!(harmless(&bind(), false, true), bind());
        assert_eq!(harmless(&bind(), false, false), []);
        assert_eq!(harmless(&[declare(""), bind()].concat(), false, true), declare(""));
    }
}
