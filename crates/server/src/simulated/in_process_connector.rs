//! A connector from a pool to a broker within the process.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use broker::FrontEnd;
use parking_lot::Mutex;
use proxy::{Connecting, Connector, Pool, PoolConfig, UpstreamAddress};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use transport::{Peer, Stream};

use super::connection;
use crate::amqp::connection::AmqpConnection;
use crate::server::Shared;

/// The number of the first connection; tests number their own from 1.
const FIRST_ID: u64 = 1000;

/// Connects a pool to the embedded broker of another server, within the process.
pub(crate) struct InProcessConnector {
    upstream: Arc<Shared>,
    /// Whether the broker's answers are passed on.
    answers: watch::Sender<bool>,
    connections: Mutex<Vec<AbortHandle>>,
}

impl InProcessConnector {
    pub(crate) fn to(upstream: &Arc<Shared>) -> Arc<Self> {
        let (upstream, answers) = (Arc::clone(upstream), watch::Sender::new(true));
        Arc::new(Self { upstream, answers, connections: Mutex::default() })
    }

    /// A pool that connects through this.
    pub(crate) fn pool(self: &Arc<Self>) -> Arc<Pool> {
        let address = UpstreamAddress { host: "10.0.0.1".to_owned(), port: 5672, tls: false };
        let connector = Arc::clone(self);
        Pool::new(PoolConfig { connector, ..PoolConfig::new(vec![address]) })
    }

    /// Passes on the upstream's answers, or holds them back.
    pub(crate) fn let_answers_through(&self, open: bool) {
        self.answers.send_replace(open);
    }

    /// The numbers that the broker gives these connections.
    pub(crate) fn connection_ids(&self) -> Range<u64> {
        FIRST_ID..FIRST_ID + self.connections.lock().len() as u64
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.connections.lock().drain(..).for_each(|connection| connection.abort());
    }
}

impl std::fmt::Debug for InProcessConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InProcessConnector")
    }
}

impl Connector for InProcessConnector {
    fn connect(&self, _socket: SocketAddr, _timeout: Duration) -> Connecting<'_> {
        Box::pin(async {
            let (near, middle) = tokio::io::duplex(16 * 1024);
            let (other, far) = tokio::io::duplex(16 * 1024);
            let shared = Arc::clone(&self.upstream);
            let mut connections = self.connections.lock();
            let id = FIRST_ID + connections.len() as u64;
            let serving = async move {
                let (mut connection, outbox) =
                    connection::<AmqpConnection>(&shared, id, Peer::Unix, FrontEnd::Amqp, transport::now());
                let timeout = Duration::from_secs(10);
                transport::drive(&mut Stream::Memory(far), &mut connection, &outbox, 1 << 20, timeout).await;
            };
            let ((mut asked, mut answered), (mut answers, mut asks)) =
                (tokio::io::split(middle), tokio::io::split(other));
            let asking = async move { tokio::io::copy(&mut asked, &mut asks).await };
            let mut open = self.answers.subscribe();
            let answering = async move {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = answers.read(&mut buffer).await {
                    open.wait_for(|open| *open).await.unwrap();
                    answered.write_all(&buffer[..length]).await.unwrap();
                }
            };
            let all = async { tokio::join!(serving, asking, answering) };
            connections.push(tokio::spawn(all).abort_handle());
            Ok(Stream::Memory(near))
        })
    }
}
