//! Reads and changes single definitions. The caller must make changes one at a time.

use std::sync::Arc;

use serde_json::{Map, Value};
use store::catalogue::{Section, Ticket};

use crate::broker::Broker;
use crate::definitions::{Definitions, DefinitionsError};
use crate::limits::VirtualHostLimits;
use crate::time::Timestamp;
use crate::topology_recorder::key;
use crate::vhost::VirtualHost;

impl Broker {
    /// Adds an entry of a definitions file's section, or changes the one with its names. It takes effect at once and is
    /// stored.
    ///
    /// # Errors
    /// The entry is invalid, and the reason. Nothing has changed then.
    pub fn define(&self, section: Section, entry: Value, now: Timestamp) -> Result<(), DefinitionsError> {
        let file = Map::from_iter([(section.name().to_owned(), Value::Array(vec![entry]))]);
        self.load_tried(&Definitions::from_map(&file)?, now)
    }

    /// An entry, in the format of a definitions file. Its names are, as far as they apply, those of virtual
    /// host, component, user, exchange, and its own, in this order.
    pub fn definition(&self, section: Section, names: &[&str]) -> Option<Value> {
        self.book().get(section, names)
    }

    /// The entries of a section whose names begin with `prefix`, in the order of their names.
    pub fn definitions_of(&self, section: Section, prefix: &[&str]) -> Vec<Value> {
        self.book().list(section, prefix).into_iter().map(|(_, entry)| entry).collect()
    }

    /// Removes an entry with all that depends on it: with a user the permissions, with a virtual host
    /// everything in it. Returns whether it existed. The caller closes connections.
    pub fn delete_definition(&self, section: Section, names: &[&str], now: Timestamp) -> bool {
        if self.book().get(section, names).is_none() {
            return false;
        }
        match (section, names) {
            (Section::Users, &[user]) => self.forget_user(user),
            (Section::VirtualHosts, &[vhost]) => self.forget_vhost(vhost),
            (Section::Permissions, &[vhost, user]) => {
                // This cannot fail, as there is no expression.
                let _ = self.vhost(vhost).map(|vhost| vhost.set_permissions(user, None));
            }
            (Section::TopicPermissions, &[vhost, user, exchange]) => {
                if let Some(vhost) = self.vhost(vhost) {
                    vhost.remove_topic_permissions(user, exchange);
                }
            }
            (Section::Policies, &[vhost, name]) => {
                if let Some(vhost) = self.vhost(vhost) {
                    vhost.remove_policy(name, now);
                }
            }
            (Section::Parameters, &[vhost, component, name]) => {
                if let Some(vhost) = self.vhost(vhost) {
                    clear_parameter(&vhost, component, name, now);
                }
            }
            _ => {}
        }
        self.delete(section, names);
        true
    }

    /// A ticket that is done when everything defined so far is on disk.
    pub fn last_defined(&self) -> Ticket {
        self.catalogue().map(|catalogue| catalogue.last_noted()).unwrap_or_default()
    }

    /// All virtual hosts, by name.
    pub fn vhosts(&self) -> Vec<Arc<VirtualHost>> {
        let mut vhosts: Vec<_> = self.all_vhosts();
        vhosts.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        vhosts
    }

    /// Removes an entry from the book and from the disk.
    fn delete(&self, section: Section, names: &[&str]) {
        self.book().remove(section, names, || {
            if let Some(catalogue) = self.catalogue() {
                catalogue.delete(section, key(names));
            }
        });
    }

    fn delete_all(&self, section: Section, concerns: impl Fn(&[String]) -> bool) {
        for (names, _) in self.book().list(section, &[]) {
            if concerns(&names) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                self.delete(section, &names);
            }
        }
    }

    fn forget_user(&self, user: &str) {
        self.remove_account(user);
        for vhost in self.all_vhosts() {
            // This cannot fail, as there is no expression.
            let _ = vhost.set_permissions(user, None);
            for exchange in self.topic_exchanges_of(vhost.name(), user) {
                vhost.remove_topic_permissions(user, &exchange);
            }
        }
        for section in [Section::Permissions, Section::TopicPermissions] {
            self.delete_all(section, |names| names.get(1).is_some_and(|name| name == user));
        }
    }

    fn topic_exchanges_of(&self, vhost: &str, user: &str) -> Vec<String> {
        let entries = self.book().list(Section::TopicPermissions, &[vhost, user]);
        entries.into_iter().filter_map(|(mut names, _)| names.pop()).collect()
    }

    fn forget_vhost(&self, name: &str) {
        let removed = self.remove_vhost(name);
        let sections =
            [Section::Permissions, Section::TopicPermissions, Section::Parameters, Section::Policies];
        for section in sections {
            self.delete_all(section, |names| names.first().is_some_and(|vhost| vhost == name));
        }
        if let Some(vhost) = removed {
            vhost.tear_down();
            self.notify_vhost_gone(name);
        }
    }
}

fn clear_parameter(vhost: &Arc<VirtualHost>, component: &str, name: &str, now: Timestamp) {
    match component {
        "operator_policy" => vhost.remove_operator_policy(name, now),
        "vhost-limits" => vhost.set_limits(VirtualHostLimits::default()),
        _ => {}
    }
}
