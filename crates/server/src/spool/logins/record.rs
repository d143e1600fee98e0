//! The secrets of a user that the upstream has accepted.

use std::sync::Arc;

use amqp::Credentials;

use super::file::LoginLine;
use super::hashing::{Fingerprint, HashParameters, SecretHash};

/// The maximum of secrets per user; the most recently accepted are kept. Passwords are replaced now and then, and clients
/// with tokens have one each.
pub(super) const MAX_SECRETS: usize = 8;

/// The secrets of a user that the upstream has accepted.
pub(super) struct UserLogins {
    pub(super) parameters: HashParameters,
    secrets: Vec<AcceptedSecret>,
}

struct AcceptedSecret {
    /// Set once a client has presented the secret to this process.
    fingerprint: Option<Fingerprint>,
    /// Set once the hash has been computed, or read from the file.
    hash: Option<SecretHash>,
    /// The credentials, from their acceptance until there is a hash.
    unhashed: Option<Arc<Credentials>>,
    vhosts: Vec<Acceptance>,
}

/// The upstream's acceptance of a secret in a virtual host.
struct Acceptance {
    vhost: Box<str>,
    /// When, in milliseconds since 1970.
    at: u64,
    /// The time in the file.
    written_at: Option<u64>,
    /// The number of the upstream's answer in this process; 0 if it is from the file.
    answer: u64,
}

/// A password whose slow hash has to be computed.
pub(super) struct Unhashed {
    pub(super) user: Box<str>,
    pub(super) fingerprint: Fingerprint,
    pub(super) parameters: HashParameters,
    pub(super) credentials: Arc<Credentials>,
}

/// The result of comparing a presented secret with the user's known ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// It is known, and was accepted recently enough.
    Fresh,
    /// It is unknown, or was accepted too long ago or in another virtual host.
    No,
    /// Only the slow hash can decide.
    MustBeHashed,
}

impl UserLogins {
    pub(super) fn new(parameters: HashParameters) -> Self {
        Self { parameters, secrets: Vec::new() }
    }

    /// Adds a line of the file; one with another salt than earlier lines is skipped.
    pub(super) fn add_line(&mut self, line: LoginLine, now: u64) {
        if line.parameters != self.parameters {
            return;
        }
        // The clock may have been ahead when the line was written.
        let at = line.accepted_at.min(now);
        let acceptance = Acceptance { vhost: line.vhost, at, written_at: Some(line.accepted_at), answer: 0 };
        let is_same = |secret: &AcceptedSecret| secret.hash.is_some_and(|hash| hash.is(&line.hash));
        if let Some(secret) = self.secrets.iter_mut().find(|secret| is_same(secret)) {
            secret.vhosts.push(acceptance);
        } else if self.secrets.len() < MAX_SECRETS {
            let (hash, vhosts) = (Some(line.hash), vec![acceptance]);
            self.secrets.push(AcceptedSecret { fingerprint: None, hash, unhashed: None, vhosts });
        }
    }

    fn find(&mut self, fingerprint: Fingerprint) -> Option<&mut AcceptedSecret> {
        self.secrets.iter_mut().find(|secret| secret.fingerprint == Some(fingerprint))
    }

    /// Records the acceptance of a secret. Returns whether the file has to be written: it has an acceptance that is older
    /// by more than `rewritten_after` milliseconds, or none.
    pub(super) fn accepted(
        &mut self,
        (fingerprint, credentials): (Fingerprint, &Arc<Credentials>),
        (vhost, at, answer): (&str, u64, u64),
        rewritten_after: u64,
    ) -> bool {
        if self.find(fingerprint).is_none() {
            self.evict_oldest();
            self.secrets.push(AcceptedSecret {
                fingerprint: Some(fingerprint),
                hash: None,
                unhashed: Some(Arc::clone(credentials)),
                vhosts: Vec::new(),
            });
        }
        let Some(secret) = self.find(fingerprint) else { return false };
        match secret.vhosts.iter_mut().find(|acceptance| *acceptance.vhost == *vhost) {
            Some(acceptance) => {
                acceptance.at = acceptance.at.max(at);
                acceptance.answer = answer;
                let is_due = |written: u64| acceptance.at.saturating_sub(written) >= rewritten_after;
                acceptance.written_at.is_none_or(is_due)
            }
            None => {
                secret.vhosts.push(Acceptance { vhost: vhost.into(), at, written_at: None, answer });
                true
            }
        }
    }

    /// Forgets the secret with the oldest acceptance, if the maximum is reached.
    fn evict_oldest(&mut self) {
        if self.secrets.len() < MAX_SECRETS {
            return;
        }
        let last = |secret: &AcceptedSecret| secret.vhosts.iter().map(|acceptance| acceptance.at).max();
        let oldest = self.secrets.iter().enumerate().min_by_key(|(_, secret)| last(secret));
        if let Some(at) = oldest.map(|(at, _)| at) {
            self.secrets.swap_remove(at);
        }
    }

    /// Whether any secret was accepted since `since`, in this virtual host or in any.
    pub(super) fn has_any(&self, vhost: Option<&str>, since: u64) -> bool {
        self.secrets.iter().any(|secret| secret.is_fresh(vhost, since))
    }

    /// Compares a secret, with `since` as the oldest acceptance, in this virtual host or in any.
    pub(super) fn compare(&self, fingerprint: Fingerprint, vhost: Option<&str>, since: u64) -> Known {
        let known = self.secrets.iter().find(|secret| secret.fingerprint == Some(fingerprint));
        if known.is_some_and(|secret| secret.is_fresh(vhost, since)) {
            return Known::Fresh;
        }
        let is_unknown = |secret: &AcceptedSecret| secret.fingerprint.is_none();
        let must_be_hashed =
            self.secrets.iter().any(|secret| is_unknown(secret) && secret.is_fresh(vhost, since));
        // A secret with a hash has been compared with the others already.
        let is_compared = known.is_some_and(|secret| secret.hash.is_some());
        if must_be_hashed && !is_compared { Known::MustBeHashed } else { Known::No }
    }

    /// Records a presented secret's hash. Returns whether the secret is a known one.
    pub(super) fn record_hash(&mut self, fingerprint: Fingerprint, hash: SecretHash) -> bool {
        let has_hash = |secret: &AcceptedSecret| secret.hash.as_ref().is_some_and(|other| other.is(&hash));
        let has_fingerprint = |secret: &AcceptedSecret| secret.fingerprint == Some(fingerprint);
        let from_file = self
            .secrets
            .iter()
            .position(|secret| has_hash(secret) && !has_fingerprint(secret))
            .map(|at| self.secrets.remove(at));
        let Some(secret) = self.find(fingerprint) else {
            let Some(secret) = from_file else { return false };
            self.secrets.push(AcceptedSecret { fingerprint: Some(fingerprint), ..secret });
            return true;
        };
        (secret.hash, secret.unhashed) = (Some(hash), None);
        for acceptance in from_file.into_iter().flat_map(|secret| secret.vhosts) {
            if !secret.vhosts.iter().any(|newer| newer.vhost == acceptance.vhost) {
                secret.vhosts.push(acceptance);
            }
        }
        true
    }

    /// Forgets acceptances of a secret before the upstream's answer number `answer`. Returns whether there were any.
    pub(super) fn forget(&mut self, fingerprint: Fingerprint, vhost: Option<&str>, answer: u64) -> bool {
        let Some(secret) = self.find(fingerprint) else { return false };
        let is_refused = |acceptance: &Acceptance| acceptance.concerns(vhost) && acceptance.answer < answer;
        secret.retain(|acceptance| !is_refused(acceptance)) && self.drop_empty()
    }

    /// Forgets acceptances before `since`. Returns whether there were any.
    pub(super) fn forget_before(&mut self, since: u64) -> bool {
        let mut has_changed = false;
        for secret in &mut self.secrets {
            has_changed |= secret.retain(|acceptance| acceptance.at >= since);
        }
        has_changed && self.drop_empty()
    }

    fn drop_empty(&mut self) -> bool {
        self.secrets.retain(|secret| !secret.vhosts.is_empty());
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// A password whose hash has to be computed.
    pub(super) fn unhashed(&self, user: &str) -> Option<Unhashed> {
        self.secrets.iter().find_map(|secret| {
            let (credentials, fingerprint) = secret.unhashed.as_ref().zip(secret.fingerprint)?;
            let (user, credentials) = (user.into(), Arc::clone(credentials));
            Some(Unhashed { user, fingerprint, parameters: self.parameters, credentials })
        })
    }

    /// Appends its lines, and marks them as written; a secret without a hash has none.
    pub(super) fn append_to(&mut self, user: &str, out: &mut String) {
        let parameters = self.parameters;
        for secret in &mut self.secrets {
            let Some(hash) = secret.hash else { continue };
            for acceptance in &mut secret.vhosts {
                acceptance.written_at = Some(acceptance.at);
                let (accepted_at, vhost, user) = (acceptance.at, acceptance.vhost.clone(), user.into());
                LoginLine { accepted_at, parameters, hash, vhost, user }.append_to(out);
            }
        }
    }
}

impl AcceptedSecret {
    fn is_fresh(&self, vhost: Option<&str>, since: u64) -> bool {
        self.vhosts.iter().any(|acceptance| acceptance.concerns(vhost) && acceptance.at >= since)
    }

    /// Keeps some acceptances. Returns whether any was removed.
    fn retain(&mut self, is_left: impl Fn(&Acceptance) -> bool) -> bool {
        let before = self.vhosts.len();
        self.vhosts.retain(is_left);
        self.vhosts.len() < before
    }
}

impl Acceptance {
    fn concerns(&self, vhost: Option<&str>) -> bool {
        vhost.is_none_or(|vhost| *self.vhost == *vhost)
    }
}
