//! The window of unconfirmed messages of one producer: the sending thread fills it, the reading thread settles it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::shared::Signal;

/// Marks a slot without an unconfirmed message. Times are stored plus one.
const FREE: u64 = 0;

/// Unconfirmed messages by number, from 1, with the times they were sent. Messages take the channels in turn,
/// so that a channel and a delivery tag on it determine the number.
#[derive(Debug)]
pub(crate) struct ConfirmWindow {
    window: u64,
    channels: u64,
    slots: Box<[AtomicU64]>,
    /// Highest number sent.
    sent: AtomicU64,
    /// All numbers up to this one are settled.
    settled_up_to: AtomicU64,
    /// The number of settled messages.
    settled: AtomicU64,
    /// Set while connection.blocked is in force.
    pub(crate) blocked: AtomicBool,
    /// Wakes the sending thread when messages were settled or the connection was unblocked.
    pub(crate) changed: Signal,
}

impl ConfirmWindow {
    /// A window of `window` messages; 0 for a producer without confirms.
    pub(crate) fn new(window: usize, channels: u16) -> Self {
        // Four times the window, so that one late confirm does not hold up the messages sent after it.
        let slots = if window == 0 { 0 } else { (window * 4).next_power_of_two() };
        Self {
            window: window as u64,
            channels: channels.into(),
            slots: (0..slots).map(|_| AtomicU64::new(FREE)).collect(),
            sent: AtomicU64::new(0),
            settled_up_to: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            blocked: AtomicBool::new(false),
            changed: Signal::default(),
        }
    }

    /// The number of messages that may be sent now.
    pub(crate) fn available(&self) -> u64 {
        let sent = self.sent.load(Relaxed);
        let by_window = self.window - (sent - self.settled.load(Acquire)).min(self.window);
        let by_slots = self.slots.len() as u64 - (sent - self.settled_up_to.load(Acquire));
        by_window.min(by_slots)
    }

    /// The number of unconfirmed messages.
    pub(crate) fn unconfirmed(&self) -> u64 {
        self.sent.load(Relaxed).saturating_sub(self.settled.load(Acquire))
    }

    /// Records messages about to be sent, no more than [`ConfirmWindow::available`]. Sending thread only.
    pub(crate) fn sending(&self, stamps: &[u64]) {
        let sent = self.sent.load(Relaxed);
        for (number, stamp) in (sent + 1..).zip(stamps) {
            self.slot(number).store(stamp + 1, Relaxed);
        }
        self.sent.store(sent + stamps.len() as u64, Release);
    }

    /// Settles `tag` of a channel, numbered from 0, or with `multiple` all tags up to it there (all if it is 0), and
    /// calls `each` with the time each message was sent. Returns whether the tag was unconfirmed. Reading thread only.
    pub(crate) fn settle(&self, channel: u16, tag: u64, multiple: bool, mut each: impl FnMut(u64)) -> bool {
        let sent = self.sent.load(Acquire);
        let lowest = self.settled_up_to.load(Relaxed) + 1;
        let (channel, channels) = (u64::from(channel), self.channels);
        let number = match tag {
            _ if channel >= channels => return false,
            0 if multiple => sent,
            0 => return false,
            tag => (tag - 1).saturating_mul(channels).saturating_add(channel + 1),
        };
        if number < lowest || number > sent {
            return false;
        }
        // The first number that may be unconfirmed on this channel.
        let first = lowest + (channel + 1 + channels - lowest % channels) % channels;
        let mut count = 0;
        for number in (if multiple { first } else { number }..=number).step_by(channels as usize) {
            let stamp = self.slot(number).swap(FREE, Relaxed);
            if stamp != FREE {
                each(stamp - 1);
                count += 1;
            }
        }
        let mut up_to = if multiple && channels == 1 { number } else { lowest - 1 };
        while up_to < sent && self.slot(up_to + 1).load(Relaxed) == FREE {
            up_to += 1;
        }
        self.settled_up_to.store(up_to, Release);
        self.settled.fetch_add(count, Release);
        self.changed.notify();
        count > 0
    }

    fn slot(&self, number: u64) -> &AtomicU64 {
        &self.slots[number as usize & (self.slots.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(window: &ConfirmWindow, tag: u64, multiple: bool) -> Vec<u64> {
        let mut stamps = Vec::new();
        window.settle(0, tag, multiple, |stamp| stamps.push(stamp));
        stamps
    }

    #[test]
    fn multiple_settles_everything_before_it_once() {
        let window = ConfirmWindow::new(4, 1);
        window.sending(&[0, 10, 20, 30]);
        assert_eq!(window.available(), 0);
        assert_eq!(settle(&window, 2, false), [10]);
        assert_eq!(settle(&window, 3, true), [0, 20]);
        assert_eq!((window.available(), window.unconfirmed()), (3, 1));
        assert_eq!(settle(&window, 0, true), [30]);
        assert_eq!(window.unconfirmed(), 0);
    }

    #[test]
    fn unknown_and_repeated_confirms_are_reported() {
        let window = ConfirmWindow::new(4, 1);
        window.sending(&[1, 2]);
        assert!(!window.settle(0, 3, false, |_| {}), "never sent");
        assert!(window.settle(0, 2, false, |_| {}));
        assert!(!window.settle(0, 2, false, |_| {}), "settled already");
        assert!(window.settle(0, 1, false, |_| {}));
        assert!(!window.settle(0, 1, true, |_| {}), "settled already");
        assert_eq!(window.available(), 4);
    }

    #[test]
    fn one_late_confirm_holds_up_the_window_only_when_its_slot_comes_round() {
        let window = ConfirmWindow::new(2, 1);
        let mut sent = 0;
        while window.available() > 0 {
            window.sending(&[sent]);
            sent += 1;
            if sent > 1 {
                window.settle(0, sent, false, |_| {});
            }
        }
        assert_eq!((sent, window.unconfirmed()), (8, 1), "eight slots, the first tag still waits");
        window.settle(0, 1, false, |_| {});
        assert_eq!(window.available(), 2);
    }

    #[test]
    fn each_channel_has_its_own_delivery_tags() {
        let window = ConfirmWindow::new(8, 3);
        window.sending(&[0, 1, 2, 10, 11, 12, 20]);
        let settle = |channel, tag, multiple| {
            let mut stamps = Vec::new();
            (window.settle(channel, tag, multiple, |stamp| stamps.push(stamp)), stamps)
        };
        assert_eq!(settle(1, 2, true), (true, vec![1, 11]));
        assert_eq!(settle(1, 3, false), (false, vec![]), "the seventh message went over the first channel");
        assert_eq!(settle(0, 3, false), (true, vec![20]));
        assert_eq!(window.unconfirmed(), 4);
        assert_eq!(settle(0, 0, true), (true, vec![0, 10]));
        assert_eq!(settle(2, 1, true), (true, vec![2]));
        assert_eq!(settle(3, 1, false), (false, vec![]), "there is no such channel");
        assert_eq!(settle(2, 0, true), (true, vec![12]));
        assert_eq!((window.unconfirmed(), window.available()), (0, 8));
    }
}
