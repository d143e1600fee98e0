//! Both ends against each other, stepped byte by byte or in chunks of any size, and each against odd peers.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::frame::{FrameKind, HEARTBEAT, PROTOCOL_HEADER, header, write_body, write_method};
use crate::method::{basic, connection};
use crate::table::FieldValue;
use crate::{Credentials, Fault, FieldTable, Mechanism, Method, ReplyCode};

fn server_offer() -> ServerOffer {
    let mut server_properties: FieldTable = [("product", FieldValue::text("Leveret"))].into_iter().collect();
    Capabilities::ALL.add_to(&mut server_properties);
    ServerOffer {
        server_properties,
        mechanisms: Mechanism::ALL.to_vec(),
        channel_max: 2047,
        frame_max: 131_072,
        heartbeat: 60,
    }
}

fn client_offer(credentials: Credentials) -> ClientOffer {
    let mut client_properties = FieldTable::new();
    Capabilities::ALL.add_to(&mut client_properties);
    ClientOffer {
        credentials: Arc::new(credentials),
        virtual_host: "/".into(),
        client_properties,
        channel_max: 0,
        frame_max: 0,
        heartbeat: 0,
    }
}

/// Decides like a server that knows one user and one vhost.
fn validate(server: &mut ServerHandshake, event: ServerEvent) -> Option<ServerEnd> {
    match event {
        ServerEvent::Authenticate(credentials) if credentials.username == "token" => {
            server.challenge(b"code?");
        }
        ServerEvent::Authenticate(credentials) => {
            let good =
                Credentials { mechanism: credentials.mechanism, ..Credentials::plain("guest", "guest") };
            let without_password =
                matches!(credentials.mechanism, Mechanism::External | Mechanism::Anonymous);
            if credentials == good || without_password {
                server.accept_login();
            } else {
                server.refuse_login(credentials.mechanism.refusal_text());
            }
        }
        ServerEvent::Response(secret) if secret.expose() == b"1234" => server.accept_login(),
        ServerEvent::Response(_) => server.refuse_login(server.mechanism().refusal_text()),
        ServerEvent::Open(request) if request.virtual_host == "/" => server.accept_open(),
        ServerEvent::Open(request) => {
            let text = format!("vhost {} not found", request.virtual_host);
            server.refuse_open(Fault::new(ReplyCode::NotAllowed, text));
        }
        ServerEvent::Ended(end) => return Some(end),
    }
    None
}

struct Outcome {
    server: ServerHandshake,
    server_end: Option<ServerEnd>,
    client: Option<ClientEvent>,
}

/// Runs both ends until neither has output; each direction carries at most `chunk` bytes a step.
fn run(client_offer: ClientOffer, server_offer: ServerOffer, chunk: usize) -> Outcome {
    let mut client = ClientHandshake::new(client_offer);
    let mut outcome = Outcome { server: ServerHandshake::new(server_offer), server_end: None, client: None };
    let server = &mut outcome.server;
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let (mut at_server, mut at_client) = (Vec::new(), Vec::new());
    loop {
        client.poll_output(&mut to_server);
        server.poll_output(&mut to_client);
        if to_server.is_empty() && to_client.is_empty() {
            break;
        }
        at_server.extend(to_server.drain(..chunk.min(to_server.len())));
        at_client.extend(to_client.drain(..chunk.min(to_client.len())));
        loop {
            let taken = server.handle_input(&at_server);
            at_server.drain(..taken);
            match server.poll_event() {
                Some(event) => outcome.server_end = validate(server, event).or(outcome.server_end),
                None if taken == 0 => break,
                None => {}
            }
        }
        loop {
            let taken = client.handle_input(&at_client);
            at_client.drain(..taken);
            match client.poll_event() {
                Some(ClientEvent::Challenge(challenge)) => {
                    assert_eq!(challenge, b"code?");
                    client.respond(b"1234");
                }
                Some(event) => outcome.client = Some(event),
                None if taken == 0 => break,
                None => {}
            }
        }
    }
    if outcome.client.is_none() {
        client.handle_eof();
        outcome.client = client.poll_event();
    }
    outcome
}

fn opened(outcome: &Outcome) -> &Opened {
    match &outcome.client {
        Some(ClientEvent::Opened(opened)) => opened,
        other => panic!("{other:?}, server {:?}", outcome.server_end),
    }
}

fn refused(outcome: &Outcome) -> String {
    match &outcome.client {
        Some(ClientEvent::Refused(close)) => close.to_string(),
        other => panic!("{other:?}, server {:?}", outcome.server_end),
    }
}

proptest! {
    #[test]
    fn every_mechanism_opens_at_any_chunking(chunk in 1..600usize, mechanism in 0..5) {
        let credentials = match mechanism {
            0 => Credentials::plain("guest", "guest"),
            1 => Credentials::amqplain("guest", "guest"),
            2 => Credentials::external(None),
            3 => Credentials::anonymous(),
            _ => Credentials::plain("token", ""),
        };
        let outcome = run(client_offer(credentials), server_offer(), chunk);
        prop_assert!(outcome.server.is_open());
        let opened = opened(&outcome);
        prop_assert_eq!(
            opened.negotiated,
            Negotiated { channel_max: 2047, frame_max: 131_072, heartbeat_secs: 60 }
        );
        prop_assert_eq!(opened.server_properties.get("product").and_then(|v| v.as_text()), Some("Leveret"));
        prop_assert_eq!(opened.capabilities, Capabilities::ALL);
    }

    #[test]
    fn both_ends_agree_on_the_limits(
        (channel_max, frame_max, heartbeat) in (0..3000u16, 0..200_000u32, any::<u16>()),
        (server_channel_max, server_frame_max, server_heartbeat) in
            (0..3000u16, prop_oneof![Just(0), 4096..200_000u32], any::<u16>()),
    ) {
        let client = ClientOffer { channel_max, frame_max, heartbeat, ..client_offer(Credentials::anonymous()) };
        let server = ServerOffer {
            channel_max: server_channel_max,
            frame_max: server_frame_max,
            heartbeat: server_heartbeat,
            ..server_offer()
        };
        let outcome = run(client, server, 4096);
        let Negotiated { channel_max: c, frame_max: f, heartbeat_secs: h } = opened(&outcome).negotiated;
        prop_assert_eq!(outcome.server.negotiated(), opened(&outcome).negotiated);
        prop_assert!(server_channel_max == 0 || (c != 0 && c <= server_channel_max));
        prop_assert!(server_frame_max == 0 || (f != 0 && f <= server_frame_max));
        prop_assert!(f == 0 || f >= crate::frame::MIN_FRAME_MAX);
        prop_assert_eq!(h == 0, heartbeat == 0 && server_heartbeat == 0);
    }

    #[test]
    fn garbage_never_opens(bytes in prop::collection::vec(any::<u8>(), 0..200), with_header: bool) {
        let mut input = if with_header { PROTOCOL_HEADER.to_vec() } else { Vec::new() };
        input.extend(bytes);
        let mut server = ServerHandshake::new(server_offer());
        prop_assert!(server.handle_input(&input) <= input.len());
        prop_assert!(!server.is_open());
        server.handle_eof();
        prop_assert!(matches!(server.poll_event(), Some(ServerEvent::Ended(_))));
    }
}

#[test]
fn a_wrong_password_is_reported_to_clients_with_the_capability() {
    let outcome = run(client_offer(Credentials::plain("guest", "wrong")), server_offer(), 100);
    assert_eq!(
        refused(&outcome),
        "403 ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker \
         logfile."
    );
    assert_eq!(outcome.server_end, Some(ServerEnd::LoginRefused));
}

#[test]
fn a_wrong_password_of_an_old_client_closes_the_socket() {
    let mut offer = client_offer(Credentials::plain("guest", "wrong"));
    offer.client_properties = FieldTable::new();
    let outcome = run(offer, server_offer(), 100);
    assert_eq!(outcome.server_end, Some(ServerEnd::LoginRefused));
    assert!(matches!(outcome.client, Some(ClientEvent::Failed(ClientFailure::ClosedDuringLogin))));
}

#[test]
fn a_wrong_vhost_is_530() {
    let offer =
        ClientOffer { virtual_host: "none".into(), ..client_offer(Credentials::plain("guest", "guest")) };
    let outcome = run(offer, server_offer(), 7);
    assert_eq!(refused(&outcome), "530 NOT_ALLOWED - vhost none not found");
    let Some(ServerEnd::Faulted(fault)) = outcome.server_end else { panic!() };
    assert_eq!(fault.method, (10, 40));
}

#[test]
fn a_client_does_not_present_credentials_in_a_way_that_is_not_offered() {
    let offer = ServerOffer { mechanisms: vec![Mechanism::AmqPlain, Mechanism::External], ..server_offer() };
    let outcome = run(client_offer(Credentials::plain("guest", "guest")), offer, 100);
    let Some(ClientEvent::Failed(ClientFailure::MechanismNotOffered(offered))) = outcome.client else {
        panic!()
    };
    assert_eq!(offered, "AMQPLAIN EXTERNAL");
}

// A hand-made peer talks to one end in the tests below.

/// Sends the protocol header and `methods` to a server that decides as [`validate`] does.
fn serve(methods: &[Method<'_>]) -> (ServerHandshake, Option<ServerEnd>, Vec<u8>) {
    let mut input = PROTOCOL_HEADER.to_vec();
    methods.iter().for_each(|method| write_method(&mut input, 0, *method));
    let mut server = ServerHandshake::new(server_offer());
    let mut end = None;
    while {
        let taken = server.handle_input(&input);
        input.drain(..taken);
        let event = server.poll_event();
        let progress = taken > 0 || event.is_some();
        end = event.and_then(|event| validate(&mut server, event)).or(end);
        progress
    } {}
    (server, end, input)
}

fn start_ok<'a>(mechanism: &'a str, response: &'a [u8]) -> Method<'a> {
    connection::StartOk { mechanism, response, ..Default::default() }.into()
}

const LOGIN: &[u8] = b"\0guest\0guest";
const TUNE_OK: Method<'static> =
    Method::ConnectionTuneOk(connection::TuneOk { channel_max: 1, frame_max: 4096, heartbeat: 0 });
const OPEN: Method<'static> =
    Method::ConnectionOpen(connection::Open { virtual_host: "/", reserved_1: "", reserved_2: false });
const CLOSE_OK: Method<'static> = Method::ConnectionCloseOk(connection::CloseOk {});

/// The fault that a hand-made client receives, once it has confirmed.
fn fault(methods: &[Method<'_>]) -> String {
    let methods: Vec<_> = methods.iter().copied().chain([OPEN, CLOSE_OK]).collect();
    match serve(&methods).1 {
        Some(ServerEnd::Faulted(fault)) => fault.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_may_send_everything_at_once() {
    let publish = Method::BasicPublish(basic::Publish::default());
    let (server, end, rest) = serve(&[start_ok("PLAIN", LOGIN), TUNE_OK, OPEN, publish]);
    assert!(server.is_open() && end.is_none());
    let mut expected = Vec::new();
    write_method(&mut expected, 0, publish);
    assert_eq!(rest, expected, "what follows open is not the handshake's");
}

#[test]
fn protocol_errors_have_code_and_text() {
    let login = start_ok("PLAIN", LOGIN);
    assert_eq!(
        fault(&[start_ok("SCRAM", b"")]),
        "503 COMMAND_INVALID - unknown authentication mechanism 'SCRAM'"
    );
    assert_eq!(fault(&[start_ok("PLAIN", b"guest")]), "502 SYNTAX_ERROR - PLAIN response invalid");
    assert_eq!(
        fault(&[TUNE_OK, login]),
        "504 CHANNEL_ERROR - unexpected method in connection state starting"
    );
    assert_eq!(fault(&[login]), "504 CHANNEL_ERROR - unexpected method in connection state tuning");
    assert_eq!(
        fault(&[login, TUNE_OK, TUNE_OK]),
        "504 CHANNEL_ERROR - unexpected method in connection state opening"
    );
    let low = connection::TuneOk { channel_max: 1, frame_max: 100, heartbeat: 0 };
    assert_eq!(
        fault(&[login, low.into()]),
        "530 NOT_ALLOWED - negotiated frame_max = 100 is lower than the minimum allowed value (4096)"
    );
}

#[test]
fn a_mechanism_that_is_not_offered_is_refused() {
    let mut input = PROTOCOL_HEADER.to_vec();
    write_method(&mut input, 0, start_ok("EXTERNAL", b""));
    write_method(&mut input, 0, CLOSE_OK);
    let offer = ServerOffer { mechanisms: vec![Mechanism::Plain], ..server_offer() };
    let mut server = ServerHandshake::new(offer);
    server.handle_input(&input);
    let Some(ServerEvent::Ended(ServerEnd::Faulted(fault))) = server.poll_event() else { panic!() };
    assert_eq!(fault.to_string(), "503 COMMAND_INVALID - invalid authentication mechanism 'EXTERNAL'");
}

#[test]
fn a_client_may_give_up() {
    let close = connection::Close { reply_code: 200, ..Default::default() };
    let (mut server, end, _) = serve(&[start_ok("PLAIN", LOGIN), close.into()]);
    assert_eq!(end, Some(ServerEnd::ClosedByPeer));
    let mut out = Vec::new();
    server.poll_output(&mut out);
    let mut close_ok = Vec::new();
    write_method(&mut close_ok, 0, CLOSE_OK);
    assert!(out.ends_with(&close_ok));
}

#[test]
fn other_protocols_are_answered_with_ours() {
    for input in [&b"GET / HTTP/1.1\r\n"[..], b"AMQP\x03\x01\0\0", b"\x16\x03", b"AMQP\0\0\x09\x02"] {
        let mut server = ServerHandshake::new(server_offer());
        assert_eq!(server.handle_input(input), input.len());
        assert!(matches!(server.poll_event(), Some(ServerEvent::Ended(ServerEnd::BadProtocolHeader))));
        let mut out = Vec::new();
        server.poll_output(&mut out);
        assert_eq!(out, PROTOCOL_HEADER);
    }
    let mut server = ServerHandshake::new(server_offer());
    assert_eq!(server.handle_input(b"AMQP\x01\x01\0\x09"), 8, "0-9 is close enough");
    assert!(server.poll_event().is_none());
}

#[test]
fn a_large_frame_is_refused_by_its_header() {
    let mut input = PROTOCOL_HEADER.to_vec();
    input.extend(header(FrameKind::Method, 0, 1 << 30));
    let mut server = ServerHandshake::new(server_offer());
    assert_eq!(server.handle_input(&input), input.len());
    assert!(server.is_closing());
    assert_eq!(server.handle_input(&[0; 1000]), 1000, "swallowed, for frame boundaries are lost");
    server.handle_eof();
    let Some(ServerEvent::Ended(ServerEnd::Faulted(fault))) = server.poll_event() else { panic!() };
    assert_eq!(fault.code, ReplyCode::FrameError);
}

#[test]
fn heartbeats_pass_and_misplaced_frames_do_not() {
    let mut server = ServerHandshake::new(server_offer());
    let input = [&PROTOCOL_HEADER[..], &HEARTBEAT].concat();
    assert_eq!(server.handle_input(&input), input.len());
    assert!(!server.is_closing());
    let mut input = Vec::new();
    write_body(&mut input, 1, b"x");
    server.handle_input(&input);
    assert!(server.is_closing());
    server.handle_eof();
    let Some(ServerEvent::Ended(ServerEnd::Faulted(fault))) = server.poll_event() else { panic!() };
    assert_eq!(fault.to_string(), "505 UNEXPECTED_FRAME - type 3, all bytes = <<120>>");
}

#[test]
fn nothing_is_taken_while_a_decision_is_pending() {
    let mut input = PROTOCOL_HEADER.to_vec();
    write_method(&mut input, 0, start_ok("PLAIN", LOGIN));
    let pending = input.len();
    write_method(&mut input, 0, TUNE_OK);
    let mut server = ServerHandshake::new(server_offer());
    assert_eq!(server.handle_input(&input), pending);
    assert_eq!(server.handle_input(&input[pending..]), 0);
    server.handle_eof();
    assert!(matches!(server.poll_event(), Some(ServerEvent::Ended(ServerEnd::Eof))));
    server.accept_login();
    assert_eq!(server.handle_input(&input[pending..]), 0, "a late decision has no effect");
}

fn client_against(methods: &[Method<'_>]) -> ClientHandshake {
    let mut client = ClientHandshake::new(client_offer(Credentials::plain("guest", "guest")));
    let mut input = Vec::new();
    methods.iter().for_each(|method| write_method(&mut input, 0, *method));
    assert_eq!(client.handle_input(&input), input.len());
    client
}

const START: Method<'static> = Method::ConnectionStart(connection::Start {
    version_major: 0,
    version_minor: 9,
    server_properties: crate::RawTable::EMPTY,
    mechanisms: b"PLAIN",
    locales: b"en_US",
});
const TUNE: Method<'static> =
    Method::ConnectionTune(connection::Tune { channel_max: 0, frame_max: 0, heartbeat: 0 });

#[test]
fn eof_during_login_is_distinguished_from_any_other_eof() {
    for (methods, failure) in [
        (&[][..], ClientFailure::Eof),
        (&[START], ClientFailure::ClosedDuringLogin),
        (&[START, TUNE], ClientFailure::Eof),
    ] {
        let mut client = client_against(methods);
        client.handle_eof();
        let Some(ClientEvent::Failed(actual)) = client.poll_event() else { panic!() };
        assert_eq!(actual, failure);
    }
}

#[test]
fn a_client_recognises_another_protocol() {
    let mut client = ClientHandshake::new(client_offer(Credentials::anonymous()));
    assert_eq!(client.handle_input(b"AMQP\x03\x01\0"), 0);
    assert_eq!(client.handle_input(b"AMQP\x03\x01\0\0"), 8);
    let Some(ClientEvent::Failed(ClientFailure::WrongProtocol(header))) = client.poll_event() else {
        panic!()
    };
    assert_eq!(&header, b"AMQP\x03\x01\0\0");
}

#[test]
fn a_client_refuses_unexpected_methods_and_a_too_small_frame_max() {
    let low = connection::Tune { channel_max: 0, frame_max: 100, heartbeat: 0 };
    for (methods, code) in [
        (&[TUNE][..], ReplyCode::CommandInvalid),
        (&[START, low.into()], ReplyCode::NotAllowed),
        (&[START, TUNE, START], ReplyCode::CommandInvalid),
    ] {
        let mut client = client_against(methods);
        let Some(ClientEvent::Failed(ClientFailure::Fault(fault))) = client.poll_event() else { panic!() };
        assert_eq!(fault.code, code);
    }
}

#[test]
fn the_version_of_a_server_is_its_own_one() {
    let of = |properties: &[(&str, &str)]| {
        let properties: FieldTable =
            properties.iter().map(|(key, text)| (*key, FieldValue::text(*text))).collect();
        let (product, version) = product_and_version(&properties);
        (product.map(str::to_owned), version.map(str::to_owned))
    };
    let told = |product: &str, version: &str| (Some(product.to_owned()), Some(version.to_owned()));
    let implementation = [("implementation", "Leveret"), ("implementation_version", "0.1.0")];
    let as_rabbitmq =
        |product| [&[("product", product), ("version", "3.10.8")][..], &implementation].concat();
    assert_eq!(of(&as_rabbitmq("Leveret")), told("Leveret", "0.1.0"));
    assert_eq!(of(&as_rabbitmq("RabbitMQ")), told("RabbitMQ", "3.10.8"));
    assert_eq!(of(&[("product", "RabbitMQ"), ("version", "4.3.6")]), told("RabbitMQ", "4.3.6"));
    assert_eq!(of(&[]), (None, None));
}
