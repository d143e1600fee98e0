//! The rules that select the publishes to be spooled.

use broker::{Pattern, PatternError};

/// Matches publishes by virtual host, user and exchange. A missing expression matches everything.
#[derive(Debug, Clone, PartialEq)]
pub struct SpoolRule {
    vhost: Option<Pattern>,
    user: Option<Pattern>,
    exchange: Option<Pattern>,
}

impl SpoolRule {
    /// Compiles the expressions, which may match anywhere in a name unless they are anchored. `^$` matches the default
    /// exchange only.
    ///
    /// # Errors
    /// One of them is not a regular expression.
    pub fn new(
        vhost: Option<&str>,
        user: Option<&str>,
        exchange: Option<&str>,
    ) -> Result<Self, PatternError> {
        let compile = |text: Option<&str>| text.map(Pattern::new).transpose();
        Ok(Self { vhost: compile(vhost)?, user: compile(user)?, exchange: compile(exchange)? })
    }

    /// Its expressions for virtual host, user and exchange, as given.
    pub fn texts(&self) -> [Option<&str>; 3] {
        [&self.vhost, &self.user, &self.exchange].map(|pattern| pattern.as_ref().map(Pattern::text))
    }
}

fn matches(pattern: &Option<Pattern>, name: &str) -> bool {
    pattern.as_ref().is_none_or(|pattern| pattern.matches(name))
}

/// All rules of a spool.
#[derive(Debug)]
pub(crate) struct SpoolRules(pub(super) Vec<SpoolRule>);

impl SpoolRules {
    /// The exchanges whose publishes are spooled for a user's clients in a virtual host; `None` if no rule matches.
    pub(crate) fn exchanges_of(&self, vhost: &str, user: &str) -> Option<SpooledExchanges> {
        let concerns = |rule: &&SpoolRule| matches(&rule.vhost, vhost) && matches(&rule.user, user);
        let exchanges: Vec<_> = self.0.iter().filter(concerns).map(|rule| rule.exchange.clone()).collect();
        (!exchanges.is_empty()).then(|| SpooledExchanges { exchanges, last: None })
    }
}

/// The exchanges of a client's matching rules, with a cache of the last one, since most clients use one exchange.
#[derive(Debug)]
pub(crate) struct SpooledExchanges {
    exchanges: Vec<Option<Pattern>>,
    /// The last exchange that was checked, and the result.
    last: Option<(Box<str>, bool)>,
}

impl SpooledExchanges {
    /// Whether publishes to this exchange are spooled.
    pub(crate) fn contain(&mut self, exchange: &str) -> bool {
        if let Some((last, is_spooled)) = &self.last
            && **last == *exchange
        {
            return *is_spooled;
        }
        let is_spooled = self.exchanges.iter().any(|pattern| matches(pattern, exchange));
        self.last = Some((exchange.into(), is_spooled));
        is_spooled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_needs_one_rule_that_matches_in_all_parts() {
        let rules = SpoolRules(vec![
            SpoolRule::new(Some("^/$"), Some("^edge"), Some("^$")).unwrap(),
            SpoolRule::new(None, Some("^edge-2$"), Some("orders")).unwrap(),
        ]);
        let taken = |vhost, user, exchange| {
            rules.exchanges_of(vhost, user).is_some_and(|mut exchanges| exchanges.contain(exchange))
        };
        assert!(taken("/", "edge-1", "") && !taken("/", "edge-1", "orders"));
        assert!(taken("other", "edge-2", "my-orders") && !taken("other", "edge-2", ""));
        assert!(taken("/", "edge-2", "") && taken("/", "edge-2", "orders"));
        assert!(rules.exchanges_of("other", "edge-1").is_none());
        assert!(rules.exchanges_of("/", "guest").is_none());
    }

    #[test]
    fn a_rule_without_expressions_matches_all() {
        let rules = SpoolRules(vec![SpoolRule::new(None, None, None).unwrap()]);
        let mut exchanges = rules.exchanges_of("any", "any").unwrap();
        assert!(exchanges.contain("") && exchanges.contain("amq.topic") && exchanges.contain("amq.topic"));
    }
}
