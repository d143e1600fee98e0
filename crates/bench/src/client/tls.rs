//! TLS by a helper thread for each connection: the workloads read and write a plain loopback socket whose
//! other end encrypts. The hot paths therefore know nothing of TLS, and its cost falls on a separate thread.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::TcpStream as AsyncStream;
use transport::tls::{CertificateFiles, ClientTls, ClientTlsConfig};
use transport::{ConnectOptions, DescriptorShare, Stream};

use super::SETUP_TIMEOUT;
use crate::error::ClientError;
use crate::uri::{Tls, Uri};

/// Bytes of one read: a TLS record holds 16 KiB, and a few of them are worth one write.
const BUFFER: usize = 64 * 1024;

/// Connects and performs the handshake; the returned socket is plain.
pub(super) fn connect(uri: &Uri, tls: &Tls) -> Result<TcpStream, ClientError> {
    let config = ClientTlsConfig {
        ca: tls.ca.clone(),
        certificate: tls.certificate.clone().map(|(certificate, key)| CertificateFiles { certificate, key }),
        server_name: tls.server_name.clone(),
        verify: !tls.unverified,
    };
    let (client, _) = ClientTls::load(config)
        .map_err(|error| ClientError::Io { doing: "reading certificates", cause: io::Error::other(error) })?;
    let (ours, theirs) = pair().map_err(ClientError::io("opening a loopback socket"))?;
    let (host, port) = (uri.host.clone(), uri.port);
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || relay(&client, &host, port, theirs, &sender));
    let panicked = |_| ClientError::Panicked("TLS");
    receiver.recv().map_err(panicked)?.map_err(ClientError::io("connecting"))?;
    Ok(ours)
}

/// Both ends of a loopback connection.
fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    loop {
        // Connections from other processes are dropped.
        let (theirs, from) = listener.accept()?;
        if from == ours.local_addr()? {
            theirs.set_nodelay(true)?;
            theirs.set_nonblocking(true)?;
            return Ok((ours, theirs));
        }
    }
}

/// Copies until both sides have ended. First reports through `notify` whether the server could be reached.
fn relay(client: &ClientTls, host: &str, port: u16, plain: TcpStream, notify: &SyncSender<io::Result<()>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.and_then(|runtime| {
        runtime.block_on(async {
            let options = ConnectOptions {
                timeout: SETUP_TIMEOUT,
                keepalive: SETUP_TIMEOUT,
                share: DescriptorShare::Others,
            };
            let server = Stream::connect(host, port, options).await?;
            let mut server = tokio::time::timeout(SETUP_TIMEOUT, client.connect(server, host))
                .await
                .map_err(|_| io::ErrorKind::TimedOut)??;
            let mut plain = AsyncStream::from_std(plain)?;
            // The receiver may have given up waiting.
            drop(notify.send(Ok(())));
            // The workload sees an end without close_notify as an ordinary end of the stream.
            drop(copy_bidirectional_with_sizes(&mut plain, &mut server, BUFFER, BUFFER).await);
            Ok(())
        })
    });
    if let Err(error) = outcome {
        drop(notify.send(Err(error)));
    }
}
