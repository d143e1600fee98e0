use std::sync::Mutex;

use axum::Extension;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use transport::{Inherited, Listener};

use super::*;
use crate::{MetricsWriter, Readiness, WantedMetrics, WebSocketPorts};

pub(super) const PATIENT: Limits = Limits {
    connections: 16,
    reserve: 4,
    head: Duration::from_secs(60),
    stall: Duration::from_secs(60),
    linger: Duration::from_secs(60),
    drain: Duration::from_secs(60),
};

/// A source with settable readiness and one metric of a chosen size.
struct Told {
    readiness: Mutex<Readiness>,
    padding: usize,
}

impl Source for Told {
    fn ready(&self) -> Readiness {
        self.readiness.lock().unwrap().clone()
    }

    fn metrics(&self, _: &WantedMetrics, out: &mut MetricsWriter) {
        assert!(self.padding != usize::MAX, "a source with a bug");
        out.gauge("leveret_test", &"x".repeat(self.padding), 42_u64);
    }

    fn websocket_ports(&self) -> WebSocketPorts {
        WebSocketPorts { ws: Some(15670), wss: None }
    }
}

/// A listener on a free port of 127.0.0.1.
pub(super) async fn bound_listener() -> AdminListener {
    Listener::bind_tcp(&[("127.0.0.1", 0)], &Inherited::default()).await.unwrap().into()
}

/// A server on a free port, and the sender that shuts it down.
pub(super) struct Server {
    port: u16,
    source: Arc<Told>,
    pub(super) shutdown: oneshot::Sender<()>,
    pub(super) task: JoinHandle<()>,
}

impl Server {
    async fn start(limits: Limits, padding: usize) -> Self {
        Self::start_on(bound_listener().await, limits, padding).await
    }

    pub(super) async fn start_on(listener: AdminListener, limits: Limits, padding: usize) -> Self {
        let port = listener.listener().local_addresses()[0].port();
        let source = Arc::new(Told { readiness: Mutex::new(Readiness::Ready), padding });
        let (shutdown, stopped) = oneshot::channel();
        let stopped = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(serve_within(limits, listener, router(Arc::clone(&source) as _), stopped));
        Self { port, source, shutdown, task }
    }

    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.unwrap()
    }

    /// Sends a request on a new connection; returns the whole response.
    async fn answer(&self, request_line: &str) -> String {
        let mut stream = self.connect().await;
        let request = format!("{request_line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        read_to_end(&mut stream).await
    }
}

/// Reads until the server closes or resets the connection.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

/// Sends a request that keeps its connection open, and reads the response.
async fn keep_alive_request(stream: &mut TcpStream) {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok\n") {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "closed too early");
    }
}

#[tokio::test]
async fn a_live_process_answers_ok() {
    let server = Server::start(PATIENT, 0).await;
    let answer = server.answer("GET /healthz").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok\n"), "{answer}");
    let answer = server.answer("HEAD /healthz").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn readiness_follows_the_source_and_gives_the_reason() {
    let server = Server::start(PATIENT, 0).await;
    let answer = server.answer("GET /readyz").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nready\n"), "{answer}");
    *server.source.readiness.lock().unwrap() = Readiness::Impaired("the disk is full".to_owned());
    let answer = server.answer("GET /readyz").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nready, but the disk is full\n"), "{answer}");
    *server.source.readiness.lock().unwrap() =
        Readiness::NotReady { reason: "shutting down".to_owned(), details: None };
    let answer = server.answer("GET /readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\nnot ready: shutting down\n"), "{answer}");
}

#[tokio::test]
async fn details_of_readiness_stay_on_this_machine() {
    let server = Server::start(PATIENT, 0).await;
    let (reason, details) = ("upstream unreachable".to_owned(), Some("10.0.0.1:5672: refused".to_owned()));
    *server.source.readiness.lock().unwrap() = Readiness::NotReady { reason, details };
    let end_with = async |headers: &str, end: &str| {
        let request = format!("GET /readyz HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
        let mut stream = server.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with(end), "{headers} {answer}");
    };
    let all = "\r\n\r\nnot ready: upstream unreachable: 10.0.0.1:5672: refused\n";
    let reason = "\r\n\r\nnot ready: upstream unreachable\n";
    end_with("host: 127.0.0.1\r\n", all).await;
    end_with("host: 127.0.0.1\r\nx-forwarded-for: 192.0.2.1\r\n", reason).await;
    end_with("host: leveret.example\r\n", reason).await;
}

#[tokio::test]
async fn metrics_are_the_process_and_the_source() {
    let server = Server::start(PATIENT, 1 << 20).await;
    let answer = server.answer("GET /metrics").await;
    assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    assert!(answer.contains("\nrabbitmq_process_resident_memory_bytes "));
    assert!(answer.ends_with("\n# TYPE leveret_test gauge\nleveret_test 42\n"));
}

#[tokio::test]
async fn a_source_that_panics_costs_one_answer() {
    let server = Server::start(PATIENT, usize::MAX).await;
    assert!(server.answer("GET /metrics").await.starts_with("HTTP/1.1 500 "));
    assert!(server.answer("GET /healthz").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn every_answer_has_the_security_headers() {
    let server = Server::start(PATIENT, 0).await;
    for (request, status, policy) in [
        ("GET /healthz", "200", POLICY),
        ("GET /metrics", "200", POLICY),
        ("GET /", "200", dashboard::POLICY),
        ("GET /dashboard/api.js", "200", dashboard::POLICY),
        ("GET /dashboard/", "404", POLICY),
        ("GET /messages", "200", page::POLICY),
        ("GET /page/main.js", "200", page::POLICY),
        ("GET /page/listeners.json", "200", POLICY),
        ("GET /page/", "404", POLICY),
        ("GET /../../etc/passwd", "404", POLICY),
        ("POST /metrics", "405", POLICY),
    ] {
        let answer = server.answer(request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        for (name, value) in SECURITY_HEADERS.into_iter().chain([(header::CONTENT_SECURITY_POLICY, policy)]) {
            let line = format!("\r\n{name}: {}\r\n", value.to_str().unwrap());
            assert_eq!(answer.matches(&format!("\r\n{name}: ")).count(), 1, "{request}: {name} in {answer}");
            assert!(answer.contains(&line), "{request}: {name} missing in {answer}");
        }
    }
}

#[tokio::test]
async fn the_page_is_served_with_the_ports_of_the_websocket_listeners() {
    let server = Server::start(PATIENT, 0).await;
    let answer = server.answer("GET /messages").await;
    assert!(answer.contains("\r\ncontent-type: text/html; charset=utf-8\r\n"), "{answer}");
    let answer = server.answer("GET /page/amqp/wire.js").await;
    assert!(answer.contains("\r\ncontent-type: text/javascript; charset=utf-8\r\n"), "{answer}");
    let answer = server.answer("GET /page/listeners.json").await;
    assert!(answer.contains("\r\ncontent-type: application/json\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n{\"ws\":15670,\"wss\":null}\n"), "{answer}");
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let server = Server::start(PATIENT, 0).await;
    let mut stream = server.connect().await;
    let request = format!("GET /healthz HTTP/1.1\r\nhost: x\r\ncookie: {}", "c".repeat(2 * MAX_HEAD));
    // The server may close before it has taken everything.
    let _ = stream.write_all(request.as_bytes()).await;
    let answer = read_to_end(&mut stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test]
async fn silence_and_half_a_head_and_idleness_have_an_end() {
    let server = Server::start(Limits { head: Duration::from_millis(50), ..PATIENT }, 0).await;
    let mut silent = server.connect().await;
    let mut half = server.connect().await;
    // On a slow machine this may come too late.
    let _ = half.write_all(b"GET /healthz HT").await;
    // Time enough for a request on a slow machine.
    let slower = Server::start(Limits { head: Duration::from_secs(5), ..PATIENT }, 0).await;
    let mut idle = slower.connect().await;
    keep_alive_request(&mut idle).await;
    for stream in [&mut silent, &mut half, &mut idle] {
        let rest = read_to_end(stream).await;
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408 "), "{rest}");
    }
}

#[tokio::test]
async fn an_answer_that_is_not_read_is_given_up() {
    // More than the sockets of both sides buffer, so that the server has to wait.
    let server = Server::start(Limits { stall: Duration::from_millis(50), ..PATIENT }, 32 << 20).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    // The server has given up once its side is closed, which the drain waits for.
    stream.readable().await.unwrap();
    server.shutdown.send(()).unwrap();
    server.task.await.unwrap();
    assert!(read_to_end(&mut stream).await.len() < 32 << 20);
}

#[tokio::test]
async fn at_the_limit_the_oldest_connection_is_closed() {
    let server = Server::start(Limits { connections: 2, ..PATIENT }, 0).await;
    let mut first = server.connect().await;
    keep_alive_request(&mut first).await;
    let mut second = server.connect().await;
    keep_alive_request(&mut second).await;
    assert!(server.answer("GET /healthz").await.ends_with("ok\n"));
    assert_eq!(read_to_end(&mut first).await, "");
    keep_alive_request(&mut second).await;
}

#[tokio::test]
async fn at_the_limit_a_request_at_work_goes_on() {
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let end = Arc::new(tokio::sync::Notify::new());
    let slow = Router::new().route("/healthz", get(async || "ok\n")).route(
        "/slow",
        get({
            let end = Arc::clone(&end);
            async move |Extension(work): Extension<ActiveRequests>| {
                let _at_work = work.begin();
                begun.send(()).unwrap();
                end.notified().await;
                "ok\n"
            }
        }),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let limits = Limits { connections: 2, ..PATIENT };
    let server = tokio::spawn(serve_within(limits, listener.into(), slow, std::future::pending()));
    let ask = b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut first = TcpStream::connect(at).await.unwrap();
    first.write_all(ask).await.unwrap();
    has_begun.recv().await.unwrap();
    let mut idle = TcpStream::connect(at).await.unwrap();
    keep_alive_request(&mut idle).await;
    let mut second = TcpStream::connect(at).await.unwrap();
    second.write_all(ask).await.unwrap();
    has_begun.recv().await.unwrap();
    assert_eq!(read_to_end(&mut idle).await, "", "the idle one made room, though it is younger");
    let mut third = TcpStream::connect(at).await.unwrap();
    third.write_all(ask).await.unwrap();
    let answer = read_to_end(&mut third).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    let mut probe = TcpStream::connect(at).await.unwrap();
    keep_alive_request(&mut probe).await;
    end.notify_waiters();
    for stream in [&mut first, &mut second] {
        let answer = read_to_end(stream).await;
        assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
    }
    server.abort();
}

#[tokio::test]
async fn shutting_down_closes_idle_connections_and_the_port() {
    let server = Server::start(PATIENT, 0).await;
    let mut idle = server.connect().await;
    keep_alive_request(&mut idle).await;
    server.shutdown.send(()).unwrap();
    server.task.await.unwrap();
    assert_eq!(read_to_end(&mut idle).await, "");
    assert!(TcpStream::connect(("127.0.0.1", server.port)).await.is_err());
}

#[tokio::test]
async fn shutting_down_does_not_wait_for_a_client_that_stays() {
    let server = Server::start(Limits { drain: Duration::from_millis(10), ..PATIENT }, 32 << 20).await;
    let mut slow = server.connect().await;
    slow.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    slow.readable().await.unwrap();
    server.shutdown.send(()).unwrap();
    server.task.await.unwrap();
}

#[tokio::test]
async fn a_unix_socket_answers_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("http.sock");
    let listener = Listener::bind_unix(&path, &Inherited::default()).await.unwrap();
    let listener = AdminListener::from(listener);
    let source = Arc::new(Told { readiness: Mutex::new(Readiness::Ready), padding: 0 });
    let (shutdown, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(serve(listener, source, async {
        let _ = stopped.await;
    }));
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
    shutdown.send(()).unwrap();
    server.await.unwrap();
}
