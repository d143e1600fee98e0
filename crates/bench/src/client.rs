//! A blocking AMQP client: opens connections and channels for the workloads, which then take over the socket.
//!
//! Threads and blocking sockets, because a load generator has few connections and each is busy: one thread per
//! direction, large reads and writes, and no scheduler between the socket and the clock.

mod tls;

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::frame::{HEARTBEAT, write_method};
use amqp::handshake::{Capabilities, ClientEvent, ClientHandshake, ClientOffer, Opened, product_and_version};
use amqp::method::{channel, connection};
use amqp::sasl::Credentials;
use amqp::{FieldTable, FieldValue, Frame, FrameKind, Method};

use crate::error::ClientError;
use crate::uri::Uri;

/// How long a read or write may block before its thread checks whether the round has ended.
pub(crate) const POLL: Duration = Duration::from_millis(50);
/// How long a server may take for each step of the set-up.
pub(crate) const SETUP_TIMEOUT: Duration = Duration::from_secs(20);
/// The largest frame that is requested, as offered by RabbitMQ.
const FRAME_MAX: u32 = 131_072;
/// Size of the receive buffer: thousands of small messages per read, and at least two of the largest frames.
const RECEIVE_BYTES: usize = 2 * FRAME_MAX as usize;

/// The receive buffer of a connection that receives no content: methods are far smaller than this.
const SMALL_RECEIVE_BYTES: usize = 16 * 1024;

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) receiver: Receiver,
    pub(crate) opened: Opened,
}

impl Connection {
    /// Connects, logs in and opens the vhost. The broker's tools show `name`.
    pub(crate) fn open(uri: &Uri, name: &str) -> Result<Self, ClientError> {
        Self::open_with(uri, name, RECEIVE_BYTES)
    }

    /// Like [`Self::open`], for a short-lived connection that receives little.
    pub(crate) fn open_small(uri: &Uri, name: &str) -> Result<Self, ClientError> {
        Self::open_with(uri, name, SMALL_RECEIVE_BYTES)
    }

    fn open_with(uri: &Uri, name: &str, receive_bytes: usize) -> Result<Self, ClientError> {
        let stream = connect(uri)?;
        let mut handshake = ClientHandshake::new(client_offer(uri, name));
        let deadline = Instant::now() + SETUP_TIMEOUT;
        let mut receiver = Receiver::new(receive_bytes);
        let mut output = Vec::new();
        loop {
            handshake.poll_output(&mut output);
            if !output.is_empty() {
                write_all(&stream, &output, "logging in")?;
                output.clear();
            }
            match handshake.poll_event().map(validate_login).transpose()? {
                Some(opened) => {
                    receiver.frame_max = opened.negotiated.frame_max;
                    return Ok(Self { stream, receiver, opened });
                }
                None if Instant::now() > deadline => {
                    return Err(ClientError::TimedOut("opening a connection"));
                }
                None => {}
            }
            if receiver.fill(&stream).map_err(ClientError::io("logging in"))? == Fill::Eof {
                handshake.handle_eof();
            }
            let taken = handshake.handle_input(receiver.unread());
            receiver.take(taken);
        }
    }

    /// Opens a channel.
    pub(crate) fn open_channel(&mut self, id: u16) -> Result<(), ClientError> {
        self.call(id, channel::Open::default(), |method| {
            matches!(method, Method::ChannelOpenOk(_)).then_some(())
        })
    }

    /// Sends a method that has no answer.
    pub(crate) fn send_method<'m>(
        &mut self,
        channel: u16,
        method: impl Into<Method<'m>>,
    ) -> Result<(), ClientError> {
        let mut output = Vec::new();
        write_method(&mut output, channel, method);
        write_all(&self.stream, &output, "sending a request")
    }

    /// Sends `request` and waits for the method that `accept` recognises as its answer. Content frames are an
    /// error: set-up ends before any can arrive.
    pub(crate) fn call<'m, T>(
        &mut self,
        channel: u16,
        request: impl Into<Method<'m>>,
        accept: impl Fn(&Method<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        let request = request.into();
        let mut output = Vec::new();
        write_method(&mut output, channel, request);
        write_all(&self.stream, &output, "sending a request")?;
        self.wait(request.name(), accept)
    }

    /// Waits for the method that `accept` recognises as the answer to `request`.
    pub(crate) fn wait<T>(
        &mut self,
        request: &'static str,
        accept: impl Fn(&Method<'_>) -> Option<T>,
    ) -> Result<T, ClientError> {
        let deadline = Instant::now() + SETUP_TIMEOUT;
        loop {
            while let Some(frame) = self.receiver.next_frame()? {
                if frame.kind == FrameKind::Heartbeat {
                    continue;
                }
                let method = expect_method(&frame)?;
                check_close(&method)?;
                if let Some(answer) = accept(&method) {
                    return Ok(answer);
                }
                if !matches!(method, Method::ConnectionBlocked(_) | Method::ConnectionUnblocked(_)) {
                    let text = format!("{} in answer to {request}", method.name());
                    return Err(ClientError::Protocol(text));
                }
            }
            if Instant::now() > deadline {
                return Err(ClientError::TimedOut(request));
            }
            if self.receiver.fill(&self.stream).map_err(ClientError::io("waiting for an answer"))?
                == Fill::Eof
            {
                return Err(ClientError::Closed("the server closed the socket".into()));
            }
        }
    }

    /// Product and version that the server announced.
    pub(crate) fn server(&self) -> String {
        let properties = &self.opened.server_properties;
        let (product, version) = product_and_version(properties);
        let known: Vec<&str> = product.into_iter().chain(version).collect();
        if known.is_empty() { "unknown".into() } else { known.join(" ") }
    }

    /// Closes the connection, and waits for the answer.
    pub(crate) fn close_and_wait(mut self) -> Result<(), ClientError> {
        self.call(0, NORMAL_CLOSE, |method| matches!(method, Method::ConnectionCloseOk(_)).then_some(()))
    }

    /// Closes the connection; does not wait long, and ignores errors.
    pub(crate) fn close(self) {
        drop(self.close_and_wait());
    }

    /// The longest interval between heartbeats to send; `None` if heartbeats are off.
    pub(crate) fn heartbeat_interval(&self) -> Option<Duration> {
        let seconds = self.opened.negotiated.heartbeat_secs;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()) / 2)
    }
}

/// How long a system may do nothing in a round that is counted in messages, which would never end if it has stopped. An
/// election of a leader, or a disk that writes its cache, takes seconds.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 30 });

/// Writes all bytes, however slowly the system takes them, as long as it takes some within [`STALL_TIMEOUT`].
pub(crate) fn write_all(
    mut stream: &TcpStream,
    bytes: &[u8],
    doing: &'static str,
) -> Result<(), ClientError> {
    let (mut rest, mut progress) = (bytes, Instant::now());
    while !rest.is_empty() {
        match stream.write(rest) {
            Ok(written) => (rest, progress) = (&rest[written..], Instant::now()),
            Err(error) if is_timeout(&error) && progress.elapsed() < STALL_TIMEOUT => {}
            Err(error) if is_timeout(&error) => {
                let patience = STALL_TIMEOUT.as_secs();
                return Err(ClientError::Stopped(format!("{doing}: it has read nothing for {patience} s")));
            }
            Err(error) => return Err(ClientError::Io { doing, cause: error }),
        }
    }
    Ok(())
}

/// Schedules heartbeats at half the negotiated interval, regardless of other frames.
#[derive(Debug)]
pub(crate) struct HeartbeatTimer {
    interval: Option<Duration>,
    last: Instant,
}

impl HeartbeatTimer {
    pub(crate) fn new(interval: Option<Duration>) -> Self {
        Self { interval, last: Instant::now() }
    }

    /// The frame to send, if a heartbeat is due.
    pub(crate) fn poll(&mut self) -> Option<&'static [u8]> {
        if self.last.elapsed() < self.interval? {
            return None;
        }
        self.last = Instant::now();
        Some(&HEARTBEAT)
    }
}

/// The client's properties and the URI's credentials, as the login presents them. `name` is the connection's name.
pub(crate) fn client_offer(uri: &Uri, name: &str) -> ClientOffer {
    let mut client_properties: FieldTable = [
        ("product", FieldValue::text("Leveret bench")),
        ("version", FieldValue::text(env!("CARGO_PKG_VERSION"))),
        ("connection_name", FieldValue::text(name)),
    ]
    .into_iter()
    .collect();
    CAPABILITIES.add_to(&mut client_properties);
    ClientOffer {
        credentials: Arc::new(Credentials::plain(&uri.user, uri.password.as_bytes())),
        virtual_host: uri.vhost.clone(),
        client_properties,
        channel_max: 0,
        frame_max: FRAME_MAX,
        heartbeat: 0,
    }
}

/// The outcome of a login by PLAIN.
pub(crate) fn validate_login(event: ClientEvent) -> Result<Opened, ClientError> {
    match event {
        ClientEvent::Opened(opened) => Ok(*opened),
        ClientEvent::Refused(close) => Err(ClientError::Closed(close.to_string())),
        ClientEvent::Failed(failure) => Err(ClientError::Amqp(Box::new(failure))),
        ClientEvent::Challenge(_) => Err(ClientError::Protocol("PLAIN was answered with a challenge".into())),
    }
}

/// Returns an error if the method closes the connection or channel.
pub(crate) fn check_close(method: &Method<'_>) -> Result<(), ClientError> {
    match method {
        Method::ConnectionClose(connection::Close { reply_code, reply_text, .. })
        | Method::ChannelClose(channel::Close { reply_code, reply_text, .. }) => {
            Err(ClientError::Closed(format!("{reply_code} {reply_text}")))
        }
        Method::BasicCancel(_) => Err(ClientError::Closed("the consumer was cancelled".into())),
        _ => Ok(()),
    }
}

/// The method in a frame; any other kind of frame is an error.
pub(crate) fn expect_method<'a>(frame: &Frame<'a>) -> Result<Method<'a>, ClientError> {
    match frame.kind {
        FrameKind::Method => Ok(Method::decode(frame.payload)?),
        kind => Err(ClientError::Protocol(format!("a {kind:?} frame where a method was expected"))),
    }
}

/// A receive buffer that frames are parsed from.
#[derive(Debug)]
pub(crate) struct Receiver {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    frame_max: u32,
}

/// The outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    Data,
    /// Nothing arrived within [`POLL`].
    Quiet,
    Eof,
}

impl Receiver {
    fn new(bytes: usize) -> Self {
        Self { buffer: vec![0; bytes].into_boxed_slice(), start: 0, end: 0, frame_max: FRAME_MAX }
    }

    /// Reads once into the buffer.
    pub(crate) fn fill(&mut self, mut stream: &TcpStream) -> io::Result<Fill> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        match stream.read(&mut self.buffer[self.end..]) {
            Ok(0) => Ok(Fill::Eof),
            Ok(n) => {
                self.end += n;
                Ok(Fill::Data)
            }
            Err(error) if is_timeout(&error) => Ok(Fill::Quiet),
            Err(error) => Err(error),
        }
    }

    /// The next complete frame, if any.
    #[inline]
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame<'_>>, ClientError> {
        let frame = Frame::parse(&self.buffer[self.start..self.end], self.frame_max)?;
        self.start += frame.map_or(0, |frame| frame.wire_len());
        Ok(frame)
    }

    fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn take(&mut self, bytes: usize) {
        self.start += bytes;
    }
}

/// Whether a blocking call failed because its time was up.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

pub(crate) const NORMAL_CLOSE: connection::Close<'static> =
    connection::Close { reply_code: 200, reply_text: "Goodbye", class_id: 0, method_id: 0 };

/// The capabilities that this client announces.
const CAPABILITIES: Capabilities = Capabilities {
    publisher_confirms: true,
    exchange_exchange_bindings: false,
    basic_nack: true,
    consumer_cancel_notify: true,
    connection_blocked: true,
    consumer_priorities: false,
    authentication_failure_close: true,
    per_consumer_qos: false,
    direct_reply_to: false,
};

/// Connects to the first of the host's addresses that accepts.
pub(crate) fn connect(uri: &Uri) -> Result<TcpStream, ClientError> {
    if let Some(tls) = &uri.tls {
        return tls::connect(uri, tls).and_then(configured);
    }
    let resolving = ClientError::io("resolving the host name");
    let addresses = (uri.host.as_str(), uri.port).to_socket_addrs().map_err(resolving)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, SETUP_TIMEOUT) {
            Ok(stream) => return configured(stream),
            Err(error) => last = error,
        }
    }
    Err(ClientError::Io { doing: "connecting", cause: last })
}

fn configured(stream: TcpStream) -> Result<TcpStream, ClientError> {
    let set_up = || -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(POLL))?;
        stream.set_write_timeout(Some(POLL))
    };
    set_up().map_err(ClientError::io("configuring the socket"))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    #[test]
    fn a_peer_that_reads_late_gets_everything() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = configured(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        // More than the buffers of both sockets.
        let body = vec![7; 32 << 20];
        thread::scope(|scope| {
            let read = scope.spawn(move || {
                // Several of the writer's timeouts.
                thread::sleep(4 * POLL);
                let mut read = Vec::new();
                peer.read_to_end(&mut read).map(|_| read.len())
            });
            write_all(&stream, &body, "publishing").unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(read.join().unwrap().unwrap(), body.len());
        });
    }
}
