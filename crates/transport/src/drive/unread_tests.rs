//! A peer that is not read.

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::stream::Stream;

/// Pauses until its deadline, then reads to the end.
struct Paused {
    deadline: Option<Instant>,
    input: Vec<u8>,
    has_ended: bool,
}

impl Paused {
    fn new(pause: Duration) -> Self {
        Self { deadline: Some(now() + pause), input: Vec::new(), has_ended: false }
    }
}

impl Protocol for Paused {
    fn handle_input(&mut self, input: &[u8], _now: Instant) -> usize {
        self.input.extend_from_slice(input);
        input.len()
    }
    fn handle_eof(&mut self) {
        self.has_ended = true;
    }
    fn handle_nudge(&mut self, _now: Instant) {}
    fn handle_capacity(&mut self) {}
    fn handle_written(&mut self, _now: Instant) {}
    fn handle_deadline(&mut self, _now: Instant) {
        self.deadline = None;
    }
    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }
    fn intent(&self) -> Intent {
        match (self.has_ended, self.deadline) {
            (true, _) => Intent::Finish,
            (false, Some(_)) => Intent::Pause,
            (false, None) => Intent::Run,
        }
    }
}

/// A connection whose peer has sent something.
async fn connection() -> (TcpStream, Stream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    peer.write_all(b"unread").await.unwrap();
    (peer, Stream::Tcp(listener.accept().await.unwrap().0))
}

async fn driven(stream: &mut Stream, protocol: &mut Paused) -> Ended {
    let outbox = Arc::new(Outbox::new(1024));
    drive(stream, protocol, &outbox, 1024, Duration::from_secs(5)).await
}

#[tokio::test(start_paused = true)]
async fn a_reset_is_noticed_while_the_protocol_pauses() {
    let (peer, mut stream) = connection().await;
    let mut protocol = Paused::new(PEER_CHECK * 1000);
    peer.set_zero_linger().unwrap();
    drop(peer);
    let ended = driven(&mut stream, &mut protocol).await;
    let Ended::Io(error) = ended else { panic!("{ended:?}") };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(protocol.deadline.is_some() && protocol.input.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_closes_while_the_protocol_pauses_is_read_to_its_end_after_the_pause() {
    let (peer, mut stream) = connection().await;
    let mut protocol = Paused::new(PEER_CHECK * 4);
    drop(peer);
    let ended = driven(&mut stream, &mut protocol).await;
    assert!(matches!(ended, Ended::Eof), "{ended:?}");
    assert_eq!(protocol.input, b"unread");
}
