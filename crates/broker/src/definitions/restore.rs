//! Stores definitions on disk and restores them. Users, virtual hosts, permissions, parameters and policies
//! are stored in the format of a definitions file and read by the same code; exchanges, queues and bindings
//! as in [`crate::topology_recorder`].

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use store::catalogue::{Catalogue, Section};
use store::{Recovered, Store};

use super::Definitions;
use super::error::{DefinitionsError, EntryError, MAX_NAME};
use super::format::DefinitionsFile;
use super::load::PolicyTrial;
use crate::broker::Broker;
use crate::persistence::{RestoreError, Restored};
use crate::time::Timestamp;
use crate::topology_recorder::{key, read_binding, read_exchange, read_queue};
use crate::users::GUEST;
use crate::vhost::TopologyRecovery;

impl Broker {
    /// Restores everything in the store, and from now on stores what is durable. Called once, before anything
    /// else is done with the broker, with what was recovered when the store was opened. Returns the number of
    /// restored messages.
    ///
    /// # Errors
    /// The entry or message that cannot be read, and the reason.
    pub fn restore(
        &self,
        store: &Arc<Store>,
        recovered: Recovered,
        now: Timestamp,
    ) -> Result<u64, RestoreError> {
        let catalogue = store.catalogue();
        let file = DefinitionsFile {
            users: entries(catalogue, Section::Users)?,
            vhosts: entries(catalogue, Section::VirtualHosts)?,
            permissions: entries(catalogue, Section::Permissions)?,
            topic_permissions: entries(catalogue, Section::TopicPermissions)?,
            parameters: entries(catalogue, Section::Parameters)?,
            policies: entries(catalogue, Section::Policies)?,
            global_parameters: entries(catalogue, Section::GlobalParameters)?,
            ..DefinitionsFile::default()
        };
        // A stored policy may have keys of another release than the one that is followed now.
        self.load_as(&file, None, PolicyTrial::Omitted, now)?;
        let mut restoring = TopologyRecovery::new(self, store);
        // A crash may have occurred between the deletion of an object, or of a virtual host, and the deletion of its
        // dependent entries.
        let mut orphans = Vec::new();
        scan(catalogue, Section::Exchanges, |key, value| {
            let exchange = read_exchange(key, value)?;
            if self.vhost(exchange.vhost).is_none() {
                orphans.push((Section::Exchanges, key.to_vec()));
                return Some(());
            }
            restoring.exchange(&exchange)
        })?;
        scan(catalogue, Section::Queues, |key, value| {
            let queue = read_queue(key, value)?;
            if self.vhost(queue.vhost).is_none() {
                orphans.push((Section::Queues, key.to_vec()));
                return Some(());
            }
            restoring.queue(&queue, now)
        })?;
        let (mut bindings, queues) = restoring.into_bindings();
        scan(catalogue, Section::Bindings, |key, _| {
            if !bindings.bind(&read_binding(key)?) {
                orphans.push((Section::Bindings, key.to_vec()));
            }
            Some(())
        })?;
        bindings.finish();
        for (section, orphan) in orphans {
            catalogue.delete(section, orphan);
        }
        let restored = Restored::fill(store, recovered, &queues, self.paging().watermark())?;
        self.keep(store);
        Ok(restored.resume(now))
    }

    /// Adds the contents of a new broker: the virtual host `/`, and RabbitMQ's user guest with full
    /// permissions in it.
    pub fn add_defaults(&self) {
        let added = self.load(&Definitions::first(GUEST, GUEST, "/"), Timestamp::default());
        debug_assert!(added.is_ok(), "{added:?}");
    }

    /// Stores an entry, if there is a store.
    pub(super) fn keep_entry<T: Serialize>(
        &self,
        section: Section,
        names: &[&str],
        entry: &T,
    ) -> Result<(), EntryError> {
        if let Some(long) = names.iter().find(|name| name.len() > MAX_NAME) {
            return Err(EntryError::LongName(long.len()));
        }
        let value = serde_json::to_value(entry)?;
        let bytes = value.to_string().into_bytes();
        self.book().put(section, names, value, || {
            if let Some(catalogue) = self.catalogue() {
                catalogue.put(section, key(names), bytes);
            }
        });
        Ok(())
    }
}

/// The entries of a section that are stored as in a definitions file.
fn entries<T: DeserializeOwned>(catalogue: &Catalogue, section: Section) -> Result<Vec<T>, DefinitionsError> {
    let mut entries = Vec::new();
    scan(catalogue, section, |_, value| {
        entries.push(serde_json::from_slice(value).ok()?);
        Some(())
    })?;
    Ok(entries)
}

/// Passes each entry of a section to `read`, which returns `None` for an entry that it cannot decode.
fn scan(
    catalogue: &Catalogue,
    section: Section,
    mut read: impl FnMut(&[u8], &[u8]) -> Option<()>,
) -> Result<(), DefinitionsError> {
    let mut wrong = None;
    let each = |key: &[u8], value: &[u8]| {
        if wrong.is_none() && read(key, value).is_none() {
            wrong = Some(key.escape_ascii().to_string());
        }
    };
    let scanned = catalogue.scan(section, each);
    scanned.map_err(|error| DefinitionsError::new("", error.into()))?;
    match wrong {
        None => Ok(()),
        Some(key) => Err(DefinitionsError::new(format!("{section:?} '{key}'"), EntryError::Unreadable)),
    }
}
