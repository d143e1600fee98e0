//! The existing objects of a broker, as far as they affect the loading of a definitions file. During an upgrade, the new
//! process cannot read the data directory yet, and uses them to check whether the broker will load its definitions.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use store::catalogue::Section;
use sync::pace::pace;

use super::Definitions;
use super::error::DefinitionsError;
use super::format::DefinitionsFile;
use super::load::{PolicyTrial, declare_exchange, declare_queue};
use super::loaded::LoadedDefinitions;
use crate::broker::{Broker, BrokerConfig};
use crate::compatibility::Compatibility;
use crate::time::Timestamp;

impl Broker {
    /// The names of the objects that the broker will have after a restart, and the limits of its virtual hosts, as
    /// sections of a definitions file. Excludes auto-delete queues and exchanges.
    pub fn existing(&self) -> Map<String, Value> {
        let users = self.definitions_of(Section::Users, &[]).into_iter();
        let users =
            users.map(|user| json!({ "name": user["name"], "password_hash": "", "tags": [] })).collect();
        let mut limits = self.definitions_of(Section::Parameters, &[]);
        limits.retain(|parameter| parameter["component"] == "vhost-limits");
        let (mut queues, mut exchanges) = (Vec::new(), Vec::new());
        for vhost in self.vhosts() {
            for queue in vhost.all_queues() {
                pace(LISTED);
                let properties = queue.properties();
                if properties.durable && !properties.auto_delete && properties.owner.is_none() {
                    queues.push(json!({
                        "name": &**queue.name(), "vhost": vhost.name(), "durable": true, "auto_delete": false,
                    }));
                }
            }
            for exchange in vhost.all_exchanges() {
                pace(LISTED);
                if exchange.durable && !exchange.auto_delete {
                    exchanges.push(json!({
                        "name": &*exchange.name, "vhost": vhost.name(), "type": exchange.kind, "durable": true,
                        "auto_delete": false,
                    }));
                }
            }
        }
        let sections = [
            ("users", users),
            ("vhosts", self.definitions_of(Section::VirtualHosts, &[])),
            ("parameters", limits),
            ("queues", queues),
            ("exchanges", exchanges),
        ];
        sections.into_iter().map(|(section, entries)| (section.to_owned(), entries.into())).collect()
    }
}

/// Nanoseconds for listing an entry.
const LISTED: u32 = 1_000;

impl Definitions {
    /// Checks whether a broker that follows `release` and has the `existing` objects ([`Broker::existing`]) can load these
    /// definitions, after loading `first`, if any.
    ///
    /// # Errors
    /// The first such mistake.
    pub fn check_beside(
        &self,
        existing: &Self,
        first: Option<&Self>,
        release: Compatibility,
    ) -> Result<(), DefinitionsError> {
        let broker = broker_with(&existing.file, release)?;
        let now = Timestamp::default();
        if let Some(first) = first {
            broker.load(first, now)?;
        }
        broker.load(self, now).map(drop)
    }
}

/// A broker with the `existing` objects.
fn broker_with(existing: &DefinitionsFile, release: Compatibility) -> Result<Arc<Broker>, DefinitionsError> {
    let broker = Broker::new(BrokerConfig { defaults: false, compatibility: release, ..Default::default() });
    let now = Timestamp::default();
    let before = DefinitionsFile {
        users: existing.users.clone(),
        vhosts: existing.vhosts.clone(),
        ..Default::default()
    };
    let limits = DefinitionsFile { parameters: existing.parameters.clone(), ..Default::default() };
    let load = |file: &DefinitionsFile| {
        broker.load_all_but_topology(
            file,
            // Existing definitions were accepted before, perhaps by another release.
            None,
            PolicyTrial::Omitted,
            now,
            &mut LoadedDefinitions::default(),
        )
    };
    load(&before)?;
    // An existing queue or exchange that this release would refuse is not an error of the entries to be checked.
    for queue in &existing.queues {
        let _ = broker.vhost(&queue.vhost).map(|vhost| declare_queue(&vhost, queue, now));
    }
    for exchange in &existing.exchanges {
        let _ = broker.vhost(&exchange.vhost).map(|vhost| declare_exchange(&vhost, exchange));
    }
    // Loaded after the queues, whose number may exceed a limit that was set later.
    load(&limits)?;
    Ok(broker)
}
