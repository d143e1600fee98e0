//! Repeating declarations that a broker has lost, on a connection that carries no client.

use std::sync::Arc;

use amqp::frame::{write_frame, write_method};
use amqp::method::channel;
use amqp::{Fault, FrameKind, Method, ReplyCode};
use tokio::io::AsyncWriteExt;
use transport::Stream;

use super::handshake::{HandshakeError, LoggedInConnection, receive};
use crate::config::PoolConfig;
use crate::refusal::{Refusal, announced_fault};

/// A connection used for declarations only.
#[derive(Debug)]
pub(crate) struct Declaring {
    stream: Stream,
    input: Vec<u8>,
    /// Whether the channel is open.
    is_open: bool,
}

/// The outcome of a run of declarations.
#[derive(Debug)]
pub(crate) struct Declared {
    /// Number of methods carried out.
    pub(crate) count: usize,
    /// The broker's fault for the next method, if it has not carried out all of them.
    pub(crate) fault: Option<Fault>,
    /// Whether the connection can still be used.
    pub(crate) goes_on: bool,
}

impl Declaring {
    /// Opens a virtual host.
    pub(crate) async fn open(
        begun: LoggedInConnection,
        virtual_host: &str,
        config: &PoolConfig,
    ) -> Result<Self, Refusal> {
        let (stream, _) = begun.open(virtual_host, config).await?;
        Ok(Self { stream, input: Vec::new(), is_open: false })
    }

    /// Executes methods with one reply each, up to the first that the broker refuses.
    ///
    /// # Errors
    /// 320 CONNECTION_FORCED if the broker does not answer all of them.
    pub(crate) async fn declare(
        &mut self,
        methods: &[Arc<[u8]>],
        config: &PoolConfig,
    ) -> Result<Declared, Refusal> {
        let mut count = 0;
        for batch in methods.chunks(BATCH) {
            let declaring = self.declare_batch(batch, &mut count);
            let fault = match tokio::time::timeout(config.write_timeout, declaring).await {
                Ok(Ok(fault)) => fault,
                Ok(Err(HandshakeError::Said(Refusal::Fault(fault))))
                    if fault.code != ReplyCode::ConnectionForced =>
                {
                    return Ok(Declared { count, fault: Some(fault), goes_on: false });
                }
                Ok(Err(trouble)) => return Err(trouble.into_refusal()),
                Err(_) => return Err(Refusal::unreachable("declarations timed out")),
            };
            if fault.is_some() {
                return Ok(Declared { count, fault, goes_on: true });
            }
        }
        Ok(Declared { count, fault: None, goes_on: true })
    }

    /// Sends some methods, and waits for their replies, counting them; returns the channel's fault if the
    /// broker closed it.
    async fn declare_batch(
        &mut self,
        methods: &[Arc<[u8]>],
        count: &mut usize,
    ) -> Result<Option<Fault>, HandshakeError> {
        let (mut output, mut due) = (Vec::new(), methods.len());
        if !self.is_open {
            write_method(&mut output, CHANNEL, channel::Open::default());
        }
        for method in methods {
            write_frame(&mut output, FrameKind::Method, CHANNEL, |out| out.extend_from_slice(method));
        }
        self.stream.write_all(&output).await?;
        while due > 0 {
            let fault = match receive(&mut self.stream, &mut self.input).await? {
                Method::ChannelOpenOk(_) => {
                    self.is_open = true;
                    continue;
                }
                Method::ChannelClose(close) => {
                    announced_fault(close.reply_code, close.reply_text, (close.class_id, close.method_id))
                }
                // An alarm blocks only publishers, and this connection does not publish.
                Method::ConnectionBlocked(_) | Method::ConnectionUnblocked(_) => continue,
                _ => {
                    *count += 1;
                    due -= 1;
                    continue;
                }
            };
            self.is_open = false;
            output.clear();
            write_method(&mut output, CHANNEL, channel::CloseOk {});
            self.stream.write_all(&output).await?;
            return Ok(Some(fault));
        }
        Ok(None)
    }

    /// Closes the connection cleanly.
    pub(crate) async fn close(mut self) {
        let mut output = Vec::new();
        let close = amqp::method::connection::Close {
            reply_code: ReplyCode::Success.code(),
            reply_text: "declared again",
            ..Default::default()
        };
        write_method(&mut output, 0, close);
        let closing = async {
            self.stream.write_all(&output).await?;
            while !matches!(receive(&mut self.stream, &mut self.input).await?, Method::ConnectionCloseOk(_)) {
            }
            Ok::<_, HandshakeError>(())
        };
        // All declarations are done, so a failed close does not matter.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
    }
}

/// The only channel.
const CHANNEL: u16 = 1;
/// Methods sent at once: enough to hide round trips, and their replies fit any socket's buffer.
const BATCH: usize = 128;
/// How long a broker may take to confirm the close.
const CLOSE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
