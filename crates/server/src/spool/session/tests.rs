//! A spooling session with the test in place of the upstream's session.

use std::time::Duration;

use amqp::frame;
use amqp::handshake::OpenRequest;
use amqp::method::{basic, confirm};
use amqp::properties::NO_PROPERTIES;
use amqp::{Capabilities, FieldTable, FieldValue, Negotiated, Properties, RawTable};
use broker::{Broker, BrokerConfig, Timestamp};
use parking_lot::Mutex;
use store::disk::simulated::SimDisk;
use store::journal::JournalSettings;
use store::{Rounds, Store};

use super::*;
use crate::clock::Clock;
use crate::simulated;
use crate::spool::{SpoolConfig, SpoolRule};

const OPEN: channel::Open<'_> = channel::Open { reserved_1: "" };
const CONFIRM: confirm::Select = confirm::Select { no_wait: false };

/// The frames that the upstream's session has received.
type Taken = Arc<Mutex<Vec<Vec<u8>>>>;

/// Takes every frame, and after an acknowledgement also the acknowledgements in `rest`.
struct UpstreamSession(Taken);

impl BackendSession for UpstreamSession {
    fn handle_frame(&mut self, frame: Frame<'_>, rest: &[u8], _: Instant) -> Result<usize, Fault> {
        let mut payload = frame.payload.to_vec();
        let mut taken = 0;
        if frame.payload.starts_with(&ACK) {
            while let Ok(Some(next)) = Frame::parse(&rest[taken..], 0)
                && next.payload.starts_with(&ACK)
            {
                payload.extend_from_slice(next.payload);
                taken += next.wire_len();
            }
        } else {
            assert!(rest.is_empty() || frame.payload.starts_with(&BASIC_PUBLISH));
        }
        self.0.lock().push(payload);
        Ok(taken)
    }

    fn takes(&mut self, _: &Frame<'_>, _: Instant) -> bool {
        true
    }

    fn flush(&mut self, _: Instant) {}

    fn handle_nudge(&mut self, _: Instant) -> Result<(), Fault> {
        Ok(())
    }

    fn handle_capacity(&mut self, _: Instant) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn handle_deadline(&mut self, _: Instant) -> Result<(), Fault> {
        Ok(())
    }

    fn has_capacity(&self) -> bool {
        true
    }

    fn update_secret(&mut self, _: &[u8]) -> Result<bool, Fault> {
        Ok(true)
    }

    fn channel_count(&self) -> usize {
        1
    }

    fn is_settled(&self) -> bool {
        true
    }

    fn close(&mut self, _: Instant) -> bool {
        true
    }

    fn is_closed(&self) -> bool {
        true
    }

    fn end(&mut self, _: Instant) {}
}

/// A session with channel 1 in confirm mode, and its environment.
struct Site {
    session: SpoolingSession,
    rounds: Rounds,
    /// The client's outbox.
    outbox: Arc<Outbox>,
    /// The outbox of the upstream's session.
    upstream: Arc<Outbox>,
    taken: Taken,
    now: Instant,
}

impl Site {
    fn new() -> Self {
        let disk = Arc::new(SimDisk::new(1, 1 << 30));
        let settings =
            JournalSettings { segment_size: 64 << 10, pending_limit: 1 << 20, ..JournalSettings::default() };
        let (store, rounds, recovered) = Store::open(disk, settings).unwrap();
        let broker = Broker::new(BrokerConfig { defaults: false, ..BrokerConfig::default() });
        broker.restore(&store, recovered, Timestamp::default()).unwrap();
        broker.add_defaults();
        store.catalogue().commit_pending().unwrap();
        let config = SpoolConfig {
            rules: vec![SpoolRule::new(None, None, Some("^spooled$")).unwrap()],
            max_bytes: 16 << 20,
            max_age: Duration::from_secs(3600),
            nacked_max: None,
            refuses_others: true,
            auth_max: Duration::from_secs(3600),
            logins: None,
            max_message: 10_000,
        };
        let local = LocalSpool::open(broker, Clock::start(), config).unwrap();
        let (queue, _) = local.queue("/", "edge").unwrap();
        let exchanges = local.rules().exchanges_of("/", "edge").unwrap();
        let around = simulated::server_of(Broker::new(BrokerConfig::default()), Clock::start(), 0).shared();
        let request = OpenRequest {
            virtual_host: "/".to_owned(),
            negotiated: Negotiated { channel_max: 10, frame_max: 4096, heartbeat_secs: 0 },
            client_properties: FieldTable::new(),
            capabilities: Capabilities::ALL,
        };
        let (taken, inner) = (Taken::default(), InnerOutbox::new(1 << 20));
        let (upstream, outbox) = (Arc::clone(inner.outbox()), Arc::new(Outbox::new(1 << 20)));
        let inner: (Box<dyn BackendSession>, _) = (Box::new(UpstreamSession(Arc::clone(&taken))), inner);
        let login = (Arc::new(Credentials::plain("edge", "secret")), None);
        let client = Arc::clone(&outbox);
        let session =
            SpoolingSession::new(&around, inner, (local, queue), login, exchanges, &request, client);
        let mut site = Self { session, rounds, outbox, upstream, taken, now: transport::now() };
        site.client(OPEN);
        site.client(CONFIRM);
        site.taken.lock().clear();
        site
    }

    /// Sends a method from the client.
    fn client<'a>(&mut self, method: impl Into<Method<'a>>) {
        let mut bytes = Vec::new();
        frame::write_method(&mut bytes, 1, method);
        self.client_frames(&bytes);
    }

    fn client_frames(&mut self, mut bytes: &[u8]) {
        while let Ok(Some(frame)) = Frame::parse(bytes, 0) {
            let rest = &bytes[frame.wire_len()..];
            assert!(self.session.takes(&frame, self.now));
            let taken = self.session.handle_frame(frame, rest, self.now).unwrap();
            bytes = &rest[taken..];
        }
        self.session.flush(self.now);
    }

    /// Publishes from the client, with a body of one byte.
    fn publish(&mut self, exchange: &str, mandatory: bool) {
        self.publish_with(exchange, mandatory, NO_PROPERTIES);
    }

    fn publish_with(&mut self, exchange: &str, mandatory: bool, properties: &[u8]) {
        let publish =
            basic::Publish { reserved_1: 0, exchange, routing_key: "k", mandatory, immediate: false };
        let mut bytes = Vec::new();
        frame::write_method(&mut bytes, 1, publish);
        frame::write_content_header(&mut bytes, 1, 1, properties);
        frame::write_body(&mut bytes, 1, b"x");
        self.client_frames(&bytes);
    }

    /// Publishes, and waits until the message is on disk.
    fn spool(&mut self) {
        self.publish("spooled", false);
        while !matches!(self.rounds.step(), store::journal::CommitOutcome::Idle) {}
        self.session.handle_nudge(self.now).unwrap();
    }

    /// Sends frames from the upstream's session.
    fn upstream(&mut self, frames: &[&[u8]]) {
        self.upstream.append(|buf| frames.iter().for_each(|frame| buf.tail().extend_from_slice(frame)));
        self.session.handle_nudge(self.now).unwrap();
    }

    /// The names of the frames that the client has received since the last call.
    fn received(&mut self) -> Vec<String> {
        let bytes = self.outbox.read_all();
        let mut rest = &bytes[..];
        let mut names = Vec::new();
        while let Ok(Some(frame)) = Frame::parse(rest, 0) {
            names.push(match frame.kind {
                FrameKind::Method => match Method::decode(frame.payload).unwrap() {
                    Method::BasicAck(ack) => format!("ack {} {}", ack.delivery_tag, ack.multiple),
                    Method::ChannelClose(close) => format!("close {}", close.reply_code),
                    method => format!("{method:?}").split(['(', ' ']).next().unwrap().to_owned(),
                },
                kind => format!("{kind:?} of {}", frame.channel),
            });
            rest = &rest[frame.wire_len()..];
        }
        assert!(rest.is_empty());
        names
    }

    fn taken(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.taken.lock())
    }
}

fn method<'a>(channel: u16, method: impl Into<Method<'a>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::write_method(&mut bytes, channel, method);
    bytes
}

fn header(channel: u16, size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::write_content_header(&mut bytes, channel, size, NO_PROPERTIES);
    bytes
}

fn body(channel: u16, size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::write_body(&mut bytes, channel, &vec![b'b'; size]);
    bytes
}

fn deliver(channel: u16) -> Vec<u8> {
    let (exchange, routing_key) = ("e", "k");
    method(
        channel,
        basic::Deliver { consumer_tag: "c", delivery_tag: 1, redelivered: false, exchange, routing_key },
    )
}

/// The methods with content, each with its name.
fn all_with_content() -> [(&'static str, Vec<u8>); 3] {
    let (exchange, routing_key, reply_code, reply_text) = ("e", "k", 312, "NO_ROUTE");
    let get_ok =
        basic::GetOk { delivery_tag: 1, redelivered: false, exchange, routing_key, message_count: 0 };
    let returned = basic::Return { reply_code, reply_text, exchange, routing_key };
    [("BasicDeliver", deliver(1)), ("BasicGetOk", method(1, get_ok)), ("BasicReturn", method(1, returned))]
}

const CLOSE_OK: [u8; 4] = [0, 20, 0, 41];
const ACK: [u8; 4] = [0, 60, 0, 80];

#[test]
fn acknowledgements_of_one_read_reach_the_upstreams_session_at_once() {
    let mut site = Site::new();
    let acks = |tags: std::ops::Range<u64>| -> Vec<Vec<u8>> {
        tags.map(|delivery_tag| method(1, basic::Ack { delivery_tag, multiple: false })).collect()
    };
    let qos = method(1, basic::Qos::default());
    let frames = [acks(1..4), vec![qos], acks(4..6)].concat();
    site.client_frames(&frames.concat());
    let payloads: Vec<&[u8]> = frames.iter().map(|frame| &frame[7..frame.len() - 1]).collect();
    assert_eq!(site.taken(), [payloads[..3].concat(), payloads[3].to_vec(), payloads[4..].concat()]);
}

#[test]
fn a_confirm_waits_for_the_rest_of_a_message() {
    for (name, first) in all_with_content() {
        let mut site = Site::new();
        site.upstream(&[&first]);
        assert_eq!(site.received(), [name]);
        site.spool();
        site.upstream(&[&header(1, 12)]);
        site.spool();
        assert_eq!(site.received(), ["Header of 1"]);
        // Other channels continue.
        site.upstream(&[&body(1, 5), &deliver(2), &header(2, 0), &body(1, 4)]);
        site.spool();
        assert!(!site.session.is_settled());
        assert_eq!(site.received(), ["Body of 1", "BasicDeliver", "Header of 2", "Body of 1"]);
        site.upstream(&[&body(1, 3), &deliver(1), &header(1, 1), &body(1, 1)]);
        let acks = ["ack 1 false", "ack 2 false", "ack 3 false"];
        let next = ["BasicDeliver", "Header of 1", "Body of 1"];
        assert_eq!(site.received(), [&["Body of 1"][..], &acks, &next].concat(), "{name}");
        assert!(site.session.is_settled());
        site.spool();
        assert_eq!(site.received(), ["ack 4 false"]);
    }
}

#[test]
fn a_confirm_waits_for_no_message_without_a_body() {
    let mut site = Site::new();
    site.upstream(&[&deliver(1)]);
    site.spool();
    site.upstream(&[&header(1, 0)]);
    assert_eq!(site.received(), ["BasicDeliver", "Header of 1", "ack 1 false"]);
}

#[test]
fn a_refusal_waits_for_the_rest_of_a_message_at_both_ends() {
    for (name, first) in all_with_content() {
        let mut site = Site::new();
        site.upstream(&[&first, &header(1, 2), &body(1, 1)]);
        site.spool();
        site.publish("spooled", true);
        // The client has sent it before it received channel.close.
        site.publish("spooled", false);
        assert_eq!(site.received(), [name, "Header of 1", "Body of 1"]);
        assert_eq!(site.taken(), [[0; 0]; 0], "closed only behind the message");
        site.upstream(&[&body(1, 1), &deliver(1), &header(1, 1), &body(1, 1)]);
        assert_eq!(site.received(), ["Body of 1", "ack 1 false", "close 406"], "later frames are discarded");
        let taken = site.taken();
        assert!(matches!(&taken[..], [close] if close.starts_with(&CHANNEL_CLOSE)), "{taken:?}");
        site.client(channel::CloseOk {});
        site.upstream(&[&deliver(1), &header(1, 0), &method(1, channel::CloseOk {})]);
        site.client(OPEN);
        assert_eq!(site.received(), [""; 0]);
        assert_eq!(site.taken().len(), 1, "the number is free");
        site.client(CONFIRM);
        site.spool();
        assert_eq!(site.received(), ["ack 1 false"]);
    }
}

#[test]
fn the_client_closes_a_channel_that_is_refused_in_the_middle_of_a_message() {
    let mut site = Site::new();
    site.upstream(&[&deliver(1), &header(1, 1)]);
    site.publish("spooled", true);
    let close = channel::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 };
    site.client(close);
    assert_eq!(site.received(), ["BasicDeliver", "Header of 1"]);
    site.upstream(&[&body(1, 1)]);
    assert_eq!(site.received(), ["Body of 1", "close 406", "ChannelCloseOk"]);
    site.client(channel::CloseOk {});
    site.upstream(&[&method(1, channel::CloseOk {})]);
    site.client(OPEN);
    assert_eq!(site.session.contents.waiting(), 0);
}

/// The upstream's session abandons the message: it closes the channel, or confirms the client's close.
#[test]
fn an_aborted_message_holds_up_nothing() {
    let close = channel::Close { reply_code: 541, reply_text: "", class_id: 0, method_id: 0 };
    for (name, end) in [("close 541", method(1, close)), ("ChannelCloseOk", method(1, channel::CloseOk {}))] {
        let mut site = Site::new();
        site.upstream(&[&deliver(1), &header(1, 2), &body(1, 1)]);
        site.spool();
        if name == "ChannelCloseOk" {
            site.client(close);
        }
        site.upstream(&[&end]);
        assert_eq!(site.received(), ["BasicDeliver", "Header of 1", "Body of 1", "ack 1 false", name]);
        site.client(OPEN);
        site.client(CONFIRM);
        site.spool();
        assert_eq!(site.received(), ["ack 1 false"]);
    }
    // The same holds for a channel that the spool is about to close.
    let mut site = Site::new();
    site.upstream(&[&deliver(1), &header(1, 2), &body(1, 1)]);
    site.publish("spooled", true);
    site.upstream(&[&method(1, close)]);
    assert_eq!(site.received(), ["BasicDeliver", "Header of 1", "Body of 1", "close 406"]);
    let taken = site.taken();
    assert!(
        matches!(&taken[..], [close, ok] if close.starts_with(&CHANNEL_CLOSE) && ok.starts_with(&CLOSE_OK))
    );
}

#[test]
fn the_client_is_not_read_while_very_many_confirms_wait() {
    let mut site = Site::new();
    site.upstream(&[&deliver(1), &header(1, 2)]);
    let mut publishes = 0;
    while site.session.has_capacity() && publishes < 10_000 {
        site.spool();
        publishes += 1;
    }
    assert!((1000..10_000).contains(&publishes), "{publishes}");
    site.upstream(&[&body(1, 2)]);
    assert!(site.session.has_capacity());
    assert_eq!(site.received().len(), 3 + publishes);
}

#[test]
fn a_message_at_which_the_upstream_would_fail_goes_directly() {
    let mut site = Site::new();
    let odd = FieldTable::from_iter([("k", FieldValue::F64(f64::NAN))]).encode();
    let mut properties = Vec::new();
    Properties::default().with_headers(RawTable::check(&odd).unwrap()).encode(&mut properties);
    let before = site.taken().len();
    site.publish("spooled", false);
    assert_eq!(site.taken().len(), before);
    site.publish_with("spooled", false, &properties);
    assert!(site.taken()[before].starts_with(&BASIC_PUBLISH));
}

#[test]
fn a_client_that_closes_a_channel_gets_no_confirms_in_numbers_that_are_not_its_own() {
    let mut site = Site::new();
    site.spool();
    site.publish("direct", false);
    site.publish("direct", false);
    assert_eq!(site.received(), ["ack 1 false"]);
    site.client(channel::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 });
    let confirm = method(1, basic::Ack { delivery_tag: 2, multiple: false });
    site.upstream(&[&deliver(1), &header(1, 0), &confirm, &method(1, channel::CloseOk {})]);
    assert_eq!(
        site.received(),
        ["BasicDeliver", "Header of 1", "ChannelCloseOk"],
        "the second is the client's third"
    );
}
