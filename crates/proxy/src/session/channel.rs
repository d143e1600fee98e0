//! A client's channel: the frames it has sent, and its one or two upstream channels.
//!
//! # States
//! The states of the channel, by the message that its client is sending ([`ChannelPhase`]). A frame without a row closes
//! the client's connection: with 505 UNEXPECTED_FRAME; with 504 CHANNEL_ERROR without a channel, or while it is closing;
//! with 501 FRAME_ERROR for more of a body than the header announced. Other events do not change the state.
//!
//! | state | event | next state |
//! |---|---|---|
//! | no channel | channel.open | between messages |
//! | between messages | basic.publish | header due, held; streamed if the client has too much of incomplete messages |
//! | between messages | any other method | between messages |
//! | header due | header of an empty message | between messages; the message is passed on |
//! | header due, held | header of another one | body due, held; streamed if the message, or all of the client's, are too large |
//! | header due, streamed | header of another one | body due, streamed |
//! | body due, held | a part of it | body due, held; streamed if the client has too much of incomplete messages |
//! | body due | the rest of it | between messages; the message is passed on, whole unless it was streamed |
//! | streamed, and the broker has a part of it | the broker closes the upstream channel | the same; behind the rest of the message, or if its connection is lost, no channel, and channel.close is sent |
//! | held | there is no room, and the client is granted a stream or has a connection of its own ([`super::staging_wait`]) | the same, streamed |
//! | between messages | channel.close | closing; no channel, if nothing has to be awaited |
//! | any | the client closes its connection | closing, half streamed if it was streamed; no channel, likewise |
//! | closing | the last side is gone | no channel, and channel.close-ok is sent |
//! | any but closing | the broker closes an upstream channel of it; a header is refused; a state is lost that no other connection can carry on ([`super::recovery`]) | no channel, and channel.close is sent |
//!
//! The states of each of its sides ([`SidePlacement`]). *Own* means the client's own connection, which carries only the
//! general side, including its publishing.
//!
//! | state | event | next state |
//! |---|---|---|
//! | nowhere | a frame has to go out | placed, if a connection is ready; otherwise waiting |
//! | waiting | a connection is ready, or a channel on it is free | placed; waiting while the other side is still on a shared connection |
//! | waiting | another frame needs the own connection | waiting for that one |
//! | placed | a frame needs the own connection; the client reads too slowly, has a new secret, or has streamed enough | leaving; nowhere, if it only published and nothing is in flight |
//! | placed, general | the first message, on a connection that nobody else uses | nowhere; the publishing side is placed instead |
//! | placed | the client closes the channel | closing if it was used for more than publishing, or if a method or mandatory message may not be processed yet; otherwise nowhere |
//! | leaving | everything is confirmed, and consumers are answered ([`crate::upstream::Ledger::may_overtake`]) | leaving; the old upstream channel is closed |
//! | leaving | close-ok | waiting; nowhere, if the client has closed the channel and nothing is held |
//! | closing | close-ok | nowhere |
//! | closing | the other side has to go to the own connection | leaving |
//! | placed, leaving, closing | the broker closes the channel | nowhere |
//! | placed, leaving, closing | the connection is lost | waiting, with what is not settled and the consumers; otherwise nowhere |
//! | waiting | the client closes the channel, and nothing is held | nowhere |
//!
//! One event may cause several transitions: from leaving to waiting, to placed, and to closing. A side is closing only
//! if its channel is closing. While the general side is placed on the own connection, there is no publishing side; and
//! it is not placed there before the publishing side has left its shared connection.

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
/// For example `queue.declare`, `basic.publish`, `queue.purge`: the message is sent on the other upstream channel when
/// `declare-ok` has arrived. A `channel.flow` follows it, and the purge is sent when `channel.flow-ok` has arrived.
#[derive(Debug, Default)]
pub(super) struct Channel {
    /// Everything but publishing; on the client's own connection publishing as well.
    pub(super) general: Side,
    /// Publishing, while the channel is not on the client's own connection. Created with the first message or
    /// `confirm.select`.
    pub(super) publishing: Option<Box<Side>>,
    /// The wait queue: frames that wait until the broker has processed those sent on the other side, in the format of
    /// stored frames.
    pub(super) in_line: Vec<u8>,
    pub(super) phase: ChannelPhase,
    /// Whether there has been a message that may make the broker close its connection. Never cleared.
    pub(super) risked: bool,
    /// The limits that the client requested last, whether `basic.qos` has been sent or not.
    pub(super) limits: PrefetchLimits,
    /// Whether the client has sent `queue.declare`, so that an empty queue name means something. Never cleared.
    pub(super) has_declared: bool,
}

/// The client's side of a channel: open, or closed by the client.
#[derive(Debug)]
pub(super) enum ChannelPhase {
    /// Between messages, or in the middle of one.
    Open(Option<IncompleteMessage>),
    /// The client has closed the channel, and waits for close-ok. Or it has closed its connection, perhaps in the
    /// middle of a message that was being streamed.
    Closing { half_streamed: bool },
}

/// A message whose `basic.publish` has come, and which is not complete.
#[derive(Debug)]
pub(super) struct IncompleteMessage {
    /// When its `basic.publish` came.
    pub(super) began: Instant,
    /// Whether it may make the broker close its connection.
    pub(super) needs_own: bool,
    pub(super) due: DueContent,
    pub(super) frames: MessageFrames,
    /// The payload of the broker's `channel.close`, if it came while this message was streamed: see [`Channel::defer_close`].
    pub(super) deferred_close: Option<Box<[u8]>>,
}

/// The frame that has to come next on a channel in the middle of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DueContent {
    /// A content header, of a message that goes `to_default` exchange or not.
    Header { to_default: bool },
    /// This number of bytes of body, in one or more frames; never 0.
    Body { missing: u64 },
}

/// The frames of an incomplete message.
#[derive(Debug)]
pub(super) enum MessageFrames {
    /// The frames received so far, in the format of stored frames, buffered until the message is complete; never empty.
    Buffered(Vec<u8>),
    /// Passed on as they arrive, on the client's own connection.
    Streaming,
}

/// Which earlier frames the broker must have processed before a frame may be sent.
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

    /// Whether the whole channel is, or will be, on the client's own connection.
    pub(super) fn is_own(&self) -> bool {
        self.general.is_own()
    }

    /// Whether no side is placed.
    pub(super) fn is_unplaced(&self) -> bool {
        self.sides().all(Side::is_unplaced)
    }

    /// Whether a side is moving, and its old upstream channel has still to be closed.
    pub(super) fn must_close_old(&self) -> bool {
        self.sides().any(Side::must_close_old)
    }

    /// Bytes of frames that wait.
    pub(super) fn queued(&self) -> usize {
        self.in_line.len() + self.sides().map(|side| side.queued.len()).sum::<usize>()
    }

    /// The message that the client is sending.
    pub(super) fn incoming(&self) -> Option<&IncompleteMessage> {
        let ChannelPhase::Open(message) = &self.phase else { return None };
        message.as_ref()
    }

    /// The content frame that has to come next, if one has to.
    pub(super) fn due(&self) -> Option<DueContent> {
        self.incoming().map(|message| message.due)
    }

    /// Bytes of the incoming message that are held.
    pub(super) fn staged(&self) -> usize {
        self.incoming().map_or(0, |message| message.buffered().len())
    }

    /// Called when the client closes the channel, or its connection. Drops a buffered incomplete message and returns its bytes.
    pub(super) fn begin_closing(&mut self) -> usize {
        let staged = self.staged();
        if let ChannelPhase::Open(_) = self.phase {
            self.phase = ChannelPhase::Closing { half_streamed: self.is_streaming() };
        }
        staged
    }

    /// Whether the client has closed the channel and waits for close-ok.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.phase, ChannelPhase::Closing { .. })
    }

    /// Whether a message is being streamed, or was when the client closed its connection.
    pub(super) fn is_streaming(&self) -> bool {
        match &self.phase {
            ChannelPhase::Open(message) => message.as_ref().is_some_and(IncompleteMessage::is_streaming),
            ChannelPhase::Closing { half_streamed } => *half_streamed,
        }
    }

    /// Whether the broker has seen a part of a message on the client's own connection.
    pub(super) fn has_partial_message(&self) -> bool {
        self.is_streaming() && self.general.is_placed()
    }

    /// Keeps the broker's `channel.close` until the message that is being streamed is complete. Returns false if none is. The
    /// broker discards the rest of the message, but answers a close-ok between its frames with 505 UNEXPECTED_FRAME, which
    /// would end everything on the client's own connection.
    pub(super) fn defer_close(&mut self, close: &[u8]) -> bool {
        if !self.has_partial_message() {
            return false;
        }
        let ChannelPhase::Open(Some(message)) = &mut self.phase else { return false };
        message.deferred_close = Some(close.into());
        true
    }

    /// Takes the close that was deferred, and with it the message.
    pub(super) fn take_deferred_close(&mut self) -> Option<Box<[u8]>> {
        let ChannelPhase::Open(message) = &mut self.phase else { return None };
        message.take_if(|message| message.deferred_close.is_some())?.deferred_close
    }

    /// Whether the client's messages are to be confirmed.
    pub(super) fn is_confirming(&self) -> bool {
        self.sides().any(Side::is_confirming)
    }

    /// Whether the channel has, or has requested, a consumer with this tag.
    pub(super) fn is_consuming(&self, tag: &str) -> bool {
        asked_for(stored_frames(&self.in_line), self.general.is_consuming(tag), tag)
    }

    /// Whether a frame may be sent on its side now; if not, an event follows.
    pub(super) fn poll_may_pass(&mut self, turn: FrameTurn, output: &mut Output) -> bool {
        match turn {
            FrameTurn::Settles => true,
            FrameTurn::Publishes => self.general.poll_processed(output),
            FrameTurn::Method => {
                self.publishing.as_deref_mut().is_none_or(|publishing| publishing.poll_processed(output))
            }
        }
    }

    /// See [`Side::prove`].
    pub(super) fn prove(&mut self, output: &mut Output) {
        if !self.has_partial_message() {
            self.sides_mut().for_each(|side| side.prove(output));
        }
    }

    /// Like [`Self::prove`], for the side with this lease.
    pub(super) fn prove_lease(&mut self, lease: u64, output: &mut Output) {
        if let Some(side) = self.side_to_prove(lease) {
            side.prove(output);
        }
    }

    /// See [`Side::request_proof`].
    pub(super) fn request_proof(&mut self, lease: u64, output: &mut Output) {
        if let Some(side) = self.side_to_prove(lease) {
            side.request_proof(output);
        }
    }

    /// The side with this lease, unless a message on it is incomplete: no other frame may be sent between its frames.
    fn side_to_prove(&mut self, lease: u64) -> Option<&mut Side> {
        if self.has_partial_message() { None } else { self.of_lease(lease) }
    }

    /// Adds a frame to the wait queue.
    pub(super) fn line_up(&mut self, kind: FrameKind, payload: &[u8]) {
        put_frame(&mut self.in_line, kind, 0, payload, 0);
    }

    /// Merges publishing into the general side: on the client's own connection, before it is placed there.
    pub(super) fn merge_sides(&mut self) {
        if let Some(mut publishing) = self.publishing.take() {
            self.general.take_publishing(&mut publishing);
            let queued = std::mem::take(&mut publishing.queued);
            self.general.queued.splice(..0, queued);
        }
    }

    /// Undoes [`Self::merge_sides`] when the channel has left the client's own connection. Its held frames move to the
    /// wait queue.
    pub(super) fn split_sides(&mut self) {
        let queued = std::mem::take(&mut self.general.queued);
        self.in_line.splice(..0, queued);
        let mut publishing = self.publishing.take().unwrap_or_default();
        publishing.take_publishing(&mut self.general);
        self.publishing = Some(publishing);
        if !self.general.is_resuming() {
            self.general.place = SidePlacement::Unplaced;
        }
    }
}

impl Default for ChannelPhase {
    fn default() -> Self {
        Self::Open(None)
    }
}

impl IncompleteMessage {
    /// The frames that are held.
    pub(super) fn buffered(&self) -> &[u8] {
        match &self.frames {
            MessageFrames::Buffered(frames) => frames,
            MessageFrames::Streaming => &[],
        }
    }

    pub(super) fn is_streaming(&self) -> bool {
        matches!(self.frames, MessageFrames::Streaming)
    }
}

/// The turn and length of the first method or message at the start of stored frames.
pub(super) fn first_message_len(stored: &[u8]) -> Option<(FrameTurn, usize)> {
    let mut frames = stored_frames(stored);
    let (_, payload) = frames.next()?;
    let (turn, mut length) = (FrameTurn::of(payload), payload.len() + OVERHEAD);
    if is_publish(payload) {
        let content = frames.take_while(|(kind, _)| *kind != FrameKind::Method);
        length += content.map(|(_, payload)| payload.len() + OVERHEAD).sum::<usize>();
    }
    Some((turn, length))
}
