use super::*;
use crate::frame::{FrameKind, HEARTBEAT};
use crate::method::{basic, channel, connection};
use crate::{Frame, frame};

const OPEN: Method<'static> = Method::ChannelOpen(channel::Open { reserved_1: "" });
const CLOSE: Method<'static> =
    Method::ChannelClose(channel::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 });
const CLOSE_OK: Method<'static> = Method::ChannelCloseOk(channel::CloseOk {});
const ACK: Method<'static> = Method::BasicAck(basic::Ack { delivery_tag: 1, multiple: false });

/// Channel 1 is open.
fn one_open() -> ChannelTable<&'static str> {
    let mut table = ChannelTable::new(3);
    assert_eq!(table.method(1, &OPEN), Ok(ChannelStep::Open));
    table.open(1, "one");
    table
}

/// Channel 1 is closing.
fn one_closing() -> ChannelTable<&'static str> {
    let mut table = one_open();
    assert_eq!(table.start_closing(1), Some("one"));
    table
}

#[test]
fn a_closed_channel_knows_only_open() {
    let mut table = ChannelTable::<()>::new(0);
    for method in [ACK, CLOSE, CLOSE_OK] {
        let fault = table.method(7, &method).unwrap_err();
        assert_eq!(fault.to_string(), "504 CHANNEL_ERROR - expected 'channel.open'");
        assert_eq!(fault.method, method.ids());
    }
    let fault = table.content(7).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "505 UNEXPECTED_FRAME - expected method frame, got non method frame instead"
    );
    assert_eq!(table.method(7, &OPEN), Ok(ChannelStep::Open));
}

#[test]
fn an_open_channel_takes_methods_and_content() {
    let mut table = one_open();
    assert_eq!(table.method(1, &ACK), Ok(ChannelStep::Deliver));
    assert_eq!(table.method(1, &CLOSE_OK), Ok(ChannelStep::Deliver));
    assert_eq!(table.content(1), Ok(Some(&mut "one")));
    assert_eq!((table.get(1), table.get(2)), (Some(&"one"), None));
}

#[test]
fn a_second_open_ends_the_connection() {
    let fault = one_open().method(1, &OPEN).unwrap_err();
    assert_eq!(fault.to_string(), "504 CHANNEL_ERROR - second 'channel.open' seen");
    assert!(fault.is_hard());
}

#[test]
fn a_client_closes_and_reopens() {
    let mut table = one_open();
    assert_eq!(table.method(1, &CLOSE), Ok(ChannelStep::Close));
    assert_eq!(table.remove(1), Some("one"));
    assert!(table.is_empty());
    assert_eq!(table.method(1, &OPEN), Ok(ChannelStep::Open));
}

#[test]
fn a_closing_channel_discards_until_close_ok() {
    let mut table = one_closing();
    for method in [ACK, OPEN] {
        assert_eq!(table.method(1, &method), Ok(ChannelStep::Discard));
    }
    assert_eq!(table.content(1), Ok(None));
    assert_eq!(table.get_mut(1), None);
    assert_eq!(table.method(1, &CLOSE_OK), Ok(ChannelStep::Closed));
    assert!(table.is_empty());
    assert!(table.method(1, &ACK).is_err());
}

#[test]
fn when_both_close_the_clients_close_is_answered() {
    let mut table = one_closing();
    assert_eq!(table.method(1, &CLOSE), Ok(ChannelStep::AnswerClose));
    assert_eq!(table.method(1, &CLOSE_OK), Ok(ChannelStep::Closed));
}

#[test]
fn channel_max_counts_channels_not_numbers() {
    let mut table = one_closing();
    for number in [65535, 500] {
        assert_eq!(table.method(number, &OPEN), Ok(ChannelStep::Open));
        table.open(number, "high");
    }
    let fault = table.method(2, &OPEN).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "530 NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)"
    );
    assert_eq!(table.content(2).unwrap_err().code, ReplyCode::NotAllowed);
    table.remove(500);
    assert_eq!(table.method(2, &OPEN), Ok(ChannelStep::Open));
}

#[test]
fn numbers_in_any_order_are_found() {
    let mut table = ChannelTable::new(0);
    for number in [9, 3, 1, 65535, 2, 4] {
        table.open(number, number);
    }
    assert!([9, 3, 1, 65535, 2, 4].iter().all(|number| table.get(*number) == Some(number)));
    table.start_closing(3);
    let open: Vec<u16> = table.iter_mut().map(|(number, _)| number).collect();
    assert_eq!(open, [1, 2, 4, 9, 65535]);
    assert_eq!(table.len(), 6);
    assert_eq!(table.drain().count(), 5);
}

fn validate(life: &mut ConnectionLife, channel: u16, method: Method<'static>) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    frame::write_method(&mut bytes, channel, method);
    let frame = Frame::parse(&bytes, 0).unwrap().unwrap();
    life.frame(&frame).map(|step| format!("{step:?}"))
}

const CONNECTION_CLOSE: Method<'static> =
    Method::ConnectionClose(connection::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 });
const CONNECTION_CLOSE_OK: Method<'static> = Method::ConnectionCloseOk(connection::CloseOk {});

#[test]
fn a_running_connection_sorts_frames() {
    let mut life = ConnectionLife::default();
    assert_eq!(validate(&mut life, 1, ACK).unwrap(), "Channel");
    let secret = Method::ConnectionUpdateSecret(connection::UpdateSecret::default());
    assert!(validate(&mut life, 0, secret).unwrap().starts_with("Deliver"));
    let heartbeat = Frame::parse(&HEARTBEAT, 0).unwrap().unwrap();
    assert_eq!(life.frame(&heartbeat), Ok(ConnectionStep::Heartbeat));

    let fault = validate(&mut life, 0, CONNECTION_CLOSE_OK).unwrap_err();
    assert_eq!(fault.to_string(), "504 CHANNEL_ERROR - unexpected method in connection state running");
    let loaded = Frame { payload: b"abc", ..heartbeat };
    assert_eq!(life.frame(&loaded).unwrap_err().code, ReplyCode::FrameError);
    let misplaced = Frame { channel: 1, ..heartbeat };
    let fault = life.frame(&misplaced).unwrap_err();
    assert_eq!(fault.to_string(), "505 UNEXPECTED_FRAME - type 8, all bytes = <<>>");
    let misplaced = Frame { kind: FrameKind::Body, channel: 0, payload: &[1; 17] };
    let fault = life.frame(&misplaced).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "505 UNEXPECTED_FRAME - type 3, first 16 bytes = <<1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1>>"
    );
}

#[test]
fn a_client_closes_the_connection() {
    let mut life = ConnectionLife::default();
    assert_eq!(validate(&mut life, 0, CONNECTION_CLOSE).unwrap(), "Close");
    assert_eq!(life, ConnectionLife::Closed);
    assert_eq!(validate(&mut life, 1, ACK).unwrap(), "Discard");
}

#[test]
fn a_closing_connection_discards_until_close_ok() {
    let mut life = ConnectionLife::default();
    life.start_closing();
    assert_eq!(validate(&mut life, 1, ACK).unwrap(), "Discard");
    assert_eq!(validate(&mut life, 0, OPEN).unwrap(), "Discard");
    assert_eq!(validate(&mut life, 0, CONNECTION_CLOSE).unwrap(), "AnswerClose");
    assert_eq!(validate(&mut life, 0, CONNECTION_CLOSE_OK).unwrap(), "Closed");
    assert_eq!(life, ConnectionLife::Closed);
    life.start_closing();
    assert_eq!(life, ConnectionLife::Closed);
}
