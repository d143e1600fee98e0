//! The permissions of users for the queues, exchanges and topics of a virtual host (RabbitMQ, "Access Control").
//!
//! A [`Grant`] contains the compiled permissions of one user in one virtual host, or the answers of an auth backend that
//! authorizes each of its operations ([`AuthzBackend`]). Sessions and publishers share it, so that a change applies to them
//! at once; publishers consult it only when their route cache has no entry.

mod authorised;
mod client;
mod external;
mod external_grant;
mod pattern;
mod scopes;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod token_tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use sync::{Rank, RwLock};

pub use authorised::AuthorisedSession;
pub(crate) use client::ClientName;
use client::TopicRule;
pub(crate) use external::ExternalPermissions;
pub use external::{
    AuthzBackend, AuthzDecision, AuthzFuture, AuthzRequest, AuthzSubject, AuthzTarget, PendingAuthz,
};
pub use pattern::{Pattern, PatternError, TooManySteps};
use scopes::Scopes;
pub use scopes::literal_in_scope;

use crate::compatibility::Compatibility;
use crate::error::BrokerError;
use crate::names::Resource;
use crate::time::Timestamp;
use crate::users::Identity;

/// The permissions of a user in a virtual host: regular expressions for the names of queues and exchanges. An empty
/// expression allows nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Permissions {
    /// Expression for the resources to declare and delete.
    pub configure: String,
    /// Expression for the resources to publish to, and to bind as a destination.
    pub write: String,
    /// Expression for the resources to consume, get and purge, and to bind as a source.
    pub read: String,
}

impl Permissions {
    /// Permissions that allow everything.
    pub fn all() -> Self {
        Self { configure: ".*".into(), write: ".*".into(), read: ".*".into() }
    }
}

/// Restricts the routing keys that a user may publish and bind with on one topic exchange. `{username}` and `{vhost}`
/// in the expressions stand for the user's and the virtual host's name, `{client_id}` for that of an MQTT client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopicPermissions {
    /// The name of the exchange.
    pub exchange: String,
    /// Expression for the routing keys to publish with.
    pub write: String,
    /// Expression for the routing keys to bind with.
    pub read: String,
}

/// The kind of access that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Configure,
    Write,
    Read,
}

/// All users' permissions in one virtual host.
#[derive(Default)]
pub(crate) struct Grants {
    by_user: RwLock<HashMap<Arc<str>, Arc<Grant>>, { Rank::Leaf as u8 }>,
}

/// The permissions of one user in one virtual host.
pub(crate) struct Grant {
    user: Arc<str>,
    vhost: Arc<str>,
    compatibility: Compatibility,
    rules: ArcSwap<Rules>,
    /// The permissions that an external auth backend decides. The rules are then never consulted.
    asked: Option<Arc<ExternalPermissions>>,
    /// Number of times that a token's permissions have expired or been renewed, both by its session only.
    renewals: AtomicU32,
}

enum Rules {
    /// The permissions of an internal user, as the operator defines them.
    Defined(DefinedRules),
    /// The scopes of a token, until it expires.
    Token { scopes: Scopes, may_impersonate: bool },
    /// The token has expired, so everything is refused.
    Expired(Expiry),
}

impl Default for Rules {
    fn default() -> Self {
        Self::Defined(DefinedRules::default())
    }
}

/// When a token expired, in seconds since 1970.
struct Expiry {
    expired_at: u64,
    noticed_at: u64,
}

#[derive(Clone, Default)]
struct DefinedRules {
    /// `None` if the user has no access to the virtual host at all.
    resources: Option<ResourceRules>,
    /// By exchange. Other exchanges are not restricted.
    topics: HashMap<String, TopicRules>,
}

#[derive(Clone)]
struct ResourceRules {
    configure: Pattern,
    write: Pattern,
    read: Pattern,
}

#[derive(Clone)]
struct TopicRules {
    write: TopicRule,
    read: TopicRule,
}

impl Grants {
    /// The permissions of a user, which may be empty.
    pub(crate) fn of(&self, user: &str, vhost: &Arc<str>, compatibility: Compatibility) -> Arc<Grant> {
        if let Some(grant) = self.by_user.read().get(user) {
            return grant.clone();
        }
        let user: Arc<str> = user.into();
        let new = Grant {
            user: user.clone(),
            vhost: vhost.clone(),
            compatibility,
            rules: ArcSwap::default(),
            asked: None,
            renewals: AtomicU32::new(0),
        };
        self.by_user.write().entry(user).or_insert_with(|| Arc::new(new)).clone()
    }

    /// Whether the user has any permissions in this virtual host.
    pub(crate) fn may_open(&self, user: &str) -> bool {
        self.by_user.read().get(user).is_some_and(|grant| grant.may_open())
    }
}

impl Grant {
    /// The permissions of a user accepted by an external auth backend; `None` for an internal user.
    pub(crate) fn of_external(
        identity: &Identity,
        vhost: &Arc<str>,
        compatibility: Compatibility,
    ) -> Option<Arc<Self>> {
        let asked = identity.asked().cloned();
        let rules = match &asked {
            // Never consulted.
            Some(_) => ArcSwap::default(),
            None => ArcSwap::from_pointee(Rules::of_token(identity, vhost)?),
        };
        Some(Arc::new(Self {
            user: identity.user().into(),
            vhost: vhost.clone(),
            compatibility,
            rules,
            asked,
            renewals: AtomicU32::new(0),
        }))
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// Refuses to open the virtual host for a user who has no permissions there.
    pub(crate) fn check_open(&self) -> Result<(), BrokerError> {
        let refused =
            || BrokerError::VirtualHostRefused { vhost: self.vhost.to_string(), user: self.user.to_string() };
        match &self.asked {
            Some(asked) => match self.authorise_vhost(asked) {
                Some(AuthzDecision::Allowed) => Ok(()),
                Some(_) => Err(refused()),
                None => Err(BrokerError::Unasked),
            },
            None if self.may_open() => Ok(()),
            None => Err(refused()),
        }
    }

    /// Whether the user has any permissions in the virtual host; only for grants that need no request to an auth backend.
    fn may_open(&self) -> bool {
        match &**self.rules.load() {
            Rules::Defined(rules) => rules.resources.is_some(),
            Rules::Token { scopes, .. } => scopes.may_open(),
            Rules::Expired(_) => false,
        }
    }

    /// Whether the user may publish under other users' names: according to its current token, or else to its login.
    pub(crate) fn may_impersonate(&self, identity: &Identity) -> bool {
        match &**self.rules.load() {
            Rules::Defined(_) => identity.may_impersonate(),
            Rules::Token { may_impersonate, .. } => *may_impersonate,
            Rules::Expired(_) => false,
        }
    }

    /// Replaces a token's permissions by those of a new one.
    pub(crate) fn renew(&self, identity: &Identity) {
        if let Some(rules) = Rules::of_token(identity, &self.vhost) {
            self.rules.store(Arc::new(rules));
            self.renewals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Changes whenever a token's permissions change, or all answers of an auth backend become invalid: publishers then
    /// have to check their cached routes again. Permissions defined by the operator start a new generation of the virtual
    /// host instead.
    pub(crate) fn renewals(&self) -> u32 {
        let asked = self.asked.as_ref().map_or(0, |asked| asked.generation());
        self.renewals.load(Ordering::Relaxed).wrapping_add(asked)
    }

    /// Revokes the token's permissions. Both are times of the wall clock.
    pub(crate) fn expire(&self, expired_at: Timestamp, now: Timestamp) {
        let expiry = Expiry { expired_at: expired_at.seconds(), noticed_at: now.seconds() };
        self.rules.store(Arc::new(Rules::Expired(expiry)));
        self.renewals.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes the permissions defined by the operator; does nothing for a token.
    fn define(&self, change: impl Fn(&mut DefinedRules)) {
        self.rules.rcu(|rules| match &**rules {
            Rules::Defined(defined) => {
                let mut defined = defined.clone();
                change(&mut defined);
                Arc::new(Rules::Defined(defined))
            }
            Rules::Token { .. } | Rules::Expired(_) => Arc::clone(rules),
        });
    }

    /// Sets the permissions, or removes them.
    pub(crate) fn set(&self, permissions: Option<&Permissions>) -> Result<(), PatternError> {
        let compile = |of: &Permissions| {
            Ok::<_, PatternError>(ResourceRules {
                configure: Pattern::of_permission(&of.configure)?,
                write: Pattern::of_permission(&of.write)?,
                read: Pattern::of_permission(&of.read)?,
            })
        };
        let resources = permissions.map(compile).transpose()?;
        self.define(|rules| rules.resources.clone_from(&resources));
        Ok(())
    }

    /// Restricts the topics of one exchange.
    pub(crate) fn set_topic(&self, permissions: &TopicPermissions) -> Result<(), PatternError> {
        let new =
            TopicRules { write: self.expand(&permissions.write)?, read: self.expand(&permissions.read)? };
        self.define(|rules| _ = rules.topics.insert(permissions.exchange.clone(), new.clone()));
        Ok(())
    }

    /// Removes the restriction of topics of one exchange.
    pub(crate) fn remove_topic(&self, exchange: &str) {
        self.define(|rules| _ = rules.topics.remove(exchange));
    }

    /// Refuses an operation on a queue or exchange that the user has no permission for.
    pub(crate) fn check(&self, access: Access, resource: Resource, name: &str) -> Result<(), BrokerError> {
        let name = match (resource, name) {
            (Resource::Exchange, "") => DEFAULT_EXCHANGE,
            _ => name,
        };
        if let Some(asked) = &self.asked {
            let what = || resource.describe(name, &self.vhost);
            return self.ask(asked, AuthzTarget::resource(&self.vhost, resource, name, access), access, what);
        }
        let rules = self.rules.load();
        if rules.allow(access, name) {
            return Ok(());
        }
        let what = resource.describe(name, &self.vhost);
        Err(self.refused(access, &what, &rules))
    }

    /// Refuses a routing key of a topic exchange that the user, as this client, may not publish (`Write`) or bind (`Read`)
    /// with.
    pub(crate) fn check_topic(
        &self,
        access: Access,
        exchange: &str,
        key: &str,
        client: Option<&ClientName>,
    ) -> Result<(), BrokerError> {
        if let Some(asked) = &self.asked {
            let what = || format!("topic '{key}' in {}", Resource::Exchange.describe(exchange, &self.vhost));
            return self.ask(asked, AuthzTarget::topic(&self.vhost, exchange, key, access), access, what);
        }
        let rules = self.rules.load();
        if rules.allow_topic(access, exchange, key, client) {
            return Ok(());
        }
        let exchange = Resource::Exchange.describe(exchange, &self.vhost);
        Err(self.refused(access, &format!("topic '{key}' in {exchange}"), &rules))
    }

    fn refusal(&self, access: Access, what: &str) -> String {
        let (access, space) =
            if self.compatibility.refusal_names_permission() { (access.word(), " ") } else { ("", "") };
        format!("{access}{space}access to {what} refused for user '{}'", self.user)
    }

    fn refused(&self, access: Access, what: &str, rules: &Rules) -> BrokerError {
        let mut text = self.refusal(access, what);
        if let Rules::Expired(Expiry { expired_at, noticed_at }) = rules {
            text.push_str(&format!(
                ", backend rabbit_auth_backend_oauth2 returned an error: \"Provided JWT token has expired at \
                 timestamp {expired_at} (validated at {noticed_at})\""
            ));
        }
        BrokerError::access(text)
    }

    /// Replaces variables by names. Unlike in RabbitMQ the names are taken literally, so that a user named `.*` does not
    /// get all permissions.
    fn expand(&self, pattern: &str) -> Result<TopicRule, PatternError> {
        let expanded = pattern
            .replace("{username}", &fancy_regex::escape(&self.user))
            .replace("{vhost}", &fancy_regex::escape(&self.vhost));
        TopicRule::new(&expanded)
    }
}

impl Rules {
    fn of_token(identity: &Identity, vhost: &str) -> Option<Self> {
        let scopes = Scopes::new(identity.external()?.scopes()?, vhost);
        Some(Self::Token { scopes, may_impersonate: identity.may_impersonate() })
    }

    fn allow(&self, access: Access, name: &str) -> bool {
        match self {
            Self::Defined(rules) => rules.allow(access, name),
            Self::Token { scopes, .. } => scopes.allow(access, name),
            Self::Expired(_) => false,
        }
    }

    fn allow_topic(&self, access: Access, exchange: &str, key: &str, client: Option<&ClientName>) -> bool {
        match self {
            Self::Defined(rules) => rules.allow_topic(access, exchange, key, client),
            Self::Token { scopes, .. } => scopes.allow_topic(access, exchange, key),
            Self::Expired(_) => false,
        }
    }
}

impl DefinedRules {
    fn allow(&self, access: Access, name: &str) -> bool {
        let pattern = self.resources.as_ref().map(|rules| match access {
            Access::Configure => &rules.configure,
            Access::Write => &rules.write,
            Access::Read => &rules.read,
        });
        pattern.is_some_and(|pattern| pattern.matches(name))
    }

    fn allow_topic(&self, access: Access, exchange: &str, key: &str, client: Option<&ClientName>) -> bool {
        let Some(topic) = self.topics.get(exchange) else { return true };
        let rule = if access == Access::Write { &topic.write } else { &topic.read };
        rule.matches(key, client)
    }
}

/// The name of the default exchange in permissions.
const DEFAULT_EXCHANGE: &str = "amq.default";
