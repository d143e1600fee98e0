//! Measures the accuracy of the link on this machine by comparing round trips through it with round trips without it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{Link, round_trip};

/// Round trips over which the median is taken, with and without the link.
const ROUND_TRIPS: usize = 1001;
/// The largest acceptable lateness of a round trip through the link, in the median.
pub(super) const TOLERANCE: Duration = Duration::from_micros(200);

/// The accuracy of the link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accuracy {
    /// The shortest round trip.
    pub(super) least: Duration,
    /// The time that the link adds to a round trip, in the median: the delay asked for, and the wake-ups of four threads.
    pub(super) median: Duration,
    /// The lateness of the link itself over both ways of a round trip, in the median.
    pub(super) late: Duration,
}

/// Measures a link with this round trip time, in front of an echo server in this process.
pub(super) fn measure(time: Duration) -> io::Result<Accuracy> {
    let target = echo()?;
    let link = Link::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), target, [round_trip(time); 2])?;
    let without = ping(&mut connect(target)?)?;
    let with = ping(&mut connect(link.address())?)?;
    // The time of a round trip without the link is not the link's.
    let median = with[ROUND_TRIPS / 2].saturating_sub(without[ROUND_TRIPS / 2]);
    let one_way = link.lateness().map_or(0.0, |late| late.p50);
    Ok(Accuracy { least: with[0], median, late: Duration::from_secs_f64(2.0 * one_way) })
}

/// A server that sends back the bytes it receives, for as long as the process lives.
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

/// The durations of round trips, ascending.
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
        // The amount of lateness depends on the machine; that it is part of the added time does not.
        assert!(!late.is_zero() && median > Duration::ZERO, "{late:?} {median:?}");
    }
}
