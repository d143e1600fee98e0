//! Topic permissions that refer to the client (`{client_id}`), which only MQTT clients have.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use sync::{Mutex, Rank};

use super::{Pattern, PatternError};

/// The variable that is replaced with the client's name in an expression.
const VARIABLE: &str = "{client_id}";

/// Expressions cached per client: those for publishing and for subscribing, and their successors after a change.
const MAX_EXPANDED: usize = 4;

/// A regular expression for topics.
#[derive(Clone)]
pub(super) enum TopicRule {
    /// The expression is the same for all of a user's clients.
    Same(Pattern),
    /// The expression contains the client's name. For a client without a name the variable is taken
    /// literally, as in RabbitMQ.
    ByClient { text: Arc<str>, nameless: Pattern },
}

impl TopicRule {
    /// Reads an expression whose other variables have been replaced.
    ///
    /// # Errors
    /// The text is not a valid expression.
    pub(super) fn new(text: &str) -> Result<Self, PatternError> {
        if !text.contains(VARIABLE) {
            return Pattern::of_permission(text).map(Self::Same);
        }
        let nameless = Pattern::of_permission(&text.replace(VARIABLE, &fancy_regex::escape(VARIABLE)))?;
        Ok(Self::ByClient { text: text.into(), nameless })
    }

    pub(super) fn matches(&self, key: &str, client: Option<&ClientName>) -> bool {
        match (self, client) {
            (Self::Same(pattern), _) => pattern.matches(key),
            (Self::ByClient { nameless, .. }, None) => nameless.matches(key),
            (Self::ByClient { text, .. }, Some(client)) => client.matches(text, key),
        }
    }
}

/// The name of an MQTT client, and a cache of the expressions that contain it.
pub(crate) struct ClientName {
    name: Box<str>,
    /// By their texts before the client's name was inserted; the most recently used come last.
    expanded: Mutex<VecDeque<(Arc<str>, Option<Pattern>)>, { Rank::Leaf as u8 }>,
}

impl ClientName {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), expanded: Mutex::default() }
    }

    /// Whether an expression matches with the name inserted. One that becomes too large matches nothing.
    fn matches(&self, text: &Arc<str>, key: &str) -> bool {
        let mut expanded = self.expanded.lock();
        let known = expanded.iter().position(|(known, _)| Arc::ptr_eq(known, text));
        let entry = match known.and_then(|at| expanded.remove(at)) {
            Some(entry) => entry,
            None => {
                let with_name = text.replace(VARIABLE, &fancy_regex::escape(&self.name));
                (Arc::clone(text), Pattern::of_permission(&with_name).ok())
            }
        };
        let is_match = entry.1.as_ref().is_some_and(|pattern| pattern.matches(key));
        if expanded.len() == MAX_EXPANDED {
            expanded.pop_front();
        }
        expanded.push_back(entry);
        is_match
    }
}

impl fmt::Debug for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientName").field(&self.name).finish()
    }
}

impl PartialEq for ClientName {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ClientName {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_name_is_put_in_literally() {
        let rule = TopicRule::new("^sensors\\.{client_id}\\.").unwrap();
        let (plain, sly) = (ClientName::new("c-1"), ClientName::new(".*"));
        assert!(rule.matches("sensors.c-1.x", Some(&plain)));
        assert!(!rule.matches("sensors.c-2.x", Some(&plain)));
        assert!(!rule.matches("sensors.c-1.x", Some(&sly)) && rule.matches("sensors..*.x", Some(&sly)));
    }

    #[test]
    fn a_client_without_a_name_matches_the_client_id_variable_literally() {
        let rule = TopicRule::new("^{client_id}$").unwrap();
        assert!(!rule.matches("", None) && !rule.matches("x", None));
        assert!(rule.matches("{client_id}", None));
        assert!(TopicRule::new("^x$").unwrap().matches("x", Some(&ClientName::new("c"))));
    }

    #[test]
    fn a_client_remembers_few_expressions_and_no_stale_one() {
        let client = ClientName::new("c");
        for number in 0..10 {
            let rule = TopicRule::new(&format!("^{number}{{client_id}}$")).unwrap();
            for _ in 0..2 {
                assert!(rule.matches(&format!("{number}c"), Some(&client)));
                assert!(!rule.matches("0d", Some(&client)));
            }
        }
        assert_eq!(client.expanded.lock().len(), MAX_EXPANDED);
    }

    #[test]
    fn a_wrong_expression_is_refused_when_it_is_set() {
        assert!(TopicRule::new("({client_id}").is_err());
    }
}
