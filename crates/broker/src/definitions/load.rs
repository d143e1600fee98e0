//! Loads definitions into a broker, in RabbitMQ's order. Existing users, permissions, policies and limits are
//! changed; existing virtual hosts, queues, exchanges and bindings are left as they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use amqp::RawTable;
use serde::Deserialize;
use store::catalogue::Section;

use super::Definitions;
use super::arguments::table_of;
use super::error::{DefinitionsError, EntryError, MAX_NAME};
use super::format::{
    BindingEntry, DefinitionsFile, DefinitionsScope, DestinationType, ExchangeEntry, Limits, Parameter,
    PolicyBody, QueueEntry, Tags, User, Vhost,
};
use super::loaded::{Effect, EntryKind, LoadedDefinitions};
use crate::SessionId;
use crate::arguments::QueueKind;
use crate::broker::Broker;
use crate::compatibility::Compatibility;
use crate::limits::VirtualHostLimits;
use crate::permissions::{Pattern, Permissions, TooManySteps, TopicPermissions};
use crate::policies::{ApplyTo, Policy, PolicyDefinition};
use crate::time::Timestamp;
use crate::users::{GUEST, PasswordHash, UserLimits, UserSpec};
use crate::vhost::{Binding, ExchangeDeclare, QueueDeclare, VirtualHost};

/// Whether a policy's pattern is tested on the existing names before the policy is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyTrial {
    /// Test it, and refuse the policy if matching takes too many steps.
    Required,
    /// Do not test it, for bulk loads and definitions that were accepted before. A pattern that takes too many steps
    /// does not match.
    Omitted,
}

/// The virtual hosts whose policies have been changed, but not yet applied. Each walks over its queues once, however many
/// policies a file has.
struct ChangedPolicies {
    trial: PolicyTrial,
    vhosts: BTreeMap<String, Arc<VirtualHost>>,
}

impl ChangedPolicies {
    /// Tries a policy if necessary, and adds it to a virtual host by `put`.
    fn put(
        &mut self,
        vhost: Arc<VirtualHost>,
        policy: Policy,
        put: fn(&VirtualHost, Policy),
    ) -> Result<(), TooManySteps> {
        if self.trial == PolicyTrial::Required {
            vhost.try_policy(&policy)?;
        }
        put(&vhost, policy);
        self.vhosts.insert(vhost.name().to_owned(), vhost);
        Ok(())
    }

    fn apply(self, now: Timestamp) {
        self.vhosts.into_values().for_each(|vhost| vhost.apply_policies(now));
    }
}

impl Broker {
    /// Loads definitions. Returns what was created and changed.
    ///
    /// # Errors
    /// The first entry that cannot be loaded, and the reason. The entries before it have been loaded.
    pub fn load(
        &self,
        definitions: &Definitions,
        now: Timestamp,
    ) -> Result<LoadedDefinitions, DefinitionsError> {
        self.load_as(&definitions.file, Some(self.compatibility()), PolicyTrial::Omitted, now)
    }

    /// Loads a definition that an operator sets: a policy's pattern is tested on the existing names.
    pub(crate) fn load_tried(
        &self,
        definitions: &Definitions,
        now: Timestamp,
    ) -> Result<(), DefinitionsError> {
        self.load_as(&definitions.file, Some(self.compatibility()), PolicyTrial::Required, now).map(drop)
    }

    /// Loads definitions that `release` has to accept; `None` if they were accepted before, perhaps by another release.
    pub(super) fn load_as(
        &self,
        file: &DefinitionsFile,
        release: Option<Compatibility>,
        trial: PolicyTrial,
        now: Timestamp,
    ) -> Result<LoadedDefinitions, DefinitionsError> {
        let mut loaded = LoadedDefinitions::default();
        self.load_all_but_topology(file, release, trial, now, &mut loaded)?;
        self.load_topology(file, now, &mut loaded)?;
        Ok(loaded)
    }

    /// Loads everything but queues, exchanges and bindings.
    pub(super) fn load_all_but_topology(
        &self,
        file: &DefinitionsFile,
        release: Option<Compatibility>,
        trial: PolicyTrial,
        now: Timestamp,
        loaded: &mut LoadedDefinitions,
    ) -> Result<(), DefinitionsError> {
        self.load_users_and_vhosts(file, release, loaded)?;
        self.load_permissions(file, loaded)?;
        self.load_parameters_and_policies(file, release, trial, now, loaded)
    }

    fn load_users_and_vhosts(
        &self,
        file: &DefinitionsFile,
        release: Option<Compatibility>,
        loaded: &mut LoadedDefinitions,
    ) -> Result<(), DefinitionsError> {
        let mut overwritten = Vec::new();
        let users = each(
            "user",
            &file.users,
            |user| (&user.name, None),
            |user| {
                let spec = spec_of(user)?;
                if self.has_other_password(user, spec.password.as_ref()) {
                    overwritten.push(user.name.clone());
                }
                let existed = self.has_user(&user.name);
                self.keep_entry(Section::Users, &[&user.name], &user.as_stored(spec.password.as_ref()))?;
                self.put_user(spec);
                Ok(made_unless(existed))
            },
        )?;
        loaded.overwritten_passwords = overwritten;
        loaded.count(EntryKind { one: "user", many: "users" }, users);
        let vhosts = each(
            "vhost",
            &file.vhosts,
            |vhost| (&vhost.name, None),
            |vhost| {
                let kind = vhost.default_queue_kind(release)?;
                let existed = self.vhost(&vhost.name).is_some();
                let added = self.add_vhost(&vhost.name);
                self.keep_entry(Section::VirtualHosts, &[&vhost.name], &self.as_stored(vhost, kind))?;
                added.set_default_queue_kind(kind);
                if let Some(traced) = vhost.tracing {
                    added.set_traced(traced);
                }
                Ok(made_unless(existed))
            },
        )?;
        loaded.count(EntryKind { one: "vhost", many: "vhosts" }, vhosts);
        Ok(())
    }

    /// Whether a user exists who has a password, but not that of the entry.
    fn has_other_password(&self, user: &User, hash: Option<&PasswordHash>) -> bool {
        let before = self.definition(Section::Users, &[&user.name]);
        let text = |key: &str| before.as_ref().and_then(|before| before.get(key)?.as_str());
        let before =
            PasswordHash::parse(text("password_hash").unwrap_or_default(), text("hashing_algorithm"));
        before.is_ok_and(|before| match &user.password {
            Some(password) => !before.matches(password.as_bytes()),
            None => hash != Some(&before),
        })
    }

    /// The virtual host as it is stored: with its current protection from deletion, unless the entry changes it, and
    /// with a default queue type that every release accepts.
    fn as_stored(&self, vhost: &Vhost, kind: QueueKind) -> Vhost {
        let before = self.definition(Section::VirtualHosts, &[&vhost.name]);
        let before = before.and_then(|before| before.get("protected_from_deletion")?.as_bool());
        let protected_from_deletion = vhost.protected_from_deletion.or(before);
        let default_queue_type = (kind != QueueKind::Classic).then(|| kind.name().to_owned());
        Vhost { protected_from_deletion, default_queue_type, ..vhost.clone() }
    }

    fn load_permissions(
        &self,
        file: &DefinitionsFile,
        loaded: &mut LoadedDefinitions,
    ) -> Result<(), DefinitionsError> {
        let permissions = each(
            "permissions of user",
            &file.permissions,
            |entry| (&entry.user, Some(&entry.vhost)),
            |entry| {
                let permissions = Permissions {
                    configure: entry.configure.clone(),
                    write: entry.write.clone(),
                    read: entry.read.clone(),
                };
                self.check_user(&entry.user)?;
                self.known(&entry.vhost)?.set_permissions(&entry.user, Some(&permissions))?;
                self.keep_entry(Section::Permissions, &[&entry.vhost, &entry.user], entry)?;
                Ok(Effect::Done)
            },
        )?;
        loaded.count(EntryKind { one: "permission", many: "permissions" }, permissions);
        let topics = each(
            "topic permissions of user",
            &file.topic_permissions,
            |entry| (&entry.user, Some(&entry.vhost)),
            |entry| {
                let permissions = TopicPermissions {
                    exchange: entry.exchange.clone(),
                    write: entry.write.clone(),
                    read: entry.read.clone(),
                };
                check_short("exchange", &entry.exchange)?;
                self.check_user(&entry.user)?;
                self.known(&entry.vhost)?.set_topic_permissions(&entry.user, &permissions)?;
                let key = [&*entry.vhost, &*entry.user, &*entry.exchange];
                self.keep_entry(Section::TopicPermissions, &key, entry)?;
                Ok(Effect::Done)
            },
        )?;
        loaded.count(EntryKind { one: "topic permission", many: "topic permissions" }, topics);
        Ok(())
    }

    fn load_parameters_and_policies(
        &self,
        file: &DefinitionsFile,
        release: Option<Compatibility>,
        trial: PolicyTrial,
        now: Timestamp,
        loaded: &mut LoadedDefinitions,
    ) -> Result<(), DefinitionsError> {
        let mut changed = ChangedPolicies { trial, vhosts: BTreeMap::new() };
        let result = self.load_parameters(file, release, &mut changed, loaded);
        let result = result.and_then(|()| self.load_policies(file, release, &mut changed, loaded));
        // Applied even after an error, because the entries before it have been loaded.
        changed.apply(now);
        result
    }

    fn load_parameters(
        &self,
        file: &DefinitionsFile,
        release: Option<Compatibility>,
        changed: &mut ChangedPolicies,
        loaded: &mut LoadedDefinitions,
    ) -> Result<(), DefinitionsError> {
        let parameters = each(
            "parameter",
            &file.parameters,
            |entry| (&entry.name, Some(&entry.vhost)),
            |entry| {
                set_parameter(self.known(&entry.vhost)?, entry, release, changed)?;
                let key = [&*entry.vhost, &*entry.component, &*entry.name];
                self.keep_entry(Section::Parameters, &key, entry)?;
                Ok(Effect::Done)
            },
        )?;
        let global = each(
            "global parameter",
            &file.global_parameters,
            |entry| (&entry.name, None),
            |entry| {
                self.keep_entry(Section::GlobalParameters, &[&entry.name], entry)?;
                Ok(Effect::Done)
            },
        )?;
        loaded.count(EntryKind { one: "parameter", many: "parameters" }, parameters + global);
        Ok(())
    }

    fn load_policies(
        &self,
        file: &DefinitionsFile,
        release: Option<Compatibility>,
        changed: &mut ChangedPolicies,
        loaded: &mut LoadedDefinitions,
    ) -> Result<(), DefinitionsError> {
        let policies = each(
            "policy",
            &file.policies,
            |entry| (&entry.name, Some(&entry.vhost)),
            |entry| {
                let definition = PolicyDefinition::parse(&entry.body.definition, release)?;
                let (vhost, policy) =
                    (self.known(&entry.vhost)?, policy_of(&entry.name, &entry.body, definition)?);
                changed.put(vhost, policy, VirtualHost::put_policy)?;
                self.keep_entry(Section::Policies, &[&entry.vhost, &entry.name], entry)?;
                Ok(Effect::Done)
            },
        )?;
        loaded.count(EntryKind { one: "policy", many: "policies" }, policies);
        Ok(())
    }

    /// Queues come before exchanges, and both before bindings.
    fn load_topology(
        &self,
        file: &DefinitionsFile,
        now: Timestamp,
        loaded: &mut LoadedDefinitions,
    ) -> Result<(), DefinitionsError> {
        let queues = each(
            "queue",
            &file.queues,
            |entry| (&entry.name, Some(&entry.vhost)),
            |entry| declare_queue(&self.known(&entry.vhost)?, entry, now),
        )?;
        loaded.count(EntryKind { one: "queue", many: "queues" }, queues);
        let exchanges = each(
            "exchange",
            &file.exchanges,
            |entry| (&entry.name, Some(&entry.vhost)),
            |entry| declare_exchange(&*self.known(&entry.vhost)?, entry),
        )?;
        loaded.count(EntryKind { one: "exchange", many: "exchanges" }, exchanges);
        let bindings = each(
            "binding of",
            &file.bindings,
            |entry| (&entry.destination, Some(&entry.vhost)),
            |entry| bind(&*self.known(&entry.vhost)?, entry),
        )?;
        loaded.count(EntryKind { one: "binding", many: "bindings" }, bindings);
        Ok(())
    }

    fn known(&self, vhost: &str) -> Result<Arc<VirtualHost>, EntryError> {
        self.vhost(vhost).ok_or_else(|| EntryError::NoVirtualHost(vhost.to_owned()))
    }

    fn check_user(&self, name: &str) -> Result<(), EntryError> {
        if self.has_user(name) { Ok(()) } else { Err(EntryError::NoUser(name.to_owned())) }
    }
}

fn made_unless(existed: bool) -> Effect {
    if existed { Effect::Existed } else { Effect::Done }
}

/// Loads the entries of a section, and returns how many had an effect; an error names the entry at fault:
/// `queue 'q' in vhost '/'`.
fn each<T>(
    what: &str,
    entries: &[T],
    name: impl Fn(&T) -> (&String, Option<&String>),
    mut load: impl FnMut(&T) -> Result<Effect, EntryError>,
) -> Result<usize, DefinitionsError> {
    let mut done = 0;
    for entry in entries {
        // Checked before anything has changed.
        let (own, vhost) = name(entry);
        let long = [Some(own), vhost].into_iter().flatten().find(|name| name.len() > MAX_NAME);
        let checked = match long {
            Some(long) => Err(EntryError::LongName(long.len())),
            None => load(entry),
        };
        let effect = checked.map_err(|reason| {
            let entry = match name(entry) {
                (name, None) => format!("{what} '{name}'"),
                (name, Some(vhost)) => format!("{what} '{name}' in vhost '{vhost}'"),
            };
            DefinitionsError::new(entry, reason)
        })?;
        done += usize::from(effect == Effect::Done);
    }
    Ok(done)
}

impl User {
    /// The user as it is stored: with the hash instead of the password.
    fn as_stored(&self, hash: Option<&PasswordHash>) -> Self {
        let (password_hash, hashing_algorithm) = hash
            .map(PasswordHash::write)
            .map_or_else(Default::default, |(hash, by)| (hash, Some(by.to_owned())));
        let tags = Tags::List(self.tags.to_vec());
        Self { password_hash, hashing_algorithm, password: None, tags, ..self.clone() }
    }
}

fn spec_of(user: &User) -> Result<UserSpec, EntryError> {
    if user.limits.max_queues.is_some() {
        return Err(EntryError::UserLimit);
    }
    let password = match &user.password {
        Some(password) => Some(PasswordHash::new(password.as_bytes())),
        None if user.password_hash.is_empty() => None,
        None => Some(PasswordHash::parse(&user.password_hash, user.hashing_algorithm.as_deref())?),
    };
    Ok(UserSpec {
        name: user.name.clone(),
        password,
        loopback_only: user.name == GUEST,
        tags: user.tags.to_vec(),
        limits: UserLimits {
            max_connections: limit(user.limits.max_connections),
            max_channels: limit(user.limits.max_channels),
        },
    })
}

/// A negative limit means no limit.
fn limit(most: Option<i64>) -> Option<u64> {
    most.and_then(|most| u64::try_from(most).ok())
}

fn set_parameter(
    vhost: Arc<VirtualHost>,
    entry: &Parameter,
    release: Option<Compatibility>,
    changed: &mut ChangedPolicies,
) -> Result<(), EntryError> {
    match entry.component.as_str() {
        "operator_policy" => {
            let body = PolicyBody::deserialize(&entry.value)?;
            let definition = PolicyDefinition::parse_operator(&body.definition, release)?;
            let policy = policy_of(&entry.name, &body, definition)?;
            changed.put(vhost, policy, VirtualHost::put_operator_policy)?;
        }
        // One entry contains all limits. A second one would replace them, and remove them when it is deleted.
        "vhost-limits" if entry.name != "limits" => {
            return Err(EntryError::LimitsName(entry.name.clone()));
        }
        "vhost-limits" => {
            let limits = Limits::deserialize(&entry.value)?;
            if limits.max_channels.is_some() {
                return Err(EntryError::VirtualHostLimit);
            }
            vhost.set_limits(VirtualHostLimits {
                max_connections: limit(limits.max_connections),
                max_queues: limit(limits.max_queues),
            });
        }
        other => return Err(EntryError::NoComponent(other.to_owned())),
    }
    Ok(())
}

fn policy_of(name: &str, body: &PolicyBody, definition: PolicyDefinition) -> Result<Policy, EntryError> {
    Ok(Policy {
        name: name.into(),
        pattern: Pattern::new(&body.pattern)?,
        priority: body.priority,
        apply_to: match body.apply_to {
            DefinitionsScope::All => ApplyTo::All,
            DefinitionsScope::Queues => ApplyTo::Queues,
            DefinitionsScope::ClassicQueues => ApplyTo::QueuesOf(QueueKind::Classic),
            DefinitionsScope::QuorumQueues => ApplyTo::QueuesOf(QueueKind::Quorum),
            DefinitionsScope::Streams => ApplyTo::Streams,
            DefinitionsScope::Exchanges => ApplyTo::Exchanges,
        },
        definition,
    })
}

/// Whether the name is reserved for the broker. RabbitMQ skips such entries on import, although it exports one:
/// `amq.rabbitmq.log`.
fn is_reserved(name: &str) -> bool {
    name.starts_with("amq.")
}

pub(super) fn declare_queue(
    vhost: &Arc<VirtualHost>,
    entry: &QueueEntry,
    now: Timestamp,
) -> Result<Effect, EntryError> {
    if is_reserved(&entry.name) || vhost.has_queue(&entry.name) {
        return Ok(Effect::Existed);
    }
    let arguments = table_of(&entry.arguments)?.encode();
    let declare = QueueDeclare {
        name: &entry.name,
        durable: entry.durable,
        auto_delete: entry.auto_delete,
        arguments: RawTable::check(&arguments)?,
        ..Default::default()
    };
    vhost.declare_queue(NO_SESSION, &declare, now)?;
    Ok(Effect::Done)
}

pub(super) fn declare_exchange(vhost: &VirtualHost, entry: &ExchangeEntry) -> Result<Effect, EntryError> {
    if entry.name.is_empty() || is_reserved(&entry.name) || vhost.has_exchange(&entry.name) {
        return Ok(Effect::Existed);
    }
    let arguments = table_of(&entry.arguments)?.encode();
    let declare = ExchangeDeclare {
        name: &entry.name,
        kind: &entry.kind,
        passive: false,
        durable: entry.durable,
        auto_delete: entry.auto_delete,
        internal: entry.internal,
        arguments: RawTable::check(&arguments)?,
    };
    vhost.declare_exchange(&declare)?;
    Ok(Effect::Done)
}

fn bind(vhost: &VirtualHost, entry: &BindingEntry) -> Result<Effect, EntryError> {
    let has_destination = match entry.destination_type {
        DestinationType::Queue => vhost.has_queue(&entry.destination),
        DestinationType::Exchange => vhost.has_exchange(&entry.destination),
    };
    // Skipped, like the reserved queue or exchange that it refers to.
    if is_reserved(&entry.destination) && !has_destination
        || is_reserved(&entry.source) && !vhost.has_exchange(&entry.source)
    {
        return Ok(Effect::Existed);
    }
    check_short("routing_key", &entry.routing_key)?;
    let arguments = table_of(&entry.arguments)?.encode();
    let binding = Binding {
        source: &entry.source,
        destination: &entry.destination,
        routing_key: &entry.routing_key,
        arguments: RawTable::check(&arguments)?,
    };
    match entry.destination_type {
        DestinationType::Queue => vhost.bind_defined_queue(&binding)?,
        DestinationType::Exchange => vhost.bind_exchange(&binding)?,
    };
    Ok(Effect::Done)
}

fn check_short(what: &'static str, text: &str) -> Result<(), EntryError> {
    match text.len() {
        ..=MAX_NAME => Ok(()),
        bytes => Err(EntryError::LongText { what, bytes }),
    }
}

/// A session id that owns no exclusive queues.
const NO_SESSION: SessionId = SessionId(u64::MAX);
