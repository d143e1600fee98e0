//! Against tokio-websockets, in both roles: each reads the other's output, and both refuse the same input.

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_websockets::{ClientBuilder, Message, ServerBuilder};
use websocket::handshake::{ClientRequest, Head, Upgrade};
use websocket::{DecoderLimits, MessageKind, Role, encode};

use crate::common::{Heard, hear, masked};

/// Bytes that the pipe between the two holds; less than the largest message, so that both have to wait.
const PIPE: usize = 64 * 1024;
const KEY: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];

fn texts_and_bytes() -> Vec<Message> {
    let mut messages = vec![Message::text(""), Message::text("κόσμε 🐇"), Message::binary(vec![])];
    for len in [1, 125, 126, 127, 65535, 65536, 200_000] {
        messages.push(Message::binary((0..len).map(|i| i as u8).collect::<Vec<u8>>()));
        messages.push(Message::text("x".repeat(len)));
    }
    messages.extend([Message::ping(vec![1; 125]), Message::pong(vec![])]);
    messages
}

fn heard(message: &Message) -> Heard {
    let payload = message.as_payload().to_vec();
    match message {
        message if message.is_text() => Heard::Text(payload),
        message if message.is_binary() => Heard::Binary(payload),
        message if message.is_ping() => Heard::Ping(payload),
        message => {
            assert!(message.is_pong());
            Heard::Pong(payload)
        }
    }
}

fn say(message: &Message, key: Option<[u8; 4]>) -> Vec<u8> {
    let mut out = Vec::new();
    match heard(message) {
        Heard::Text(payload) => encode::message(&mut out, key, MessageKind::Text, &payload),
        Heard::Binary(payload) => encode::message(&mut out, key, MessageKind::Binary, &payload),
        Heard::Ping(payload) => encode::ping(&mut out, key, &payload),
        Heard::Pong(payload) => encode::pong(&mut out, key, &payload),
        Heard::Close(_) => unreachable!("not among the messages"),
    }
    out
}

/// Our server's handshake.
async fn accept(pipe: &mut DuplexStream) {
    let mut input = Vec::new();
    loop {
        assert!(pipe.read_buf(&mut input).await.unwrap() > 0);
        if let Some((head, len)) = Head::parse(&input).unwrap() {
            assert_eq!(len, input.len(), "a client waits for the answer");
            let answer = Upgrade::validate(head).unwrap().accept(None, None);
            return pipe.write_all(&answer).await.unwrap();
        }
    }
}

/// Our client's handshake; returns the bytes that came behind it.
async fn connect(pipe: &mut DuplexStream) -> Vec<u8> {
    let request = ClientRequest {
        host: "localhost".into(),
        target: "/".into(),
        origin: None,
        protocols: vec![],
        nonce: [7; 16],
    };
    pipe.write_all(&request.bytes()).await.unwrap();
    let mut input = Vec::new();
    loop {
        assert!(pipe.read_buf(&mut input).await.unwrap() > 0);
        if let Some(accepted) = request.validate(&input).unwrap() {
            return input.split_off(accepted.len);
        }
    }
}

#[tokio::test]
async fn their_client_and_our_server_understand_each_other() {
    let (theirs, mut ours) = tokio::io::duplex(PIPE);
    let them = tokio::spawn(async move {
        let builder = ClientBuilder::new().uri("ws://localhost/").unwrap();
        let (mut client, _) = builder.connect_on(theirs).await.unwrap();
        for message in texts_and_bytes() {
            client.send(message).await.unwrap();
        }
        let mut got = Vec::new();
        while let Some(message) = client.next().await {
            let message = message.unwrap();
            if message.is_close() {
                assert_eq!(message.as_close(), Some((tokio_websockets::CloseCode::GOING_AWAY, "bye")));
                break;
            }
            got.push(heard(&message));
        }
        got
    });
    accept(&mut ours).await;
    let expected: Vec<Heard> = texts_and_bytes().iter().map(heard).collect();
    let mut input = Vec::new();
    loop {
        assert!(ours.read_buf(&mut input).await.unwrap() > 0);
        let (got, fault) = hear(Role::Server, DecoderLimits::NONE, &input, input.len());
        assert_eq!(fault, None);
        if got.len() == expected.len() {
            assert_eq!(got, expected);
            break;
        }
    }
    for message in texts_and_bytes() {
        ours.write_all(&say(&message, None)).await.unwrap();
    }
    let mut farewell = Vec::new();
    encode::close(&mut farewell, None, websocket::CloseCode::GOING_AWAY, "bye");
    ours.write_all(&farewell).await.unwrap();
    assert_eq!(them.await.unwrap(), expected);
}

#[tokio::test]
async fn our_client_and_their_server_understand_each_other() {
    let (theirs, mut ours) = tokio::io::duplex(PIPE);
    let expected: Vec<Heard> = texts_and_bytes().iter().map(heard).collect();
    let count = expected.len();
    let them = tokio::spawn(async move {
        let (_, mut server) = ServerBuilder::new().accept(theirs).await.unwrap();
        let mut got = Vec::new();
        while got.len() < count {
            got.push(heard(&server.next().await.unwrap().unwrap()));
        }
        for message in texts_and_bytes() {
            server.send(message).await.unwrap();
        }
        server.close().await.unwrap();
        got
    });
    let mut input = connect(&mut ours).await;
    for message in texts_and_bytes() {
        ours.write_all(&say(&message, Some(KEY))).await.unwrap();
    }
    loop {
        let (got, fault) = hear(Role::Client, DecoderLimits::NONE, &input, input.len().max(1));
        assert_eq!(fault, None);
        // Their server answers our ping as well.
        let got: Vec<Heard> = got.into_iter().filter(|heard| *heard != Heard::Pong(vec![1; 125])).collect();
        if let Some((Heard::Close(_), got)) = got.split_last() {
            assert_eq!(got, expected);
            break;
        }
        assert!(ours.read_buf(&mut input).await.unwrap() > 0);
    }
    let mut farewell = Vec::new();
    encode::empty_close(&mut farewell, Some(KEY));
    ours.write_all(&farewell).await.unwrap();
    assert_eq!(them.await.unwrap(), expected);
}

#[tokio::test]
async fn both_refuse_the_same() {
    let close = |code: u16| masked(0x88, &code.to_be_bytes());
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("a text", masked(0x81, b"fine")),
        ("a fragmented text", [masked(0x01, b"fi"), masked(0x80, b"ne")].concat()),
        ("a reserved bit", masked(0xc1, b"x")),
        ("an unknown opcode", masked(0x83, b"x")),
        ("a fragmented ping", masked(0x09, b"x")),
        ("a long ping", masked(0x89, &[0; 126])),
        ("a continuation of nothing", masked(0x80, b"x")),
        ("a message within another", [masked(0x01, b"x"), masked(0x81, b"x")].concat()),
        ("text that is none", masked(0x81, b"\xff")),
        ("half a character", masked(0x81, b"\xe2\x82")),
        ("half a close code", masked(0x88, b"x")),
        ("close 1005", close(1005)),
        ("close 2999", close(2999)),
        ("close 4000", close(4000)),
        ("no mask", vec![0x81, 0x01, b'x']),
    ];
    for (name, bytes) in cases {
        let ours = hear(Role::Server, DecoderLimits::NONE, &bytes, 64).1.is_none();
        let (mut near, far) = tokio::io::duplex(PIPE);
        let mut server = ServerBuilder::new().serve(far);
        near.write_all(&bytes).await.unwrap();
        let theirs = server.next().await.is_none_or(|message| message.is_ok());
        assert_eq!(ours, theirs, "{name}");
    }
}
