//! A client's channel: the frames it has sent, and its one or two upstream channels.

use std::time::Instant;

use amqp::FrameKind;
use amqp::frame::OVERHEAD;

use super::output::Output;
use super::side::{Side, SidePlacement};
use super::validate::{PrefetchLimits, is_publish, is_settling};
use crate::frames::{put_frame, stored_frames};
use crate::upstream::{Role, asked_for};

/// An open channel of a client.
///
/// On shared connections it publishes on one upstream channel and does everything else on another one, each
/// opened when it is needed: a broker with an alarm stops reading connections that publish (P10). Order is
/// preserved wherever it is observable: a method waits until the broker has processed the messages in front
/// of it, and a message until it has processed the methods. Acknowledgements do not wait for messages. A
/// client's own connection carries the whole channel.
///
/// For example `queue.declare`, `basic.publish`, `queue.purge`: the message goes out when `declare-ok` has come, on
/// the other upstream channel; a `channel.flow` follows it, and the purge goes out when that is answered.
#[derive(Debug, Default)]
pub(super) struct Channel {
    /// Everything but publishing; on the client's own connection publishing as well.
    pub(super) general: Side,
    /// Publishing, while the channel is not on the client's own connection. Created with the first message or
    /// `confirm.select`.
    pub(super) publishing: Option<Box<Side>>,
    /// Frames that wait until the broker has processed those sent on the other side, in the format of stored
    /// frames.
    pub(super) in_line: Vec<u8>,
    pub(super) content: Content,
    /// Whether the incoming message goes to the default exchange.
    pub(super) to_default: bool,
    /// Whether the incoming message may make the broker close its connection.
    pub(super) needs_own: bool,
    /// Whether there has been such a message.
    pub(super) risked: bool,
    /// Whether the incoming message is passed on as it arrives, not held until it is complete.
    pub(super) streaming: bool,
    /// The frames of an incomplete message.
    pub(super) partial: Vec<u8>,
    /// When that message began.
    pub(super) began: Option<Instant>,
    /// The limits that the client requested last, whether the method has gone out or not.
    pub(super) limits: PrefetchLimits,
    /// Whether the client has sent `queue.declare`, so that an empty queue name means something.
    pub(super) has_declared: bool,
    /// Whether the client has closed the channel and waits for close-ok.
    pub(super) closing: bool,
}

/// The kind of frame that has to come next on a channel.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// A method.
    #[default]
    None,
    /// A content header.
    Header,
    /// This many bytes of body, in one or more frames.
    Body(u64),
}

/// The frames that the broker must have processed before a frame may go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameTurn {
    /// A message, or `confirm.select`: waits for the methods in front of it.
    Publishes,
    /// An acknowledgement: waits for nothing on the other side.
    Settles,
    /// Any other method: waits for the messages in front of it.
    Method,
}

impl FrameTurn {
    /// Classifies a method by its payload.
    pub(super) fn of(payload: &[u8]) -> Self {
        match payload {
            [0, 85, 0, 10, ..] => Self::Publishes,
            _ if is_publish(payload) => Self::Publishes,
            _ if is_settling(payload) => Self::Settles,
            _ => Self::Method,
        }
    }

    /// The role of the upstream channel that such a frame goes out on.
    pub(super) fn role(self) -> Role {
        if self == Self::Publishes { Role::Publishing } else { Role::General }
    }
}

impl Channel {
    pub(super) fn side(&self, role: Role) -> Option<&Side> {
        match role {
            Role::General => Some(&self.general),
            Role::Publishing => self.publishing.as_deref(),
        }
    }

    pub(super) fn side_mut(&mut self, role: Role) -> Option<&mut Side> {
        match role {
            Role::General => Some(&mut self.general),
            Role::Publishing => self.publishing.as_deref_mut(),
        }
    }

    /// The side for a role, created if there is none.
    pub(super) fn side_for(&mut self, role: Role) -> &mut Side {
        match role {
            Role::General => &mut self.general,
            Role::Publishing => self.publishing.get_or_insert_default(),
        }
    }

    /// The side on which a frame for this role goes out.
    pub(super) fn side_to_send(&mut self, role: Role) -> &mut Side {
        let role = if self.is_own() { Role::General } else { role };
        self.side_for(role)
    }

    pub(super) fn sides(&self) -> impl Iterator<Item = &Side> {
        std::iter::once(&self.general).chain(self.publishing.as_deref())
    }

    pub(super) fn sides_mut(&mut self) -> impl Iterator<Item = &mut Side> {
        std::iter::once(&mut self.general).chain(self.publishing.as_deref_mut())
    }

    /// The side that an event of this lease concerns; `None` if the lease is over.
    pub(super) fn role_of(&self, lease: u64) -> Option<Role> {
        let is_it = |role| self.side(role).is_some_and(|side| side.lease == lease);
        [Role::General, Role::Publishing].into_iter().find(|role| is_it(*role))
    }

    /// Like [`Self::role_of`], but returns the side itself.
    pub(super) fn of_lease(&mut self, lease: u64) -> Option<&mut Side> {
        self.side_mut(self.role_of(lease)?)
    }

    /// Whether the whole channel is on the client's own connection, or will be.
    pub(super) fn is_own(&self) -> bool {
        self.general.is_own()
    }

    /// Whether no side is placed.
    pub(super) fn is_nowhere(&self) -> bool {
        self.sides().all(Side::is_nowhere)
    }

    /// Bytes of frames that wait.
    pub(super) fn held(&self) -> usize {
        self.in_line.len() + self.sides().map(|side| side.held.len()).sum::<usize>()
    }

    /// Whether the broker has seen a part of a message on the client's own connection.
    pub(super) fn is_half_sent(&self) -> bool {
        self.streaming && self.content != Content::None && self.general.is_placed()
    }

    /// Whether the client's messages are to be confirmed.
    pub(super) fn is_confirming(&self) -> bool {
        self.sides().any(Side::is_confirming)
    }

    /// Whether the channel has, or has requested, a consumer with this tag.
    pub(super) fn is_consuming(&self, tag: &str) -> bool {
        asked_for(stored_frames(&self.in_line), self.general.is_consuming(tag), tag)
    }

    /// Whether a frame may go out on its side now; if not, an event follows.
    pub(super) fn may_pass(&mut self, turn: FrameTurn, output: &mut Output) -> bool {
        match turn {
            FrameTurn::Settles => true,
            FrameTurn::Publishes => self.general.await_quiet(output),
            FrameTurn::Method => {
                self.publishing.as_deref_mut().is_none_or(|publishing| publishing.await_quiet(output))
            }
        }
    }

    /// See [`Side::prove`].
    pub(super) fn prove(&mut self, output: &mut Output) {
        if !self.is_half_sent() {
            self.sides_mut().for_each(|side| side.prove(output));
        }
    }

    /// Like [`Self::prove`], for the side with this lease.
    pub(super) fn prove_lease(&mut self, lease: u64, output: &mut Output) {
        // Nothing may come between the frames of a message.
        if !self.is_half_sent()
            && let Some(side) = self.of_lease(lease)
        {
            side.prove(output);
        }
    }

    /// Adds a frame to the wait queue.
    pub(super) fn line_up(&mut self, kind: FrameKind, payload: &[u8]) {
        put_frame(&mut self.in_line, kind, 0, payload, 0);
    }

    /// Merges publishing into the general side: on the client's own connection, before it is placed there.
    pub(super) fn unite(&mut self) {
        if let Some(mut publishing) = self.publishing.take() {
            self.general.take_publishing(&mut publishing);
            let held = std::mem::take(&mut publishing.held);
            self.general.held.splice(..0, held);
        }
    }

    /// Undoes [`Self::unite`] when the channel has left the client's own connection: its held frames join the
    /// wait queue.
    pub(super) fn divide(&mut self) {
        let held = std::mem::take(&mut self.general.held);
        self.in_line.splice(..0, held);
        let mut publishing = self.publishing.take().unwrap_or_default();
        publishing.take_publishing(&mut self.general);
        self.publishing = Some(publishing);
        if !self.general.is_resuming() {
            self.general.place = SidePlacement::Nowhere;
        }
    }
}

/// The length of the first method, or message, at the start of stored frames.
pub(super) fn first_unit(stored: &[u8]) -> Option<(FrameTurn, usize)> {
    let mut frames = stored_frames(stored);
    let (_, payload) = frames.next()?;
    let (turn, mut length) = (FrameTurn::of(payload), payload.len() + OVERHEAD);
    if is_publish(payload) {
        let content = frames.take_while(|(kind, _)| *kind != FrameKind::Method);
        length += content.map(|(_, payload)| payload.len() + OVERHEAD).sum::<usize>();
    }
    Some((turn, length))
}
