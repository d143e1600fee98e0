//! A socket that is handed over to another process.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::tests::lines;
use super::*;

#[tokio::test]
async fn a_handed_over_socket_continues_with_its_pending_input_and_output() {
    let (mut near, mut far) = tokio::io::duplex(TAKEN);
    let (mut first, outbox) = lines(1024);
    // More than the socket accepts.
    outbox.append(|buf| buf.tail().extend_from_slice(&[b'.'; TAKEN + 1]));
    near.write_all(b"one\ngo\ntwo\nqu").await.unwrap();
    let ended = drive(&mut far, &mut first, &outbox, 1024, Duration::from_secs(5)).await;
    let Ended::HandedOver(Transit { input, output }) = ended else { panic!("{ended:?}") };
    assert_eq!((&*input, &*output), (&b"two\nqu"[..], &b".one\ngo\n"[..]));
    assert!(outbox.is_closed());

    let (mut second, outbox) = lines(1024);
    outbox.append(|buf| buf.tail().extend_from_slice(&output));
    let peer = tokio::spawn(async move {
        near.write_all(b"it\n").await.unwrap();
        let mut answer = String::new();
        near.read_to_string(&mut answer).await.unwrap();
        answer
    });
    let limits = (1024, Duration::from_secs(5));
    let ended = drive_on(&mut far, &mut second, &outbox, limits, BytesMut::from(&*input)).await;
    assert!(matches!(ended, Ended::Finished));
    drop(far);
    assert_eq!(peer.await.unwrap(), format!("{}one\ngo\ntwo\nquit\n", ".".repeat(TAKEN + 1)));
}

/// Bytes that a simulated socket accepts while its peer does not read.
const TAKEN: usize = 16;
