//! The progress of a migration, and what an operator may request at each step.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};
use server::{Migration, MoveDirection};

use crate::config::UpstreamUrl;

/// The move that is under way.
#[derive(Default)]
pub(super) struct MoveState {
    pub(super) phase: MovePhase,
    /// The number of starts and stops; a start that was overtaken by another one does nothing.
    pub(super) attempt: u64,
    pub(super) migration: Option<Arc<Migration>>,
    /// Set by the first start.
    pub(super) direction: Option<MoveDirection>,
    /// The other broker, without its password.
    pub(super) addresses: Vec<String>,
    /// When the state was last requested.
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

    fn is_under_way(&self) -> bool {
        !matches!(self, Self::None | Self::Failed(_))
    }
}

/// Why a request of an operator is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoveError {
    /// In front of an upstream there are no messages here.
    #[error("not available in pool mode: the messages are in the upstream brokers")]
    Pool,
    /// The request lacks something.
    #[error("{0}")]
    Wrong(String),
    /// It does not fit what is under way.
    #[error("not possible while the migration is {0}")]
    NotNow(&'static str),
    /// Another one is under way.
    #[error("a migration {direction} {addresses} is running; end it with --stop first")]
    OtherMove { direction: String, addresses: String },
    /// The request names another one.
    #[error("the running migration is {direction} {addresses}, not the requested one")]
    NotNamed { direction: String, addresses: String },
    /// The process could not be a pool after a restart.
    #[error("data_dir is off: the migration would be lost on restart")]
    NoDirectory,
    /// A setting would make the next process the broker again.
    #[error(
        "upstream is set (to off, or to another address), which a successor would follow: remove the setting and restart"
    )]
    UpstreamSet,
    /// No successor could take over.
    #[error("takeover needs a listener with a fixed TCP port")]
    TakeoverError,
    /// The record cannot be written.
    #[error("the record of the migration: {0}")]
    Record(#[from] std::io::Error),
    /// The files for TLS cannot be used.
    #[error("TLS to the other broker: {0}")]
    Tls(String),
}

impl MoveState {
    /// Checks that the migration under way is one between the same brokers.
    pub(super) fn check_same(&self, direction: MoveDirection, addresses: &[String]) -> Result<(), MoveError> {
        match self.other_than(Some(direction), Some(addresses)) {
            Some((direction, addresses)) => Err(MoveError::OtherMove { direction, addresses }),
            None => Ok(()),
        }
    }

    /// Checks that the move under way is the one that a request names, if it names one: another may have replaced it since
    /// that was asked for.
    pub(super) fn check_named(&self, request: &Map<String, Value>) -> Result<(), MoveError> {
        let direction = request.get("direction").map(read_direction).transpose()?;
        let addresses = request.get("addresses").map(read_addresses).transpose()?;
        let addresses =
            addresses.map(|addresses| addresses.iter().map(ToString::to_string).collect::<Vec<_>>());
        match self.other_than(direction, addresses.as_deref()) {
            Some((direction, addresses)) if self.phase.is_under_way() => {
                Err(MoveError::NotNamed { direction, addresses })
            }
            _ => Ok(()),
        }
    }

    /// The direction and the addresses of the last move, if it differs from what is given.
    fn other_than(
        &self,
        direction: Option<MoveDirection>,
        addresses: Option<&[String]>,
    ) -> Option<(String, String)> {
        let known = self.direction?;
        let is_same = direction.is_none_or(|direction| direction == known)
            && addresses.is_none_or(|addresses| is_same_cluster(&self.addresses, addresses));
        (!is_same).then(|| (direction_name(known).to_owned(), self.addresses.join(", ")))
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

/// The direction in a request.
pub(super) fn read_direction(direction: &Value) -> Result<MoveDirection, MoveError> {
    match direction.as_str() {
        Some("to") => Ok(MoveDirection::Out),
        Some("from") => Ok(MoveDirection::In),
        _ => Err(MoveError::missing("direction")),
    }
}

/// The addresses in a request.
pub(super) fn read_addresses(addresses: &Value) -> Result<Vec<UpstreamUrl>, MoveError> {
    let addresses: Vec<String> =
        serde_json::from_value(addresses.clone()).map_err(|_| MoveError::missing("addresses"))?;
    UpstreamUrl::of_cluster(&addresses).map_err(|error| MoveError::Wrong(error.to_string()))
}

impl MoveError {
    /// A member of a request is missing or wrong.
    pub(super) fn missing(member: &str) -> Self {
        Self::Wrong(format!("{member} is missing or wrong"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        let expected = "a migration to amqp://a:5672, amqp://b:5672 is running; end it with --stop first";
        assert_eq!(refusal(MoveDirection::Out, &["amqp://c:5672"]).as_deref(), Some(expected));
        let reverse = refusal(MoveDirection::In, &["amqp://a:5672", "amqp://b:5672"]);
        assert_eq!(reverse.as_deref(), Some(expected));
    }

    #[test]
    fn a_request_that_names_another_move_is_refused() {
        let (direction, addresses) = (Some(MoveDirection::Out), vec!["amqp://a:5672".to_owned()]);
        let mut state = MoveState { phase: MovePhase::Moving, direction, addresses, ..MoveState::default() };
        let refusal = |state: &MoveState, request: Value| {
            state.check_named(request.as_object().unwrap()).err().map(|error| error.to_string())
        };
        let this = json!({"direction": "to", "addresses": ["amqp://a"]});
        for request in
            [json!({}), this.clone(), json!({"direction": "to"}), json!({"addresses": ["amqp://a:5672"]})]
        {
            assert_eq!(refusal(&state, request), None);
        }
        let expected = "the running migration is to amqp://a:5672, not the requested one";
        for other in [json!({"direction": "from"}), json!({"addresses": ["amqp://b"]})] {
            assert_eq!(refusal(&state, other).as_deref(), Some(expected));
        }
        assert!(refusal(&state, json!({"addresses": 7})).is_some_and(|text| text.contains("wrong")));
        // There is none that could be another.
        state.phase = MovePhase::None;
        assert_eq!(refusal(&state, json!({"direction": "from"})), None);
    }
}
