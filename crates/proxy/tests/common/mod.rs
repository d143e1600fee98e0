//! A scripted broker, on a loopback port or within the process, and clients whose sessions run over in-process streams.

mod server_end;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use amqp::frame::{HEADER_LEN, write_content_header, write_frame, write_method};
use amqp::method::{basic, channel, confirm, connection, exchange, queue};
use amqp::properties::NO_PROPERTIES;
use amqp::{Capabilities, Credentials, FieldTable, Frame, FrameKind, Method, Negotiated, RawTable};
use parking_lot::Mutex;
use proxy::{
    ClientInfo, ClientSide, Connecting, Connector, Login, Pool, PoolConfig, ProxySession, Refusal,
    SessionState, UpstreamAddress,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use transport::{Ended, Intent, Outbox, Stream, Transit};

use self::server_end::ServerEnd;

/// Timeout for every wait; it turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(120);

/// The interval for polling a condition: short for a test, long for the processor.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Waits for something that must happen.
pub(crate) async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}

/// Completes when no task can progress before a timer fires: with the clock paused, time advances only then. Everything
/// in flight has arrived by then, so that a test can assert that something has not happened.
pub(crate) async fn all_is_quiet() {
    tokio::time::sleep(QUIET).await;
}

/// Shorter than the pool's default timers.
const QUIET: Duration = Duration::from_millis(10);

/// Polls until a condition holds, for conditions without an event.
pub(crate) async fn until(what: &str, so: impl Fn() -> bool) {
    let looking = async {
        while !so() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    soon(what, looking).await;
}

/// A frame that owns its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnedFrame {
    pub(crate) kind: FrameKind,
    pub(crate) channel: u16,
    pub(crate) payload: Vec<u8>,
}

impl OwnedFrame {
    pub(crate) fn method(&self) -> Method<'_> {
        assert_eq!(self.kind, FrameKind::Method, "{self:?}");
        Method::decode(&self.payload).unwrap()
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            FrameKind::Method => self.method().name(),
            FrameKind::Header => "header",
            FrameKind::Body => "body",
            FrameKind::Heartbeat => "heartbeat",
        }
    }
}

/// Reads one frame; `None` at the end of the stream.
pub(crate) async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> Option<OwnedFrame> {
    let mut head = [0; HEADER_LEN];
    stream.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
    let mut rest = vec![0; length + 1];
    stream.read_exact(&mut rest).await.ok()?;
    let bytes = [&head[..], &rest].concat();
    let frame = Frame::parse(&bytes, 0).unwrap().unwrap();
    Some(OwnedFrame { kind: frame.kind, channel: frame.channel, payload: frame.payload.to_vec() })
}

/// Behaviour of the broker. The password and some settings can be changed while it runs.
#[derive(Debug)]
pub(crate) struct Manners {
    pub(crate) password: Mutex<String>,
    /// Whether it answers requests that have a simple reply; otherwise it only reads.
    pub(crate) obedient: AtomicBool,
    /// Whether it also answers all other methods that declare, bind and delete.
    pub(crate) declares: bool,
    pub(crate) frame_max: u32,
    pub(crate) channel_max: u16,
    /// Logins that are left without a reply, until the value changes.
    pub(crate) stalled: watch::Sender<Stalled>,
    /// The capabilities that it announces.
    pub(crate) capabilities: Capabilities,
    /// Whether it reports the vhost as down.
    pub(crate) vhost_is_down: AtomicBool,
    /// Whether the connection limit of the vhost is reached.
    pub(crate) connection_limit_reached: AtomicBool,
    /// Whether it closes the stream during logins without a close method, as when the network fails at that moment.
    pub(crate) cuts_logins: AtomicBool,
    /// The next client is greeted once this is sent; later ones are greeted at once.
    pub(crate) greeting_waits_for: Mutex<Option<oneshot::Receiver<()>>>,
    /// Clients that were greeted, whether they logged in or not.
    pub(crate) greetings: AtomicUsize,
    /// Logins seen, refused ones included.
    pub(crate) logins: AtomicUsize,
    /// Number of `channel.flow` received, which are the pool's proofs. They are answered, but not reported to the test.
    pub(crate) proofs: AtomicUsize,
}

impl Manners {
    /// The code and text with which the broker refuses to open a vhost.
    fn refusal_of(&self, virtual_host: &str) -> Option<(u16, &'static str)> {
        if virtual_host != "/" {
            Some((530, "NOT_ALLOWED - vhost nowhere not found"))
        } else if self.vhost_is_down.load(Ordering::SeqCst) {
            Some((541, "INTERNAL_ERROR - access to vhost '/' refused for user 'user': vhost '/' is down"))
        } else if self.connection_limit_reached.load(Ordering::SeqCst) {
            let text =
                "NOT_ALLOWED - access to vhost '/' refused for user 'user': connection limit (1) is reached";
            Some((530, text))
        } else {
            None
        }
    }
}

/// The logins that a broker leaves without a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stalled {
    Nobodys,
    WrongOnes,
    All,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            password: Mutex::new("right".to_owned()),
            obedient: AtomicBool::new(true),
            declares: false,
            frame_max: 131_072,
            channel_max: 100,
            stalled: watch::Sender::new(Stalled::Nobodys),
            capabilities: Capabilities::default(),
            vhost_is_down: AtomicBool::new(false),
            connection_limit_reached: AtomicBool::new(false),
            cuts_logins: AtomicBool::new(false),
            greeting_waits_for: Mutex::new(None),
            greetings: AtomicUsize::new(0),
            logins: AtomicUsize::new(0),
            proofs: AtomicUsize::new(0),
        }
    }
}

/// The scripted broker. It knows the vhost `/` and any user with the password.
pub(crate) struct Broker {
    pub(crate) address: UpstreamAddress,
    pub(crate) manners: Arc<Manners>,
    opened: mpsc::UnboundedReceiver<BrokerEnd>,
    open: mpsc::UnboundedSender<BrokerEnd>,
    listening: Listening,
}

/// How pools reach a broker.
enum Listening {
    Port(JoinHandle<()>),
    InProcessConnector(Arc<InProcessConnector>),
}

/// The vhost whose opening the broker does not answer.
pub(crate) const HANGING_VIRTUAL_HOST: &str = "hangs";

/// The port of an in-process broker. The next ports are those of a peer that accepts connections and sends nothing, and of a
/// broker whose vhost is down; connections to any other port are refused.
const PORT: u16 = 5672;
pub(crate) const SILENT_PORT: u16 = 5673;
pub(crate) const REFUSING_PORT: u16 = 5674;
pub(crate) const PORT_WITHOUT_VHOST: u16 = 5675;

/// Connects pools to a broker within the process.
#[derive(Debug)]
struct InProcessConnector {
    manners: Arc<Manners>,
    open: mpsc::UnboundedSender<BrokerEnd>,
    is_plugged: AtomicBool,
}

impl Connector for InProcessConnector {
    fn connect(&self, socket: SocketAddr, _timeout: Duration) -> Connecting<'_> {
        Box::pin(async move {
            let (near, far) = tokio::io::duplex(64 * 1024);
            match socket.port() {
                PORT if self.is_plugged.load(Ordering::SeqCst) => {
                    tokio::spawn(serve(far, self.manners.clone(), self.open.clone()));
                }
                SILENT_PORT => {
                    tokio::spawn(async move {
                        let _held = far;
                        std::future::pending::<()>().await;
                    });
                }
                PORT_WITHOUT_VHOST => {
                    let manners = Manners { vhost_is_down: AtomicBool::new(true), ..Manners::default() };
                    tokio::spawn(serve(far, Arc::new(manners), self.open.clone()));
                }
                _ => return Err(std::io::ErrorKind::ConnectionRefused.into()),
            }
            Ok(Stream::Memory(near))
        })
    }
}

/// The broker's end of an open connection. Dropping `to` closes it.
#[derive(Debug)]
pub(crate) struct BrokerEnd {
    /// Frames received, without heartbeats.
    pub(crate) seen: mpsc::UnboundedReceiver<OwnedFrame>,
    /// Bytes to be sent.
    pub(crate) to: mpsc::UnboundedSender<Vec<u8>>,
    pub(crate) client_properties: FieldTable,
    /// Whether it reads.
    reads: watch::Sender<bool>,
}

impl Broker {
    /// A broker on its own port, for tests of addresses. Such tests must not pause the clock.
    pub(crate) async fn on_port(manners: Manners) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = UpstreamAddress {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
            tls: false,
        };
        let manners = Arc::new(manners);
        let (open, opened) = mpsc::unbounded_channel();
        let accepting = tokio::spawn(accept(listener, manners.clone(), open.clone()));
        Self { address, manners, opened, open, listening: Listening::Port(accepting) }
    }

    /// A broker without sockets, for tests whose clock is paused.
    pub(crate) fn start(manners: Manners) -> Self {
        let address = UpstreamAddress { host: "10.0.0.1".to_owned(), port: PORT, tls: false };
        let manners = Arc::new(manners);
        let (open, opened) = mpsc::unbounded_channel();
        let is_plugged = AtomicBool::new(true);
        let connector = InProcessConnector { manners: manners.clone(), open: open.clone(), is_plugged };
        Self { address, manners, opened, open, listening: Listening::InProcessConnector(Arc::new(connector)) }
    }

    /// Stops listening, like a broker that is stopped. The caller drops its connections.
    pub(crate) async fn go_away(&mut self) {
        match &mut self.listening {
            Listening::Port(accepting) => {
                accepting.abort();
                let _ = accepting.await;
            }
            Listening::InProcessConnector(connector) => connector.is_plugged.store(false, Ordering::SeqCst),
        }
    }

    /// Listens again, at the same address.
    pub(crate) async fn come_back(&mut self) {
        match &mut self.listening {
            Listening::Port(accepting) => {
                let listener = TcpListener::bind(("127.0.0.1", self.address.port)).await.unwrap();
                *accepting = tokio::spawn(accept(listener, self.manners.clone(), self.open.clone()));
            }
            Listening::InProcessConnector(connector) => connector.is_plugged.store(true, Ordering::SeqCst),
        }
    }

    pub(crate) fn config(&self) -> PoolConfig {
        let mut config = PoolConfig::new(vec![self.address.clone()]);
        if let Listening::InProcessConnector(connector) = &self.listening {
            config.connector = connector.clone();
        }
        config
    }

    pub(crate) async fn next_connection(&mut self) -> BrokerEnd {
        soon("an upstream connection", self.opened.recv()).await.unwrap()
    }

    pub(crate) async fn has_new_connection(&mut self) -> bool {
        all_is_quiet().await;
        self.opened.try_recv().is_ok()
    }

    pub(crate) fn logins(&self) -> usize {
        self.manners.logins.load(Ordering::SeqCst)
    }

    pub(crate) fn fall_silent(&self) {
        self.manners.obedient.store(false, Ordering::SeqCst);
    }

    pub(crate) fn stall(&self, whose: Stalled) {
        self.manners.stalled.send_replace(whose);
    }
}

impl BrokerEnd {
    pub(crate) async fn next(&mut self) -> OwnedFrame {
        soon("a frame at the broker", self.seen.recv()).await.expect("the connection is open")
    }

    /// Whether there is a frame that the test has not seen.
    pub(crate) async fn has_more(&mut self) -> bool {
        all_is_quiet().await;
        !self.seen.is_empty()
    }

    /// Expects a method and returns its frame, with the channel.
    pub(crate) async fn expect(&mut self, name: &str) -> OwnedFrame {
        let frame = self.next().await;
        assert_eq!(frame.name(), name);
        frame
    }

    pub(crate) fn send<'m>(&self, channel: u16, method: impl Into<Method<'m>>) {
        let mut bytes = Vec::new();
        write_method(&mut bytes, channel, method);
        self.to.send(bytes).unwrap();
    }

    pub(crate) fn send_bytes(&self, bytes: Vec<u8>) {
        self.to.send(bytes).unwrap();
    }

    /// Expects a whole message, and returns its channel and body.
    pub(crate) async fn expect_message(&mut self) -> (u16, Vec<u8>) {
        self.expect("basic.publish").await;
        self.expect("header").await;
        let body = self.expect("body").await;
        (body.channel, body.payload)
    }

    /// Delivers a message.
    pub(crate) fn deliver(&self, number: u16, consumer_tag: &str, delivery_tag: u64, body: &[u8]) {
        self.to.send(delivery(number, consumer_tag, delivery_tag, body)).unwrap();
    }

    /// Stops reading, like a broker in a memory alarm, or resumes it.
    pub(crate) fn set_reading(&self, reads: bool) {
        self.reads.send_replace(reads);
    }
}

async fn accept(listener: TcpListener, manners: Arc<Manners>, open: mpsc::UnboundedSender<BrokerEnd>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream, manners.clone(), open.clone()));
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    manners: Arc<Manners>,
    opened: mpsc::UnboundedSender<BrokerEnd>,
) {
    let Some(client_properties) = handshake(&mut stream, &manners).await else { return };
    let (seen_sender, seen) = mpsc::unbounded_channel();
    let (to, mut outgoing) = mpsc::unbounded_channel::<Vec<u8>>();
    let answers = to.clone().downgrade();
    let (reads, mut may_read) = watch::channel(true);
    let _ = opened.send(BrokerEnd { seen, to, client_properties, reads });
    let (mut reader, mut writer) = tokio::io::split(stream);
    let reading = async move {
        while may_read.wait_for(|reads| *reads).await.is_ok()
            && let Some(frame) = read_frame(&mut reader).await
        {
            if frame.kind == FrameKind::Heartbeat {
                continue;
            }
            if frame.kind == FrameKind::Method && matches!(frame.method(), Method::ChannelFlow(_)) {
                // Proofs are hidden so that tests do not depend on when the pool requests them.
                manners.proofs.fetch_add(1, Ordering::SeqCst);
                if let (true, Some(answers)) = (manners.obedient.load(Ordering::SeqCst), answers.upgrade()) {
                    let mut answer = Vec::new();
                    write_method(&mut answer, frame.channel, channel::FlowOk { active: true });
                    let _ = answers.send(answer);
                }
                continue;
            }
            if let (true, Some(answers)) = (manners.obedient.load(Ordering::SeqCst), answers.upgrade()) {
                let answer = obedient_answer(&frame, manners.declares);
                if !answer.is_empty() {
                    let _ = answers.send(answer);
                }
            }
            if seen_sender.send(frame).is_err() {
                break;
            }
        }
    };
    let writing = async move {
        while let Some(bytes) = outgoing.recv().await {
            if writer.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::select! { () = reading => {}, () = writing => {} }
}

pub(crate) fn obedient_answer(frame: &OwnedFrame, declares: bool) -> Vec<u8> {
    let (mut out, number) = (Vec::new(), frame.channel);
    if frame.kind != FrameKind::Method {
        return out;
    }
    match frame.method() {
        Method::ChannelOpen(_) => write_method(&mut out, number, channel::OpenOk::default()),
        Method::ChannelClose(_) => write_method(&mut out, number, channel::CloseOk {}),
        Method::ConnectionClose(_) => write_method(&mut out, 0, connection::CloseOk {}),
        Method::QueueDeclare(declare) => {
            let name = if declare.queue.is_empty() { "amq.gen-1" } else { declare.queue };
            write_method(&mut out, number, queue::DeclareOk { queue: name, ..Default::default() });
        }
        Method::ExchangeDeclare(_) if declares => write_method(&mut out, number, exchange::DeclareOk {}),
        Method::ExchangeDelete(_) if declares => write_method(&mut out, number, exchange::DeleteOk {}),
        Method::ExchangeBind(_) if declares => write_method(&mut out, number, exchange::BindOk {}),
        Method::QueueBind(bind) if declares && !bind.no_wait => {
            write_method(&mut out, number, queue::BindOk {})
        }
        Method::QueueUnbind(_) if declares => write_method(&mut out, number, queue::UnbindOk {}),
        Method::QueueDelete(_) if declares => {
            write_method(&mut out, number, queue::DeleteOk { message_count: 0 });
        }
        Method::BasicQos(_) => write_method(&mut out, number, basic::QosOk {}),
        Method::BasicConsume(consume) if !consume.no_wait => {
            write_method(&mut out, number, basic::ConsumeOk { consumer_tag: consume.consumer_tag });
        }
        Method::ConfirmSelect(select) if !select.no_wait => {
            write_method(&mut out, number, confirm::SelectOk {});
        }
        _ => {}
    }
    out
}

/// The broker's side of the handshake; `None` if no connection is established.
pub(crate) async fn handshake(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    manners: &Manners,
) -> Option<FieldTable> {
    let mut header = [0; 8];
    stream.read_exact(&mut header).await.ok()?;
    let (mut out, mut properties) = (Vec::new(), FieldTable::new());
    manners.capabilities.add_to(&mut properties);
    let properties = properties.encode();
    let start = connection::Start {
        version_major: 0,
        version_minor: 9,
        server_properties: RawTable::check(&properties).unwrap(),
        mechanisms: b"PLAIN",
        locales: b"en_US",
    };
    write_method(&mut out, 0, start);
    let waits_for = manners.greeting_waits_for.lock().take();
    if let Some(waits_for) = waits_for {
        waits_for.await.ok()?;
    }
    manners.greetings.fetch_add(1, Ordering::SeqCst);
    stream.write_all(&out).await.ok()?;
    let start_ok = read_frame(stream).await?;
    let Method::ConnectionStartOk(start_ok) = start_ok.method() else { return None };
    manners.logins.fetch_add(1, Ordering::SeqCst);
    let client_properties = start_ok.client_properties.decode();
    let is_right = start_ok.response.ends_with(format!("\0{}", manners.password.lock()).as_bytes());
    let is_answered = |stalled: &Stalled| match stalled {
        Stalled::Nobodys => true,
        Stalled::WrongOnes => is_right,
        Stalled::All => false,
    };
    manners.stalled.subscribe().wait_for(is_answered).await.ok()?;
    if manners.cuts_logins.load(Ordering::SeqCst) {
        return None;
    }
    if !is_right {
        refuse(stream, 403, "ACCESS_REFUSED - Login was refused. See the log.", (0, 0)).await;
        return None;
    }
    out.clear();
    write_method(
        &mut out,
        0,
        connection::Tune { channel_max: manners.channel_max, frame_max: manners.frame_max, heartbeat: 60 },
    );
    stream.write_all(&out).await.ok()?;
    read_frame(stream).await?;
    let open = read_frame(stream).await?;
    let Method::ConnectionOpen(open) = open.method() else { return None };
    if open.virtual_host == HANGING_VIRTUAL_HOST {
        std::future::pending::<()>().await;
    }
    if let Some((code, text)) = manners.refusal_of(open.virtual_host) {
        refuse(stream, code, text, (10, 40)).await;
        return None;
    }
    out.clear();
    write_method(&mut out, 0, connection::OpenOk::default());
    stream.write_all(&out).await.ok()?;
    Some(client_properties)
}

async fn refuse(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    reply_code: u16,
    reply_text: &str,
    (class_id, method_id): (u16, u16),
) {
    let mut out = Vec::new();
    write_method(&mut out, 0, connection::Close { reply_code, reply_text, class_id, method_id });
    let _ = stream.write_all(&out).await;
    read_frame(stream).await;
}

/// Logs in as `user`.
pub(crate) async fn login(pool: &Arc<Pool>, user: &str, password: &str) -> Result<Login, Refusal> {
    let info = ClientInfo { id: 1, peer: "127.0.0.1:1".to_owned() };
    soon("a login", pool.authenticate(Credentials::plain(user, password), info)).await
}

/// A client behind the proxy, seen from the application's side.
pub(crate) struct Client {
    stream: DuplexStream,
    outbox: Arc<Outbox>,
    draining: Arc<AtomicBool>,
    leaving: Arc<AtomicBool>,
    left: mpsc::UnboundedReceiver<Left>,
}

/// A client that has left its server: the socket, the state in its text format, and the bytes on their way.
type Left = (DuplexStream, String, Transit);

impl Client {
    /// Logs in as `user` with the right password and opens the vhost `/`.
    pub(crate) async fn connect(pool: &Arc<Pool>) -> Self {
        Self::connect_with(pool, 131_072, Capabilities::ALL).await
    }

    pub(crate) async fn connect_with(pool: &Arc<Pool>, frame_max: u32, capabilities: Capabilities) -> Self {
        let login = login(pool, "user", "right").await.unwrap();
        Box::pin(Self::open(pool, login, frame_max, capabilities)).await
    }

    /// Opens the vhost `/` with a login.
    pub(crate) async fn over(pool: &Arc<Pool>, login: Login) -> Self {
        Box::pin(Self::open(pool, login, 131_072, Capabilities::ALL)).await
    }

    /// Like [`Self::connect`], for a client that republishes unconfirmed messages itself.
    pub(crate) async fn without_replay(pool: &Arc<Pool>, is_isolated: bool) -> Self {
        let login = login(pool, "user", "right").await.unwrap();
        let session = Box::pin(Self::session(pool, login, 131_072, Capabilities::ALL)).await;
        Self::of((session.0.without_replay(is_isolated), session.1), 131_072)
    }

    async fn open(pool: &Arc<Pool>, login: Login, frame_max: u32, capabilities: Capabilities) -> Self {
        Self::of(Box::pin(Self::session(pool, login, frame_max, capabilities)).await, frame_max)
    }

    async fn session(
        pool: &Arc<Pool>,
        login: Login,
        frame_max: u32,
        capabilities: Capabilities,
    ) -> (ProxySession, Arc<Outbox>) {
        let (side, outbox) = Self::side(frame_max, capabilities);
        (soon("open-ok", pool.open(login, "/", side)).await.unwrap(), outbox)
    }

    fn side(frame_max: u32, capabilities: Capabilities) -> (ClientSide, Arc<Outbox>) {
        let outbox = Arc::new(Outbox::new(1024 * 1024));
        let side = ClientSide {
            outbox: outbox.clone(),
            negotiated: Negotiated { channel_max: 2047, frame_max, heartbeat_secs: 0 },
            capabilities,
            client_properties: FieldTable::from_iter([("product", amqp::FieldValue::text("a test"))]),
        };
        (side, outbox)
    }

    fn of((session, outbox): (ProxySession, Arc<Outbox>), frame_max: u32) -> Self {
        let (stream, far) = tokio::io::duplex(1024 * 1024);
        Self::on((stream, far), (session, outbox), Vec::new(), frame_max)
    }

    /// A client whose server has read `input` already.
    fn on(
        (stream, mut far): (DuplexStream, DuplexStream),
        (session, outbox): (ProxySession, Arc<Outbox>),
        input: Vec<u8>,
        frame_max: u32,
    ) -> Self {
        let (draining, leaving) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (leave, left) = mpsc::unbounded_channel();
        let mut server = ServerEnd {
            session,
            outbox: outbox.clone(),
            frame_max,
            intent: Intent::Run,
            draining: draining.clone(),
            leaving: leaving.clone(),
            exported: None,
        };
        tokio::spawn(async move {
            let (outbox, limits) = (server.outbox.clone(), (1024 * 1024, PATIENCE));
            let ended = transport::drive_on(&mut far, &mut server, &outbox, limits, (&*input).into()).await;
            if let (Ended::HandedOver(transit), Some(state)) = (ended, &server.exported) {
                let _ = leave.send((far, serde_json::to_string(state).unwrap(), transit));
            }
            server.session.end(transport::now());
        });
        Self { stream, outbox, draining, leaving, left }
    }

    /// Makes the client's server hand the client over to another process.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        self.outbox.nudge();
    }

    /// Waits until the client has left, and continues it in the pool of another process.
    pub(crate) async fn go_on_in(mut self, pool: &Arc<Pool>) -> Self {
        self.leave();
        let (far, state, transit) = soon("the session to leave", self.left.recv()).await.expect("it leaves");
        let state: SessionState = serde_json::from_str(&state).unwrap();
        let info = ClientInfo { id: 2, peer: "127.0.0.1:1".to_owned() };
        let (side, outbox) = Self::side(131_072, Capabilities::ALL);
        let session = (state.credentials().unwrap(), state);
        let session = soon("a login", pool.resume(session, info, "/", side)).await.unwrap();
        outbox.append(|buf| buf.tail().extend_from_slice(&transit.output));
        Self::on((self.stream, far), (session, outbox), transit.input, 131_072)
    }

    /// Drains the client's server: it closes the connection when the session is settled.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.outbox.nudge();
    }

    pub(crate) async fn send<'m>(&mut self, channel: u16, method: impl Into<Method<'m>>) {
        let mut bytes = Vec::new();
        write_method(&mut bytes, channel, method);
        self.write(&bytes).await;
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        soon("the proxy to read", self.stream.write_all(bytes)).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> OwnedFrame {
        soon("a frame at the client", read_frame(&mut self.stream)).await.expect("the connection is open")
    }

    pub(crate) async fn expect(&mut self, name: &str) -> OwnedFrame {
        let frame = self.next().await;
        assert_eq!(frame.name(), name, "{frame:?}");
        frame
    }

    /// Expects a whole delivered message, and returns its delivery tag and body.
    pub(crate) async fn expect_delivery(&mut self) -> (u64, Vec<u8>) {
        let deliver = self.expect("basic.deliver").await;
        let Method::BasicDeliver(basic::Deliver { delivery_tag, .. }) = deliver.method() else {
            unreachable!()
        };
        self.expect("header").await;
        (delivery_tag, self.expect("body").await.payload)
    }

    /// Expects a confirm, and returns its number and whether it includes the preceding ones.
    pub(crate) async fn expect_ack(&mut self) -> (u64, bool) {
        let ack = self.expect("basic.ack").await;
        let Method::BasicAck(basic::Ack { delivery_tag, multiple }) = ack.method() else { unreachable!() };
        (delivery_tag, multiple)
    }

    /// Expects a channel to be closed with this text.
    pub(crate) async fn expect_channel_close(&mut self, code: u16, text: &str) {
        let frame = self.expect("channel.close").await;
        let Method::ChannelClose(close) = frame.method() else { unreachable!() };
        assert_eq!((close.reply_code, close.reply_text), (code, text));
    }

    /// Expects the connection to be closed with this text.
    pub(crate) async fn expect_close(&mut self, code: u16, text: &str) {
        let frame = self.expect("connection.close").await;
        let Method::ConnectionClose(close) = frame.method() else { unreachable!() };
        assert_eq!((close.reply_code, close.reply_text), (code, text));
    }

    pub(crate) async fn open_channel(&mut self, number: u16) {
        self.send(number, channel::Open::default()).await;
        assert_eq!(self.expect("channel.open-ok").await.channel, number);
    }

    /// Opens a channel and awaits a reply on it, because the pool leases an upstream channel only when a method has to be sent.
    pub(crate) async fn use_channel(&mut self, number: u16) {
        self.open_channel(number).await;
        self.send(number, basic::Qos::default()).await;
        self.expect("basic.qos-ok").await;
    }

    pub(crate) async fn publish(&mut self, number: u16, body: &[u8]) {
        self.write(&message(number, body, 131_072)).await;
    }
}

/// A published message on the wire, with its body in frames of at most `frame_max` bytes.
pub(crate) fn message(number: u16, body: &[u8], frame_max: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let publish = basic::Publish { exchange: "", routing_key: "q", ..Default::default() };
    write_method(&mut out, number, publish);
    write_content_header(&mut out, number, body.len() as u64, NO_PROPERTIES);
    for piece in body.chunks(frame_max - 8) {
        write_frame(&mut out, FrameKind::Body, number, |out| out.extend_from_slice(piece));
    }
    out
}

/// A delivered message on the wire.
pub(crate) fn delivery(number: u16, consumer_tag: &str, delivery_tag: u64, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let deliver = basic::Deliver { consumer_tag, delivery_tag, routing_key: "q", ..Default::default() };
    write_method(&mut out, number, deliver);
    write_content_header(&mut out, number, body.len() as u64, NO_PROPERTIES);
    for piece in body.chunks(131_072 - 8) {
        write_frame(&mut out, FrameKind::Body, number, |out| out.extend_from_slice(piece));
    }
    out
}
