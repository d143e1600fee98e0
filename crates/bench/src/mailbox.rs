//! A queue that a study publishes to, with a separate control connection.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use amqp::method::queue;
use amqp::{FieldTable, FieldValue, Method, RawTable};

use crate::client::Connection;
use crate::error::ClientError;
use crate::uri::Uri;

const CHANNEL: u16 = 1;
/// How long no message may arrive before the missing ones count as lost.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 2000 });
/// The interval between checks of the queue's length.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Limit of most queues; the oldest messages are dropped first, so that no study fills a broker's memory.
const MAX_MESSAGES: i32 = 1_000_000;

/// A queue that is declared on opening and deleted on closing.
pub(crate) struct Mailbox {
    connection: Connection,
    name: String,
}

impl Mailbox {
    /// Declares a transient queue with a new name.
    pub(crate) fn open(uri: &Uri) -> Result<Self, ClientError> {
        Self::declare(uri, false, true)
    }

    /// Declares a queue with a new name, which is durable or not. Without a limit it drops no messages, so that all that have
    /// arrived can be counted.
    pub(crate) fn declare(uri: &Uri, durable: bool, limited: bool) -> Result<Self, ClientError> {
        let mut connection = Connection::open(uri, "leveret bench: control")?;
        connection.open_channel(CHANNEL)?;
        let name = new_name();
        let limit = limited.then_some(("x-max-length", FieldValue::I32(MAX_MESSAGES)));
        let limit: FieldTable = limit.into_iter().collect();
        let arguments = limit.encode();
        let arguments = RawTable::check(&arguments)?;
        let declare = queue::Declare { queue: &name, durable, arguments, ..Default::default() };
        connection.call(CHANNEL, declare, |m| matches!(m, Method::QueueDeclareOk(_)).then_some(()))?;
        Ok(Self { connection, name })
    }

    /// Product and version that the broker at a URI announces.
    pub(crate) fn ask(uri: &Uri) -> Result<String, ClientError> {
        let connection = Connection::open_small(uri, "leveret bench: control")?;
        let server = connection.server();
        connection.close();
        Ok(server)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Product and version that the broker announces.
    pub(crate) fn server(&self) -> String {
        self.connection.server()
    }

    /// The number of messages in the queue.
    pub(crate) fn count(&mut self) -> Result<u64, ClientError> {
        let look = queue::Declare { queue: &self.name, passive: true, ..Default::default() };
        self.connection.call(CHANNEL, look, |method| match method {
            Method::QueueDeclareOk(ok) => Some(u64::from(ok.message_count)),
            _ => None,
        })
    }

    /// Waits for `expected` messages and purges them; returns how many there were.
    pub(crate) fn empty(&mut self, expected: u64) -> Result<u64, ClientError> {
        let (mut count, mut changed) = (0, Instant::now());
        while count < expected && changed.elapsed() < TIMEOUT {
            let now = self.count()?;
            if now != count {
                (count, changed) = (now, Instant::now());
            }
            if count < expected {
                thread::sleep(CHECK_INTERVAL);
            }
        }
        let purge = queue::Purge { queue: &self.name, ..Default::default() };
        self.connection.call(CHANNEL, purge, |method| match method {
            Method::QueuePurgeOk(ok) => Some(u64::from(ok.message_count)),
            _ => None,
        })
    }

    /// Deletes the queue.
    pub(crate) fn close(mut self) -> Result<(), ClientError> {
        let delete = queue::Delete { queue: &self.name, ..Default::default() };
        self.connection.call(CHANNEL, delete, |m| matches!(m, Method::QueueDeleteOk(_)).then_some(()))?;
        self.connection.close();
        Ok(())
    }
}

/// A unique queue name.
pub(crate) fn new_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("leveret-bench-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed))
}
