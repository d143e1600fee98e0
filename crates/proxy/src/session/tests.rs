use amqp::Negotiated;
use amqp::frame::{write_content_header, write_frame, write_method};
use amqp::method::basic;
use amqp::properties::NO_PROPERTIES;
use transport::Outbox;

use super::*;
use crate::PoolConfig;

/// A session whose upstream does not answer, so that what it takes waits for a place.
fn session() -> Session {
    let client = ClientSide {
        outbox: Arc::new(Outbox::new(1024)),
        negotiated: Negotiated { channel_max: 10, frame_max: 131_072, heartbeat_secs: 0 },
        capabilities: amqp::Capabilities::ALL,
        client_properties: amqp::FieldTable::new(),
    };
    let info = ClientInfo { id: 1, peer: "127.0.0.1:1".to_owned() };
    let credentials = Arc::new(Credentials::plain("user", "password"));
    Session::new(Pool::new(PoolConfig::new(Vec::new())), credentials, "/", &info, client)
}

/// What a client sends: a message for each of these channels, as frames of their own.
fn frames(numbers: &[u16]) -> Vec<u8> {
    let mut out = Vec::new();
    for &number in numbers {
        write_method(&mut out, number, basic::Publish { routing_key: "q", ..Default::default() });
        write_content_header(&mut out, number, 4, NO_PROPERTIES);
        write_frame(&mut out, FrameKind::Body, number, |out| out.extend_from_slice(b"body"));
    }
    out
}

fn take(session: &mut Session, octets: &[u8]) {
    let mut taken = 0;
    while let Some(frame) = Frame::parse(&octets[taken..], 0).unwrap() {
        taken += frame.wire_len();
        taken += session.handle_frame(frame, &octets[taken..]).unwrap();
    }
}

#[tokio::test]
async fn s3_an_idle_session_holds_no_buffer_for_messages() {
    let mut session = session();
    let mut open = Vec::new();
    for number in [1, 2] {
        write_method(&mut open, number, channel_methods::Open::default());
    }
    take(&mut session, &open);
    take(&mut session, &frames(&[1, 2, 2, 1]));
    assert!(session.spare.capacity() > 0, "within a batch there is one for the next message");
    session.flush();
    let held = |session: &Session| {
        let partial = session.channels.iter().map(|(_, channel)| channel.partial.capacity());
        partial.sum::<usize>() + session.spare.capacity()
    };
    assert_eq!(held(&session), 0);

    // What is not complete is kept, and nothing else.
    let half = frames(&[2]);
    let body = half.len() - 12;
    take(&mut session, &half[..body]);
    session.flush();
    assert_eq!((session.staged, session.spare.capacity()), (body, 0));
    take(&mut session, &half[body..]);
    session.flush();
    assert_eq!(held(&session), 0);
    assert_eq!(session.held, 5 * frames(&[1]).len());
}
