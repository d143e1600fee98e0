//! `bench sink`: a broker that accepts all messages and stores none. The load generator's rate against it is its limit.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use amqp::frame::write_method;
use amqp::handshake::{ServerEvent, ServerHandshake, ServerOffer};
use amqp::method::{basic, channel, confirm, connection, exchange, queue};
use amqp::sasl::Mechanism;
use amqp::{ContentHeader, FieldTable, FieldValue, Frame, FrameKind, Method};
use clap::Args;

use crate::error::Error;
use crate::link::resolve;

/// Accept every message and store none, to find out how much load the generator can produce
///
/// Queues and exchanges can be declared and bound, but stay empty: measure with --consumers 0.
#[derive(Debug, Clone, Args)]
pub(crate) struct SinkArguments {
    /// Where to listen; port 0 is any free port, and the first line of output shows it
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
}

/// The largest read in bytes: about the output that a fast producer has ready.
const READ_BYTES: usize = 512 * 1024;
/// As offered by RabbitMQ.
const FRAME_MAX: u32 = 131_072;
const CHANNEL_MAX: u16 = 2047;

impl SinkArguments {
    /// Serves until the process is killed.
    pub(crate) fn run(&self) -> Result<(), Error> {
        let failed = |cause| Error::Sink { address: self.listen.clone(), cause };
        let listener = TcpListener::bind(resolve("--listen", &self.listen)?).map_err(failed)?;
        let mut out = io::stdout().lock();
        let address = listener.local_addr().map_err(failed)?;
        writeln!(out, "sink  listening on amqp://{address}").and_then(|()| out.flush()).map_err(failed)?;
        drop(out);
        serve(&listener).map_err(failed)
    }
}

/// A thread for each connection; returns when the listener fails.
fn serve(listener: &TcpListener) -> io::Result<()> {
    loop {
        let (stream, _): (TcpStream, SocketAddr) = listener.accept()?;
        // A failed connection, by a protocol error or a disconnection, ends only its own thread.
        thread::spawn(move || SinkConnection::default().run(stream));
    }
}

/// The state of a connection.
#[derive(Default)]
struct SinkConnection {
    /// By channel in confirm mode: messages received, and whether some of them are unconfirmed.
    confirming: BTreeMap<u16, (u64, bool)>,
    /// Bytes missing from the content that is being received on each channel.
    left: BTreeMap<u16, u64>,
    replies: Vec<u8>,
    closed: bool,
}

impl SinkConnection {
    fn run(mut self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut handshake = ServerHandshake::new(ServerOffer {
            server_properties: [
                ("product", FieldValue::text("Sink")),
                ("version", FieldValue::text(env!("CARGO_PKG_VERSION"))),
            ]
            .into_iter()
            .collect::<FieldTable>(),
            mechanisms: vec![Mechanism::Plain],
            channel_max: CHANNEL_MAX,
            frame_max: FRAME_MAX,
            heartbeat: 0,
        });
        let mut input = vec![0; READ_BYTES];
        let mut end = 0;
        while !self.closed {
            let count = stream.read(&mut input[end..])?;
            if count == 0 {
                return Ok(());
            }
            end += count;
            let mut taken = 0;
            while !handshake.is_open() {
                let count = handshake.handle_input(&input[taken..end]);
                taken += count;
                match handshake.poll_event() {
                    Some(ServerEvent::Authenticate(_)) => handshake.accept_login(),
                    Some(ServerEvent::Open(_)) => handshake.accept_open(),
                    Some(ServerEvent::Ended(_)) => self.closed = true,
                    None if count == 0 => break,
                    _ => {}
                }
            }
            handshake.poll_output(&mut self.replies);
            if handshake.is_open() {
                taken += self.frames(&input[taken..end]);
                self.confirm();
            }
            input.copy_within(taken..end, 0);
            end -= taken;
            stream.write_all(&self.replies)?;
            self.replies.clear();
        }
        Ok(())
    }

    /// Handles all complete frames; returns their length in bytes.
    fn frames(&mut self, input: &[u8]) -> usize {
        let mut at = 0;
        while !self.closed {
            let frame = match Frame::parse(&input[at..], FRAME_MAX) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(_) => {
                    self.closed = true;
                    break;
                }
            };
            at += frame.wire_len();
            match frame.kind {
                // Nearly all methods are basic.publish, and nothing in it matters.
                FrameKind::Method if frame.payload.starts_with(&PUBLISH) => {}
                FrameKind::Method => self.method(&frame),
                FrameKind::Header => {
                    let size = ContentHeader::decode(frame.payload).map_or(0, |header| header.body_size);
                    self.content(frame.channel, size, 0);
                }
                FrameKind::Body => {
                    let left = self.left.get(&frame.channel).copied().unwrap_or_default();
                    self.content(frame.channel, left, frame.payload.len() as u64);
                }
                FrameKind::Heartbeat => {}
            }
        }
        at
    }

    /// Subtracts `bytes` from the `left` bytes of a content.
    fn content(&mut self, channel: u16, left: u64, bytes: u64) {
        // Without confirms, the messages need not be counted.
        let Some((count, new)) = self.confirming.get_mut(&channel) else { return };
        let left = left.saturating_sub(bytes);
        if left == 0 {
            (*count, *new) = (*count + 1, true);
        }
        self.left.insert(channel, left);
    }

    /// Confirms the messages received since the last call, on each channel.
    fn confirm(&mut self) {
        for (&channel, (count, new)) in self.confirming.iter_mut().filter(|(_, (_, new))| *new) {
            write_method(&mut self.replies, channel, basic::Ack { delivery_tag: *count, multiple: true });
            *new = false;
        }
    }

    fn method(&mut self, frame: &Frame<'_>) {
        let Ok(method) = Method::decode(frame.payload) else {
            self.closed = true;
            return;
        };
        let answer: Option<Method<'_>> = match method {
            Method::ChannelOpen(_) => Some(channel::OpenOk::default().into()),
            Method::ChannelClose(_) => Some(channel::CloseOk {}.into()),
            Method::QueueDeclare(q) => Some(queue::DeclareOk { queue: q.queue, ..Default::default() }.into()),
            Method::QueueBind(_) => Some(queue::BindOk {}.into()),
            Method::QueueUnbind(_) => Some(queue::UnbindOk {}.into()),
            Method::QueuePurge(_) => Some(queue::PurgeOk::default().into()),
            Method::QueueDelete(_) => Some(queue::DeleteOk::default().into()),
            Method::ExchangeDeclare(_) => Some(exchange::DeclareOk {}.into()),
            Method::ExchangeDelete(_) => Some(exchange::DeleteOk {}.into()),
            // The pool sends it to ask whether a message has arrived.
            Method::ChannelFlow(flow) => Some(channel::FlowOk { active: flow.active }.into()),
            Method::BasicQos(_) => Some(basic::QosOk {}.into()),
            Method::BasicConsume(c) => {
                (!c.no_wait).then(|| basic::ConsumeOk { consumer_tag: c.consumer_tag }.into())
            }
            Method::BasicCancel(c) => Some(basic::CancelOk { consumer_tag: c.consumer_tag }.into()),
            Method::ConfirmSelect(_) => {
                self.confirming.insert(frame.channel, (0, false));
                Some(confirm::SelectOk {}.into())
            }
            Method::ConnectionClose(_) => {
                self.closed = true;
                Some(connection::CloseOk {}.into())
            }
            // Methods without an answer, and methods that a load generator does not send.
            _ => None,
        };
        if let Some(answer) = answer {
            write_method(&mut self.replies, frame.channel, answer);
        }
    }
}

/// Class and method ids of basic.publish.
const PUBLISH: [u8; 4] = [0, 60, 0, 40];

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::report::Counts;
    use crate::stream::arguments::tests::plan;
    use crate::stream::run;

    #[test]
    fn it_takes_and_confirms_every_message_of_every_channel() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let uri = format!("amqp://{}", listener.local_addr().unwrap());
        thread::spawn(move || serve(&listener));
        let common = ["--uri", &uri, "--consumers", "0", "--messages", "3000", "--rounds", "1"];
        for (more, confirmed) in [
            (&["--size", "200000", "--messages", "20"][..], 0),
            (&["--confirms", "100", "--channels", "3", "--producers", "2"], 6000),
            (&["--confirms", "10", "--size", "0"], 3000),
            (&["--confirms", "10", "--size", "200000", "--messages", "20"], 20),
        ] {
            let arguments: Vec<&str> = match more {
                [.., "--messages", _] => [&common[..4], &common[6..], more].concat(),
                _ => [&common[..], more].concat(),
            };
            let report = run(&plan(&arguments).unwrap(), |_, _, _| {}).unwrap();
            let counts = report.systems[0].rounds[0].counts;
            let published = counts.published;
            assert_eq!(counts, Counts { published, confirmed, ..Counts::default() }, "{more:?}");
            assert!(published > 0 && (confirmed == 0 || confirmed == published), "{more:?}");
        }
    }
}
