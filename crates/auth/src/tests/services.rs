//! A service that is asked over HTTP: its connections, its faults, and its place among others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use broker::{Broker, BrokerConfig, Identity, LoginAnswer, LoginAttempt, LoginRefused};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use transport::tls::ClientTlsConfig;

use crate::{
    AuthBackend, AuthChain, CacheSettings, HttpAuthBackend, HttpAuthBackendMethod, HttpAuthBackendSettings,
    ServiceTimes, ServiceUrl, SplitAuthBackend,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// Bodies of answers, the last one again and again.
type Answers = Arc<Mutex<VecDeque<&'static str>>>;

/// Permits of a service's gate: an answer needs one.
const GATE: u32 = 64;

/// A service that answers in order, and closes each connection after its share of answers.
struct Service {
    backend: HttpAuthBackend,
    answers: Answers,
    requests: Arc<AtomicUsize>,
    /// Notified of each request.
    arrived: Arc<Notify>,
    /// A test that has all permits holds back the answers.
    gate: Arc<Semaphore>,
    connections: Arc<AtomicUsize>,
}

impl Service {
    async fn start(answers: &[&'static str], answers_each: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = ServiceUrl::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let answers: Answers = Arc::new(Mutex::new(answers.iter().copied().collect()));
        let (requests, connections) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (arrived, gate) = (Arc::<Notify>::default(), Arc::new(Semaphore::new(GATE as usize)));
        let serving = Serving {
            answers: Arc::clone(&answers),
            requests: Arc::clone(&requests),
            arrived: Arc::clone(&arrived),
            gate: Arc::clone(&gate),
        };
        let all = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                all.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serving.clone().serve(stream, answers_each));
            }
        });
        let tls = ClientTlsConfig { ca: None, certificate: None, server_name: None, verify: true };
        let settings = HttpAuthBackendSettings {
            user: url.clone(),
            vhost: url.clone(),
            resource: url.clone(),
            topic: url,
            method: HttpAuthBackendMethod::Get,
            tls,
            times: ServiceTimes { connect: PATIENCE, request: PATIENCE },
        };
        let backend = HttpAuthBackend::new(settings).unwrap();
        Self { backend, answers, requests, arrived, gate, connections }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

/// The part of a service that its connections share.
#[derive(Clone)]
struct Serving {
    answers: Answers,
    requests: Arc<AtomicUsize>,
    arrived: Arc<Notify>,
    gate: Arc<Semaphore>,
}

impl Serving {
    async fn serve(self, mut stream: TcpStream, answers_each: usize) {
        let mut request = [0; 4096];
        for _ in 0..answers_each {
            if !stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                return;
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.arrived.notify_one();
            let _permit = self.gate.acquire().await.unwrap();
            let body = {
                let mut answers = self.answers.lock();
                let first = answers.front().copied().unwrap_or_default();
                if answers.len() > 1 {
                    answers.pop_front();
                }
                first
            };
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    }
}

fn attempt(user: &str, secret: &str) -> LoginAttempt {
    LoginAttempt {
        user: user.to_owned(),
        secret: secret.as_bytes().to_owned(),
        from: None,
        is_loopback: false,
        now: Instant::now(),
        context: Vec::new(),
    }
}

async fn log_in(broker: &Arc<Broker>, user: &str, secret: &str) -> Result<Identity, LoginRefused> {
    match broker.log_in(attempt(user, secret)) {
        LoginAnswer::Now(outcome) => outcome,
        LoginAnswer::Later(answer) => answer.await,
    }
}

fn broker(backends: Vec<AuthBackend>) -> Arc<Broker> {
    let broker = Broker::new(BrokerConfig::default());
    broker.set_auth_backends(Arc::new(AuthChain::new(backends)));
    broker
}

#[tokio::test]
async fn connections_are_used_again_and_one_that_was_closed_meanwhile_is_no_fault() {
    for (answers_each, connections) in [(usize::MAX, 1), (1, 5), (2, 3)] {
        let service = Service::start(&["allow"], answers_each).await;
        for _ in 0..5 {
            assert_eq!(service.backend.check_login(&attempt("u", "p")).await, Ok(Vec::new()));
        }
        assert_eq!(service.connections.load(Ordering::Relaxed), connections);
        assert_eq!(service.requests(), 5);
    }
}

#[tokio::test]
async fn guest_comes_from_this_machine_only_and_nobody_comes_without_a_name() {
    let service = Service::start(&["allow"], usize::MAX).await;
    let here = LoginAttempt { is_loopback: true, ..attempt("guest", "p") };
    assert!(service.backend.check_login(&here).await.is_ok());
    let elsewhere = service.backend.check_login(&attempt("guest", "p")).await;
    assert_eq!(elsewhere, Err(LoginRefused::LoopbackOnly));
    assert!(service.backend.check_login(&attempt("", "p")).await.is_err());
    assert_eq!(service.requests(), 2, "no name is not asked about");
}

#[tokio::test]
async fn a_service_without_an_answer_is_no_guess_and_the_next_backend_is_asked() {
    let service = Service::start(&["what?"], usize::MAX).await;
    let broker = broker(vec![AuthBackend::Http(service.backend.clone()), AuthBackend::Internal]);
    for number in 0..50 {
        let why = log_in(&broker, "u", &number.to_string()).await.unwrap_err().to_string();
        assert_eq!(
            why,
            "auth_backends: http unavailable: response is neither allow nor deny; internal: no such user"
        );
    }
    service.answers.lock().push_back("deny");
    service.answers.lock().pop_front();
    for number in 0..50 {
        assert!(log_in(&broker, "u", &number.to_string()).await.is_err());
    }
    assert_eq!(log_in(&broker, "u", "another").await, Err(LoginRefused::TooManyAttempts));
}

#[tokio::test]
async fn wrong_passwords_of_internal_users_count_whatever_a_service_answers() {
    let service = Service::start(&["what?"], usize::MAX).await;
    for is_first in [true, false] {
        let mut backends = vec![AuthBackend::Internal, AuthBackend::Http(service.backend.clone())];
        backends.rotate_left(usize::from(is_first));
        let broker = broker(backends);
        broker.put_user(broker::UserSpec { loopback_only: false, ..broker::UserSpec::guest() });
        for number in 0..50 {
            assert!(log_in(&broker, "guest", &number.to_string()).await.is_err());
        }
        assert_eq!(log_in(&broker, "guest", "another").await, Err(LoginRefused::TooManyAttempts));
    }
}

#[tokio::test]
async fn names_that_nobody_has_are_not_asked_about() {
    let service = Service::start(&["allow"], usize::MAX).await;
    let name = |length| "n".repeat(length);
    let of_vhost = |length| LoginAttempt { context: vec![("vhost", name(length))], ..attempt("u", "p") };
    for attempt in [attempt(&name(255), "p"), of_vhost(255)] {
        assert!(service.backend.check_login(&attempt).await.is_ok());
    }
    for attempt in [attempt(&name(256), "p"), of_vhost(256)] {
        let refused = service.backend.check_login(&attempt).await.unwrap_err();
        assert!(matches!(refused, LoginRefused::Elsewhere { .. }), "{refused}");
    }
    assert_eq!(service.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_login_waits_for_its_turn_and_its_answer_together_no_longer_than_the_time_limit() {
    // While somebody is busy the clock moves only as the test says.
    let busy = tokio::spawn(async {
        loop {
            tokio::task::yield_now().await;
        }
    });
    let service = Service::start(&["allow"], usize::MAX).await;
    let _held = service.gate.acquire_many(GATE).await.unwrap();
    let ask = || {
        let backend = service.backend.clone();
        tokio::spawn(async move { backend.check_login(&attempt("u", "p")).await })
    };
    let passes = async || {
        for _ in 0..10_000 {
            tokio::task::yield_now().await;
        }
    };
    // As many as are asked about at once.
    let first: Vec<_> = (0..32).map(|_| ask()).collect();
    while service.requests() < 32 {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(PATIENCE * 2 / 3).await;
    let last = ask();
    passes().await;
    assert_eq!(service.requests(), 32, "it waits for its turn");
    tokio::time::advance(PATIENCE / 3).await;
    for asked in first {
        assert!(matches!(asked.await.unwrap(), Err(LoginRefused::Unanswered { .. })));
    }
    while service.requests() < 33 {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(PATIENCE / 3).await;
    passes().await;
    assert!(!last.is_finished(), "a third of its time is left");
    tokio::time::advance(PATIENCE / 3).await;
    passes().await;
    assert!(last.is_finished());
    assert!(matches!(last.await.unwrap(), Err(LoginRefused::Unanswered { .. })));
    busy.abort();
}

#[tokio::test]
async fn an_answer_that_was_asked_for_before_all_were_forgotten_is_not_used_again() {
    let service = Service::start(&["allow management", "deny"], usize::MAX).await;
    let settings = CacheSettings { ttl: PATIENCE, caches_refusals: true };
    let cached = service.backend.cached(settings).unwrap();
    let broker = broker(vec![AuthBackend::Http(cached)]);
    let held = service.gate.acquire_many(GATE).await.unwrap();
    let asking = tokio::spawn({
        let broker = Arc::clone(&broker);
        async move { log_in(&broker, "u", "p").await }
    });
    service.arrived.notified().await;
    assert!(broker.clear_cache());
    drop(held);
    let identity = asking.await.unwrap().unwrap();
    assert_eq!(broker.tags(&identity), ["management"], "it counts for the login that has waited for it");
    for _ in 0..3 {
        assert!(log_in(&broker, "u", "p").await.is_err());
    }
    assert_eq!(service.requests(), 2);
}

#[tokio::test]
async fn an_answer_is_used_again_until_all_are_forgotten() {
    let service = Service::start(&["allow management", "deny"], usize::MAX).await;
    let settings = CacheSettings { ttl: PATIENCE, caches_refusals: true };
    let cached = service.backend.cached(settings).unwrap();
    let broker = broker(vec![AuthBackend::Http(cached)]);
    for _ in 0..3 {
        let identity = log_in(&broker, "u", "p").await.unwrap();
        assert_eq!(broker.tags(&identity), ["management"]);
    }
    assert_eq!(service.requests(), 1);
    assert!(broker.clear_cache());
    for _ in 0..3 {
        assert!(log_in(&broker, "u", "p").await.is_err());
    }
    assert_eq!(service.requests(), 2);
}

#[tokio::test]
async fn of_two_that_share_the_work_both_have_to_let_a_user_in() {
    let service = Service::start(&["allow monitoring"], usize::MAX).await;
    let http = || SplitAuthBackend::Http(service.backend.clone());
    let split = |authn, authz| broker(vec![AuthBackend::Split { authn, authz }]);
    let first = split(http(), SplitAuthBackend::Internal);
    first.put_user(broker::UserSpec { name: "u".into(), loopback_only: false, ..broker::UserSpec::guest() });
    let identity = log_in(&first, "u", "p").await.unwrap();
    assert!(!identity.is_asked() && first.tags(&identity) == ["administrator", "monitoring"]);
    assert_eq!(log_in(&first, "v", "p").await.unwrap_err(), LoginRefused::UnknownUser);
    assert!(
        first.authenticate_external("u", true).is_err(),
        "a certificate proves the name to the list alone"
    );
    let second = split(SplitAuthBackend::Internal, http());
    second.put_user(broker::UserSpec { name: "u".into(), loopback_only: false, ..broker::UserSpec::guest() });
    let identity = log_in(&second, "u", "guest").await.unwrap();
    assert!(identity.is_asked() && second.tags(&identity) == ["administrator"]);
    let asked = service.requests();
    assert_eq!(log_in(&second, "u", "p").await.unwrap_err(), LoginRefused::WrongPassword);
    assert_eq!(service.requests(), asked, "the password is wrong already");
}
