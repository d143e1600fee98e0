//! Admits AMQP clients in front of an upstream with a spool: by the upstream's decision, and until there is one by the
//! logins that the spool remembers.
//!
//! The upstream is asked first. If it has not decided within a second, or is known to be unreachable, a client whose
//! credentials it has accepted recently continues without the decision. It may open a virtual host for which a rule
//! exists and for which these credentials were accepted. Any other client waits for the upstream, as without a spool.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use amqp::handshake::OpenRequest;
use amqp::{Credentials, Fault, ReplyCode};
use broker::Timestamp;
use proxy::{ClientInfo, Pool, Refusal, VerifiedLogin};
use tokio::task::JoinHandle;
use transport::{InnerOutbox, Outbox};

use super::Spool;
use super::local::LocalSpool;
use super::provisional::{AskUpstream, verify_later};
use super::refusals::is_permanent;
use super::rules::SpooledExchanges;
use super::session::SpoolingSession;
use crate::amqp::session::BackendSession;
use crate::backend::{Backend, BackendLogin, LoginError, LoginRequest, client_side, info_of};
use crate::server::Shared;

/// The time after which an undecided login counts as unanswered, if the spool remembers it. The Java client waits 5
/// seconds for a whole handshake, in which this may happen twice.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A request to the upstream, which starts when it is first polled.
pub(super) type Asking<T> = Pin<Box<dyn Future<Output = Result<T, LoginError>> + Send>>;

/// A login that may still be waiting for the upstream's decision.
pub(crate) struct PendingLogin {
    credentials: Arc<Credentials>,
    info: ClientInfo,
    asking: Asking<proxy::Login>,
    /// The time for the upstream's next decision, if the login is remembered.
    decides_within: Duration,
}

impl PendingLogin {
    /// A login that the upstream has accepted.
    pub(crate) fn decided(login: proxy::Login) -> Self {
        let (credentials, info) = (Arc::clone(login.credentials()), login.info().clone());
        Self { credentials, info, asking: Box::pin(ready(Ok(login))), decides_within: LOGIN_TIMEOUT }
    }
}

enum Decision<T> {
    Made(T),
    /// The upstream has not decided, and the login is remembered.
    Open(Asking<T>),
}

impl Shared {
    /// Whether a client with correct credentials may be admitted while no upstream answers.
    pub(crate) fn admits_offline(&self) -> bool {
        self.spool().is_some_and(|spool| spool.local.logins().has_any(now_of(&spool.local)))
    }

    /// Checks an AMQP client's credentials with the upstream. If that takes long and the spool remembers them, the client
    /// may continue with opening a virtual host.
    ///
    /// # Errors
    /// The upstream refuses them, or cannot be asked.
    pub(crate) async fn login_amqp(
        self: &Arc<Self>,
        credentials: Credentials,
        client: LoginRequest,
    ) -> Result<BackendLogin, LoginError> {
        let is_of_user =
            |spool: &&Arc<Spool>| spool.local.logins().has_user(&credentials.username, now_of(&spool.local));
        let (Some(spool), Backend::Upstream(pool)) = (self.spool().filter(is_of_user), &self.backend) else {
            return self.backend.login(credentials, client).await;
        };
        let (presented, info) = (Arc::new(credentials.copy()), info_of(client));
        let asking = log_in(pool, &spool.local, &presented, info.clone());
        match self.decide(spool, None, &presented, LOGIN_TIMEOUT, asking).await? {
            Decision::Made(login) => Ok(BackendLogin::Upstream(login)),
            Decision::Open(asking) => {
                let decides_within = Duration::ZERO;
                Ok(BackendLogin::Pending(PendingLogin {
                    credentials: presented,
                    info,
                    asking,
                    decides_within,
                }))
            }
        }
    }

    /// Opens an upstream virtual host for an AMQP client, with a spooling session if a rule may match its publishes.
    ///
    /// # Errors
    /// As [`Backend::open_upstream`], and the upstream's refusal of a pending login.
    pub(crate) async fn open_amqp(
        self: &Arc<Self>,
        login: PendingLogin,
        request: &OpenRequest,
        outbox: Arc<Outbox>,
    ) -> Result<Box<dyn BackendSession>, Fault> {
        let rule = self.spool().and_then(|spool| {
            let exchanges =
                spool.local.rules().exchanges_of(&request.virtual_host, &login.credentials.username)?;
            Some((spool, exchanges))
        });
        match (rule, &self.backend) {
            (Some((spool, exchanges)), Backend::Upstream(pool)) => {
                self.open_spooling((spool, pool), login, exchanges, request, outbox).await
            }
            _ => {
                let login = login.asking.await.map_err(LoginError::into_fault)?;
                let credentials = Arc::clone(login.credentials());
                let session = self.backend.open_upstream(login, request, outbox).await?;
                // The user may still have messages that a former rule has spooled.
                let queue = self.spool().and_then(|spool| {
                    spool.local.existing_queue(&request.virtual_host, &credentials.username)
                });
                if let Some(queue) = queue {
                    queue.logged_in(credentials);
                }
                Ok(session)
            }
        }
    }

    async fn open_spooling(
        self: &Arc<Self>,
        (spool, pool): (&Arc<Spool>, &Arc<Pool>),
        login: PendingLogin,
        exchanges: SpooledExchanges,
        request: &OpenRequest,
        outbox: Arc<Outbox>,
    ) -> Result<Box<dyn BackendSession>, Fault> {
        let PendingLogin { credentials, info, asking, decides_within } = login;
        let vhost = &*request.virtual_host;
        let asking = enter(pool, &spool.local, asking, &credentials, vhost);
        let decision = self.decide(spool, Some(vhost), &credentials, decides_within, asking).await;
        let decision = decision.map_err(LoginError::into_fault)?;

        let queue = spool.queue(vhost, &credentials.username)?;
        let inner = InnerOutbox::new(self.config.outbox_limit / 2);
        let client = client_side(request, Arc::clone(inner.outbox()));
        let (session, provisional) = match decision {
            Decision::Made(login) => {
                queue.logged_in(Arc::clone(login.credentials()));
                (pool.open_verified(login, client), None)
            }
            Decision::Open(asking) => {
                spool.count_offline_login();
                let session = pool.open_unverified(credentials.copy(), &info, vhost, client);
                queue.offer_login(&credentials);
                let away = Arc::clone(pool);
                let asking: Asking<()> = Box::pin(async move {
                    away.wait_for_broker().await;
                    asking.await.map(drop)
                });
                let fingerprint = spool.local.logins().fingerprint(&credentials);
                let logins = &spool.provisional;
                let client = (&credentials, &outbox);
                (session, Some(verify_later(logins, (&queue, fingerprint), client, asking, &spool.ask)))
            }
        };
        let (inner, login) = ((Box::new(session) as _, inner), (credentials, provisional));
        let local = (Arc::clone(&spool.local), queue);
        Ok(Box::new(SpoolingSession::new(self, inner, local, login, exchanges, request, outbox)))
    }

    /// Waits for the upstream's decision. If there is none in time, or the upstream is unreachable, credentials that the
    /// spool remembers, for this virtual host or for any, do not wait longer.
    async fn decide<T: Send + 'static>(
        &self,
        spool: &Spool,
        vhost: Option<&str>,
        credentials: &Arc<Credentials>,
        within: Duration,
        mut asking: Asking<T>,
    ) -> Result<Decision<T>, LoginError> {
        let logins = spool.local.logins();
        let now = now_of(&spool.local);
        if self.backend.answers() == Some(false) && logins.are_remembered(vhost, credentials, now).await {
            // The request would fail, and is not sent.
            return Ok(Decision::Open(asking));
        }
        let asking: Asking<T> = match tokio::time::timeout(within, asking.as_mut()).await {
            Ok(Err(LoginError::Failed(fault))) if fault.code == ReplyCode::ConnectionForced => {
                Box::pin(ready(Err(LoginError::Failed(fault))))
            }
            Ok(decided) => return decided.map(Decision::Made),
            Err(_) => in_background(asking),
        };
        if logins.are_remembered(vhost, credentials, now).await {
            return Ok(Decision::Open(asking));
        }
        asking.await.map(Decision::Made)
    }
}

/// Requests the check of credentials, and forgets them if they are refused.
fn log_in(
    pool: &Arc<Pool>,
    local: &Arc<LocalSpool>,
    credentials: &Arc<Credentials>,
    info: ClientInfo,
) -> Asking<proxy::Login> {
    let (pool, local, credentials) = (Arc::clone(pool), Arc::clone(local), Arc::clone(credentials));
    Box::pin(async move {
        let asked = Box::pin(pool.authenticate(credentials.copy(), info)).await;
        asked.map_err(|refusal| refused(&local, None, &credentials, refusal))
    })
}

/// Requests the check of a virtual host after the login, and remembers or forgets the login accordingly.
fn enter(
    pool: &Arc<Pool>,
    local: &Arc<LocalSpool>,
    login: Asking<proxy::Login>,
    credentials: &Arc<Credentials>,
    vhost: &str,
) -> Asking<VerifiedLogin> {
    let (pool, local, credentials) = (Arc::clone(pool), Arc::clone(local), Arc::clone(credentials));
    let vhost: Box<str> = vhost.into();
    Box::pin(async move {
        let login = login.await?;
        match Box::pin(pool.verify_login(login, &vhost)).await {
            Ok(verified) => {
                local.logins().accepted(&vhost, verified.credentials(), now_of(&local));
                Ok(verified)
            }
            Err(refusal) => Err(refused(&local, Some(&vhost), &credentials, refusal)),
        }
    })
}

/// The request about provisional logins, which waits until an upstream may answer.
pub(super) fn ask_upstream(pool: &Arc<Pool>, local: &Arc<LocalSpool>) -> AskUpstream {
    let (pool, local) = (Arc::clone(pool), Arc::clone(local));
    Arc::new(move |credentials, vhost| {
        let (pool, local) = (Arc::clone(&pool), Arc::clone(&local));
        Box::pin(async move {
            pool.wait_for_broker().await;
            let info = ClientInfo { id: 0, peer: "spool-*, login".to_owned() };
            let asking = log_in(&pool, &local, &credentials, info);
            enter(&pool, &local, asking, &credentials, &vhost).await.map(drop)
        })
    })
}

/// Forgets a login that the upstream has refused, unless the reason may be temporary.
fn refused(
    local: &LocalSpool,
    vhost: Option<&str>,
    credentials: &Arc<Credentials>,
    refusal: Refusal,
) -> LoginError {
    match (&refusal, vhost) {
        (Refusal::Login(_), _) => local.logins().refused(None, credentials),
        (Refusal::Fault(fault), Some(vhost)) if is_permanent(fault, vhost) => {
            local.logins().refused(Some(vhost), credentials);
        }
        (Refusal::Fault(_), _) => {}
    }
    refusal.into()
}

/// Continues the request as a task, which is aborted when the result is dropped.
fn in_background<T: Send + 'static>(asking: Asking<T>) -> Asking<T> {
    Box::pin(Background(tokio::spawn(asking)))
}

struct Background<T>(JoinHandle<Result<T, LoginError>>);

impl<T> Future for Background<T> {
    type Output = Result<T, LoginError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let failed = |_| {
            let fault = Fault::new(ReplyCode::InternalError, "login could not be checked");
            Err(LoginError::Failed(fault))
        };
        Pin::new(&mut self.0).poll(cx).map(|joined| joined.unwrap_or_else(failed))
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) fn now_of(local: &LocalSpool) -> Timestamp {
    local.timestamp(transport::now())
}
