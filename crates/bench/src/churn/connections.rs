//! Connections that a few threads open and close concurrently. With a thread for each, waking it for every answer would
//! take more CPU time than the connection, which the system would lack where it shares its cores with the generator.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use amqp::frame::write_method;
use amqp::handshake::{ClientHandshake, ClientOffer};
use amqp::{Frame, FrameKind, Method};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token};

use crate::client::{
    NORMAL_CLOSE, SETUP_TIMEOUT, check_close, client_offer, connect, expect_method, validate_login,
};
use crate::error::ClientError;
use crate::latency::Latencies;
use crate::process;
use crate::study::workers::{WorkResult, WorkerConfig, WorkerResult};
use crate::uri::Uri;

/// How often to check for connections that take too long.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes of one read: far more than a server sends on such a connection.
const READ: usize = 16 * 1024;

/// Has as many connections open at a time as there are workers. Each connects without TLS, logs in, opens the vhost and
/// closes, and is then replaced until the time is over.
pub(super) fn work(uri: &Uri, name: &str, config: WorkerConfig) -> Result<WorkResult<()>, ClientError> {
    let address = connect(uri)?.peer_addr().map_err(ClientError::io("connecting"))?;
    let offer = client_offer(uri, name);
    // Half of the cores are left to the system under test.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores / 2).clamp(1, config.workers);
    let offer = &offer;
    let results = thread::scope(|scope| {
        let share = |number: usize| (config.workers + number) / threads;
        let start = |number| scope.spawn(move || run_worker(address, offer, share(number), config.time));
        let threads: Vec<_> = (0..threads).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().map_err(|_| ClientError::Panicked("connections")).flatten()
        };
        threads.into_iter().map(join).collect::<Vec<_>>()
    });
    let results = results.into_iter().collect::<Result<Vec<WorkerResult>, _>>()?;
    Ok(WorkResult::of(&results, vec![(); config.workers]))
}

/// Runs the connections of one thread, of which `concurrent` are open at a time.
fn run_worker(
    address: SocketAddr,
    offer: &ClientOffer,
    concurrent: usize,
    time: Duration,
) -> Result<WorkerResult, ClientError> {
    let mut poll = Poll::new().map_err(ClientError::io("polling"))?;
    let mut events = Events::with_capacity(concurrent);
    let mut scratch = vec![0; READ].into_boxed_slice();
    let began = Instant::now();
    let (mut count, mut times, mut next_check) = (0, Latencies::new(), began + CHECK_INTERVAL);
    let begin = |registry: &Registry, number| ShortConnection::begin(registry, number, address, offer);
    let mut connections = (0..concurrent)
        .map(|number| begin(poll.registry(), number).map(Some))
        .collect::<Result<Vec<_>, _>>()?;
    while connections.iter().any(Option::is_some) {
        match poll.poll(&mut events, Some(CHECK_INTERVAL)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => {
                return Err(ClientError::io("polling")(error));
            }
            _ => {}
        }
        for event in &events {
            let Token(number) = event.token();
            let Some(connection) = &mut connections[number] else { continue };
            let may_read = event.is_readable() || event.is_read_closed() || event.is_error();
            if !connection.advance(may_read, &mut scratch)? {
                continue;
            }
            times.record(connection.began.elapsed().as_nanos() as u64);
            count += 1;
            // The old socket is closed before the next is opened, so that no more than `concurrent` are open.
            connections[number] = None;
            if began.elapsed() < time {
                connections[number] = Some(begin(poll.registry(), number)?);
            }
        }
        let now = Instant::now();
        if now >= next_check {
            next_check = now + CHECK_INTERVAL;
            if connections.iter().flatten().any(|connection| now - connection.began > SETUP_TIMEOUT) {
                return Err(ClientError::TimedOut("opening a connection"));
            }
        }
    }
    let cpu = process::own_thread_id().map_or(0.0, process::thread_cpu_seconds);
    Ok(WorkerResult { began, ended: Instant::now(), count, times, cpu })
}

/// A connection from opening to close.
struct ShortConnection {
    stream: TcpStream,
    stage: Stage,
    input: Vec<u8>,
    output: Vec<u8>,
    began: Instant,
}

enum Stage {
    LogIn(Box<ClientHandshake>),
    Close { frame_max: u32 },
}

impl ShortConnection {
    fn begin(
        registry: &Registry,
        number: usize,
        address: SocketAddr,
        offer: &ClientOffer,
    ) -> Result<Self, ClientError> {
        let began = Instant::now();
        let connecting = || ClientError::io("connecting");
        let mut stream = TcpStream::connect(address).map_err(connecting())?;
        stream.set_nodelay(true).map_err(connecting())?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut stream, Token(number), interest).map_err(connecting())?;
        let mut handshake = Box::new(ClientHandshake::new(offer.clone()));
        let (input, mut output) = (Vec::new(), Vec::new());
        handshake.poll_output(&mut output);
        Ok(Self { stream, stage: Stage::LogIn(handshake), input, output, began })
    }

    /// Proceeds as far as possible; returns whether the connection is closed.
    fn advance(&mut self, may_read: bool, scratch: &mut [u8]) -> Result<bool, ClientError> {
        self.write()?;
        if !may_read {
            return Ok(false);
        }
        loop {
            let read = match self.stream.read(scratch) {
                Ok(0) => return Err(self.cut_off()),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(ClientError::io("waiting for an answer")(error)),
            };
            self.input.extend_from_slice(&scratch[..read]);
            if self.take()? {
                return Ok(true);
            }
            self.write()?;
            // Another event will report later input.
            if read < scratch.len() {
                return Ok(false);
            }
        }
    }

    /// The error if the server has closed the socket: during the login it may be a refusal.
    fn cut_off(&mut self) -> ClientError {
        if let Stage::LogIn(handshake) = &mut self.stage {
            handshake.handle_eof();
            if let Some(Err(refused)) = handshake.poll_event().map(validate_login) {
                return refused;
            }
        }
        ClientError::Closed("the server closed the socket".into())
    }

    fn write(&mut self) -> Result<(), ClientError> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(written) => drop(self.output.drain(..written)),
                // The poll will report when the socket is writable.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    break;
                }
                Err(error) => return Err(ClientError::io("sending a request")(error)),
            }
        }
        Ok(())
    }

    /// Handles the received bytes; returns whether the server has confirmed the close.
    fn take(&mut self) -> Result<bool, ClientError> {
        if let Stage::LogIn(handshake) = &mut self.stage {
            let taken = handshake.handle_input(&self.input);
            self.input.drain(..taken);
            handshake.poll_output(&mut self.output);
            if let Some(opened) = handshake.poll_event().map(validate_login).transpose()? {
                write_method(&mut self.output, 0, NORMAL_CLOSE);
                self.stage = Stage::Close { frame_max: opened.negotiated.frame_max };
            }
        }
        let Stage::Close { frame_max } = self.stage else { return Ok(false) };
        while let Some(frame) = Frame::parse(&self.input, frame_max)? {
            let len = frame.wire_len();
            if frame.kind != FrameKind::Heartbeat {
                let method = expect_method(&frame)?;
                check_close(&method)?;
                if matches!(method, Method::ConnectionCloseOk(_)) {
                    return Ok(true);
                }
            }
            self.input.drain(..len);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::fake_broker::{FakeBroker, ScriptedFate};

    fn config(workers: usize, time: Duration) -> WorkerConfig {
        WorkerConfig { workers, time, min_steps: 1 }
    }

    #[test]
    fn every_worker_connects_at_least_once_and_repeatedly_until_the_time_is_over() {
        let broker = FakeBroker::start(|_| ScriptedFate::Dropped);
        let uri = Uri::parse(&broker.uri()).unwrap();
        let done = work(&uri, "connections", config(5, Duration::ZERO)).unwrap();
        assert_eq!((done.count, done.states.len()), (5, 5));
        let time = Duration::from_millis(50);
        let done = work(&uri, "connections", config(2, time)).unwrap();
        assert!(done.count >= 2 && done.seconds >= time.as_secs_f64(), "{done:?}");
        assert_eq!(done.times.percentiles().unwrap().count, done.count);
    }

    #[test]
    fn an_unreachable_server_or_one_that_closes_the_socket_is_an_error() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = Uri::parse(&format!("amqp://{}", listener.local_addr().unwrap())).unwrap();
        // The first connection checks that the server exists, the second one is measured.
        let server = thread::spawn(move || (0..2).for_each(|_| drop(listener.accept())));
        let closed = work(&uri, "connections", config(1, Duration::ZERO)).unwrap_err();
        let reported =
            matches!(closed, ClientError::Closed(_) | ClientError::Amqp(_) | ClientError::Io { .. });
        assert!(reported, "{closed}");
        server.join().unwrap();
        // The listener is gone.
        let refused = work(&uri, "connections", config(1, Duration::ZERO)).unwrap_err();
        assert!(matches!(refused, ClientError::Io { .. }), "{refused}");
    }
}
