//! A blocking AMQP connection that writes what it is told and turns all that comes in into events.

use std::env;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use amqp::frame::write_method;
use amqp::handshake::{Capabilities, ClientEvent, ClientHandshake, ClientOffer};
use amqp::method::{basic, channel, connection};
use amqp::{ContentHeader, Credentials, FieldTable, Frame, FrameKind, Method};

use crate::event::{Event, SYNC};

/// An open connection.
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    input: Vec<u8>,
    /// Bytes of `input` that have been taken.
    taken: usize,
    output: Vec<u8>,
    /// What came in and has not been asked for, with its channel.
    pub(crate) events: Vec<(u16, Event)>,
    /// Channels that are open.
    pub(crate) channels: Vec<u16>,
    /// Channels that were asked to close.
    closing: Vec<u16>,
    /// Whether the connection has ended.
    pub(crate) closed: bool,
    last_sync: u64,
    partial: Option<Partial>,
}

/// Content that is being received: payloads as they came.
#[derive(Debug)]
struct Partial {
    channel: u16,
    method: Vec<u8>,
    header: Vec<u8>,
    body: Vec<u8>,
}

impl Link {
    /// Connects to the vhost `/` as a user whose password is the name.
    ///
    /// # Errors
    /// What the socket or the handshake failed with.
    pub(crate) fn open(address: &str, user: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(*PATIENCE))?;
        stream.set_write_timeout(Some(*PATIENCE))?;
        let mut link = Self {
            stream,
            input: Vec::new(),
            taken: 0,
            output: Vec::new(),
            events: Vec::new(),
            channels: Vec::new(),
            closing: Vec::new(),
            closed: false,
            last_sync: 0,
            partial: None,
        };
        link.log_in(user)?;
        Ok(link)
    }

    fn log_in(&mut self, user: &str) -> io::Result<()> {
        let mut client_properties = FieldTable::new();
        Capabilities::ALL.add_to(&mut client_properties);
        let mut handshake = ClientHandshake::new(ClientOffer {
            credentials: Arc::new(Credentials::plain(user, user)),
            virtual_host: "/".into(),
            client_properties,
            channel_max: 0,
            frame_max: FRAME_MAX,
            heartbeat: 0,
        });
        loop {
            handshake.poll_output(&mut self.output);
            self.flush()?;
            match handshake.poll_event() {
                Some(ClientEvent::Opened(_)) => return Ok(()),
                Some(other) => return Err(io::Error::other(format!("login failed: {other:?}"))),
                None => {}
            }
            self.read()?;
            if self.closed {
                return Err(io::Error::other("the server closed the connection during the handshake"));
            }
            self.taken += handshake.handle_input(&self.input[self.taken..]);
        }
    }

    /// Puts a method in the out-buffer.
    pub(crate) fn send<'m>(&mut self, channel: u16, method: impl Into<Method<'m>>) {
        write_method(&mut self.output, channel, method);
    }

    /// The out-buffer, for content.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Asks for a channel; `sync` waits for it.
    pub(crate) fn open_channel(&mut self, id: u16) {
        self.send(id, channel::Open::default());
        self.channels.push(id);
    }

    /// Asks to close a channel; `sync` waits for it.
    pub(crate) fn close_channel(&mut self, id: u16) {
        let close = channel::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 };
        self.send(id, close);
        self.channels.retain(|&open| open != id);
        self.closing.push(id);
    }

    /// A round trip on each of the open channels: when it returns, the broker's channels have handled all that was
    /// sent before, and everything that they have sent is among the events. To cancel a consumer that does not exist
    /// is answered, and changes nothing.
    ///
    /// # Errors
    /// A broken stream, or no answer within [`PATIENCE`].
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.last_sync += 1;
        let tag = format!("{SYNC}{}", self.last_sync);
        let mut waiting = self.channels.clone();
        for &id in &waiting {
            self.send(id, basic::Cancel { consumer_tag: &tag, no_wait: false });
        }
        self.flush()?;
        waiting.append(&mut self.closing);
        let mut looked_at = self.events.len();
        loop {
            for (id, event) in &self.events[looked_at..] {
                match event {
                    Event::Synced(got) if *got == tag => waiting.retain(|other| other != id),
                    Event::ChannelClosed(_) | Event::ChannelCloseOk => waiting.retain(|other| other != id),
                    _ => {}
                }
            }
            looked_at = self.events.len();
            if self.closed || waiting.is_empty() {
                self.events.retain(|(_, event)| !matches!(event, Event::Synced(_)));
                return Ok(());
            }
            self.receive()?;
        }
    }

    /// Waits for the answer to `tx.commit`: RabbitMQ closes the connection when anything comes before it has given it.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub(crate) fn wait_for_commit(&mut self, channel: u16) -> io::Result<()> {
        let committed = Event::Other("tx.commit-ok".to_owned());
        self.wait_for(|(id, event)| {
            *id == channel && (*event == committed || matches!(event, Event::ChannelClosed(_)))
        })
    }

    /// Writes what is in the out-buffer, and waits until there is such an event, or the connection has ended.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub(crate) fn wait_for(&mut self, is_awaited: impl Fn(&(u16, Event)) -> bool) -> io::Result<()> {
        self.flush()?;
        while !self.closed && !self.events.iter().any(&is_awaited) {
            self.receive()?;
        }
        Ok(())
    }

    /// Says goodbye and waits until the broker has let go.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.send(0, connection::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 });
        self.flush()?;
        while !self.closed {
            self.receive()?;
        }
        Ok(())
    }

    /// Writes what is in the out-buffer. A broken pipe shows when reading.
    fn flush(&mut self) -> io::Result<()> {
        if let Err(error) = self.stream.write_all(&self.output)
            && !is_end(&error)
        {
            return Err(error);
        }
        self.output.clear();
        Ok(())
    }

    /// Reads once and turns what is complete into events.
    fn receive(&mut self) -> io::Result<()> {
        self.read()?;
        let input = std::mem::take(&mut self.input);
        loop {
            let frame = Frame::parse(&input[self.taken..], FRAME_MAX).map_err(io::Error::other)?;
            let Some(frame) = frame else { break };
            self.taken += frame.wire_len();
            self.frame(&frame)?;
        }
        self.input = input;
        self.flush()
    }

    fn read(&mut self) -> io::Result<()> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let mut scratch = [0; 16 * 1024];
        match self.stream.read(&mut scratch) {
            Ok(0) => self.end("end of stream"),
            Ok(n) => self.input.extend_from_slice(&scratch[..n]),
            Err(error) if is_end(&error) => self.end("end of stream"),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        match frame.kind {
            FrameKind::Heartbeat => return Ok(()),
            FrameKind::Method => {
                let method = Method::decode(frame.payload).map_err(io::Error::other)?;
                if method.has_content() {
                    self.partial = Some(Partial {
                        channel: frame.channel,
                        method: frame.payload.to_vec(),
                        header: Vec::new(),
                        body: Vec::new(),
                    });
                    return Ok(());
                }
                self.method(frame.channel, &method);
                return Ok(());
            }
            FrameKind::Header => {
                if let Some(partial) = &mut self.partial {
                    partial.header.extend_from_slice(frame.payload);
                }
            }
            FrameKind::Body => {
                if let Some(partial) = &mut self.partial {
                    partial.body.extend_from_slice(frame.payload);
                }
            }
        }
        let Some(Partial { channel, method, header, body }) = &self.partial else {
            return Err(io::Error::other("content without a method"));
        };
        let decoded = ContentHeader::decode(header).map_err(io::Error::other)?;
        if decoded.body_size == body.len() as u64 {
            let method = Method::decode(method).map_err(io::Error::other)?;
            self.events.push((*channel, Event::of_content(&method, &decoded, body)));
            self.partial = None;
        }
        Ok(())
    }

    fn method(&mut self, channel: u16, method: &Method<'_>) {
        match method {
            Method::ChannelClose(_) => {
                self.send(channel, channel::CloseOk {});
                self.channels.retain(|&open| open != channel);
            }
            Method::ChannelOpenOk(_) => return,
            Method::ConnectionClose(_) => {
                self.send(0, connection::CloseOk {});
                self.channels.clear();
                self.closed = true;
            }
            Method::ConnectionCloseOk(_) => {
                self.end("closed");
                return;
            }
            _ => {}
        }
        self.events.push((channel, Event::of(method)));
    }

    fn end(&mut self, how: &str) {
        if !self.closed {
            self.closed = true;
            self.channels.clear();
            self.events.push((0, Event::ConnectionClosed(how.to_owned())));
        }
    }
}

/// The largest frame, in bytes, that is asked for.
const FRAME_MAX: u32 = 131_072;
/// How long a broker may take to answer: as long as other tests wait (`harness/patience.py`).
static PATIENCE: LazyLock<Duration> = LazyLock::new(|| {
    let seconds: Option<u64> = env::var("LEVERET_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(180))
});

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted
    )
}
