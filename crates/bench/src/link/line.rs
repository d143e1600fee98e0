//! One direction of a connection: bytes in transit. Has no socket and no clock; time is an argument.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::random::Random;

/// The default limit of the bytes in transit. A sender whose system has Linux's defaults (`net.ipv4.tcp_wmem`, 4 MiB) has
/// no more in flight in both directions together.
pub(crate) const IN_TRANSIT: usize = 4 << 20;

/// The delays, the bandwidth and the capacity of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkShape {
    /// The time that bytes take to arrive.
    pub(crate) delay: Duration,
    /// The largest random addition to the delay; order is preserved.
    pub(crate) jitter: Duration,
    /// Bandwidth in bytes per second; 0 means no limit.
    pub(crate) bytes_per_second: u64,
    /// Most bytes in transit; beyond it the sender is not read.
    pub(crate) in_transit: usize,
}

impl Default for LinkShape {
    /// No delay, no limit of the bandwidth, and [`IN_TRANSIT`].
    fn default() -> Self {
        Self { delay: Duration::ZERO, jitter: Duration::ZERO, bytes_per_second: 0, in_transit: IN_TRANSIT }
    }
}

/// The bytes in transit, in order.
#[derive(Debug)]
pub(super) struct DelayLine {
    shape: LinkShape,
    parcels: VecDeque<Parcel>,
    bytes: usize,
    /// When the next bytes can be sent: after those before them, and not before the connection is open.
    free: Instant,
    /// When the last parcel arrives; no later one arrives earlier.
    latest: Instant,
    random: Random,
}

#[derive(Debug)]
struct Parcel {
    due: Instant,
    /// Empty for the end of the stream.
    bytes: Vec<u8>,
    /// The number of bytes that were handed over.
    taken: usize,
}

/// Data that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SegmentArrival<'l> {
    /// Bytes, to be removed with [`DelayLine::take`].
    Bytes(&'l [u8]),
    /// The sender has ended its stream; nothing follows.
    End,
}

impl DelayLine {
    /// Creates a line on which nothing can be sent before `open`.
    pub(super) fn new(shape: LinkShape, open: Instant, seed: u64) -> Self {
        Self {
            shape,
            parcels: VecDeque::new(),
            bytes: 0,
            free: open,
            latest: open,
            random: Random::new(seed),
        }
    }

    /// Changes the shape for bytes sent from now on. They do not overtake those in transit.
    pub(super) fn reshape(&mut self, shape: LinkShape) {
        self.shape = shape;
    }

    /// Whether more may be sent.
    pub(super) fn has_capacity(&self) -> bool {
        self.bytes < self.shape.in_transit
    }

    /// Sends bytes at `now`.
    pub(super) fn send(&mut self, now: Instant, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.push(now, bytes.to_vec());
        }
    }

    /// Sends the end of the stream, after everything else.
    pub(super) fn send_end(&mut self, now: Instant) {
        self.push(now, Vec::new());
    }

    fn push(&mut self, now: Instant, bytes: Vec<u8>) {
        let wire_nanos = match self.shape.bytes_per_second {
            0 => 0,
            rate => bytes.len() as u64 * 1_000_000_000 / rate,
        };
        self.free = self.free.max(now) + Duration::from_nanos(wire_nanos);
        let jitter = self.random.below(self.shape.jitter.as_nanos() as usize + 1) as u64;
        let due = self.free + self.shape.delay + Duration::from_nanos(jitter);
        self.latest = self.latest.max(due);
        self.bytes += bytes.len();
        self.parcels.push_back(Parcel { due: self.latest, bytes, taken: 0 });
    }

    /// When the next parcel arrives.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.parcels.front().map(|parcel| parcel.due)
    }

    /// The next parcel, if it has arrived by `now`.
    pub(super) fn arrived(&self, now: Instant) -> Option<SegmentArrival<'_>> {
        let parcel = self.parcels.front().filter(|parcel| parcel.due <= now)?;
        match &parcel.bytes[parcel.taken..] {
            [] => Some(SegmentArrival::End),
            bytes => Some(SegmentArrival::Bytes(bytes)),
        }
    }

    /// How long ago the next parcel arrived, if none of it was taken yet.
    pub(super) fn late_by(&self, now: Instant) -> Option<Duration> {
        let parcel = self.parcels.front().filter(|parcel| parcel.taken == 0)?;
        now.checked_duration_since(parcel.due)
    }

    /// Removes the first `count` bytes of the parcel that [`DelayLine::arrived`] returned.
    pub(super) fn take(&mut self, count: usize) {
        let Some(parcel) = self.parcels.front_mut() else { return };
        parcel.taken += count;
        self.bytes -= count;
        if parcel.taken >= parcel.bytes.len() {
            self.parcels.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn line(shape: LinkShape) -> (DelayLine, Instant) {
        let start = Instant::now();
        (DelayLine::new(shape, start, 1), start)
    }

    fn delayed(delay: Duration) -> LinkShape {
        LinkShape { delay, ..LinkShape::default() }
    }

    /// Removes all parcels, and returns when each was due.
    fn empty(line: &mut DelayLine, start: Instant) -> Vec<(Duration, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(due) = line.next_due() {
            let Some(SegmentArrival::Bytes(bytes)) = line.arrived(due) else { break };
            all.push((due - start, bytes.to_vec()));
            let count = bytes.len();
            line.take(count);
        }
        all
    }

    #[test]
    fn bytes_arrive_after_the_delay_and_not_a_nanosecond_before() {
        let (mut line, start) = line(delayed(MS / 2));
        line.send(start, b"a");
        line.send(start + MS, b"b");
        assert_eq!(line.arrived(start + MS / 2 - Duration::from_nanos(1)), None);
        assert_eq!(line.arrived(start + MS / 2), Some(SegmentArrival::Bytes(b"a")));
        assert_eq!(line.late_by(start + MS), Some(MS / 2));
        assert_eq!(empty(&mut line, start), [(MS / 2, b"a".to_vec()), (MS * 3 / 2, b"b".to_vec())]);
    }

    #[test]
    fn nothing_is_sent_before_the_connection_is_open() {
        let start = Instant::now();
        let mut line = DelayLine::new(delayed(MS), start + 2 * MS, 1);
        line.send(start, b"early");
        line.send(start + 5 * MS, b"later");
        assert_eq!(empty(&mut line, start), [(3 * MS, b"early".to_vec()), (6 * MS, b"later".to_vec())]);
    }

    #[test]
    fn successive_sends_share_the_bandwidth() {
        let (mut line, start) = line(LinkShape { bytes_per_second: 1_000_000, ..delayed(10 * MS) });
        for _ in 0..3 {
            line.send(start, &[0; 1000]);
        }
        let due: Vec<_> = empty(&mut line, start).into_iter().map(|(due, _)| due).collect();
        assert_eq!(due, [11 * MS, 12 * MS, 13 * MS]);
        line.send(start + 20 * MS, &[0; 500]);
        assert_eq!(line.next_due(), Some(start + 30 * MS + MS / 2), "a pause is not saved up");
    }

    #[test]
    fn jitter_stays_within_its_bounds_and_keeps_the_order() {
        let (mut line, start) = line(LinkShape { jitter: 4 * MS, ..delayed(MS) });
        for number in 0..200_u8 {
            line.send(start + MS * u32::from(number) * 10, &[number]);
        }
        let arrivals = empty(&mut line, start);
        let added: Vec<_> = (0..).zip(&arrivals).map(|(n, (due, _))| *due - 10 * MS * n - MS).collect();
        assert!(added.iter().all(|added| *added <= 4 * MS), "{added:?}");
        assert!(added.iter().any(|a| *a < MS) && added.iter().any(|a| *a > 3 * MS), "{added:?}");
        for number in 0..200_u8 {
            line.send(start + 2000 * MS, &[number]);
        }
        let arrivals = empty(&mut line, start);
        assert!(arrivals.is_sorted_by_key(|(due, _)| *due));
        assert!(arrivals.iter().map(|(_, bytes)| bytes[0]).eq(0..200));
    }

    #[test]
    fn a_shorter_delay_does_not_overtake_bytes_in_transit() {
        let (mut line, start) = line(delayed(50 * MS));
        line.send(start, b"slow");
        line.reshape(delayed(MS));
        line.send(start + MS, b"fast");
        line.send(start + 60 * MS, b"alone");
        let due: Vec<_> = empty(&mut line, start).into_iter().map(|(due, _)| due).collect();
        assert_eq!(due, [50 * MS, 50 * MS, 61 * MS]);
    }

    #[test]
    fn the_end_arrives_last_and_late_too() {
        let (mut line, start) = line(delayed(MS));
        line.send(start, b"abc");
        line.send_end(start);
        line.take(2);
        assert_eq!(line.arrived(start + MS), Some(SegmentArrival::Bytes(b"c")));
        line.take(1);
        assert_eq!(line.arrived(start), None);
        assert_eq!(line.arrived(start + MS), Some(SegmentArrival::End));
    }

    #[test]
    fn bytes_in_transit_are_bounded() {
        let piece = [0; 64 * 1024];
        for in_transit in [IN_TRANSIT, 4 * IN_TRANSIT] {
            let (mut line, start) = line(LinkShape { in_transit, ..delayed(MS) });
            while line.has_capacity() {
                line.send(start, &piece);
            }
            assert_eq!(line.bytes, in_transit);
            line.take(piece.len());
            assert!(line.has_capacity());
        }
    }
}
