//! One run of a queue's migration: turns of a dialogue with the other broker, until there is nothing to move or nothing
//! can be moved.

use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use amqp::method::channel;
use amqp::{Fault, ReplyCode};
use spool::{FaultCertainty, MessageRefusal};
use sync::work;

use super::MovingQueue;
use super::progress::Concurrency;
use crate::upstream::client::AmqpClient;
use crate::upstream::multiplexing::task::close_in_time;

/// The time after which a run ends, so that other queues have their turns.
pub(super) const MAX_RUN: Duration = Duration::from_secs(10);

/// The channel of a run.
pub(super) const CHANNEL: u16 = 1;

/// Interval at which the queue and the time are checked.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The time limit for answers at the end of a run.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The time without an answer after which the other broker's connection counts as lost. It may be blocked by an alarm, or
/// have much to write.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// The reason why a run has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RunEnd {
    /// There is nothing to move.
    Empty,
    /// The receiving queue is full.
    Full,
    /// The other broker has no such queue.
    Missing,
    /// The queue there has messages, but delivers none: other consumers are served first.
    OtherConsumers,
    /// The run has moved its maximum of messages, or its time is over.
    Limited,
    /// The next message, or the whole queue, is refused permanently.
    Refused(String),
    /// One of this many messages in flight was refused, or made the other broker close the connection.
    Suspect(usize),
    /// There is no connection.
    Lost(String),
    /// The migration is stopped.
    Stopped,
}

impl RunEnd {
    /// The reason, for operators.
    pub(super) fn trouble(&self) -> Option<String> {
        match self {
            Self::Empty | Self::Limited | Self::Suspect(_) | Self::Stopped => None,
            Self::Full => Some("the queue that is to receive the messages is full".to_owned()),
            Self::Missing => Some("the other broker has no such queue".to_owned()),
            Self::OtherConsumers => {
                Some("the other broker gives its messages to other consumers first".to_owned())
            }
            Self::Refused(reason) | Self::Lost(reason) => Some(reason.clone()),
        }
    }

    /// Whether the connection is intact, with nothing unanswered on it.
    pub(super) fn is_in_order(&self) -> bool {
        matches!(self, Self::Empty | Self::Full | Self::Limited | Self::Stopped)
    }

    /// The kind of the reason, machine-readable.
    pub(super) fn cause(&self) -> Option<&'static str> {
        match self {
            Self::Empty | Self::Limited | Self::Suspect(_) | Self::Stopped => None,
            Self::Full => Some("full"),
            Self::Missing => Some("missing"),
            Self::OtherConsumers => Some("consumers"),
            Self::Refused(_) => Some("refused"),
            Self::Lost(_) => Some("lost"),
        }
    }

    /// The end caused by a fault of the connection, with messages in flight on it. If other runs shared the connection,
    /// one of their messages may be the cause.
    pub(super) fn of_fault(fault: &Fault, in_flight: usize, is_isolated: bool) -> Self {
        let refusal = MessageRefusal { code: fault.code.code(), text: fault.reply_text() };
        match (refusal.certainty(), in_flight) {
            (FaultCertainty::None, _) | (_, 0) => Self::lost(fault),
            (_, 1) if is_isolated => Self::Refused(refusal.text),
            _ => Self::Suspect(in_flight),
        }
    }

    /// The end caused by a lost connection.
    pub(super) fn lost(fault: &Fault) -> Self {
        Self::Lost(fault.reply_text())
    }

    /// The end caused by a channel that the other broker has closed, with messages in flight on it.
    pub(super) fn closed(close: &channel::Close<'_>, in_flight: usize) -> Self {
        let is_permanent = [
            ReplyCode::AccessRefused,
            ReplyCode::PreconditionFailed,
            ReplyCode::ContentTooLarge,
            ReplyCode::ResourceLocked,
        ];
        match close.reply_code {
            code if code == ReplyCode::NotFound.code() => Self::Missing,
            code if is_permanent.iter().all(|known| known.code() != code) => {
                Self::Lost(close.reply_text.to_owned())
            }
            _ if in_flight > 1 => Self::Suspect(in_flight),
            _ => Self::Refused(close.reply_text.to_owned()),
        }
    }
}

/// The end of a turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MoveStep {
    /// Nothing to do before the next check.
    Idle,
    /// There is more to do than fits into a turn.
    TurnOver,
}

/// A run's part of the dialogue.
pub(super) trait MoveTurns {
    /// Handles what has been received, and sends what may be.
    ///
    /// # Errors
    /// The end of the run.
    fn take_turn(&mut self, waker: &Waker, now: Instant) -> Result<MoveStep, RunEnd>;

    /// Whether an answer of the other broker is outstanding.
    fn waits_for_answer(&self) -> bool;

    /// When the other broker last sent something.
    fn heard_at(&self) -> Instant;
}

/// Takes turns until the run ends.
pub(super) async fn drive(turns: &mut impl MoveTurns) -> RunEnd {
    let mut busy_turn = None;
    loop {
        let step = poll_fn(|cx| {
            let turn = work::Turn::begin();
            let step = turns.take_turn(cx.waker(), transport::now());
            drop(turn);
            busy_turn = None;
            if step == Ok(MoveStep::Idle) { Poll::Pending } else { Poll::Ready(step) }
        });
        match tokio::time::timeout(CHECK_INTERVAL, step).await {
            Ok(Ok(MoveStep::TurnOver)) => busy_turn = transport::next_busy_turn().await,
            Ok(Err(end)) => return end,
            // Time for another check.
            Ok(Ok(MoveStep::Idle)) | Err(_) => {}
        }
        if turns.waits_for_answer() && transport::now() - turns.heard_at() > ANSWER_TIMEOUT {
            return RunEnd::Lost("other broker not responding".to_owned());
        }
    }
}

impl MovingQueue {
    /// The precautions of this run.
    pub(super) fn care(&self) -> Concurrency {
        self.context.progress.care(&self.vhost, &self.queue)
    }

    /// Opens a connection for the queue.
    ///
    /// # Errors
    /// The end of the run.
    pub(super) async fn connect(&self) -> Result<AmqpClient, RunEnd> {
        let connected = self.context.connect(self.vhost.name(), self.care().is_isolated).await;
        connected.map_err(|error| RunEnd::Lost(super::MoveLoginError::from(error).to_string()))
    }
}

/// Closes a connection in order, as far as the other broker answers.
pub(super) async fn close(mut client: AmqpClient) {
    close_in_time(CLOSE_TIMEOUT, |waker, now| client.close_unread(waker, now)).await;
    client.discard(transport::now());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_close_of_a_channel_tells_whose_fault_it_is() {
        let closed = |code: ReplyCode, in_flight| {
            let close =
                channel::Close { reply_code: code.code(), reply_text: "t", class_id: 0, method_id: 0 };
            RunEnd::closed(&close, in_flight)
        };
        assert_eq!(closed(ReplyCode::NotFound, 3), RunEnd::Missing);
        assert_eq!(closed(ReplyCode::PreconditionFailed, 1), RunEnd::Refused("t".to_owned()));
        assert_eq!(closed(ReplyCode::AccessRefused, 0), RunEnd::Refused("t".to_owned()));
        assert_eq!(closed(ReplyCode::PreconditionFailed, 3), RunEnd::Suspect(3));
        assert_eq!(closed(ReplyCode::InternalError, 3), RunEnd::Lost("t".to_owned()));
    }

    #[test]
    fn a_message_is_refused_once_it_alone_has_cost_a_connection_of_its_own() {
        let end =
            |code, in_flight, is_isolated| RunEnd::of_fault(&Fault::new(code, "t"), in_flight, is_isolated);
        assert!(matches!(end(ReplyCode::ConnectionForced, 1, true), RunEnd::Lost(_)));
        assert!(matches!(end(ReplyCode::FrameError, 0, true), RunEnd::Lost(_)));
        assert_eq!(end(ReplyCode::FrameError, 1, false), RunEnd::Suspect(1));
        assert_eq!(end(ReplyCode::FrameError, 5, true), RunEnd::Suspect(5));
        assert!(matches!(end(ReplyCode::FrameError, 1, true), RunEnd::Refused(_)));
    }
}
