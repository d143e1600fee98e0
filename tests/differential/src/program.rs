//! Programs: lists of steps, one line of JSON each, so that a failing one can be kept, edited and replayed.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where direct replies are consumed.
pub(crate) const REPLIES: &str = "amq.rabbitmq.reply-to";

/// A list of steps.
pub(crate) type Program = Vec<Step>;

/// One operation, and where it is done. Channels and connections open themselves when they are first used, and again
/// when they are used after having been closed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Which connection, from 0; it decides who the user is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) connection: u8,
    /// Which channel of it, from 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) channel: u16,
    #[serde(flatten)]
    pub(crate) op: Op,
}

/// Arguments and headers. Numbers are sent as 32-bit integers, null as void.
pub(crate) type Table = serde_json::Map<String, Value>;

/// What is done. Names such as `q0`, `e1` stand for names of this program's own; `gen0` is the first name that the
/// server made up, `reply0.1` the queue for replies to connection 0, channel 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Op {
    DeclareQueue(DeclareQueue),
    DeclareExchange(DeclareExchange),
    DeleteQueue {
        queue: String,
        #[serde(default, skip_serializing_if = "is_default")]
        if_unused: bool,
        #[serde(default, skip_serializing_if = "is_default")]
        if_empty: bool,
    },
    DeleteExchange {
        exchange: String,
        #[serde(default, skip_serializing_if = "is_default")]
        if_unused: bool,
    },
    Bind(Binding),
    Unbind(Binding),
    Purge {
        queue: String,
    },
    Publish(Publish),
    Get {
        queue: String,
        #[serde(default, skip_serializing_if = "is_default")]
        no_ack: bool,
    },
    Consume(Consume),
    Cancel {
        tag: String,
    },
    Settle(Settle),
    Recover,
    Qos {
        prefetch: u16,
        #[serde(default, skip_serializing_if = "is_default")]
        global: bool,
    },
    ConfirmSelect,
    TxSelect,
    TxCommit,
    TxRollback,
    /// Time passes: what was given a short time to live is past it.
    Wait,
    CloseChannel,
    CloseConnection,
    /// The socket is closed without a word.
    DropConnection,
}

/// `queue.declare`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DeclareQueue {
    pub(crate) queue: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) passive: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) durable: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) exclusive: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) auto_delete: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) no_wait: bool,
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub(crate) arguments: Table,
}

/// `exchange.declare`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DeclareExchange {
    pub(crate) exchange: String,
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) passive: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) durable: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) auto_delete: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) internal: bool,
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub(crate) arguments: Table,
}

/// A binding of a queue, or of an exchange when the destination is one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Binding {
    pub(crate) source: String,
    pub(crate) destination: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) to_exchange: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) key: String,
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub(crate) arguments: Table,
}

/// `basic.publish`, once or several times in a row. The body tells the step and the number in the row.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Publish {
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) exchange: String,
    pub(crate) key: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) mandatory: bool,
    /// How often more than once.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) repeats: u8,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) priority: Option<u8>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) delivery_mode: Option<u8>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) expiration: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) user_id: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) reply_to: Option<String>,
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub(crate) headers: Table,
}

/// `basic.consume`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Consume {
    pub(crate) queue: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) tag: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) no_ack: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) exclusive: bool,
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub(crate) arguments: Table,
}

/// `basic.ack`, `basic.reject` or `basic.nack`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settle {
    pub(crate) how: How,
    /// Which of the channel's outstanding deliveries, modulo their number; the step does nothing when there is none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) which: u8,
    /// This tag instead: 0 with multiple means all, others are likely to be unknown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) literal_tag: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) multiple: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) requeue: bool,
}

/// Which of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    Ack,
    Nack,
    Reject,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn one() -> u16 {
    1
}

fn is_one(channel: &u16) -> bool {
    *channel == 1
}

/// The program as lines of JSON.
pub(crate) fn to_text(program: &[Step]) -> String {
    program.iter().filter_map(|step| serde_json::to_string(step).ok()).map(|line| line + "\n").collect()
}

/// Reads what [`to_text`] wrote; empty lines and lines that start with `#` are left out.
///
/// # Errors
/// The first line that is no step.
pub(crate) fn from_text(text: &str) -> Result<Program, serde_json::Error> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(serde_json::from_str)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{generate, generate_timed};

    #[test]
    fn every_program_can_be_written_down_and_read_back() {
        for seed in 0..200 {
            for program in [generate(seed), generate_timed(seed)] {
                assert_eq!(from_text(&to_text(&program)).unwrap(), program, "seed {seed}");
            }
        }
    }
}
