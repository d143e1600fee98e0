//! A client's connection, relayed to a connection to the target.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Instant;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::line::{DelayLine, LinkShape, SegmentArrival};
use crate::latency::Latencies;

/// How often a connection may read or write before others get their turn.
const TURNS: usize = 32;

/// Both ends, and the bytes in transit between them.
#[derive(Debug)]
pub(super) struct LinkedConnection {
    ends: [End; 2],
    /// Indexed by the sending end.
    lines: [DelayLine; 2],
}

#[derive(Debug)]
struct End {
    stream: TcpStream,
    readable: bool,
    writable: bool,
    /// Whether this peer has ended its stream.
    ended: bool,
    /// Whether the other peer's end of stream was forwarded to this one.
    eof_passed_on: bool,
}

/// The action due after a connection has forwarded as much as possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for its sockets, at most until this time if there is one.
    Wait(Option<Instant>),
    /// Both directions have ended, or one failed: close the connection.
    Over,
}

/// The client's end; the other one is the target's.
const CLIENT: usize = 0;

impl LinkedConnection {
    /// Relays a client that was accepted at `now`, and starts connecting to the target.
    pub(super) fn new(
        client: TcpStream,
        target: SocketAddr,
        shapes: [LinkShape; 2],
        now: Instant,
        seed: u64,
    ) -> io::Result<Self> {
        let target = TcpStream::connect(target)?;
        client.set_nodelay(true)?;
        target.set_nodelay(true)?;
        // The kernel has opened the client's connection at once. Over a real network it would be open, and
        // the client could send, a round trip later.
        let open = now + shapes[0].delay + shapes[1].delay;
        let lines = [DelayLine::new(shapes[0], open, seed), DelayLine::new(shapes[1], now, !seed)];
        Ok(Self { ends: [client, target].map(End::new), lines })
    }

    /// Registers both ends with the poll, with these tokens.
    pub(super) fn register(&mut self, registry: &Registry, tokens: [Token; 2]) -> io::Result<()> {
        for (end, token) in self.ends.iter_mut().zip(tokens) {
            registry.register(&mut end.stream, token, Interest::READABLE | Interest::WRITABLE)?;
        }
        self.ends[CLIENT].stream.set_nodelay(true)
    }

    /// Records the readiness of an end.
    pub(super) fn ready(&mut self, end: usize, readable: bool, writable: bool) {
        let end = &mut self.ends[end];
        end.readable |= readable;
        end.writable |= writable;
    }

    /// Changes the shape of both directions.
    pub(super) fn reshape(&mut self, shapes: [LinkShape; 2]) {
        for (line, shape) in self.lines.iter_mut().zip(shapes) {
            line.reshape(shape);
        }
    }

    /// Moves as many bytes as possible; records in `late` how late they are handed over.
    pub(super) fn advance(&mut self, scratch: &mut [u8], late: &mut Latencies) -> Next {
        for _ in 0..TURNS {
            match self.turn(scratch, late) {
                Ok(true) => {}
                Ok(false) if self.ends.iter().all(|end| end.eof_passed_on) => return Next::Over,
                Ok(false) => return Next::Wait(self.next_due()),
                Err(_) => return Next::Over,
            }
        }
        Next::Wait(Some(Instant::now()))
    }

    /// Reads and writes each end at most once; returns whether there may be more to do.
    fn turn(&mut self, scratch: &mut [u8], late: &mut Latencies) -> io::Result<bool> {
        let mut moved = false;
        for from in 0..2 {
            let line = &mut self.lines[from];
            moved |= self.ends[from].read_into(line, scratch)?;
            moved |= self.ends[1 - from].write_from(line, late)?;
        }
        Ok(moved)
    }

    /// When the next bytes are due for a receiver that is writable.
    fn next_due(&self) -> Option<Instant> {
        let ready = |end: &End| end.writable && !end.eof_passed_on;
        let due = |from: usize| self.lines[from].next_due().filter(|_| ready(&self.ends[1 - from]));
        due(0).into_iter().chain(due(1)).min()
    }
}

impl End {
    fn new(stream: TcpStream) -> Self {
        Self { stream, readable: false, writable: false, ended: false, eof_passed_on: false }
    }

    fn read_into(&mut self, line: &mut DelayLine, scratch: &mut [u8]) -> io::Result<bool> {
        if !self.readable || self.ended || !line.has_capacity() {
            return Ok(false);
        }
        match self.stream.read(scratch) {
            Ok(0) => {
                self.ended = true;
                line.send_end(Instant::now());
            }
            Ok(count) => line.send(Instant::now(), &scratch[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn write_from(&mut self, line: &mut DelayLine, late: &mut Latencies) -> io::Result<bool> {
        if !self.writable || self.eof_passed_on {
            return Ok(false);
        }
        let now = Instant::now();
        let late_by = line.late_by(now);
        match line.arrived(now) {
            None => return Ok(false),
            Some(SegmentArrival::End) => {
                self.eof_passed_on = true;
                self.stream.shutdown(Shutdown::Write)?;
            }
            Some(SegmentArrival::Bytes(bytes)) => match self.stream.write(bytes) {
                Ok(count) => {
                    line.take(count);
                    late_by.into_iter().for_each(|time| late.record(time.as_nanos() as u64));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            },
        }
        Ok(true)
    }
}
