//! Closes a connection gracefully from this side.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Shuts down the sending side, then waits a moment for the peer to close its own. Closing a socket with unread input
/// resets the connection, and the reset could overtake the final bytes that explain the close.
pub async fn linger<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let closing = async {
        stream.shutdown().await?;
        let mut sink = [0; LINGER_READ];
        let mut budget = LINGER_BYTES;
        while budget > 0 {
            match stream.read(&mut sink).await? {
                0 => break,
                bytes => budget = budget.saturating_sub(bytes),
            }
        }
        io::Result::Ok(())
    };
    // Every outcome is fine: the connection is over.
    let _ = tokio::time::timeout(LINGER, Box::pin(closing)).await;
}

/// How long [`linger`] waits for the peer.
const LINGER: Duration = Duration::from_secs(1);
/// Most bytes that [`linger`] reads and discards.
const LINGER_BYTES: usize = 4 * 1024 * 1024;
/// Bytes that [`linger`] reads at once.
const LINGER_READ: usize = 4096;
