//! Random programs have the same results as a map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Append {
        count: u64,
        gap: u64,
        transient: bool,
    },
    Settle(u64, u64),
    Mark(u64, u64, u32),
    Read(u64, usize, usize),
    Flush,
    Sync,
    Persist,
    Reap,
    Purge,
    /// Everything is flushed to the files first, then the process is killed.
    Restart,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (1_u64..12, 0_u64..4, prop::bool::weighted(0.3))
            .prop_map(|(count, gap, transient)| Op::Append { count, gap, transient }),
        4 => (0_u64..300, 0_u64..30).prop_map(|(from, width)| Op::Settle(from, width)),
        2 => (0_u64..300, 0_u64..10, 1_u32..4).prop_map(|(from, width, count)| Op::Mark(from, width, count)),
        6 => (0_u64..300, 1_usize..20, 0_usize..2000).prop_map(|(from, count, bytes)| Op::Read(from, count, bytes)),
        1 => Just(Op::Flush),
        2 => Just(Op::Sync),
        2 => Just(Op::Persist),
        1 => Just(Op::Reap),
        1 => Just(Op::Restart),
    ];
    prop::collection::vec(prop_oneof![60 => op, 1 => Just(Op::Purge)], 1..80)
}

struct Model {
    disk: SimDisk,
    segments: QueueSegments,
    /// By position: whether it is transient, and its delivery count.
    live: BTreeMap<u64, (bool, u32)>,
    next: u64,
}

impl Model {
    fn run(&mut self, op: &Op) {
        match *op {
            Op::Append { count, gap, transient } => {
                self.next += gap;
                for position in self.next..self.next + count {
                    append_one(&self.segments, position, transient).unwrap();
                    self.live.insert(position, (transient, 0));
                }
                self.next += count;
            }
            Op::Settle(from, width) => {
                let gone: Vec<u64> =
                    self.live.range(from..=from + width).map(|(position, _)| *position).collect();
                assert_eq!(self.segments.settle([from..=from + width]), gone.len() as u64);
                gone.iter().for_each(|position| assert!(self.live.remove(position).is_some()));
            }
            Op::Mark(from, width, deliveries) => {
                self.segments.mark_delivered([from..=from + width], deliveries);
                self.live.range_mut(from..=from + width).for_each(|(_, message)| message.1 = deliveries);
            }
            Op::Read(from, count, bytes) => self.read(from, count, bytes),
            Op::Flush => self.segments.flush().unwrap(),
            Op::Sync => self.segments.sync().unwrap(),
            Op::Persist => self.segments.persist_settled().unwrap(),
            Op::Reap => self.segments.reap().unwrap(),
            Op::Purge => {
                assert_eq!(self.segments.purge(), self.live.len() as u64);
                self.live.clear();
            }
            Op::Restart => self.restart(),
        }
        assert_eq!(self.segments.live(), self.live.len() as u64);
        assert_eq!(self.segments.next_live(0), self.live.keys().next().copied());
    }

    fn read(&self, from: u64, count: usize, bytes: usize) {
        let mut limit = bytes;
        let mut expected = Vec::new();
        for (position, (transient, deliveries)) in self.live.range(from..).take(count) {
            let len = payload(*position).len();
            if len > limit && !expected.is_empty() {
                break;
            }
            limit = limit.saturating_sub(len);
            expected.push((*position, *deliveries, *transient));
            if limit == 0 {
                break;
            }
        }
        let read = self.segments.read(from, count, bytes).unwrap();
        let read: Vec<_> =
            read.iter().map(|message| (message.position, message.deliveries, message.transient)).collect();
        assert_eq!(read, expected);
    }

    fn restart(&mut self) {
        self.segments.flush().unwrap();
        self.segments.persist_settled().unwrap();
        self.disk = self.disk.kill();
        let (segments, recovered) = reopen(&self.disk);
        self.segments = segments;
        self.live.retain(|_, (transient, _)| !*transient);
        let read = read_all(&self.segments);
        let expected: Vec<_> =
            self.live.iter().map(|(position, (_, deliveries))| (*position, *deliveries)).collect();
        assert_eq!(read, expected);
        assert_eq!(recovered.live, self.live.len() as u64);
        assert_eq!(recovered.first, self.live.keys().next().copied());
        assert!(recovered.last.is_none_or(|last| last < self.next));
        assert!(recovered.cut.is_empty() && recovered.damaged.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn it_is_a_map_that_survives_restarts(ops in ops()) {
        let disk = sim();
        let segments = create(&disk);
        let mut model = Model { disk, segments, live: BTreeMap::new(), next: 0 };
        for op in &ops {
            model.run(op);
        }
        model.restart();
        let report = small(&model.disk).check(QUEUE).unwrap();
        prop_assert!(report.is_sound(), "{report:?}");
        let live: u64 = report.segments.iter().map(|segment| segment.live).sum();
        prop_assert_eq!(live, model.live.len() as u64);
    }
}
