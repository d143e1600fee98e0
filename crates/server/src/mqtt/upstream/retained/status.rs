//! The retained messages of a virtual host, as operators see them.

use super::LOG;
use super::log::LogStatus;

/// The retained messages of one virtual host, as far as this process has read its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetainedStatus {
    /// The virtual host that the topics belong to.
    pub vhost: String,
    /// The queue name of its log upstream.
    pub queue: &'static str,
    /// Whether messages are retained.
    pub state: RetainedState,
    /// Topics with a retained message.
    pub topics: usize,
    /// Bytes of their entries in the log.
    pub bytes: u64,
}

/// Whether messages are retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetainedState {
    /// The upstream has not answered yet.
    Connecting,
    /// Messages are retained.
    Running,
    /// Messages are not retained: no connected user has permission for the log.
    Refused,
}

impl RetainedStatus {
    pub(super) fn new(vhost: &str, status: LogStatus, (topics, bytes): (usize, u64)) -> Self {
        let state = match status {
            LogStatus::Undecided => RetainedState::Connecting,
            LogStatus::Bound => RetainedState::Running,
            LogStatus::Refused => RetainedState::Refused,
        };
        Self { vhost: vhost.to_owned(), queue: LOG, state, topics, bytes }
    }
}

impl RetainedState {
    /// Its name for operators.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Running => "running",
            Self::Refused => "refused",
        }
    }
}
