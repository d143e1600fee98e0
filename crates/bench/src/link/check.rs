//! How exact the link is on this machine: round trips through it, beside round trips without it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{Link, round_trip};

/// Round trips of which the median is taken, each way of measuring.
const ROUND_TRIPS: usize = 1001;
/// How late the link may be with a round trip, in the median.
pub(super) const TOLERANCE: Duration = Duration::from_micros(200);

/// How exact the link is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accuracy {
    /// The shortest round trip.
    pub(super) least: Duration,
    /// What the link adds to a round trip, in the median: what was asked for, and what it takes four threads to wake.
    pub(super) median: Duration,
    /// By how much the link itself is late with both ways of a round trip, in the median.
    pub(super) late: Duration,
}

/// Measures a link with this round trip, in front of an echo in this process.
pub(super) fn measure(time: Duration) -> io::Result<Accuracy> {
    let target = echo()?;
    let link = Link::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), target, [round_trip(time); 2])?;
    let without = ping(&mut connect(target)?)?;
    let with = ping(&mut connect(link.address())?)?;
    // What comes back at once is not part of the link's time.
    let median = with[ROUND_TRIPS / 2].saturating_sub(without[ROUND_TRIPS / 2]);
    let one_way = link.lateness().map_or(0.0, |late| late.p50);
    Ok(Accuracy { least: with[0], median, late: Duration::from_secs_f64(2.0 * one_way) })
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
    let mut byte = [0];
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_round_trip_is_shorter_than_asked_for_and_the_link_knows_how_late_it_is() {
        let time = Duration::from_millis(1);
        let Accuracy { least, median, late } = measure(time).unwrap();
        assert!(least >= time);
        // How late it is, the machine decides; that it is part of what was added, does not depend on it.
        assert!(!late.is_zero() && median > Duration::ZERO, "{late:?} {median:?}");
    }
}
