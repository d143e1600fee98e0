//! Channels that the spool has closed with an error, because of a publish that can be neither spooled nor published
//! directly.
//!
//! The number can be used again when both sides have confirmed: the client, which was sent channel.close, and the
//! upstream's session, to which the channel is closed as if by the client.

use amqp::frame::{Frame, FrameKind};

use super::contents::UnfinishedContents;

/// Class and method ids of the methods that are inspected.
const CLOSE: [u8; 4] = [0, 20, 0, 40];
const CLOSE_OK: [u8; 4] = [0, 20, 0, 41];

/// The refused channels; usually none.
#[derive(Debug, Default)]
pub(super) struct RefusedChannels {
    channels: Vec<RefusedChannel>,
    /// A channel that the client has confirmed, and on which it sends more before the upstream's session has confirmed.
    waiting: Option<u16>,
}

#[derive(Debug)]
struct RefusedChannel {
    number: u16,
    /// Whether channel.close was sent to the upstream's session.
    is_closed: bool,
    is_confirmed_by_client: bool,
    is_confirmed_upstream: bool,
    /// Whether the upstream's session has closed it as well, and expects channel.close-ok.
    is_closed_upstream: bool,
}

/// The treatment of a client's frame on a refused channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefusedFrame {
    /// Sent before the client received channel.close.
    Discard,
    /// The client has closed the channel at the same time, and expects channel.close-ok.
    Confirm,
}

impl RefusedChannels {
    pub(super) fn add(&mut self, number: u16) {
        self.channels.push(RefusedChannel {
            number,
            is_closed: false,
            is_confirmed_by_client: false,
            is_confirmed_upstream: false,
            is_closed_upstream: false,
        });
    }

    fn get_mut(&mut self, number: u16) -> Option<&mut RefusedChannel> {
        self.channels.iter_mut().find(|channel| channel.number == number)
    }

    /// Handles a frame of the client; `None` if its channel is not refused.
    pub(super) fn handle_frame(&mut self, frame: &Frame<'_>) -> Option<RefusedFrame> {
        let channel = self.get_mut(frame.channel)?;
        let is_method = frame.kind == FrameKind::Method;
        if is_method && frame.payload.starts_with(&CLOSE) {
            return Some(RefusedFrame::Confirm);
        }
        if is_method && frame.payload.starts_with(&CLOSE_OK) {
            channel.is_confirmed_by_client = true;
            self.forget_confirmed();
        }
        Some(RefusedFrame::Discard)
    }

    /// Whether a frame of the client can be taken now.
    pub(super) fn take(&mut self, frame: &Frame<'_>) -> bool {
        let must_wait = self.get_mut(frame.channel).is_some_and(|channel| channel.is_confirmed_by_client);
        if must_wait {
            self.waiting = Some(frame.channel);
        }
        !must_wait
    }

    /// Whether no frame of the client can be taken before the upstream's session has confirmed.
    pub(super) fn wait(&self) -> bool {
        self.waiting.is_some()
    }

    /// Handles a frame of the upstream's session; returns whether it is passed to the client.
    pub(super) fn passes(&mut self, frame: &Frame<'_>) -> bool {
        let Some(channel) = self.get_mut(frame.channel) else { return true };
        if frame.kind == FrameKind::Method {
            channel.is_confirmed_upstream |= frame.payload.starts_with(&CLOSE_OK);
            channel.is_closed_upstream |= frame.payload.starts_with(&CLOSE);
        }
        false
    }

    /// The next channel to close to the upstream's session. A message that was partly sent to the client is completed
    /// first.
    pub(super) fn next_to_close(&mut self, contents: &UnfinishedContents) -> Option<u16> {
        let may_close =
            |channel: &&mut RefusedChannel| !channel.is_closed && !contents.is_unfinished(channel.number);
        let channel = self.channels.iter_mut().find(may_close)?;
        channel.is_closed = true;
        Some(channel.number)
    }

    /// Whether no channel is refused.
    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// The next channel that the upstream's session has closed at the same time, and that needs channel.close-ok.
    pub(super) fn next_to_confirm(&mut self) -> Option<u16> {
        let channel = self.channels.iter_mut().find(|channel| channel.is_closed_upstream)?;
        channel.is_closed_upstream = false;
        Some(channel.number)
    }

    /// Forgets the channels that both sides have confirmed.
    pub(super) fn forget_confirmed(&mut self) {
        let waiting = &mut self.waiting;
        self.channels.retain(|channel| {
            let is_over = channel.is_confirmed_by_client && channel.is_confirmed_upstream;
            if is_over && *waiting == Some(channel.number) {
                *waiting = None;
            }
            !is_over
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(channel: u16, payload: &[u8]) -> Frame<'_> {
        Frame { kind: FrameKind::Method, channel, payload }
    }

    #[test]
    fn a_channel_number_is_free_once_both_ends_have_confirmed() {
        const OPEN: [u8; 4] = [0, 20, 0, 10];
        let mut refused = RefusedChannels::default();
        assert_eq!(refused.handle_frame(&method(1, &OPEN)), None);
        refused.add(1);
        assert_eq!(refused.handle_frame(&method(1, &[0, 60, 0, 40])), Some(RefusedFrame::Discard));
        assert_eq!(refused.handle_frame(&method(1, &CLOSE)), Some(RefusedFrame::Confirm));
        assert!(refused.passes(&method(2, &CLOSE_OK)) && !refused.passes(&method(1, &[0, 60, 0, 80])));
        assert!(refused.take(&method(1, &CLOSE_OK)));
        assert_eq!(refused.handle_frame(&method(1, &CLOSE_OK)), Some(RefusedFrame::Discard));
        assert!(!refused.take(&method(1, &OPEN)) && refused.wait());
        assert!(!refused.passes(&method(1, &CLOSE)));
        assert_eq!((refused.next_to_confirm(), refused.next_to_confirm()), (Some(1), None));
        assert!(!refused.passes(&method(1, &CLOSE_OK)));
        refused.forget_confirmed();
        assert!(!refused.wait() && refused.take(&method(1, &OPEN)));
        assert_eq!(refused.handle_frame(&method(1, &OPEN)), None);
    }
}
