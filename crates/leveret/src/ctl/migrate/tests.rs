//! A command against a server and a cluster that a test plays.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use server::MoveDirection;

use super::{Intervals, Migrate};
use crate::Failure;
use crate::cli::{Command, CommandLine};
use crate::ctl::api::Api;
use crate::ctl::{CtlArguments, CtlCommand};
use crate::http_client::Endpoint;

/// The target of the commands.
const TARGET: &str = "amqp://rabbit:5672";

/// How long a test waits for something before it fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Serves a management API, each request in a thread of its own. `answer` is given method and path, and the body behind them
/// if there is one; it returns status and body.
fn serve(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = Arc::clone(&answer);
            // A command that has ended does not read its answer.
            thread::spawn(move || serve_one(stream.unwrap(), &*answer).ok());
        }
    });
    Endpoint::parse(&url).unwrap()
}

fn serve_one(stream: TcpStream, answer: &dyn Fn(&str) -> (u16, Value)) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if reader.read_until(b'\n', &mut head)? == 0 {
            return Ok(());
        }
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body)?;
    let request = head.lines().next().unwrap().trim_end_matches(" http/1.1");
    let body = String::from_utf8(body).unwrap();
    let (status, body) = answer(format!("{request} {body}").trim_end());
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status} -\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    reader.get_mut().write_all((head + &body).as_bytes())
}

/// A server that waits for the last definitions, and is a pool once it has been told that they are there.
#[derive(Default)]
struct Broker {
    /// How often it has been asked for its state.
    looks: AtomicU32,
    /// How often it has been told that the definitions are there.
    finishes: AtomicU32,
}

impl Broker {
    fn state(&self) -> Value {
        self.looks.fetch_add(1, Ordering::SeqCst);
        let is_pool = self.finishes.load(Ordering::SeqCst) > 0;
        json!({
            "phase": if is_pool { "moved" } else { "last_definitions" }, "process": 1, "queues": [],
            "direction": "to", "addresses": [TARGET],
        })
    }

    fn answer(&self, request: &str) -> (u16, Value) {
        match request {
            "get /api/leveret/migration" => (200, self.state()),
            // It names the move.
            r#"post /api/leveret/migration/finish {"addresses":["amqp://rabbit:5672"],"direction":"to"}"# => {
                self.finishes.fetch_add(1, Ordering::SeqCst);
                (200, self.state())
            }
            "get /api/definitions" => {
                let queue = json!({"name": "q", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {}});
                (200, json!({"queues": [queue]}))
            }
            _ => (200, json!([])),
        }
    }

    fn finishes(&self) -> u32 {
        self.finishes.load(Ordering::SeqCst)
    }
}

/// The answers of a cluster without definitions.
fn empty(request: &str) -> (u16, Value) {
    (200, if request == "get /api/definitions" { json!({}) } else { json!([]) })
}

/// Sees the change of `here` to a pool through, as a command does after it has asked for it.
fn see_through(here: Endpoint, there: Endpoint, target: &str) -> Result<(), String> {
    let words = ["leveret", "ctl", "-q", "migrate", "--to", target, "--to-management", "http://rabbit:15672"];
    let Command::Ctl(arguments) = CommandLine::parse_from(words).command else { unreachable!() };
    let CtlArguments { connection, output, command: Some(CtlCommand::Migrate(command)) } = *arguments else {
        unreachable!()
    };
    let api =
        |endpoint| Api::of(&connection, endpoint, "guest", "guest").map_err(Failure::into_line).unwrap();
    let pause = Duration::from_millis(1);
    let migrate = Migrate {
        api: &api(here),
        other: api(there),
        way: MoveDirection::Out,
        addresses: command.to.clone(),
        password: "guest",
        output: &output,
        intervals: Intervals { look: pause, sign_of_life: pause, retry: pause },
        command: &command,
    };
    migrate.wait_for_pool(&json!({"process": 1})).map_err(Failure::into_line)
}

#[test]
fn the_server_is_polled_during_a_long_export() {
    let broker = Arc::new(Broker::default());
    let (here, slow) = (Arc::clone(&broker), Arc::clone(&broker));
    let there = serve(move |request| {
        // Neither an export nor the list for permissions ends before the server has been asked again and again.
        let (looks, end) = (slow.looks.load(Ordering::SeqCst), Instant::now() + PATIENCE);
        while ["get /api/definitions", "get /api/vhosts"].contains(&request)
            && slow.looks.load(Ordering::SeqCst) < looks + 3
        {
            if Instant::now() > end {
                return (400, json!({"reason": "no sign of life"}));
            }
            thread::yield_now();
        }
        empty(request)
    });
    assert_eq!(see_through(serve(move |request| here.answer(request)), there, TARGET), Ok(()));
    assert_eq!(broker.finishes(), 1);
}

#[test]
fn a_cluster_that_cannot_answer_for_a_moment_is_asked_again() {
    let broker = Arc::new(Broker::default());
    let here = Arc::clone(&broker);
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (all, reported) = (Arc::clone(&requests), Arc::clone(&broker));
    let there = serve(move |request| {
        assert_eq!(reported.finishes(), 0, "the server goes on without a definition");
        let mut requests = all.lock();
        let is_first = !requests.iter().any(|known| known == request);
        requests.push(request.to_owned());
        if is_first { (503, json!({"reason": "starting"})) } else { empty(request) }
    });
    assert_eq!(see_through(serve(move |request| here.answer(request)), there, TARGET), Ok(()));
    let is_made = |request: &&String| request.starts_with("put /api/queues/%2f/q ");
    assert_eq!(requests.lock().iter().filter(is_made).count(), 2);
    assert_eq!(broker.finishes(), 1);
}

#[test]
fn a_cluster_that_refuses_the_login_ends_the_command() {
    let broker = Arc::new(Broker::default());
    let here = Arc::clone(&broker);
    let there = serve(|_| (401, json!({"error": "not_authorised", "reason": "Login failed"})));
    let reported = see_through(serve(move |request| here.answer(request)), there, TARGET);
    let error = reported.unwrap_err();
    assert!(error.starts_with("http://127.0.0.1:"), "{error}");
    assert!(error.ends_with(": user 'guest' is refused: Login failed"), "{error}");
    assert_eq!(broker.finishes(), 0);
}

#[test]
fn another_command_with_the_same_target_may_be_first() {
    let broker = Arc::new(Broker::default());
    let here = Arc::clone(&broker);
    let here = serve(move |request| match here.answer(request) {
        (_, _) if request.starts_with("post ") => (400, json!({"reason": "the move is moving_rest"})),
        answer => answer,
    });
    assert_eq!(see_through(here, serve(empty), TARGET), Ok(()));
}

#[test]
fn a_refusal_to_go_on_ends_the_command() {
    let broker = Broker::default();
    let here = serve(move |request| match request.starts_with("post ") {
        true => (403, json!({"reason": "no administrator"})),
        false => broker.answer(request),
    });
    assert_eq!(see_through(here, serve(empty), TARGET), Err("403 no administrator".to_owned()));
}

#[test]
fn a_command_takes_no_step_for_another_target() {
    let broker = Arc::new(Broker::default());
    let here = Arc::clone(&broker);
    let there = serve(|request| panic!("{request}"));
    let reported =
        see_through(serve(move |request| here.answer(request)), there, "amqp://other:5672").unwrap_err();
    assert!(reported.contains("everything moves to amqp://rabbit:5672"), "{reported}");
    assert_eq!(broker.finishes(), 0);
}
