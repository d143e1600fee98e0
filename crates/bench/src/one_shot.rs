//! A connection for each message: connect, log in, open a channel, publish, close, as scripts, lambdas and
//! web requests do.

use std::time::{Duration, Instant};

use amqp::Method;
use amqp::frame::{max_body_payload, write_body, write_content_header, write_method};
use amqp::method::{basic, confirm};

use crate::client::{Connection, write_all};
use crate::error::ClientError;
use crate::latency::Latencies;
use crate::metric::Metric;
use crate::stream::content::MessageProperties;
use crate::study::Sample;
use crate::study::meter::Meter;
use crate::study::workers::{WorkResult, WorkerConfig, work};
use crate::uri::Uri;

const CHANNEL: u16 = 1;

/// The message to send, and its destination.
#[derive(Debug, Clone)]
pub(crate) struct OneShotMessage<'l> {
    pub(crate) uri: &'l Uri,
    pub(crate) queue: &'l str,
    pub(crate) body: &'l [u8],
    /// Whether the sender waits for the confirm.
    pub(crate) confirm: bool,
    /// Whether the message is persistent.
    pub(crate) persistent: bool,
}

impl OneShotMessage<'_> {
    /// Sends one message; returns how long its confirm took, if it was waited for.
    pub(crate) fn post(&self) -> Result<Option<Duration>, ClientError> {
        let mut connection = Connection::open_small(self.uri, "leveret bench: a message")?;
        connection.open_channel(CHANNEL)?;
        if self.confirm {
            connection.call(CHANNEL, confirm::Select { no_wait: false }, |method| {
                matches!(method, Method::ConfirmSelectOk(_)).then_some(())
            })?;
        }
        let mut bytes = Vec::with_capacity(256 + self.body.len());
        write_method(&mut bytes, CHANNEL, basic::Publish { routing_key: self.queue, ..Default::default() });
        let properties = MessageProperties::default().encode(self.persistent);
        write_content_header(&mut bytes, CHANNEL, self.body.len() as u64, &properties);
        for piece in self.body.chunks(max_body_payload(connection.opened.negotiated.frame_max)) {
            write_body(&mut bytes, CHANNEL, piece);
        }
        let sent = Instant::now();
        write_all(&connection.stream, &bytes, "publishing")?;
        let mut confirmed = None;
        if self.confirm {
            connection.wait("a confirm", |method| match method {
                Method::BasicAck(_) => Some(Ok(())),
                Method::BasicNack(_) => Some(Err(ClientError::Closed("the message was refused".into()))),
                _ => None,
            })??;
            confirmed = Some(sent.elapsed());
        }
        connection.close_and_wait()?;
        Ok(confirmed)
    }

    /// Has each worker send one message after the other; the states record how long confirms took.
    pub(crate) fn post_for(&self, config: WorkerConfig) -> Result<WorkResult<Latencies>, ClientError> {
        work(
            config,
            |_| Ok(Latencies::new()),
            |confirms| {
                if let Some(time) = self.post()? {
                    confirms.record(time.as_nanos() as u64);
                }
                Ok(())
            },
        )
    }

    /// Like [`Self::post_for`], measured; also returns how many messages were sent.
    pub(crate) fn measure(
        &self,
        config: WorkerConfig,
        meter: Meter<'_>,
    ) -> Result<(Sample, u64), ClientError> {
        let done = self.post_for(config)?;
        let mut sample = meter.finish(done.count, done.busiest);
        done.add_to(&mut sample);
        let mut confirms = Latencies::new();
        done.states.iter().for_each(|one| confirms.add(one));
        sample.add_latencies(confirms.percentiles(), Metric::ConfirmLatency);
        Ok((sample, done.count))
    }
}
