//! Load generators of MQTT clients for any server, for `tests/capacity.py`:
//!
//! - `cargo run --release -p mqtt --example load -- qos1 127.0.0.1:1883 10 1000` prints messages a second of QoS 1 from one
//!   client to another: for 10 seconds, with 1,000 messages of 16 bytes unacknowledged.
//! - `… fan-out 127.0.0.1:1883 10000 20` prints the milliseconds from a message to the last of its 10,000 subscribers, for
//!   each of 20 messages.

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
const USAGE: &str = "qos1 ADDRESS SECONDS UNACKNOWLEDGED, or fan-out ADDRESS SUBSCRIBERS MESSAGES";
/// Bytes of one read: `leveret bench` reads as much.
const READ: usize = 256 * 1024;
/// The same for a client that receives one message at a time.
const SMALL_READ: usize = 256;
/// Messages during this time do not count towards the rate.
const WARM_UP: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [load, address, first, second] = &arguments[..] else { return Err(USAGE.into()) };
    let mut out = std::io::stdout();
    match load.as_str() {
        "qos1" => writeln!(out, "{:.0}", qos1(address, first.parse()?, second.parse()?)?)?,
        "fan-out" => {
            for milliseconds in fan_out(address, first.parse()?, second.parse()?)? {
                writeln!(out, "{milliseconds:.2}")?;
            }
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

/// Messages a second from one client to another, with at most `window` of them unacknowledged.
fn qos1(address: &str, seconds: u64, window: u16) -> Result<f64, Box<dyn Error>> {
    let mut subscriber = Client::connect(address, "qos1-subscriber", READ)?;
    subscriber.subscribe(QoS::AtLeastOnce)?;
    let publisher = Client::connect(address, "qos1-publisher", READ)?;
    let sockets = [subscriber.stream.try_clone()?, publisher.stream.try_clone()?];
    let (received, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|threads| {
        threads.spawn(|| report(acknowledge(subscriber, &received), &is_over));
        threads.spawn(|| report(publish(publisher, window), &is_over));
        thread::sleep(WARM_UP);
        let (before, begun) = (received.load(Ordering::Relaxed), Instant::now());
        thread::sleep(Duration::from_secs(seconds));
        let messages = received.load(Ordering::Relaxed) - before;
        let rate = messages as f64 / begun.elapsed().as_secs_f64();
        // The threads end with their sockets.
        is_over.store(true, Ordering::Release);
        for socket in sockets {
            socket.shutdown(Shutdown::Both)?;
        }
        Ok(rate)
    })
}

/// Milliseconds from a message to its last subscriber, for each of `rounds` messages. The subscribers are read in turn,
/// with one system call each, the fewest possible.
fn fan_out(address: &str, subscribers: u32, rounds: u32) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut clients = Vec::new();
    for number in 0..subscribers {
        let mut client = Client::connect(address, &format!("fan-out-{number}"), SMALL_READ)?;
        client.subscribe(QoS::AtMostOnce)?;
        clients.push(client);
    }
    let mut publisher = Client::connect(address, "fan-out-publisher", SMALL_READ)?;
    let mut message = Vec::new();
    PublishPacket { qos: QoS::AtMostOnce, ..message_of(0) }.encode(VERSION, &mut message);
    let mut milliseconds = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        publisher.stream.write_all(&message)?;
        for client in &mut clients {
            client.wait_for(|packet| matches!(packet, Packet::Publish(_)))?;
        }
        milliseconds.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(milliseconds)
}

/// Exits if a client failed during the measurement, which would otherwise measure a server without clients.
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

/// Publishes until the connection ends, with at most `window` messages unacknowledged. Packet identifiers are used in turn:
/// a server acknowledges in the order of the messages (section 4.6).
fn publish(mut client: Client, window: u16) -> Result<(), Box<dyn Error>> {
    let (mut out, mut unanswered, mut packet_id) = (Vec::new(), 0, 0);
    loop {
        while unanswered < window {
            packet_id = packet_id % u16::MAX + 1;
            unanswered += 1;
            message_of(packet_id).encode(VERSION, &mut out);
        }
        client.stream.write_all(&out)?;
        out.clear();
        client.read(|packet| unanswered -= u16::from(matches!(packet, Packet::Ack(_))))?;
    }
}

fn message_of(packet_id: u16) -> PublishPacket<'static> {
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
    fn connect(address: &str, name: &str, read: usize) -> Result<Self, Box<dyn Error>> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let decoder = PacketDecoder::new(VERSION, u32::MAX);
        let mut client = Self { stream, decoder, buffer: vec![0; read], unread: 0..0 };
        let guest = (Some("guest"), Some(&b"guest"[..]));
        let connect =
            ConnectPacket { user_name: guest.0, password: guest.1, ..ConnectPacket::new(VERSION, name) };
        client.ask(&Packet::Connect(Box::new(connect)))?;
        Ok(client)
    }

    fn subscribe(&mut self, qos: QoS) -> Result<(), Box<dyn Error>> {
        let options = SubscribeOptions::of_qos(qos);
        let mut buffer = Vec::new();
        let requests = Requests::write(&mut buffer, [SubscribeRequest { filter: TOPIC, options }]);
        self.ask(&Packet::Subscribe(Subscribe { packet_id: 1, properties: PacketProperties::NONE, requests }))
    }

    /// Sends a packet and waits for a successful answer.
    fn ask(&mut self, packet: &Packet<'_>) -> Result<(), Box<dyn Error>> {
        let mut out = Vec::new();
        packet.encode(VERSION, &mut out);
        self.stream.write_all(&out)?;
        self.wait_for(|packet| match packet {
            Packet::ConnAck(ack) => ack.reason == ReasonCode::Success,
            Packet::SubAck(ack) => ack.reasons.iter().all(|reason| !reason.is_error()),
            _ => false,
        })
    }

    /// Waits for a packet, and fails if `is_expected` rejects it.
    fn wait_for(&mut self, is_expected: impl Fn(&Packet<'_>) -> bool) -> Result<(), Box<dyn Error>> {
        let mut outcome = None;
        while outcome.is_none() {
            self.read(|packet| outcome = Some(is_expected(&packet)))?;
        }
        if outcome == Some(true) { Ok(()) } else { Err("unexpected packet from the server".into()) }
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
