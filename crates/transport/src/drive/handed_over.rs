//! A socket that is left to another process.

use super::tests::{Lines, lines};
use super::*;

/// Hands the socket over at the line `go`, whose answer and successors are left to others.
struct Leaving(Lines);

impl Protocol for Leaving {
    fn handle_input(&mut self, input: &[u8], now: Instant) -> usize {
        let Some(end) = input.windows(3).position(|line| line == b"go\n") else {
            return self.0.handle_input(input, now);
        };
        self.0.intent = Intent::HandOver;
        self.0.handle_input(&input[..end + 3], now)
    }
    fn handle_eof(&mut self) {}
    fn handle_nudge(&mut self, _now: Instant) {}
    fn handle_room(&mut self) {}
    fn handle_written(&mut self, _now: Instant) {}
    fn handle_deadline(&mut self, _now: Instant) {}
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    fn intent(&self) -> Intent {
        self.0.intent
    }
}

#[tokio::test]
async fn a_socket_goes_on_elsewhere_with_what_was_read_and_not_written() {
    let (mut near, mut far) = tokio::io::duplex(TAKEN);
    let (first, outbox) = lines(1024);
    // More than the socket takes.
    outbox.append(|buf| buf.tail().extend_from_slice(&[b'.'; TAKEN + 1]));
    near.write_all(b"one\ngo\ntwo\nqu").await.unwrap();
    let ended = drive(&mut far, &mut Leaving(first), &outbox, 1024, Duration::from_secs(5)).await;
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

/// Bytes that a simulated socket takes while its peer does not read.
const TAKEN: usize = 16;
