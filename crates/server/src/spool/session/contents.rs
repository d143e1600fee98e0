//! Contents that have been sent to the client in part: nothing else may be sent on their channels before the rest (AMQP
//! 0-9-1, 4.2.6).

use std::sync::Arc;

use amqp::Method;
use amqp::frame::{self, Frame, FrameKind};
use amqp::properties::ContentHeader;
use transport::Outbox;

/// The partly sent messages, and the spool's answers that wait for the rest. Most messages are passed on as a whole, so
/// there is seldom one after a batch of frames.
#[derive(Debug, Default)]
pub(super) struct UnfinishedContents {
    contents: Vec<UnfinishedContent>,
    /// Bytes of all waiting answers.
    waiting: usize,
}

#[derive(Debug)]
struct UnfinishedContent {
    channel: u16,
    missing: MissingContent,
    /// The spool's own methods that follow the content, as frames.
    answers: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissingContent {
    Header,
    /// Remaining bytes of the body.
    Body(u64),
}

impl UnfinishedContents {
    /// Whether a frame of the upstream's session continues the content on its channel.
    pub(super) fn continues(&self, frame: &Frame<'_>) -> bool {
        frame.kind != FrameKind::Method && self.is_unfinished(frame.channel)
    }

    pub(super) fn is_unfinished(&self, channel: u16) -> bool {
        self.position(channel).is_some()
    }

    /// Called when a method with content is passed on.
    pub(super) fn begin(&mut self, channel: u16) {
        self.contents.push(UnfinishedContent {
            channel,
            missing: MissingContent::Header,
            answers: Vec::new(),
        });
    }

    /// Called when a frame is passed on for which [`Self::continues`] is true. Returns the answers that follow it.
    pub(super) fn passed(&mut self, frame: &Frame<'_>) -> Option<Vec<u8>> {
        let at = self.position(frame.channel)?;
        let content = &mut self.contents[at];
        let missing = match content.missing {
            MissingContent::Header => {
                ContentHeader::decode(frame.payload).map_or(0, |header| header.body_size)
            }
            MissingContent::Body(missing) => missing.saturating_sub(frame.payload.len() as u64),
        };
        if missing > 0 {
            content.missing = MissingContent::Body(missing);
            return None;
        }
        self.remove(at)
    }

    /// Called when the upstream's session sends a method on this channel although content is missing. Returns the answers
    /// to send before it.
    pub(super) fn abort_content(&mut self, channel: u16) -> Option<Vec<u8>> {
        let at = self.position(channel)?;
        self.remove(at)
    }

    /// Sends one of the spool's own methods to the client, after the unfinished content on its channel.
    pub(super) fn send<'a>(&mut self, outbox: &Arc<Outbox>, channel: u16, method: impl Into<Method<'a>>) {
        let Some(at) = self.position(channel) else {
            outbox.append(|buf| frame::write_method(buf.tail(), channel, method));
            return;
        };
        let answers = &mut self.contents[at].answers;
        let before = answers.len();
        frame::write_method(answers, channel, method);
        self.waiting += answers.len() - before;
    }

    /// Whether few enough answers wait that the client may be read.
    pub(super) fn has_capacity(&self) -> bool {
        self.waiting < WAITING_MAX
    }

    /// Bytes of waiting answers.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Called when the client has disconnected.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    fn position(&self, channel: u16) -> Option<usize> {
        self.contents.iter().position(|content| content.channel == channel)
    }

    fn remove(&mut self, at: usize) -> Option<Vec<u8>> {
        let answers = self.contents.swap_remove(at).answers;
        self.waiting -= answers.len();
        (!answers.is_empty()).then_some(answers)
    }
}

/// Bytes of waiting answers at which the client is no longer read: some thousands of confirms, behind a message that does
/// not progress although its upstream is reachable.
const WAITING_MAX: usize = 64 * 1024;
