//! How far a move is, and what an operator may ask for then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use server::{Migration, MoveDirection};

/// The move that is under way.
#[derive(Default)]
pub(super) struct MoveState {
    pub(super) phase: MovePhase,
    /// The number of starts and stops: a start that another one of them has overtaken begins nothing.
    pub(super) attempt: u64,
    pub(super) migration: Option<Arc<Migration>>,
    /// Set by the first start.
    pub(super) direction: Option<MoveDirection>,
    /// The other broker, without its password.
    pub(super) addresses: Vec<String>,
    /// When anybody has asked for the state last.
    pub(super) asked_at: Option<Instant>,
}

/// How far a move is.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum MovePhase {
    #[default]
    None,
    /// The login at the other broker is checked.
    Starting,
    /// Messages move, and clients are served.
    Moving,
    /// Clients are asked to leave.
    Closing,
    /// All clients have left: definitions may be copied for the last time.
    LastDefinitions,
    /// Messages that clients had are moved.
    MovingRest,
    /// The record is written, and a successor starts.
    HandingOver,
    Failed(String),
}

impl MovePhase {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Starting => "starting",
            Self::Moving => "moving",
            Self::Closing => "closing",
            Self::LastDefinitions => "last_definitions",
            Self::MovingRest => "moving_rest",
            Self::HandingOver => "handing_over",
            Self::Failed(_) => "failed",
        }
    }
}

/// Why a request of an operator is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoveError {
    /// In front of an upstream there are no messages here.
    #[error("this process is a pool: its messages are in the brokers behind it")]
    Pool,
    /// The request lacks something.
    #[error("{0}")]
    Wrong(String),
    /// It does not fit what is under way.
    #[error("the move is {0}: this is not the time for it")]
    NotNow(&'static str),
    /// Another one is under way.
    #[error("messages move {direction} {addresses} already: end that move with --stop first")]
    OtherMove { direction: String, addresses: String },
    /// The process could not be a pool after a restart.
    #[error("data_dir is off: nothing could make this process a pool after a restart")]
    NoFolder,
    /// A setting would make the next process the broker again.
    #[error(
        "upstream is set (to off, or to another address), which a successor would follow: remove the setting and restart"
    )]
    UpstreamSet,
    /// No successor could take over.
    #[error(
        "no listener has an address with a port of its own, by which a successor could find this process"
    )]
    NoSuccessor,
    /// The record cannot be written.
    #[error("the record of the move: {0}")]
    Record(#[from] std::io::Error),
    /// The files for TLS cannot be used.
    #[error("TLS to the other broker: {0}")]
    Tls(String),
}

impl MoveState {
    /// Checks that the move under way is one between the same brokers.
    pub(super) fn check_same(&self, direction: MoveDirection, addresses: &[String]) -> Result<(), MoveError> {
        match self.direction {
            Some(known) if known != direction || !is_same_cluster(&self.addresses, addresses) => {
                let addresses = self.addresses.join(", ");
                Err(MoveError::OtherMove { direction: direction_name(known).to_owned(), addresses })
            }
            _ => Ok(()),
        }
    }
}

/// Whether two lists have the same addresses, in any order.
pub(crate) fn is_same_cluster(one: &[String], other: &[String]) -> bool {
    one.iter().collect::<BTreeSet<_>>() == other.iter().collect::<BTreeSet<_>>()
}

/// The direction's name over HTTP.
pub(crate) fn direction_name(direction: MoveDirection) -> &'static str {
    match direction {
        MoveDirection::Out => "to",
        MoveDirection::In => "from",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_under_way_is_not_replaced_by_another() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let addresses = list(&["amqp://a:5672", "amqp://b:5672"]);
        let state = MoveState { direction: Some(MoveDirection::Out), addresses, ..MoveState::default() };
        let refusal = |direction, names: &[&str]| {
            state.check_same(direction, &list(names)).err().map(|error| error.to_string())
        };
        assert_eq!(refusal(MoveDirection::Out, &["amqp://b:5672", "amqp://a:5672"]), None);
        let expected =
            "messages move to amqp://a:5672, amqp://b:5672 already: end that move with --stop first";
        assert_eq!(refusal(MoveDirection::Out, &["amqp://c:5672"]).as_deref(), Some(expected));
        let reverse = refusal(MoveDirection::In, &["amqp://a:5672", "amqp://b:5672"]);
        assert_eq!(reverse.as_deref(), Some(expected));
    }
}
