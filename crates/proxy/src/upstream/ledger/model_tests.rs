//! The ledger against a list that keeps every message and method separately.

use amqp::method::{basic, confirm};
use amqp::properties::NO_PROPERTIES;

use super::entry::SHARED_BYTES;
use super::tests::{counted, payload};
use super::*;
use crate::replay_buffer::ReplayTotals;

/// A simple model of the ledger.
#[derive(Default)]
struct Model {
    items: Vec<Item>,
    published: u64,
    confirmed: Vec<u64>,
    asked: u64,
    answered: u64,
    is_confirming: bool,
    consumers: Vec<(String, PrefetchState)>,
}

struct Item {
    what: Kind,
    frames: Vec<u8>,
}

enum Kind {
    Message(u64),
    Asked {
        number: u64,
        change: Option<(Change, String)>,
        prefetch: PrefetchState,
    },
    Unanswered {
        published: u64,
        asked: u64,
    },
    /// A message outside confirm mode.
    Unconfirmed {
        asked: u64,
    },
    /// A `confirm.select` with no-wait after such messages.
    Selected {
        asked: u64,
    },
}

#[derive(Clone, Copy, PartialEq)]
enum Change {
    Consume,
    Cancel,
}

impl Model {
    fn up_to(&self) -> u64 {
        (1..).find(|number| !self.confirmed.contains(number)).unwrap() - 1
    }

    fn is_over(&self, item: &Item, up_to: u64) -> bool {
        match item.what {
            Kind::Message(number) => number <= up_to,
            Kind::Asked { number, .. } => number <= self.answered,
            Kind::Unanswered { published, asked } => self.answered > asked || up_to > published,
            Kind::Unconfirmed { asked } | Kind::Selected { asked } => self.answered > asked || up_to > 0,
        }
    }

    fn forget(&mut self) {
        let up_to = self.up_to();
        let over = self.items.iter().take_while(|item| self.is_over(item, up_to)).count();
        self.items.drain(..over);
    }

    fn notify(&mut self, frames: Vec<u8>) {
        self.items
            .push(Item { what: Kind::Unanswered { published: self.published, asked: self.asked }, frames });
        let is_reported = |item: &Item| matches!(item.what, Kind::Unanswered { .. });
        if self.items.iter().filter(|item| is_reported(item)).count() as u64 > UNANSWERED_MAX {
            let oldest = self.items.iter().position(is_reported).unwrap();
            self.items.remove(oldest);
        }
    }

    fn answer(&mut self) -> Option<(Change, String)> {
        self.answered += 1;
        let answered = self.answered;
        let asked = self.items.iter().find_map(|item| match &item.what {
            Kind::Asked { number, change, prefetch } if *number == answered => {
                Some((change.clone(), *prefetch))
            }
            _ => None,
        });
        let (change, prefetch) = asked.unwrap();
        match &change {
            Some((Change::Consume, tag)) => self.consumers.push((tag.clone(), prefetch)),
            Some((Change::Cancel, tag)) => self.consumers.retain(|(other, _)| other != tag),
            None => {}
        }
        self.forget();
        change
    }

    fn is_consuming(&self, tag: &str) -> bool {
        let before = self.consumers.iter().any(|(other, _)| other == tag);
        self.items.iter().fold(before, |is_there, item| match &item.what {
            Kind::Asked { number, change: Some((change, other)), .. }
                if *number > self.answered && other == tag =>
            {
                *change == Change::Consume
            }
            _ => is_there,
        })
    }

    fn replayed(&self) -> Vec<u8> {
        let up_to = self.up_to();
        let is_left = |item: &&Item| {
            let is_confirmed = matches!(item.what, Kind::Message(number) if self.confirmed.contains(&number));
            !self.is_over(item, up_to) && !is_confirmed
        };
        self.items.iter().filter(is_left).flat_map(|item| item.frames.iter().copied()).collect()
    }
}

/// A ledger and its model, fed the same events.
struct Run {
    random: u64,
    ledger: Arc<Ledger>,
    replay_totals: Arc<ReplayTotals>,
    model: Model,
    prefetch: PrefetchState,
    made: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let replay_totals = Arc::<ReplayTotals>::default();
        let random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self {
            random,
            ledger: counted(&replay_totals),
            replay_totals,
            model: Model::default(),
            prefetch: PrefetchState::default(),
            made: 0,
        }
    }

    /// A random number below this one (xorshift).
    fn below(&mut self, most: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % most
    }

    /// A unique method, of random length.
    fn some_method(&mut self, class: u8, number: u8) -> Vec<u8> {
        self.made += 1;
        let most = if self.below(100) == 0 { 2 * SHARED_BYTES as u64 } else { 60 };
        let length = self.below(most) as usize;
        [&[0, class, 0, number][..], &self.made.to_be_bytes(), &vec![0xFF; length]].concat()
    }

    fn step(&mut self) {
        let times = 1 + self.below(20);
        match self.below(8) {
            0 | 1 if !self.model.is_confirming => self.publish_unconfirmed(times),
            0 => self.publish_batch(times),
            1 => self.publish_in_frames(),
            2 | 3 => (0..times).for_each(|_| self.ask()),
            4 => (0..times).for_each(|_| self.notify()),
            5 if times == 1 => (0..UNANSWERED_MAX).for_each(|_| self.notify()),
            5 => self.change_consumers(),
            6 => (0..2 * times).for_each(|_| self.answer()),
            _ => (0..times).for_each(|_| self.confirm()),
        }
    }

    fn message(&mut self) -> Vec<u8> {
        self.made += 1;
        let routing_key = self.made.to_string();
        let mut out =
            method_frame(&payload(basic::Publish { routing_key: &routing_key, ..Default::default() }));
        amqp::frame::write_content_header(&mut out, 0, 2, NO_PROPERTIES);
        put_frame(&mut out, FrameKind::Body, 0, b"ab", 0);
        let what = if self.model.is_confirming {
            self.model.published += 1;
            Kind::Message(self.model.published)
        } else {
            Kind::Unconfirmed { asked: self.model.asked }
        };
        self.model.items.push(Item { what, frames: out.clone() });
        out
    }

    /// Publishes outside confirm mode, and perhaps turns on confirm mode afterwards.
    fn publish_unconfirmed(&mut self, count: u64) {
        if self.below(2) == 0 {
            let frames: Vec<u8> = (0..count).flat_map(|_| self.message()).collect();
            self.ledger.unconfirmed_messages(&frames, count);
        }
        if self.below(4) > 0 {
            return;
        }
        let is_unproven =
            |item: &Item| matches!(item.what, Kind::Unconfirmed { .. }) && !self.model.is_over(item, 0);
        let is_behind_unproven = self.model.items.iter().any(is_unproven);
        let select = payload(confirm::Select { no_wait: true });
        self.ledger.method(&select, false, self.prefetch);
        self.model.is_confirming = true;
        if is_behind_unproven {
            let what = Kind::Selected { asked: self.model.asked };
            self.model.items.push(Item { what, frames: method_frame(&select) });
        }
    }

    fn publish_batch(&mut self, count: u64) {
        let frames: Vec<u8> = (0..count).flat_map(|_| self.message()).collect();
        self.ledger.messages(&frames, count);
    }

    fn publish_in_frames(&mut self) {
        let frames = self.message();
        for (kind, payload) in stored_frames(&frames) {
            match kind {
                FrameKind::Method => self.ledger.publish(payload),
                _ => self.ledger.content(kind, payload, 1000),
            }
        }
    }

    fn ask(&mut self) {
        if self.below(10) == 0 {
            let (prefetch, global) = (self.below(3) as u16, self.below(2) == 0);
            self.prefetch.set(prefetch, global);
        }
        let method = self.some_method(50, 10);
        self.asked(&method, None);
    }

    fn change_consumers(&mut self) {
        let tag = format!("tag {}", self.below(4));
        let is_there = self.model.consumers.iter().any(|(other, _)| *other == tag);
        if is_there && self.below(2) == 0 {
            // Cancelled by the broker.
            self.ledger.cancelled(&tag);
            self.model.consumers.retain(|(other, _)| *other != tag);
        } else if self.model.is_consuming(&tag) {
            let cancel = payload(basic::Cancel { consumer_tag: &tag, no_wait: false });
            self.model.consumers.retain(|(other, _)| *other != tag);
            self.asked(&cancel, Some((Change::Cancel, tag)));
        } else {
            let consume = basic::Consume { queue: "q", consumer_tag: &tag, ..Default::default() };
            let consume = payload(consume);
            self.asked(&consume, Some((Change::Consume, tag)));
        }
    }

    fn asked(&mut self, method: &[u8], change: Option<(Change, String)>) {
        self.ledger.method(method, true, self.prefetch);
        self.model.asked += 1;
        let what = Kind::Asked { number: self.model.asked, change, prefetch: self.prefetch };
        self.model.items.push(Item { what, frames: method_frame(method) });
    }

    fn notify(&mut self) {
        let method = self.some_method(50, 20);
        self.ledger.method(&method, false, self.prefetch);
        self.model.notify(method_frame(&method));
    }

    fn answer(&mut self) {
        if self.model.answered == self.model.asked {
            return;
        }
        let change = self.model.answer();
        let answer = change.as_ref().map(|(change, tag)| match change {
            Change::Consume => Method::from(basic::ConsumeOk { consumer_tag: tag }),
            Change::Cancel => Method::from(basic::CancelOk { consumer_tag: tag }),
        });
        self.ledger.answered(answer.as_ref(), None);
    }

    fn confirm(&mut self) {
        let open: Vec<u64> =
            (1..=self.model.published).filter(|number| !self.model.confirmed.contains(number)).collect();
        if open.is_empty() {
            return;
        }
        // Mostly the first ones, as brokers do.
        let tag = open[self.below(open.len().min(4) as u64) as usize];
        let multiple = self.below(4) == 0;
        assert_eq!(self.ledger.confirmed(tag, multiple).number, tag);
        self.model
            .confirmed
            .extend(open.into_iter().filter(|number| *number == tag || multiple && *number < tag));
        self.model.forget();
    }

    fn check(&self) {
        assert_eq!(self.ledger.has_entries(), !self.model.items.is_empty());
        assert_eq!(self.replay_totals.connected.bytes(), self.ledger.record.lock().bytes());
        for number in 0..4 {
            let tag = format!("tag {number}");
            assert_eq!(self.ledger.is_consuming(&tag), self.model.is_consuming(&tag), "{tag}");
        }
    }
}

#[test]
fn exactly_the_unanswered_frames_are_replayed_and_their_bytes_released() {
    for seed in 1..=40 {
        let mut run = Run::new(seed);
        for _ in 0..(20 + seed * 3) {
            run.step();
            run.check();
        }
        let replayed = run.model.replayed();
        let remains = run.ledger.take();
        assert!(remains.frames == replayed, "seed {seed}");
        let selects = stored_frames(&replayed).any(|(_, payload)| matches!(payload, [0, 85, 0, 10, ..]));
        let is_begun = run.model.is_confirming && !selects;
        assert_eq!(remains.carried.confirming, is_begun, "seed {seed}");
        let prefetches = remains.carried.consumers.iter().map(|consumer| consumer.prefetch);
        let tags = remains.carried.consumers.iter().map(|consumer| match Method::decode(&consumer.again()) {
            Ok(Method::BasicConsume(consume)) => consume.consumer_tag.to_owned(),
            other => panic!("{other:?}"),
        });
        assert_eq!(tags.zip(prefetches).collect::<Vec<_>>(), run.model.consumers, "seed {seed}");
        assert_eq!(run.replay_totals.connected.bytes(), 0, "seed {seed}");
    }
}

#[test]
fn a_dropped_ledger_releases_its_bytes() {
    let mut run = Run::new(7);
    (0..200).for_each(|_| run.step());
    assert!(run.replay_totals.connected.bytes() > 0);
    drop(run.ledger);
    assert_eq!(run.replay_totals.connected.bytes(), 0);
}
