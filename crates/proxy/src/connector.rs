//! Sockets of brokers.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use transport::{ConnectOptions, DescriptorShare, Stream};

/// Opens the streams to brokers, below the PROXY protocol and TLS.
pub trait Connector: Debug + Send + Sync {
    /// Connects to an address. The future is dropped after `timeout`.
    ///
    /// # Errors
    /// If the connection is refused or times out.
    fn connect(&self, socket: SocketAddr, timeout: Duration) -> Connecting<'_>;
}

/// A connection that is being opened.
pub type Connecting<'c> = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send + 'c>>;

/// Connects over TCP, with keepalive.
#[derive(Debug, Clone, Copy, Default)]
pub struct TcpConnector;

impl Connector for TcpConnector {
    fn connect(&self, socket: SocketAddr, timeout: Duration) -> Connecting<'_> {
        let options = ConnectOptions { timeout, keepalive: KEEPALIVE, share: DescriptorShare::Others };
        Box::pin(async move { Stream::connect(&socket.ip().to_string(), socket.port(), options).await })
    }
}

/// A broker that is silent for this long is probed with TCP keepalive. Heartbeats detect its death sooner;
/// this is for when they are off.
const KEEPALIVE: Duration = Duration::from_secs(30);
