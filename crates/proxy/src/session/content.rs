//! Messages that come frame by frame: held until they are complete, or streamed.

use amqp::content::check_size;
use amqp::{ContentHeader, Fault, Frame, FrameKind, ReplyCode};

use super::channel::{ChannelPhase, DueContent, IncompleteMessage, MessageFrames};
use super::validate::{
    Need, PUBLISH_IDS, is_to_default, malformed, publish_need, validate_properties, validate_publish,
};
use super::{ProxySession, STAGING_BUDGET, STAGING_LIMIT};
use crate::frames::put_frame;

impl ProxySession {
    /// Begins a message with its `basic.publish`. The method is held until the header is validated, even if the message
    /// is streamed afterwards.
    pub(super) fn begin_message(&mut self, number: u16, publish: &[u8]) -> Result<(), Fault> {
        validate_publish(publish)?;
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let mut frames = std::mem::take(&mut self.spare);
        frames.reserve(PARTIAL_CAPACITY);
        put_frame(&mut frames, FrameKind::Method, 0, publish, 0);
        self.staged += frames.len();
        channel.phase = ChannelPhase::Open(Some(IncompleteMessage {
            began: self.output.now,
            needs_own: publish_need(publish) == Need::Own,
            due: DueContent::Header { to_default: is_to_default(publish) },
            frames: MessageFrames::Buffered(frames),
            deferred_close: None,
        }));
        self.keep_within_budget(number)
    }

    pub(super) fn header(&mut self, frame: &Frame<'_>) -> Result<(), Fault> {
        let max_size = self.pool.config().max_message_size;
        let Some(channel) = self.channels.content(frame.channel)? else { return Ok(()) };
        let due = channel.due();
        let (Some(DueContent::Header { to_default }), ChannelPhase::Open(Some(message))) =
            (due, &mut channel.phase)
        else {
            return Err(unexpected(due));
        };
        let header = ContentHeader::decode(frame.payload).map_err(malformed)?;
        header.check().map_err(|fault| fault.caused_by(PUBLISH_IDS))?;
        let need = validate_properties(header.properties, to_default)?;
        message.needs_own |= need == Need::Own;
        channel.risked |= message.needs_own;
        let size = header.body_size;
        if let Some(max_size) = max_size
            && let Err(fault) = check_size(size, max_size)
        {
            let fault = fault.caused_by(PUBLISH_IDS);
            // The broker has received the publish and waits for its content, so the upstream channel cannot be reused.
            if fault.is_hard() || channel.has_partial_message() {
                return Err(fault.on_connection());
            }
            self.fail_channel(frame.channel, &fault);
            return Ok(());
        }
        if size > STAGING_LIMIT {
            self.keep_own();
            self.stream(frame.channel)?;
        }
        self.output.count_messages(1);
        self.content(frame, size)
    }

    pub(super) fn body(&mut self, frame: &Frame<'_>) -> Result<(), Fault> {
        let Some(channel) = self.channels.content(frame.channel)? else { return Ok(()) };
        let due = channel.due();
        let Some(DueContent::Body { missing }) = due else { return Err(unexpected(due)) };
        let Some(missing) = missing.checked_sub(frame.payload.len() as u64) else {
            let fault =
                Fault::new(ReplyCode::FrameError, "content body frame exceeds remaining content size");
            return Err(fault.caused_by(PUBLISH_IDS));
        };
        self.content(frame, missing)?;
        self.budget.count_came(frame.payload.len());
        if self.budget.has_stream() {
            self.leave_stream()?;
        }
        Ok(())
    }

    /// Passes on a header or body frame, after which `missing` bytes of body follow, or holds it until the message is complete.
    #[inline]
    fn content(&mut self, frame: &Frame<'_>, missing: u64) -> Result<(), Fault> {
        let number = frame.channel;
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        if channel.is_streaming() {
            self.pass_on(number, frame.kind, frame.payload, true)?;
            self.note_unproven(number);
        }
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let ChannelPhase::Open(incoming) = &mut channel.phase else { return Ok(()) };
        let Some(message) = incoming else { return Ok(()) };
        if let MessageFrames::Buffered(frames) = &mut message.frames {
            let before = frames.len();
            put_frame(frames, frame.kind, 0, frame.payload, 0);
            self.staged += frames.len() - before;
        }
        if missing > 0 {
            message.due = DueContent::Body { missing };
            return self.keep_within_budget(number);
        }
        if message.deferred_close.is_some() {
            return self.handle_deferred_close(number);
        }
        let Some(IncompleteMessage { needs_own, frames: MessageFrames::Buffered(mut message), .. }) =
            incoming.take()
        else {
            return Ok(());
        };
        channel.general.touched |= needs_own;
        self.staged -= message.len();
        if needs_own {
            self.keep_own();
        }
        self.pass_on_message(number, &message, needs_own)?;
        self.note_unproven(number);
        if message.capacity() <= PARTIAL_REUSED {
            message.clear();
            self.spare = message;
        }
        Ok(())
    }

    /// Streams the message on a channel if the client's incomplete messages exceed its budget.
    fn keep_within_budget(&mut self, number: u16) -> Result<(), Fault> {
        if self.staged <= STAGING_BUDGET {
            return Ok(());
        }
        self.keep_own();
        self.stream(number)
    }

    /// Passes on the frames of a message held so far, and the rest as it arrives, on the client's own connection.
    pub(super) fn stream(&mut self, number: u16) -> Result<(), Fault> {
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let ChannelPhase::Open(Some(message)) = &mut channel.phase else { return Ok(()) };
        let MessageFrames::Buffered(buffered) =
            std::mem::replace(&mut message.frames, MessageFrames::Streaming)
        else {
            return Ok(());
        };
        self.staged -= buffered.len();
        self.pass_on_message(number, &buffered, true)
    }

    /// Checks whether a proof is due after publishing, other than by [`Self::whole_messages`].
    fn note_unproven(&mut self, number: u16) {
        if self
            .channels
            .get_mut(number)
            .is_some_and(|channel| channel.sides().any(|side| side.is_unproven().1))
            && self.unproven.last() != Some(&number)
        {
            self.unproven.push(number);
        }
    }
}

/// The fault for a frame other than the expected one.
#[cold]
pub(super) fn unexpected(due: Option<DueContent>) -> Fault {
    let (text, ids) = match due {
        None => ("expected method frame, got non method frame instead", (0, 0)),
        Some(DueContent::Header { .. }) => {
            ("expected content header for class 60, got non content header frame instead", PUBLISH_IDS)
        }
        Some(DueContent::Body { .. }) => {
            ("expected content body, got non content body frame instead", PUBLISH_IDS)
        }
    };
    Fault::new(ReplyCode::UnexpectedFrame, text).caused_by(ids)
}

/// Initial capacity for a message's frames: most publishes with their headers fit.
const PARTIAL_CAPACITY: usize = 256;
/// Maximum size of a buffer that is reused for the next message of the batch; a larger one would waste memory.
const PARTIAL_REUSED: usize = 1024;
