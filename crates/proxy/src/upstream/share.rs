//! Fairness between clients that send on one connection: each has a window of bytes that wait to be written (P2).
//!
//! The connection's out-buffer is written in order. No client has more than a window, plus one read, in it. So a
//! client's data waits behind at most that amount from each other sending client, however fast these are: the windows
//! advance in turn as the broker reads the data. A client within its own window may send even while the out-buffer is
//! at its limit.
//!
//! # Example
//! A and B send on one connection as fast as they can, in reads of 256 KiB; C sends a small message now and then. A
//! read from A exceeds its window of 128 KiB, so A is not read until all but 64 KiB of its data is written. The same
//! holds for B. So C's message waits behind at most twice 64 + 256 KiB, which takes 5 ms on a link of 1 Gbit/s, and C
//! itself is always read.

/// One client's window on a shared connection.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Share {
    /// The connection's id.
    upstream: u64,
    /// Bytes since `mark`.
    since: u64,
    /// Stream position that has to be written before the client may send more, once `since` exceeds the window.
    mark: u64,
    /// Stream position where the client's data ends.
    end: u64,
}

/// The write progress of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UpstreamProgress {
    /// The connection's id.
    pub(crate) upstream: u64,
    /// Bytes that clients have sent on it and the socket has taken.
    pub(crate) written: u64,
    /// Bytes that wait.
    pub(crate) backlog: usize,
    /// Maximum bytes that should wait.
    pub(crate) limit: usize,
}

impl Share {
    /// Records that the client has sent this number of bytes, which end at position `end`.
    #[inline]
    pub(crate) fn sent(&mut self, upstream: u64, bytes: usize, end: u64) {
        if self.upstream != upstream {
            *self = Self { upstream, ..Self::default() };
        }
        self.since += bytes as u64;
        self.end = end;
        if self.since >= WINDOW {
            (self.since, self.mark) = (0, end);
        }
    }

    /// Whether this share concerns the connection.
    pub(crate) fn is_of(&self, upstream: u64) -> bool {
        self.upstream == upstream
    }

    /// Whether no data of the client waits to be written.
    pub(crate) fn is_through(&self, line: UpstreamProgress) -> bool {
        !self.is_of(line.upstream) || self.end <= line.written
    }

    /// Whether the client may send more.
    #[inline]
    pub(crate) fn may_send(&self, line: UpstreamProgress) -> bool {
        self.due(line.upstream) <= line.written && line.backlog < line.limit.saturating_mul(HARD_LIMIT)
    }

    /// The position up to which data has to be written before the client may send more: all but half a window
    /// of its data.
    #[inline]
    pub(crate) fn due(&self, upstream: u64) -> u64 {
        if self.upstream == upstream { self.mark.saturating_sub(WINDOW / 2) } else { 0 }
    }
}

/// Bytes of one client that may wait to be written before the client is not read. On a fast network, a window of each
/// concurrent sender takes a few milliseconds; it is large enough to avoid frequent wake-ups.
pub(crate) const WINDOW: u64 = 128 * 1024;
/// How many times the out-buffer's limit may wait because many clients are within their windows.
pub(crate) const HARD_LIMIT: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that a client sends at once, as one read brings them.
    const BATCH: u64 = 256 * 1024;
    /// Bytes that the link takes at once.
    const STEP: u64 = 16 * 1024;
    const LIMIT: usize = 1024 * 1024;
    /// Bytes of a small message: less than a window in total.
    const SMALL: u64 = 10;

    /// Simulates one client with small messages, and many that send as much as they may, taking turns on a link.
    /// Returns the maximum bytes in front of a small message, and the number of small messages sent.
    fn worst_delay(flooders: usize, steps: usize) -> (u64, usize) {
        let (mut sent, mut written) = (0u64, 0u64);
        let mut shares = vec![Share::default(); flooders];
        let mut small = Share::default();
        let (mut worst, mut count) = (0, 0);
        for _ in 0..steps {
            let line = |sent: u64, written: u64| UpstreamProgress {
                upstream: 1,
                written,
                backlog: (sent - written) as usize,
                limit: LIMIT,
            };
            for share in &mut shares {
                if share.may_send(line(sent, written)) {
                    sent += BATCH;
                    share.sent(1, BATCH as usize, sent);
                }
            }
            // Last in every turn, so that the other clients have already filled the buffer.
            if small.may_send(line(sent, written)) {
                worst = worst.max(sent - written);
                sent += SMALL;
                small.sent(1, SMALL as usize, sent);
                count += 1;
            }
            written = sent.min(written + STEP);
        }
        (worst, count)
    }

    #[test]
    fn p2_a_flood_of_others_delays_a_message_by_a_window_and_a_read_of_each() {
        for flooders in [1, 4, 16] {
            let (worst, count) = worst_delay(flooders, 10_000);
            assert_eq!(count, 10_000, "the client with small messages may always send");
            assert!(
                worst <= flooders as u64 * (WINDOW / 2 + BATCH) + STEP,
                "{worst} bytes of {flooders} flooders"
            );
        }
    }

    #[test]
    fn p2_a_client_alone_keeps_the_link_busy() {
        let (mut share, mut sent, mut written, mut idle) = (Share::default(), 0u64, 0u64, 0);
        for _ in 0..1000 {
            let backlog = (sent - written) as usize;
            if share.may_send(UpstreamProgress { upstream: 1, written, backlog, limit: LIMIT }) {
                sent += BATCH;
                share.sent(1, BATCH as usize, sent);
            }
            idle += u64::from(sent - written < STEP);
            written = sent.min(written + STEP);
        }
        assert_eq!(idle, 0);
    }

    #[test]
    fn s2_the_backlog_of_an_upstream_connection_is_bounded() {
        let line = UpstreamProgress { upstream: 1, written: 0, backlog: HARD_LIMIT * LIMIT, limit: LIMIT };
        assert!(!Share::default().may_send(line));
    }

    #[test]
    fn another_connection_is_another_window() {
        let mut share = Share::default();
        share.sent(1, WINDOW as usize, WINDOW);
        assert_eq!((share.due(1), share.due(2)), (WINDOW / 2, 0));
        share.sent(2, 1, 1);
        assert_eq!(share.due(1), 0);
    }
}
