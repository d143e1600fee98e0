//! Forwarding of frames in order, on either upstream channel of a client's channel (P10).

use amqp::{Fault, FrameKind};

use super::ProxySession;
use super::channel::{FrameTurn, first_message_len};
use crate::frames::stored_frames;

impl ProxySession {
    /// Passes on a method, on the client's own connection if it `needs_own`, or a frame of a message that
    /// streams there.
    pub(super) fn pass_on(
        &mut self,
        number: u16,
        kind: FrameKind,
        payload: &[u8],
        needs_own: bool,
    ) -> Result<(), Fault> {
        let turn = if kind == FrameKind::Method { FrameTurn::of(payload) } else { FrameTurn::Publishes };
        let needs_own = needs_own || (turn == FrameTurn::Settles && self.settles_unknown(number, payload));
        if !self.is_next(number, turn, needs_own) {
            let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
            let before = channel.in_line.len();
            channel.line_up(kind, payload);
            self.queued += channel.in_line.len() - before;
            return Ok(());
        }
        self.ensure_placed(number, needs_own, turn.role())?;
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let side = channel.side_to_send(turn.role());
        let before = side.queued.len();
        let result = side.send(&mut self.output, kind, payload);
        self.queued += side.queued.len() - before;
        if side.is_deferred() {
            self.line_up(number);
        }
        result
    }

    /// Passes on the frames of a message, a whole one unless it streams.
    pub(super) fn pass_on_message(
        &mut self,
        number: u16,
        stored: &[u8],
        needs_own: bool,
    ) -> Result<(), Fault> {
        if !self.is_next(number, FrameTurn::Publishes, needs_own) {
            let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
            channel.in_line.extend_from_slice(stored);
            self.queued += stored.len();
            return Ok(());
        }
        self.send_stored(number, FrameTurn::Publishes, stored, needs_own)
    }

    fn send_stored(
        &mut self,
        number: u16,
        turn: FrameTurn,
        stored: &[u8],
        needs_own: bool,
    ) -> Result<(), Fault> {
        self.ensure_placed(number, needs_own, turn.role())?;
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let side = channel.side_to_send(turn.role());
        let before = side.queued.len();
        let result = side.send_stored(&mut self.output, stored);
        self.queued += side.queued.len() - before;
        if side.is_deferred() {
            self.line_up(number);
        }
        result
    }

    /// Whether a method needs the client's own connection, because it settles all deliveries so far and it is unknown which
    /// deliveries that means on the shared connection. The move requeues them, so they are delivered again.
    fn settles_unknown(&mut self, number: u16, payload: &[u8]) -> bool {
        let Some(channel) = self.channels.get_mut(number) else { return false };
        let needs_own = !channel.is_closing() && channel.general.settles_unknown(payload);
        if needs_own {
            self.keep_own();
        }
        needs_own
    }

    /// Whether a new frame of the client may be sent now, without waiting behind earlier frames. If not, the channel is
    /// checked again with the next event.
    fn is_next(&mut self, number: u16, turn: FrameTurn, needs_own: bool) -> bool {
        let Some(channel) = self.channels.get_mut(number) else { return true };
        if needs_own || channel.is_own() {
            return true;
        }
        let is_next = channel.in_line.is_empty() && channel.poll_may_pass(turn, &mut self.output);
        if !is_next {
            self.line_up(number);
        }
        is_next
    }

    /// Schedules another check of a channel with the next event.
    pub(super) fn line_up(&mut self, number: u16) {
        if !self.lined_up.contains(&number) {
            self.lined_up.push(number);
        }
    }

    /// Sends frames that may be sent now: first those that waited for replies, then those in the wait queue. Closes old
    /// upstream channels that may be left now.
    pub(super) fn go_on(&mut self) -> Result<(), Fault> {
        let mut result = Ok(());
        for number in std::mem::take(&mut self.lined_up) {
            let outcome = self.resume_with(number);
            result = result.and(outcome);
        }
        result
    }

    fn resume_with(&mut self, number: u16) -> Result<(), Fault> {
        self.close_left(number);
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let before = channel.general.queued.len();
        let mut result = channel.general.go_on(&mut self.output);
        self.queued -= before - channel.general.queued.len();
        let mut stored = std::mem::take(&mut channel.in_line);
        self.queued -= stored.len();
        let mut sent = 0;
        while result.is_ok()
            && let Some((turn, length)) = first_message_len(&stored[sent..])
        {
            let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
            if !channel.is_own() && !channel.poll_may_pass(turn, &mut self.output) {
                break;
            }
            let unit = &stored[sent..sent + length];
            let needs_own = turn == FrameTurn::Settles
                && stored_frames(unit)
                    .next()
                    .is_some_and(|(_, payload)| self.settles_unknown(number, payload));
            result = self.send_stored(number, turn, unit, needs_own);
            sent += length;
        }
        stored.drain(..sent);
        let Some(channel) = self.channels.get_mut(number) else { return result };
        self.queued += stored.len();
        channel.in_line = stored;
        if !channel.in_line.is_empty() || channel.general.is_deferred() || channel.must_close_old() {
            self.line_up(number);
        } else if channel.is_closing() {
            self.close_sides(number);
        }
        result
    }
}
