//! How exact the link is on this machine: round trips through it, beside round trips without it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{Link, round_trip};

/// Round trips of which the median is taken, each way of measuring.
const ROUND_TRIPS: usize = 1001;
/// How far the median may be from what was asked for.
pub(super) const TOLERANCE: Duration = Duration::from_micros(200);

/// What the link adds to a round trip: its least, and its median.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accuracy {
    pub(super) least: Duration,
    pub(super) median: Duration,
}

/// Measures a link with this round trip, in front of an echo in this process.
pub(super) fn measure(time: Duration) -> io::Result<Accuracy> {
    let target = echo()?;
    let link = Link::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), target, [round_trip(time); 2])?;
    let without = ping(&mut connect(target)?)?;
    let with = ping(&mut connect(link.address())?)?;
    // What comes back at once is not part of the link's time.
    let median = with[ROUND_TRIPS / 2].saturating_sub(without[ROUND_TRIPS / 2]);
    Ok(Accuracy { least: with[0], median })
}

/// A server that sends back what it gets, for as long as the process lives.
fn echo() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || -> io::Result<u64> {
                stream.set_nodelay(true)?;
                io::copy(&mut &stream, &mut &stream)
            });
        }
    });
    Ok(address)
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The times of round trips, ascending.
fn ping(stream: &mut TcpStream) -> io::Result<Vec<Duration>> {
    let mut octet = [0];
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        stream.write_all(&octet)?;
        stream.read_exact(&mut octet)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_round_trip_is_shorter_than_asked_for() {
        let time = Duration::from_millis(1);
        assert!(measure(time).unwrap().least >= time);
    }
}
