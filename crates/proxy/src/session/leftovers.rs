//! What a client leaves behind: frames that waited for a place when their channel, or the client, ended.

use std::sync::Arc;

use amqp::{ContentHeader, FrameKind, Method};

use super::Session;
use super::channel::{Channel, Route};
use super::judge::{Need, is_publish, is_to_default, judge, judge_properties, publish_need};
use super::output::Output;
use super::place::PLACING_ATTEMPTS;
use crate::frames::{put_frame, stored_frames};
use crate::link::ClientLink;
use crate::pool::HandingOver;
use crate::refusal::Refusal;
use crate::upstream::{Leased, Placed, Upstream};

impl Session {
    /// Hands over what of the held frames may go to a connection that clients share; nobody hears the answers.
    pub(super) fn hand_over_later(&self, mut leftovers: Vec<Channel>) {
        for channel in &mut leftovers {
            channel.held = harmless(&channel.held, self.exclusive);
            channel.forget_consumers();
        }
        leftovers.retain(|channel| !channel.held.is_empty());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if leftovers.is_empty() {
            return;
        }
        let (handing_over, credentials) = (HandingOver::begin(&self.pool), self.credentials.clone());
        let virtual_host = self.virtual_host.clone();
        runtime.spawn(async move {
            let link = ClientLink::nobody();
            for mut channel in leftovers {
                match lease(&handing_over, &credentials, &virtual_host, &mut channel, &link).await {
                    Ok((upstream, leased)) => send(channel, &upstream, leased),
                    Err(error) => {
                        tracing::warn!(%error, "messages of a client that is gone could not be handed over");
                    }
                }
            }
        });
    }
}

async fn lease(
    handing_over: &HandingOver,
    credentials: &Arc<amqp::Credentials>,
    virtual_host: &str,
    channel: &mut Channel,
    link: &Arc<ClientLink>,
) -> Result<(Arc<Upstream>, Leased), Refusal> {
    for _ in 0..PLACING_ATTEMPTS {
        let confirm = channel.is_confirming();
        let upstream = handing_over.pool().shared_connection(credentials, virtual_host, confirm).await?;
        if let Placed::On(leased) = upstream.lease(channel.new_lease(link, 0, 0), confirm) {
            return Ok((upstream, leased));
        }
    }
    Err(Refusal::unreachable("no channel is free"))
}

fn send(mut channel: Channel, upstream: &Arc<Upstream>, leased: Leased) {
    let mut output = Output::default();
    let route = Route { upstream: upstream.clone(), channel: leased.channel, own: false };
    // What was done to the channel before was on another one.
    channel.touched = false;
    if let Err(fault) = channel.start(&mut output, route, leased, 0) {
        tracing::warn!(%fault, "messages of a client that is gone could not be handed over");
    }
    output.hand_over();
    upstream.release(leased.channel, channel.usage());
}

/// The frames of `held` that nobody has to be there for, and that cannot make the broker close a connection (P2): whole
/// messages, and what any connection is good for. Not consumers and gets, which would take messages for a client that
/// cannot acknowledge them; nor what follows `tx.select`, which is not committed.
fn harmless(held: &[u8], exclusive: bool) -> Vec<u8> {
    let mut kept = Vec::new();
    // Where the message begins that is being gone through, whether it is harmless, and what it may be judged by.
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
                Ok(method) if judge(&method, exclusive) == Ok(Need::Any) => {}
                _ => continue,
            },
            FrameKind::Header => {
                let header = ContentHeader::decode(payload).unwrap_or_default();
                is_harmless &= judge_properties(header.properties, to_default) == Ok(Need::Any);
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
