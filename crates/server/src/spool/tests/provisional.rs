//! Clients admitted before the upstream has decided about their login.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use transport::Outbox;

use super::*;
use crate::backend::LoginError;
use crate::spool::admission::Asking;
use crate::spool::provisional::{ProvisionalLogin, verify_later};

const LONG: Duration = Duration::from_secs(60);

fn failed(code: ReplyCode, text: &'static str) -> LoginError {
    LoginError::Failed(Fault::new(code, text))
}

fn away() -> LoginError {
    failed(ReplyCode::ConnectionForced, "no upstream reachable")
}

fn over_limit() -> LoginError {
    let text = "access to vhost '/' refused for user 'guest': connection limit (0) is reached";
    failed(ReplyCode::NotAllowed, text)
}

fn answered(answer: Result<(), LoginError>) -> Asking<()> {
    Box::pin(std::future::ready(answer))
}

/// An upstream that gives these answers in turn, and then none.
struct Asked {
    ask: AskUpstream,
    count: Arc<AtomicUsize>,
}

impl Asked {
    fn new(answers: impl IntoIterator<Item = Result<(), LoginError>>) -> Self {
        let answers: Mutex<Vec<_>> = Mutex::new(answers.into_iter().collect());
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let ask: AskUpstream = Arc::new(move |_, _| {
            counter.fetch_add(1, Ordering::Relaxed);
            let mut answers = answers.lock().unwrap();
            if answers.is_empty() { Box::pin(std::future::pending()) } else { answered(answers.remove(0)) }
        });
        Self { ask, count }
    }
}

impl Simulated {
    /// Admits a client whose first request gets this answer.
    fn admit(&self, password: &str, first: Asking<()>, asked: &Asked) -> Arc<ProvisionalLogin> {
        let queue = self.spool.queue("/", USER).unwrap();
        let credentials = Arc::new(Credentials::plain(USER, password));
        let outbox = Arc::new(Outbox::new(1 << 20));
        let queue = (&queue, self.spool.local.logins().fingerprint(&credentials));
        verify_later(&self.spool.provisional, queue, (&credentials, &outbox), first, &asked.ask)
    }
}

#[tokio::test(start_paused = true)]
async fn clients_with_one_login_share_a_question_that_is_asked_until_it_is_decided() {
    let mut site = Simulated::new(&SimDisk::new(1, 1 << 30), config());
    site.is_reachable.store(false, Ordering::Relaxed);
    let asked = Asked::new([Err(away()), Err(over_limit()), Ok(())]);
    let one = site.admit("secret", answered(Err(away())), &asked);
    let other = site.admit("secret", answered(Err(failed(ReplyCode::NotAllowed, "never polled"))), &asked);
    assert_eq!(site.spool.unverified_clients(), 2);
    // A temporary limit has ended neither of them.
    site.pass(LONG).await;
    assert!(one.decision() == Some(&Ok(())) && other.decision() == Some(&Ok(())));
    assert_eq!((asked.count.load(Ordering::Relaxed), site.spool.unverified_clients()), (3, 0));
    // The forwarder has the credentials now.
    assert!(site.spool.queue("/", USER).unwrap().credentials().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_ends_the_clients_with_its_password_alone() {
    let mut site = Simulated::new(&SimDisk::new(1, 1 << 30), config());
    let pending = Asked::new([]);
    let text = "Login was refused using authentication mechanism PLAIN.".to_owned();
    let refused = Err(LoginError::Refused { text: text.clone(), why: String::new() });
    let old = site.admit("old", answered(refused), &pending);
    let new = site.admit("new", Box::pin(std::future::pending()), &pending);
    let no_access = "access to vhost '/' refused for user 'guest'";
    let denied = site.admit("denied", answered(Err(failed(ReplyCode::NotAllowed, no_access))), &pending);
    site.pass(LONG).await;
    assert_eq!(old.decision(), Some(&Err(Fault::new(ReplyCode::AccessRefused, text).on_connection())));
    assert_eq!(denied.decision(), Some(&Err(Fault::new(ReplyCode::NotAllowed, no_access))));
    assert!(new.decision().is_none() && site.spool.unverified_clients() == 1);
}

#[tokio::test(start_paused = true)]
async fn disconnected_clients_are_not_checked() {
    let mut site = Simulated::new(&SimDisk::new(1, 1 << 30), config());
    let asked = Asked::new((0..1000).map(|_| Err(away())));
    let gone = site.admit("secret", answered(Err(away())), &asked);
    site.pass(LONG).await;
    drop(gone);
    site.pass(LONG).await;
    let count = asked.count.load(Ordering::Relaxed);
    site.pass(LONG).await;
    assert_eq!((asked.count.load(Ordering::Relaxed), site.spool.unverified_clients()), (count, 0));
    // The next client causes a new request.
    let next = site.admit("secret", answered(Ok(())), &asked);
    site.pass(LONG).await;
    assert!(next.decision().is_some());
}
