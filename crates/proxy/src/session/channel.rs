//! A client's channel: what it has sent, and the one or two upstream channels that it is on.

use std::time::Instant;

use amqp::FrameKind;
use amqp::frame::OVERHEAD;

use super::judge::{Limits, is_publish, is_settling};
use super::output::Output;
use super::side::{Place, Side};
use crate::frames::{put_frame, stored_frames};
use crate::upstream::{Role, asked_for};

/// An open channel of a client.
///
/// On connections that clients share it publishes on one upstream channel, and does everything else on another one, each
/// opened when it is needed: a broker with an alarm stops reading what publishes (P10). The order that could tell is kept: a
/// method waits until the broker is through with the messages in front of it, and a message until it is through with the
/// methods. Acknowledgements do not wait for messages. A client's own connection carries the whole channel.
///
/// For example `queue.declare`, `basic.publish`, `queue.purge`: the message goes out when `declare-ok` has come, on the
/// other upstream channel; behind it goes a `channel.flow`, and the purge goes out when that is answered.
#[derive(Debug, Default)]
pub(super) struct Channel {
    /// Everything but publishing; on the client's own connection publishing, too.
    pub(super) general: Side,
    /// Publishing, while the channel is not on the client's own connection. Made with the first message or `confirm.select`.
    pub(super) publishing: Option<Box<Side>>,
    /// Frames that wait until the broker is through with what went out on the other side, as stored frames.
    pub(super) in_line: Vec<u8>,
    pub(super) content: Content,
    /// The message that is coming goes to the default exchange.
    pub(super) to_default: bool,
    /// The message that is coming may make the broker close the connection that it comes over.
    pub(super) needs_own: bool,
    /// There has been such a message.
    pub(super) risked: bool,
    /// The present message is passed on as it comes, not held until it is complete.
    pub(super) streaming: bool,
    /// The frames of a message that is not complete.
    pub(super) partial: Vec<u8>,
    /// When that began.
    pub(super) began: Option<Instant>,
    /// What the client asked for last, whether it has gone out or not.
    pub(super) limits: Limits,
    /// The client has sent `queue.declare`: an empty queue name means something.
    pub(super) has_declared: bool,
    /// The client has closed the channel and waits for close-ok.
    pub(super) closing: bool,
}

/// What a channel's next frame has to be.
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

/// What a frame has to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// A message, or `confirm.select`: for the methods in front of it.
    Publishes,
    /// An acknowledgement: for nothing on the other side.
    Settles,
    /// Any other method: for the messages in front of it.
    Method,
}

impl Turn {
    /// Of a method by its payload.
    pub(super) fn of(payload: &[u8]) -> Self {
        match payload {
            [0, 85, 0, 10, ..] => Self::Publishes,
            _ if is_publish(payload) => Self::Publishes,
            _ if is_settling(payload) => Self::Settles,
            _ => Self::Method,
        }
    }

    /// What the upstream channel is for that such a frame goes out on.
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

    /// The side for a use, made if there is none.
    pub(super) fn side_for(&mut self, role: Role) -> &mut Side {
        match role {
            Role::General => &mut self.general,
            Role::Publishing => self.publishing.get_or_insert_default(),
        }
    }

    /// The side on which a frame for this use goes out.
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

    /// The side that an event of this lease is about; `None` when that is over.
    pub(super) fn role_of(&self, lease: u64) -> Option<Role> {
        let is_it = |role| self.side(role).is_some_and(|side| side.lease == lease);
        [Role::General, Role::Publishing].into_iter().find(|role| is_it(*role))
    }

    /// The same, to act on it.
    pub(super) fn of_lease(&mut self, lease: u64) -> Option<&mut Side> {
        self.side_mut(self.role_of(lease)?)
    }

    /// Whether the whole channel is on the client's own connection, or will be.
    pub(super) fn is_own(&self) -> bool {
        self.general.is_own()
    }

    /// Whether no side was placed yet, or all are gone.
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

    /// Whether the channel has, or has asked for, a consumer with this tag.
    pub(super) fn is_consuming(&self, tag: &str) -> bool {
        asked_for(stored_frames(&self.in_line), self.general.is_consuming(tag), tag)
    }

    /// Whether a frame may go out on its side now; after a no, an event tells.
    pub(super) fn may_pass(&mut self, turn: Turn, output: &mut Output) -> bool {
        match turn {
            Turn::Settles => true,
            Turn::Publishes => self.general.await_quiet(output),
            Turn::Method => {
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

    /// The same, for what was sent under a lease.
    pub(super) fn prove_lease(&mut self, lease: u64, output: &mut Output) {
        // Nothing may come between the frames of a message.
        if !self.is_half_sent()
            && let Some(side) = self.of_lease(lease)
        {
            side.prove(output);
        }
    }

    /// Has frames wait in line.
    pub(super) fn line_up(&mut self, kind: FrameKind, payload: &[u8]) {
        put_frame(&mut self.in_line, kind, 0, payload, 0);
    }

    /// Publishes where it does everything else from now on: on the client's own connection, where it is not placed yet.
    pub(super) fn unite(&mut self) {
        if let Some(mut publishing) = self.publishing.take() {
            self.general.take_publishing(&mut publishing);
            let held = std::mem::take(&mut publishing.held);
            self.general.held.splice(..0, held);
        }
    }

    /// Undoes [`Self::unite`] when the channel has left the client's own connection: what it holds lines up.
    pub(super) fn divide(&mut self) {
        let held = std::mem::take(&mut self.general.held);
        self.in_line.splice(..0, held);
        let mut publishing = self.publishing.take().unwrap_or_default();
        publishing.take_publishing(&mut self.general);
        self.publishing = Some(publishing);
        if !self.general.is_resuming() {
            self.general.place = Place::Nowhere;
        }
    }
}

/// How many bytes at the start of stored frames are one method, or one message.
pub(super) fn first_unit(stored: &[u8]) -> Option<(Turn, usize)> {
    let mut frames = stored_frames(stored);
    let (_, payload) = frames.next()?;
    let (turn, mut length) = (Turn::of(payload), payload.len() + OVERHEAD);
    if is_publish(payload) {
        let content = frames.take_while(|(kind, _)| *kind != FrameKind::Method);
        length += content.map(|(_, payload)| payload.len() + OVERHEAD).sum::<usize>();
    }
    Some((turn, length))
}
