//! A channel's message counts in operators' lists.

use broker::{Count, MessageCounts};

use super::*;

impl Conversation {
    /// The message counts of channel 1.
    fn counts(&self) -> Option<MessageCounts> {
        let now = self.shared.clock.timestamp(self.now);
        let view = self.shared.registry.all().pop().unwrap();
        view.channels_counted(now).pop().unwrap().1
    }

    /// Unroutable messages of all channels that were not returned.
    fn dropped(&self) -> u64 {
        let crate::backend::Backend::Broker(broker) = &self.shared.backend else {
            panic!("the backend is a broker")
        };
        broker.metrics().messages_dropped()
    }

    fn method<'m>(&mut self, method: impl Into<Method<'m>>) -> Vec<String> {
        self.call(|out| frame::write_method(out, 1, method))
    }

    fn with_queue() -> Self {
        let mut conversation = Self::open(&server(), 0);
        conversation.call(|out| declare(out, "q"));
        conversation
    }
}

/// Publish, confirm, return_unroutable, drop_unroutable.
fn published(counts: Option<MessageCounts>) -> [u64; 4] {
    let MessageCounts { publish, confirm, return_unroutable, drop_unroutable, .. } = counts.unwrap();
    [publish, confirm, return_unroutable, drop_unroutable].map(|count| count.total)
}

/// Deliver, deliver_no_ack, get, get_no_ack, get_empty, redeliver, ack.
fn delivered(counts: Option<MessageCounts>) -> [u64; 7] {
    let MessageCounts { deliver, deliver_no_ack, get, get_no_ack, get_empty, redeliver, ack, .. } =
        counts.unwrap();
    [deliver, deliver_no_ack, get, get_no_ack, get_empty, redeliver, ack].map(|count| count.total)
}

fn get(no_ack: bool) -> basic::Get<'static> {
    basic::Get { queue: "q", no_ack, ..Default::default() }
}

fn ack(delivery_tag: u64, multiple: bool) -> basic::Ack {
    basic::Ack { delivery_tag, multiple }
}

#[test]
fn published_messages_are_counted_with_their_outcome() {
    let mut conversation = Conversation::with_queue();
    assert_eq!(conversation.counts(), None);
    conversation.call(|out| (0..3).for_each(|_| publish(out, "q", b"x", false)));
    assert_eq!(published(conversation.counts()), [3, 0, 0, 0], "no confirms were asked for");
    conversation.method(confirm::Select { no_wait: false });
    conversation.call(|out| {
        publish(out, "q", b"x", true);
        publish(out, "nowhere", b"x", true);
        publish(out, "nowhere", b"x", false);
    });
    assert_eq!(published(conversation.counts()), [6, 3, 1, 1]);
    assert_eq!(conversation.dropped(), 1);
}

#[test]
fn deliveries_and_acknowledgements_are_counted() {
    let mut conversation = Conversation::with_queue();
    conversation.call(|out| (0..6).for_each(|_| publish(out, "q", b"x", false)));
    conversation.method(get(true));
    conversation.method(get(false));
    conversation.method(basic::Nack { delivery_tag: 2, multiple: false, requeue: true });
    conversation.method(basic::Qos { prefetch_size: 0, prefetch_count: 3, global: false });
    conversation.method(basic::Consume { queue: "q", consumer_tag: "t", ..Default::default() });
    assert_eq!(delivered(conversation.counts()), [3, 0, 1, 1, 0, 1, 0]);
    conversation.method(ack(3, false));
    conversation.method(ack(6, true));
    assert_eq!(delivered(conversation.counts()), [5, 0, 1, 1, 0, 1, 4]);
    conversation.method(basic::Cancel { consumer_tag: "t", no_wait: false });
    conversation.method(get(false));
    assert_eq!(delivered(conversation.counts()), [5, 0, 1, 1, 1, 1, 4]);
    conversation.method(basic::Consume { queue: "q", consumer_tag: "u", no_ack: true, ..Default::default() });
    conversation.call(|out| publish(out, "q", b"x", false));
    assert_eq!(delivered(conversation.counts()), [5, 1, 1, 1, 1, 1, 4]);
}

#[test]
fn a_transaction_counts_when_it_is_committed() {
    let mut conversation = Conversation::with_queue();
    conversation.call(|out| publish(out, "q", b"x", false));
    conversation.method(get(false));
    conversation.method(tx::Select {});
    conversation.call(|out| {
        publish(out, "q", b"x", false);
        publish(out, "nowhere", b"x", true);
        frame::write_method(out, 1, ack(1, false));
    });
    let before = conversation.counts();
    assert_eq!((published(before)[0], delivered(before)[6]), (1, 0));
    conversation.method(tx::Commit {});
    let after = conversation.counts();
    assert_eq!((published(after), delivered(after)[6]), ([3, 0, 1, 0], 1));
    assert_eq!(conversation.dropped(), 0);
}

#[test]
fn a_channels_rate_is_that_of_the_last_whole_tick() {
    let mut conversation = Conversation::with_queue();
    conversation.method(basic::Consume { queue: "q", consumer_tag: "t", no_ack: true, ..Default::default() });
    conversation.call(|out| (0..10).for_each(|_| publish(out, "q", b"x", false)));
    conversation.now += Duration::from_secs(5);
    let counts = conversation.counts().unwrap();
    let ten = Count { total: 10, recent: 10 };
    assert_eq!((counts.publish, counts.deliver_no_ack, counts.publish.rate()), (ten, ten, 2.0));
    conversation.now += Duration::from_secs(5);
    let counts = conversation.counts().unwrap();
    assert_eq!((counts.publish.recent, counts.deliver_no_ack.recent), (0, 0));
}
