//! Topic aliases of one connection (sections 3.3.2.3.4), in both directions.

use std::collections::HashMap;

use crate::fault::MqttFault;
use crate::reason::ReasonCode;

/// The aliases that the client has defined.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Indexed by alias minus 1.
    topics: Vec<Option<Box<str>>>,
}

impl Received {
    /// Defines `alias` as `topic`, or, if `topic` is empty, checks that the alias is defined.
    pub(super) fn learn(&mut self, maximum: u16, alias: u16, topic: &str) -> Result<(), MqttFault> {
        if alias > maximum {
            return Err(MqttFault::new(ReasonCode::TopicAliasInvalid, "topic alias above the maximum"));
        }
        let at = usize::from(alias) - 1;
        if topic.is_empty() {
            let is_known = self.find(alias).is_some();
            return if is_known { Ok(()) } else { Err(MqttFault::protocol("topic alias is not defined")) };
        }
        if self.topics.len() <= at {
            self.topics.resize(at + 1, None);
        }
        // Clients may repeat the topic with its alias as often as they like.
        if self.topics[at].as_deref() != Some(topic) {
            self.topics[at] = Some(topic.into());
        }
        Ok(())
    }

    /// The topic of an alias.
    pub(super) fn find(&self, alias: u16) -> Option<&str> {
        self.topics.get(usize::from(alias) - 1)?.as_deref()
    }
}

/// The server's aliases: the first topics get one, up to the client's maximum.
#[derive(Debug, Default)]
pub(super) struct Sent {
    maximum: u16,
    aliases: HashMap<Box<str>, u16>,
}

impl Sent {
    pub(super) fn new(maximum: u16) -> Self {
        Self { maximum, aliases: HashMap::new() }
    }

    /// The alias for a topic, and whether the client knows it already.
    pub(super) fn find(&mut self, topic: &str) -> Option<(u16, bool)> {
        if self.maximum == 0 {
            return None;
        }
        if let Some(alias) = self.aliases.get(topic) {
            return Some((*alias, true));
        }
        // An alias costs three bytes, so a shorter topic saves nothing.
        if topic.len() <= 3 || self.aliases.len() >= usize::from(self.maximum) {
            return None;
        }
        let alias = self.aliases.len() as u16 + 1;
        self.aliases.insert(topic.into(), alias);
        Some((alias, false))
    }
}
