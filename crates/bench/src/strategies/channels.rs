//! The channels that workers publish on, and their assignment to workers.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use amqp::Method;
use amqp::frame::{max_body_payload, write_body, write_content_header, write_method};
use amqp::method::{basic, exchange};
use amqp::properties::NO_PROPERTIES;

use super::arguments::Strategy;
use crate::client::{Connection, write_all};
use crate::error::ClientError;
use crate::uri::Uri;

const NAME: &str = "leveret bench strategies";

/// A channel of a connection, which other channels may share.
pub(super) struct SharedChannel {
    shared: Arc<Mutex<SharedConnection>>,
    channel: u16,
}

struct SharedConnection {
    connection: Connection,
    /// Set when a write has failed; that worker reports the error. The other workers then write nothing more, since
    /// each would wait until its own timeout.
    has_failed: bool,
}

impl SharedChannel {
    /// Publishes one message, unless a write to the connection has failed before; `bytes` is a reusable buffer.
    pub(super) fn publish(&self, queue: &str, body: &[u8], bytes: &mut Vec<u8>) -> Result<(), ClientError> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let SharedConnection { connection, has_failed } = &mut *shared;
        if *has_failed {
            return Ok(());
        }
        bytes.clear();
        write_method(bytes, self.channel, basic::Publish { routing_key: queue, ..Default::default() });
        write_content_header(bytes, self.channel, body.len() as u64, NO_PROPERTIES);
        for piece in body.chunks(max_body_payload(connection.opened.negotiated.frame_max)) {
            write_body(bytes, self.channel, piece);
        }
        let written = write_all(&connection.stream, bytes, "publishing");
        *has_failed = written.is_err();
        written
    }

    /// Waits until the system has processed everything sent on the channel before, by the passive declaration of an
    /// exchange that always exists.
    fn wait_until_processed(&self) -> Result<(), ClientError> {
        let SharedConnection { connection, .. } =
            &mut *self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let ask =
            exchange::Declare { exchange: "amq.direct", kind: "direct", passive: true, ..Default::default() };
        connection.call(self.channel, ask, |m| matches!(m, Method::ExchangeDeclareOk(_)).then_some(()))
    }
}

/// All channels of a round.
pub(super) struct WorkerChannels {
    all: Vec<SharedChannel>,
    /// Indexes of the free channels; `None` if each worker has its own channel.
    free: Option<(Mutex<Vec<usize>>, Condvar)>,
}

impl WorkerChannels {
    pub(super) fn open(
        uri: &Uri,
        strategy: Strategy,
        workers: usize,
        pool: usize,
    ) -> Result<Self, ClientError> {
        let all = match strategy {
            Strategy::ConnectionEach => (0..workers)
                .map(|_| shared(uri, 1))
                .collect::<Result<Vec<_>, _>>()?
                .into_iter()
                .flatten()
                .collect(),
            Strategy::OneConnection => shared(uri, workers)?,
            Strategy::Pool => shared(uri, pool)?,
        };
        let free = (strategy == Strategy::Pool).then(|| (Mutex::new((0..pool).collect()), Condvar::new()));
        Ok(Self { all, free })
    }

    /// Runs `work` with the worker's own channel, or with the next free one of the pool.
    pub(super) fn with<T>(&self, worker: usize, work: impl FnOnce(&SharedChannel) -> T) -> T {
        let Some((free, returned)) = &self.free else { return work(&self.all[worker]) };
        let lock = || free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut numbers = lock();
        let number = loop {
            match numbers.pop() {
                Some(number) => break number,
                None => numbers = returned.wait(numbers).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(numbers);
        let outcome = work(&self.all[number]);
        lock().push(number);
        returned.notify_one();
        outcome
    }

    /// Waits until everything sent has been processed.
    pub(super) fn wait_until_processed(&self) -> Result<(), ClientError> {
        self.all.iter().try_for_each(SharedChannel::wait_until_processed)
    }

    /// Closes all connections.
    pub(super) fn close(self) {
        for SharedChannel { shared, .. } in self.all {
            // The last of a connection's channels owns it alone.
            if let Some(shared) = Arc::into_inner(shared) {
                shared.into_inner().unwrap_or_else(PoisonError::into_inner).connection.close();
            }
        }
    }
}

/// A connection with `channels` channels.
fn shared(uri: &Uri, channels: usize) -> Result<Vec<SharedChannel>, ClientError> {
    let mut connection = Connection::open_small(uri, NAME)?;
    // The plan has checked that a connection can have this many.
    let channels: Vec<u16> = (1..=channels).map(|channel| channel as u16).collect();
    channels.iter().try_for_each(|&channel| connection.open_channel(channel))?;
    let shared = Arc::new(Mutex::new(SharedConnection { connection, has_failed: false }));
    Ok(channels.into_iter().map(|channel| SharedChannel { shared: Arc::clone(&shared), channel }).collect())
}
