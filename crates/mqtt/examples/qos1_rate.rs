//! Measures messages a second of QoS 1 from one client to another, through any server: `tests/capacity.py` runs it.
//!
//! `cargo run --release -p mqtt --example qos1_rate -- 127.0.0.1:1883 10 1000`: for 10 seconds, with 1,000 messages of 16
//! bytes unacknowledged. Prints the rate.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mqtt::packet::{Ack, AckKind, ConnectPacket, Payload, PublishPacket};
use mqtt::packet::{Requests, Subscribe, SubscribeOptions, SubscribeRequest};
use mqtt::{MqttVersion, Packet, PacketDecoder, PacketProperties, QoS, ReasonCode};

const VERSION: MqttVersion = MqttVersion::V311;
const TOPIC: &str = "load/a";
const BODY: [u8; 16] = [b'x'; 16];
/// Bytes of one read: `leveret bench` reads as much.
const READ: usize = 256 * 1024;
/// The rate is that of the time after this one.
const WARM_UP: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument =
        || arguments.next().ok_or("name the address, seconds, and the number of unacknowledged messages");
    let (address, seconds, window) = (argument()?, argument()?.parse()?, argument()?.parse()?);
    let mut subscriber = Client::connect(&address, "qos1-subscriber")?;
    subscriber.subscribe()?;
    let publisher = Client::connect(&address, "qos1-publisher")?;
    let sockets = [subscriber.stream.try_clone()?, publisher.stream.try_clone()?];
    let (received, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let rate = thread::scope(|threads| {
        threads.spawn(|| report(acknowledge(subscriber, &received), &is_over));
        threads.spawn(|| report(publish(publisher, window), &is_over));
        thread::sleep(WARM_UP);
        let (before, begun) = (received.load(Ordering::Relaxed), Instant::now());
        thread::sleep(Duration::from_secs(seconds));
        let messages = received.load(Ordering::Relaxed) - before;
        let rate = messages as f64 / begun.elapsed().as_secs_f64();
        // The threads end with their sockets.
        is_over.store(true, Ordering::Release);
        sockets.iter().try_for_each(|socket| socket.shutdown(Shutdown::Both)).map(|()| rate)
    })?;
    Ok(writeln!(std::io::stdout(), "{rate:.0}")?)
}

/// Ends the process if a client has failed during the measurement, which would otherwise be that of a server without clients.
fn report(outcome: Result<(), Box<dyn Error>>, is_over: &AtomicBool) {
    if let Err(error) = outcome
        && !is_over.load(Ordering::Acquire)
    {
        let _ = writeln!(std::io::stderr(), "a client failed: {error}");
        std::process::exit(1);
    }
}

/// Acknowledges each message of the subscription until the connection ends.
fn acknowledge(mut client: Client, received: &AtomicU64) -> Result<(), Box<dyn Error>> {
    let mut acks = Vec::new();
    loop {
        client.read(|packet| {
            if let Packet::Publish(publish) = packet {
                Ack::new(AckKind::PubAck, publish.packet_id, ReasonCode::Success).encode(VERSION, &mut acks);
                received.fetch_add(1, Ordering::Relaxed);
            }
        })?;
        client.stream.write_all(&acks)?;
        acks.clear();
    }
}

/// Publishes until the connection ends, with at most `window` messages unacknowledged. Identifiers are taken in turn: a server
/// acknowledges in the order of the messages (section 4.6).
fn publish(mut client: Client, window: u16) -> Result<(), Box<dyn Error>> {
    let (mut out, mut unanswered, mut packet_id) = (Vec::new(), 0, 0);
    loop {
        while unanswered < window {
            packet_id = packet_id % u16::MAX + 1;
            unanswered += 1;
            message(packet_id).encode(VERSION, &mut out);
        }
        client.stream.write_all(&out)?;
        out.clear();
        client.read(|packet| unanswered -= u16::from(matches!(packet, Packet::Ack(_))))?;
    }
}

fn message(packet_id: u16) -> PublishPacket<'static> {
    let (qos, properties, payload) = (QoS::AtLeastOnce, PacketProperties::NONE, Payload::new(&BODY));
    PublishPacket { dup: false, qos, retain: false, topic: TOPIC, packet_id, properties, payload }
}

struct Client {
    stream: TcpStream,
    decoder: PacketDecoder,
    /// Input; `unread` is the part that is not decoded yet.
    buffer: Vec<u8>,
    unread: std::ops::Range<usize>,
}

impl Client {
    fn connect(address: &str, name: &str) -> Result<Self, Box<dyn Error>> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let decoder = PacketDecoder::new(VERSION, u32::MAX);
        let mut client = Self { stream, decoder, buffer: vec![0; READ], unread: 0..0 };
        client.ask(&Packet::Connect(Box::new(ConnectPacket::new(VERSION, name))))?;
        Ok(client)
    }

    fn subscribe(&mut self) -> Result<(), Box<dyn Error>> {
        let options = SubscribeOptions::of_qos(QoS::AtLeastOnce);
        let mut buffer = Vec::new();
        let requests = Requests::write(&mut buffer, [SubscribeRequest { filter: TOPIC, options }]);
        self.ask(&Packet::Subscribe(Subscribe { packet_id: 1, properties: PacketProperties::NONE, requests }))
    }

    /// Sends a packet and waits for the answer, which has to be a success.
    fn ask(&mut self, packet: &Packet<'_>) -> Result<(), Box<dyn Error>> {
        let mut out = Vec::new();
        packet.encode(VERSION, &mut out);
        self.stream.write_all(&out)?;
        let mut accepted = None;
        while accepted.is_none() {
            self.read(|packet| {
                accepted = Some(match packet {
                    Packet::ConnAck(ack) => ack.reason == ReasonCode::Success,
                    Packet::SubAck(ack) => ack.reasons.iter().all(|reason| !reason.is_error()),
                    _ => false,
                });
            })?;
        }
        if accepted == Some(true) { Ok(()) } else { Err("the server refuses".into()) }
    }

    /// Waits for input, and passes on the packets that are complete.
    fn read(&mut self, mut each: impl FnMut(Packet<'_>)) -> Result<(), Box<dyn Error>> {
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let bytes = self.stream.read(&mut self.buffer[self.unread.end..])?;
        if bytes == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        self.unread.end += bytes;
        loop {
            let step = self
                .decoder
                .decode(&self.buffer[self.unread.clone()])
                .map_err(|fault| format!("{fault:?}"))?;
            let Some(packet) = step.packet else { return Ok(()) };
            each(packet);
            self.unread.start += step.taken;
        }
    }
}
