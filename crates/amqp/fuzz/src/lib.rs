//! The checks of the fuzz targets. `tests/fuzz_corpus.rs` includes this file and runs the same bodies without nightly.
//!
//! Run one with the real fuzzer: `cargo +nightly fuzz run frame_stream` in `crates/amqp`.

use amqp::channel::{ChannelStep, ChannelTable, ConnectionLife, ConnectionStep};
use amqp::content::{Assembled, Assembler, Whole};
use amqp::handshake::{ClientEvent, ClientHandshake, ClientOffer, ServerEvent, ServerHandshake, ServerOffer};
use amqp::{
    Capabilities, ContentHeader, Credentials, Fault, FieldTable, Frame, FrameKind, Mechanism, Method,
    Properties, RawTable,
};

/// A target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets, by name.
pub const TARGETS: [Target; 7] = [
    ("frame_stream", frame_stream),
    ("method", method),
    ("table", table),
    ("properties", properties),
    ("server_handshake", server_handshake),
    ("client_handshake", client_handshake),
    ("content", content),
];

/// The frames found in a stream do not depend on how it was cut into reads.
pub fn frame_stream(input: &[u8]) {
    let whole = frames(input, input.len().max(1));
    for step in [1, 7, 64] {
        assert_eq!(frames(input, step), whole, "{step} bytes at a time");
    }
}

/// Decoding, encoding and decoding a method again yields the same method.
pub fn method(input: &[u8]) {
    let Ok(method) = Method::decode(input) else { return };
    let mut bytes = Vec::new();
    method.encode(&mut bytes);
    assert_eq!(Method::decode(&bytes), Ok(method));
    assert_eq!(bytes.len(), input.len());
    let _ = format!("{method:?}");
}

/// Re-encoding preserves a table's values, and decoding yields no more entries than the input has.
pub fn table(input: &[u8]) {
    let Ok(raw) = RawTable::check(input) else { return };
    let decoded = raw.decode();
    assert!(decoded.len() <= input.len() / 2);
    // Compared as bytes, since a NaN does not equal itself, and `L`, `U` and odd booleans have several encodings.
    let bytes = decoded.encode();
    // Decoding retains only the first of several entries with the same name.
    assert!(bytes.len() <= input.len());
    let again = RawTable::check(&bytes).expect("what was encoded is well-formed").decode();
    assert_eq!(again.encode(), bytes);
}

/// Properties that decode are encoded to the same bytes.
pub fn properties(input: &[u8]) {
    let Ok(properties) = Properties::decode(input) else { return };
    let mut bytes = Vec::new();
    properties.encode(&mut bytes);
    assert_eq!(bytes, input);
}

/// The server behaves the same however its input is split into reads, and stops at the end of the stream.
pub fn server_handshake(input: &[u8]) {
    let whole = serve(input, input.len().max(1));
    for step in [1, 7, 64] {
        assert_eq!(serve(input, step), whole, "{step} bytes at a time");
    }
}

/// The client behaves the same however its input is split into reads, and stops at the end of the stream.
pub fn client_handshake(input: &[u8]) {
    let whole = connect(input, input.len().max(1));
    for step in [1, 7, 64] {
        assert_eq!(connect(input, step), whole, "{step} bytes at a time");
    }
}

/// Messages are the same whether borrowed whole from the buffer or assembled frame by frame.
pub fn content(input: &[u8]) {
    let (lent, lent_fault) = messages(input, true);
    let (assembled, fault) = messages(input, false);
    assert_eq!(lent, assembled);
    assert_eq!(lent_fault.map(|fault| fault.code), fault.map(|fault| fault.code));
}

/// The events of a handshake target, as text.
pub fn events(target: &str, input: &[u8]) -> Vec<String> {
    let handshake = if target == "server_handshake" { serve } else { connect };
    handshake(input, input.len().max(1)).0
}

const FRAME_MAX: u32 = 4096;
const MAX_SIZE: u64 = 10_000;

type OwnedFrame = (FrameKind, u16, Vec<u8>);

fn frames(input: &[u8], step: usize) -> (Vec<OwnedFrame>, Result<usize, Fault>) {
    let mut found = Vec::new();
    let mut start = 0;
    let mut end = 0;
    loop {
        match Frame::parse(&input[start..end], FRAME_MAX) {
            Ok(Some(frame)) => {
                assert!(frame.wire_len() <= FRAME_MAX as usize);
                found.push((frame.kind, frame.channel, frame.payload.to_vec()));
                start += frame.wire_len();
            }
            Ok(None) if end == input.len() => return (found, Ok(input.len() - start)),
            Ok(None) => end = (end + step).min(input.len()),
            Err(fault) => return (found, Err(fault)),
        }
    }
}

/// Events and output of a server that accepts every user whose name has an even length.
fn serve(input: &[u8], step: usize) -> (Vec<String>, Vec<u8>) {
    let mut server = ServerHandshake::new(ServerOffer {
        server_properties: FieldTable::new(),
        mechanisms: Mechanism::ALL.to_vec(),
        channel_max: 2047,
        frame_max: 131_072,
        heartbeat: 60,
    });
    let (mut events, mut output) = (Vec::new(), Vec::new());
    let mut buffer = Vec::new();
    for chunk in input.chunks(step) {
        buffer.extend_from_slice(chunk);
        loop {
            let taken = server.handle_input(&buffer);
            buffer.drain(..taken);
            let Some(event) = server.poll_event() else { break };
            events.push(format!("{event:?}"));
            match event {
                ServerEvent::Authenticate(credentials) if credentials.username.len() % 2 == 0 => {
                    server.accept_login();
                }
                ServerEvent::Authenticate(_) => server.challenge(b"?"),
                ServerEvent::Response(_) => server.refuse_login("no"),
                ServerEvent::Open(_) => server.accept_open(),
                ServerEvent::Ended(_) => {}
            }
        }
    }
    server.handle_eof();
    events.extend(server.poll_event().map(|event| format!("{event:?}")));
    assert!(server.is_open() || events.last().is_some_and(|event| event.starts_with("Ended")));
    server.poll_output(&mut output);
    assert!(output.len() <= 1000 + 100 * input.len());
    (events, output)
}

fn connect(input: &[u8], step: usize) -> (Vec<String>, Vec<u8>) {
    let mut client_properties = FieldTable::new();
    Capabilities::ALL.add_to(&mut client_properties);
    let mut client = ClientHandshake::new(ClientOffer {
        credentials: Credentials::plain("guest", "guest").into(),
        virtual_host: "/".into(),
        client_properties,
        channel_max: 0,
        frame_max: 0,
        heartbeat: 0,
    });
    let (mut events, mut output) = (Vec::new(), Vec::new());
    let mut buffer = Vec::new();
    for chunk in input.chunks(step) {
        buffer.extend_from_slice(chunk);
        loop {
            let taken = client.handle_input(&buffer);
            buffer.drain(..taken);
            let Some(event) = client.poll_event() else { break };
            events.push(format!("{event:?}"));
            if matches!(event, ClientEvent::Challenge(_)) {
                client.respond(b"!");
            }
        }
    }
    client.handle_eof();
    events.extend(client.poll_event().map(|event| format!("{event:?}")));
    assert!(events.last().is_some_and(|event| !event.starts_with("Challenge")));
    client.poll_output(&mut output);
    assert!(output.len() <= 1000 + 100 * input.len());
    (events, output)
}

type Message = (u16, Vec<u8>, Vec<u8>);

/// The messages that a server's session finds in a stream of frames, up to the first fault. Channel 1 is open.
fn messages(mut input: &[u8], lend: bool) -> (Vec<Message>, Option<Fault>) {
    let mut found = Vec::new();
    let mut life = ConnectionLife::default();
    let mut channels = ChannelTable::new(3);
    channels.open(1, Assembler::new());
    loop {
        let frame = match Frame::parse(input, FRAME_MAX) {
            Ok(Some(frame)) => frame,
            Ok(None) => return (found, None),
            Err(fault) => return (found, Some(fault)),
        };
        input = &input[frame.wire_len()..];
        match life.frame(&frame) {
            Err(fault) => return (found, Some(fault)),
            Ok(ConnectionStep::Channel) => {}
            Ok(_) => continue,
        }
        let whole = lend.then_some(&mut input);
        if let Err(fault) = on_channel(frame, &mut channels, whole, &mut found) {
            if fault.is_hard() {
                return (found, Some(fault));
            }
            channels.start_closing(frame.channel);
        }
    }
}

fn on_channel(
    frame: Frame<'_>,
    channels: &mut ChannelTable<Assembler<()>>,
    rest: Option<&mut &[u8]>,
    found: &mut Vec<Message>,
) -> Result<(), Fault> {
    let channel = frame.channel;
    if frame.kind == FrameKind::Method {
        if let Some(assembler) = channels.get(channel) {
            assembler.check_method()?;
        }
        let method = Method::decode(frame.payload)?;
        match channels.method(channel, &method)? {
            ChannelStep::Open => drop(channels.open(channel, Assembler::new())),
            ChannelStep::Close => drop(channels.remove(channel)),
            ChannelStep::Deliver if method.has_content() => {
                if let Some(rest) = rest {
                    // A fault in a frame that was only peeked at is found again when the frame is processed.
                    if let Ok(Some(whole)) = Whole::peek(rest, channel, FRAME_MAX, MAX_SIZE) {
                        *rest = &rest[whole.wire_len..];
                        found.push((channel, whole.properties.to_vec(), whole.body.to_vec()));
                        return Ok(());
                    }
                }
                channels.get_mut(channel).expect("it is open").expect((), method.ids());
            }
            _ => {}
        }
        return Ok(());
    }
    let Some(assembler) = channels.content(channel)? else { return Ok(()) };
    let progress = match frame.kind {
        FrameKind::Header => assembler.header(ContentHeader::decode(frame.payload)?, MAX_SIZE)?,
        _ => assembler.body(frame.payload)?,
    };
    if let Assembled::Complete(content) = progress {
        found.push((channel, content.properties.into_owned(), content.body.into_owned()));
    }
    Ok(())
}
