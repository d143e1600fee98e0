use super::*;

fn target(scheme: &str) -> Target {
    Target::parse(&format!("{scheme}+ws://user:secret@localhost:1/ws")).unwrap()
}

/// Passes the server's output to `client`, one byte at a time; returns its events and its output.
fn reported(
    client: &mut dyn WebSocketSession,
    server: &[u8],
) -> Result<(Vec<SessionEvent>, Vec<u8>), MemberError> {
    let (mut input, mut out, mut met) = (Vec::new(), Vec::new(), Vec::new());
    for byte in server {
        input.push(*byte);
        met.extend(client.handle(&mut input, &mut out)?);
    }
    assert!(input.is_empty());
    Ok((met, out))
}

fn begun(scheme: &str) -> (Box<dyn WebSocketSession>, Vec<u8>) {
    let mut client = session(&target(scheme), "self", "mine", Duration::from_secs(60));
    let mut out = Vec::new();
    client.begin(&mut out);
    (client, out)
}

#[test]
fn mqtt_logs_in_and_subscribes() {
    let (mut client, out) = begun("mqtt");
    assert_eq!(out, b"\x10\x1e\x00\x04MQTT\x04\xc2\x00\x3c\x00\x04self\x00\x04user\x00\x06secret");
    assert_eq!(
        reported(&mut *client, &[0x20, 2, 0, 0]).unwrap(),
        (vec![], b"\x82\x09\x00\x01\x00\x04mine\x00".to_vec())
    );
    assert_eq!(reported(&mut *client, &[0x90, 3, 0, 1, 0]).unwrap().0, [SessionEvent::Subscribed]);
    let mut out = Vec::new();
    client.publish(&[b'x'; 200], &mut out);
    assert_eq!(&out[..9], b"\x30\xce\x01\x00\x04mine");
    assert_eq!(reported(&mut *client, &out).unwrap().0, [SessionEvent::Delivery(vec![b'x'; 200])]);
}

#[test]
fn mqtt_refusals_are_reported() {
    let (mut client, _) = begun("mqtt");
    assert_eq!(
        reported(&mut *client, &[0x20, 2, 0, 5]).unwrap_err().to_string(),
        "the login was refused with code 5"
    );
    assert_eq!(
        reported(&mut *client, &[0x90, 3, 0, 1, 0x80]).unwrap_err().to_string(),
        "the subscription was refused"
    );
    assert!(reported(&mut *client, &[0x30, 0x80, 0x80, 0x80, 0x80]).is_err());
}

#[test]
fn stomp_logs_in_and_subscribes() {
    let (mut client, out) = begun("stomp");
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("CONNECT\n") && text.contains("\nheart-beat:60000,60000\n\n\0"), "{text}");
    let (met, out) = reported(&mut *client, b"CONNECTED\nversion:1.2\n\n\0\n\n").unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(met.is_empty() && text.contains("destination:/topic/mine\nreceipt:0\n"), "{text}");
    assert_eq!(reported(&mut *client, b"RECEIPT\nreceipt-id:0\n\n\0").unwrap().0, [SessionEvent::Subscribed]);
    let delivery = reported(&mut *client, b"\nMESSAGE\nsubscription:0\n\nbody\0").unwrap().0;
    assert_eq!(delivery, [SessionEvent::Delivery(b"body".to_vec())]);
    let error = reported(&mut *client, b"ERROR\nmessage:Bad CONNECT\n\nmore\0").unwrap_err().to_string();
    assert_eq!(error, "Bad CONNECT");
}

#[test]
fn amqp_starts_with_its_header_and_reports_servers_of_other_protocols() {
    let (mut client, out) = begun("amqp");
    assert_eq!(out, b"AMQP\0\0\x09\x01");
    let error = reported(&mut *client, b"AMQP\0\x01\0\0").unwrap_err().to_string();
    assert!(error.contains("not an AMQP 0-9-1 server"), "{error}");
}
