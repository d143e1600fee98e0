//! How long a verified login counts for others with the same credentials, and how it is verified again (P1).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use amqp::Credentials;

use super::{ClientInfo, ClientSide, Login, PermitOutcome, Pool, background};
use crate::client_properties::ClientProperties;
use crate::link::{ClientLink, Event};
use crate::refusal::Refusal;
use crate::session::{ProxySession, SessionState};
use crate::upstream::Upstream;

/// A login that the broker has accepted for a virtual host, for [`Pool::open_verified`].
#[derive(Debug)]
pub struct VerifiedLogin {
    credentials: Arc<Credentials>,
    info: ClientInfo,
    virtual_host: Box<str>,
}

impl VerifiedLogin {
    /// See [`Login::credentials`].
    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.credentials
    }
}

impl Pool {
    /// Verifies a login for a virtual host: the first part of [`Self::open`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn verify_login(
        self: &Arc<Self>,
        login: Login,
        virtual_host: &str,
    ) -> Result<VerifiedLogin, Refusal> {
        self.verify_login_until(self.arrival_end(), login, virtual_host).await
    }

    /// Continues the session of a client from the pool of another process. Its login is verified, and an outage is waited out
    /// as for the clients of this pool.
    ///
    /// # Errors
    /// The broker's refusal of these credentials, 320 CONNECTION_FORCED when no broker can be asked, or a fault of
    /// what the client has sent.
    pub async fn resume(
        self: &Arc<Self>,
        (credentials, state): (Credentials, SessionState),
        info: ClientInfo,
        virtual_host: &str,
        client: ClientSide,
    ) -> Result<ProxySession, Refusal> {
        let losses = self.topologies.losses();
        let end = tokio::time::Instant::now() + self.config.outage_max;
        let login = self.authenticate_until(end, credentials, info).await?;
        let login = self.verify_login_until(end, login, virtual_host).await?;
        let mut session = self.open_verified(login, client);
        let is_torn = self.topologies.losses() != losses;
        session.import(state, is_torn, transport::now()).map_err(Refusal::Fault)?;
        Ok(session)
    }

    async fn verify_login_until(
        self: &Arc<Self>,
        end: tokio::time::Instant,
        login: Login,
        virtual_host: &str,
    ) -> Result<VerifiedLogin, Refusal> {
        let Login { credentials, info, mut begun } = login;
        while !self.is_verified_for(&credentials, virtual_host) {
            match self.verify_once(begun.take(), &credentials, virtual_host, end).await {
                Ok(()) => break,
                Err(refusal) => self.wait_for_return(refusal, end).await?,
            }
        }
        Ok(VerifiedLogin { credentials, info, virtual_host: virtual_host.into() })
    }

    /// Opens the virtual host for which a login has just been verified: the second part of [`Self::open`].
    pub fn open_verified(self: &Arc<Self>, login: VerifiedLogin, client: ClientSide) -> ProxySession {
        let VerifiedLogin { credentials, info, virtual_host } = login;
        ProxySession::new(self.clone(), credentials, &virtual_host, &info, client, transport::now())
    }

    /// Whether the broker accepted these credentials for the virtual host less than `auth_ttl` ago, and a
    /// connection opened with them is still open. After half of that time the broker is asked again in the
    /// background, so that a steady stream of clients never waits (P6).
    pub(super) fn is_verified_for(self: &Arc<Self>, credentials: &Credentials, virtual_host: &str) -> bool {
        let Some(upstream) = self.verified(credentials, virtual_host) else { return false };
        if !upstream.is_verified_within(self.config.auth_ttl / 2) && upstream.begin_refresh() {
            self.refresh(upstream);
        }
        true
    }

    /// The newest connection on which the broker accepted these credentials for the virtual host less than `auth_ttl` ago.
    pub(super) fn verified(&self, credentials: &Credentials, virtual_host: &str) -> Option<Arc<Upstream>> {
        self.newest(credentials, |upstream| {
            *upstream.virtual_host == *virtual_host && upstream.is_verified_within(self.config.auth_ttl)
        })
    }

    /// Verifies credentials for a virtual host by completing a handshake. The connection is kept if there is none yet.
    /// If the broker's connection limit is reached, the successful login renews the verification of the open
    /// connections.
    pub(super) async fn verify(
        self: &Arc<Self>,
        begun: super::PermittedConnection,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
    ) -> Result<(), Refusal> {
        let verified = match self.finish(begun, credentials, virtual_host, None, None).await {
            Err(refusal)
                if refusal.is_connection_limit() && self.renew_verified(credentials, virtual_host) =>
            {
                return Ok(());
            }
            finished => finished?,
        };
        let others = |upstream: &Arc<Upstream>| {
            *upstream.virtual_host == *virtual_host
                && !Arc::ptr_eq(upstream, &verified)
                && upstream.is_shared().1
        };
        if let Some(other) = self.newest(credentials, others) {
            other.set_verified();
            verified.close("login verified", transport::now());
        }
        Ok(())
    }

    /// Asks the broker again. If it refuses the credentials now, their verification is revoked.
    fn refresh(self: &Arc<Self>, upstream: Arc<Upstream>) {
        let pool = self.clone();
        background::run(async move {
            let credentials = upstream.credentials();
            let destination = pool.destination(None, &upstream.virtual_host);
            let result = async {
                let _permit = pool.auth_gate.enter(&credentials, &destination, pool.arrival_end()).await?;
                let begun =
                    pool.begin(pool.permit_at_once()?, &credentials, &ClientProperties::SHARED).await?;
                pool.verify(begun, &credentials, &upstream.virtual_host).await
            };
            // If no broker could be asked, the earlier verification is valid until it expires.
            if result.await.is_err_and(|refusal| refusal.is_final()) {
                pool.revoke_verification(&credentials, &upstream.virtual_host);
            }
            upstream.end_refresh();
        });
    }

    /// Renews the verification of a connection that was opened with these credentials for the virtual host, unless the
    /// broker has refused them since. Returns false if there is none.
    fn renew_verified(&self, credentials: &Credentials, virtual_host: &str) -> bool {
        let is_one =
            |upstream: &Arc<Upstream>| *upstream.virtual_host == *virtual_host && upstream.renew_verified();
        self.newest(credentials, is_one).is_some()
    }

    /// Revokes the verification of credentials that the broker no longer accepts.
    fn revoke_verification(&self, credentials: &Credentials, virtual_host: &str) {
        // A filter that accepts none visits all.
        self.newest(credentials, |upstream| {
            if *upstream.virtual_host == *virtual_host {
                upstream.revoke_verification();
            }
            false
        });
    }

    /// Verifies the `number`th new secret of a client with the broker; an event reports the outcome. While no
    /// broker can be asked, which says nothing against the secret, the client waits and continues with its
    /// current one.
    pub(crate) fn verify_secret(
        self: &Arc<Self>,
        link: Arc<ClientLink>,
        old: &Credentials,
        secret: &[u8],
        virtual_host: Box<str>,
        number: u64,
    ) {
        let credentials = Arc::new(old.with_secret(secret));
        let pool = self.clone();
        background::run(async move {
            let result = loop {
                if link.is_gone() {
                    return;
                }
                let result = pool.verify_new(&credentials, &virtual_host).await;
                let was_asked = result.as_ref().err().is_none_or(|refusal| refusal.is_final());
                if was_asked || pool.draining.load(Ordering::Acquire) {
                    break result;
                }
                tokio::time::sleep(ASKED_AGAIN_AFTER).await;
            };
            link.notify(Event::SecretVerified { number, result });
        });
    }

    async fn verify_new(
        self: &Arc<Self>,
        credentials: &Credentials,
        virtual_host: &str,
    ) -> Result<Arc<Credentials>, Refusal> {
        let credentials = self.shared_copy(credentials.copy());
        if !self.is_verified_for(&credentials, virtual_host) {
            self.check_not_refused(&credentials)?;
            let verified = || self.is_verified_for(&credentials, virtual_host).then_some(());
            let (destination, end) = (self.destination(None, virtual_host), self.arrival_end());
            let (_handshake, permit) =
                match self.enter(&credentials, false, &destination, end, verified).await? {
                    PermitOutcome::Instead(()) => return Ok(credentials),
                    PermitOutcome::Begin(handshake, permit) => (handshake, permit),
                };
            let begun = self.begin(permit, &credentials, &ClientProperties::SHARED).await;
            if let Err(Refusal::Login(text)) = &begun {
                self.auth_gate.refuse(credentials.copy(), text.clone(), transport::now());
            }
            match self.verify(begun?, &credentials, virtual_host).await {
                // The login has succeeded, and the client has the virtual host open already.
                Err(refusal) if refusal.is_connection_limit() => {}
                verified => verified?,
            }
            self.auth_gate.verified(&credentials);
        }
        Ok(credentials)
    }
}

/// Pause between attempts to verify a new secret. Each attempt itself waits for `arrival_max`.
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(500);
