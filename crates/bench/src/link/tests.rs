//! The link between real sockets. Its accuracy is tested in `line`, and measured by `bench link --check`;
//! here it must merely never be early.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const MS: Duration = Duration::from_millis(1);

/// A server that sends back the bytes it receives, and the end of the stream.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind(ANY).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || {
                let mut chunk = vec![0; 1 << 16];
                while let Ok(count @ 1..) = stream.read(&mut chunk) {
                    if stream.write_all(&chunk[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn link_to(target: SocketAddr, time: Duration) -> Link {
    Link::start(ANY, target, [round_trip(time); 2]).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The time of one byte there and back.
fn ping(stream: &mut TcpStream) -> Duration {
    let start = Instant::now();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    start.elapsed()
}

#[test]
fn a_connection_is_open_after_a_round_trip_and_its_end_of_stream_is_delayed_like_bytes() {
    let link = link_to(echo(), 20 * MS);
    let start = Instant::now();
    let mut stream = connect(link.address());
    stream.write_all(b"abc").unwrap();
    let mut received = [0; 3];
    stream.read_exact(&mut received).unwrap();
    assert!(start.elapsed() >= 40 * MS, "a round trip for the handshake, one for the bytes");
    let start = Instant::now();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut received).unwrap(), 0);
    assert!(start.elapsed() >= 20 * MS);
}

#[test]
fn open_connections_follow_a_change_at_once() {
    let link = link_to(echo(), Duration::ZERO);
    let mut stream = connect(link.address());
    ping(&mut stream);
    link.set_round_trip(30 * MS);
    assert!(ping(&mut stream) >= 30 * MS);
    link.set_round_trip(Duration::ZERO);
    // The shorter round trip has to be seen only once.
    assert!((0..200).any(|_| ping(&mut stream) < 30 * MS));
}

#[test]
fn all_bytes_pass_in_order_despite_delay_jitter_and_bandwidth() {
    let shape = LinkShape { delay: MS, jitter: 3 * MS, bytes_per_second: 200 << 20, ..LinkShape::default() };
    let link = Link::start(ANY, echo(), [shape; 2]).unwrap();
    let mut stream = connect(link.address());
    let sent: Vec<u8> = (0..12_000_000_u32).map(|n| (n * 7 + n / 1021) as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let copy = sent.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&copy).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    writing.join().unwrap();
    assert!(received == sent);
}

#[test]
fn a_receiver_that_does_not_read_stops_the_sender() {
    let listener = TcpListener::bind(ANY).unwrap();
    let link = link_to(listener.local_addr().unwrap(), Duration::ZERO);
    let mut stream = connect(link.address());
    let _deaf = listener.accept().unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let piece = vec![0; 1 << 20];
    let mut sent = 0_usize;
    let stopped = loop {
        match stream.write(&piece) {
            Ok(count) => sent += count,
            Err(error) => break error,
        }
        assert!(sent < 256 << 20, "the sender is not stopped");
    };
    assert_eq!(stopped.kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_cut_breaks_connections_and_a_stall_holds_them_up() {
    let link = link_to(echo(), Duration::ZERO);
    let mut stream = connect(link.address());
    ping(&mut stream);
    link.stall(true);
    stream.set_read_timeout(Some(50 * MS)).unwrap();
    stream.write_all(b"x").unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    link.stall(false);
    stream.set_read_timeout(None).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    link.cut();
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
    ping(&mut connect(link.address()));
}

#[test]
fn a_target_that_refuses_closes_its_clients() {
    let unused_address = TcpListener::bind(ANY).unwrap().local_addr().unwrap();
    let link = link_to(unused_address, MS);
    let mut stream = connect(link.address());
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
    drop(link);
    assert!(TcpStream::connect(unused_address).is_err());
}
