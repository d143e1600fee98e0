//! The end of channels and of the session, in as many turns as that takes.

use std::collections::VecDeque;

use amqp::error::Fault;
use amqp::method::channel;
use broker::OwnedQueues;
use sync::work;

use super::broker_session::ChannelContext;
use super::channel::Channel;
use super::deliveries::ChannelTeardown;

/// The ends that are under way, in order. Nothing is read from the client meanwhile.
#[derive(Default)]
pub(super) struct Endings {
    channels: VecDeque<ChannelsEnd>,
    /// The queues that end with the session, once this has begun to end.
    owned: Option<OwnedQueues>,
}

/// Channels that end together: all of the connection's, or one.
struct ChannelsEnd {
    channels: VecDeque<Box<Channel>>,
    /// The number of these that have published everything at first. Before all have, nothing comes back.
    published: usize,
    teardown: ChannelTeardown,
    answer: ChannelEndAnswer,
}

/// The answer to the client once its channel has ended and its messages have been requeued.
pub(super) enum ChannelEndAnswer {
    CloseOk(u16),
    Close(u16, Box<Fault>),
    Nothing,
}

impl Endings {
    /// Whether the client can be read: no channel is ending.
    pub(super) fn are_over(&self) -> bool {
        self.channels.is_empty() && self.owned.is_none()
    }

    /// Begins the end of channels that are no longer in the table.
    pub(super) fn begin(
        &mut self,
        channels: impl IntoIterator<Item = Box<Channel>>,
        answer: ChannelEndAnswer,
    ) {
        let mut teardown = ChannelTeardown::default();
        let mut channels: VecDeque<_> = channels.into_iter().collect();
        // From here on no channel receives messages that the others publish or requeue.
        channels.iter_mut().for_each(|channel| channel.begin_end(&mut teardown));
        self.channels.push_back(ChannelsEnd { channels, published: 0, teardown, answer });
    }

    /// Adds the queues that end with the session, after its channels. The client is not answered any more.
    pub(super) fn end_session(&mut self, owned: OwnedQueues) {
        self.channels.iter_mut().for_each(|end| end.answer = ChannelEndAnswer::Nothing);
        self.owned = Some(owned);
    }

    /// Continues until the turn is over; returns whether all is done. Calls `ended` for each channel.
    pub(super) fn proceed(&mut self, context: &ChannelContext, mut ended: impl FnMut(Box<Channel>)) -> bool {
        while let Some(end) = self.channels.front_mut() {
            if !end.proceed(context, &mut ended) {
                return false;
            }
            end.answer.send(context);
            self.channels.pop_front();
        }
        if self.owned.as_mut().is_some_and(|owned| !owned.delete_some()) {
            return false;
        }
        self.owned = None;
        true
    }
}

impl ChannelsEnd {
    fn proceed(&mut self, context: &ChannelContext, mut ended: impl FnMut(Box<Channel>)) -> bool {
        let Self { channels, published, teardown, .. } = self;
        while let Some(channel) = channels.get_mut(*published) {
            if !channel.finish_publishing(context, teardown) {
                return false;
            }
            *published += 1;
            if work::is_turn_over() {
                return false;
            }
        }
        if !teardown.proceed(context.now) {
            return false;
        }
        while let Some(mut channel) = channels.pop_front() {
            work::charge(ENDED_CHANNEL, 1);
            channel.close_replies(context);
            ended(channel);
            if work::is_turn_over() && !channels.is_empty() {
                return false;
            }
        }
        true
    }
}

impl ChannelEndAnswer {
    fn send(&self, context: &ChannelContext) {
        match self {
            Self::CloseOk(number) => context.send(*number, channel::CloseOk {}),
            Self::Close(number, fault) => {
                let reply_text = fault.reply_text();
                let (class_id, method_id) = fault.method;
                let reply_code = fault.code.code();
                context.send(
                    *number,
                    channel::Close { reply_code, reply_text: &reply_text, class_id, method_id },
                );
            }
            Self::Nothing => {}
        }
    }
}

/// Nanoseconds charged for a channel that has ended, without its deliveries and consumers.
const ENDED_CHANNEL: u32 = 1_000;
