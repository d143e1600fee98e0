//! Checks definitions without the broker that will load them.

use std::collections::HashSet;

use super::Definitions;
use super::error::DefinitionsError;
use super::load::PolicyTrial;
use super::loaded::LoadedDefinitions;
use crate::broker::{Broker, BrokerConfig};
use crate::compatibility::Compatibility;
use crate::time::Timestamp;
use crate::users::{UserLimits, UserSpec};

impl Definitions {
    /// Checks for mistakes because of which no broker that follows `release` could load the definitions, whatever it contains
    /// already. The broker may have users and virtual hosts that entries refer to and the file does not define. Queues,
    /// exchanges and bindings are not checked, because the arguments of existing ones are ignored by a load;
    /// [`Definitions::check_beside`] checks them.
    ///
    /// # Errors
    /// The first such mistake.
    pub fn check(&self, release: Compatibility) -> Result<(), DefinitionsError> {
        let broker =
            Broker::new(BrokerConfig { defaults: false, compatibility: release, ..Default::default() });
        let Self { file } = self;
        let of_permissions = file.permissions.iter().map(|entry| (&entry.user, &entry.vhost));
        let of_topics = file.topic_permissions.iter().map(|entry| (&entry.user, &entry.vhost));
        let (users, vhosts): (HashSet<&String>, HashSet<&String>) = of_permissions.chain(of_topics).unzip();
        for name in users {
            broker.put_user(UserSpec {
                name: name.clone(),
                password: None,
                loopback_only: false,
                tags: Vec::new(),
                limits: UserLimits::default(),
            });
        }
        let of_parameters = file.parameters.iter().map(|entry| &entry.vhost);
        let of_policies = file.policies.iter().map(|entry| &entry.vhost);
        let vhosts: HashSet<&String> = vhosts.into_iter().chain(of_parameters).chain(of_policies).collect();
        vhosts.into_iter().for_each(|name| drop(broker.add_vhost(name)));
        let (trial, now) = (PolicyTrial::Omitted, Timestamp::default());
        broker.load_all_but_topology(file, Some(release), trial, now, &mut LoadedDefinitions::default())
    }
}
