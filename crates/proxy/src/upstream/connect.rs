//! Connecting to a broker: a socket, then the PROXY protocol, then TLS.

use std::io;

use proxy_protocol::ProxyHeader;
use tokio::io::AsyncWriteExt;
use transport::Stream;

use crate::config::PoolConfig;
use crate::pool::Endpoint;

/// Opens the stream on which AMQP is spoken with a broker. The caller enforces a timeout.
///
/// # Errors
/// Socket errors, and TLS failures such as an untrusted certificate.
pub(super) async fn connect(endpoint: &Endpoint, config: &PoolConfig) -> io::Result<Stream> {
    let Endpoint { address, socket } = endpoint;
    let mut stream = config.connector.connect(*socket, config.connect_timeout).await?;
    if let Some(version) = config.transport.proxy_protocol {
        let mut header = Vec::new();
        // Any connection may later serve another client, so the header carries the proxy's own address rather than
        // that of the first client. LOCAL would say the same, but RabbitMQ 3.10 closes connections that send it.
        let ours =
            stream.addresses().map(|(source, destination)| ProxyHeader::Proxied { source, destination });
        proxy_protocol::write(version, &ours.unwrap_or(ProxyHeader::Local), &mut header);
        stream.write_all(&header).await?;
    }
    match &config.transport.tls {
        Some(tls) if address.tls => tls.connect(stream, &address.host).await,
        None if address.tls => Err(io::Error::new(io::ErrorKind::Unsupported, "TLS is not configured")),
        _ => Ok(stream),
    }
}
