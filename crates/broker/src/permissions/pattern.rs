//! The regular expressions of permissions and policies.

use std::fmt;
use std::sync::Arc;

use fancy_regex::{Regex, RegexBuilder};
use sync::atomic::{AtomicBool, Ordering};

/// A regular expression that may match anywhere in a name, as Erlang's `re:run/2` does. Look-around is
/// supported, since many policies use `^(?!amq\.)`.
#[derive(Clone)]
pub struct Pattern {
    text: Box<str>,
    rule: Rule,
}

/// A text that is not a regular expression, or one that is too large to compile.
#[derive(Debug, thiserror::Error, Clone)]
#[error("'{text}' is not a regular expression: {source}")]
pub struct PatternError {
    text: Box<str>,
    source: Box<fancy_regex::Error>,
}

/// Matching a name took too many steps, so it is unknown whether the expression matches.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("the regular expression '{text}' takes too many steps on names such as '{name}'")]
pub struct TooManySteps {
    text: Box<str>,
    name: Box<str>,
}

#[derive(Clone)]
enum Rule {
    /// `.*`, by far the most common expression, which needs no matching.
    Everything,
    Expression(Arc<Expression>),
}

struct Expression {
    regex: Regex,
    /// A name with too many steps has been logged.
    is_logged: AtomicBool,
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// The expression is invalid, or it is too large.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let rule = match text {
            ".*" | "^.*" | ".*$" | "^.*$" => Rule::Everything,
            _ => Rule::Expression(Expression::new(text, MAX_STEPS)?),
        };
        Ok(Self { text: text.into(), rule })
    }

    /// The same expression, for matching this many names: they share a budget of steps, of which each gets at least some
    /// hundred.
    #[must_use]
    pub fn for_walk(&self, names: usize) -> Self {
        let rule = match &self.rule {
            Rule::Everything => Rule::Everything,
            // A valid expression stays valid.
            Rule::Expression(_) => Expression::new(&self.text, steps_for(names))
                .map_or_else(|_| self.rule.clone(), Rule::Expression),
        };
        Self { text: self.text.clone(), rule }
    }

    /// Compiles an expression of permissions, where an empty one matches only the empty name.
    pub(super) fn of_permission(text: &str) -> Result<Self, PatternError> {
        Self::new(if text.is_empty() { "^$" } else { text })
    }

    /// The source text of the expression.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it matches. Too many steps count as no match; the first such name is logged.
    pub fn matches(&self, name: &str) -> bool {
        self.try_matches(name).unwrap_or_else(|error| {
            if let Rule::Expression(expression) = &self.rule
                && !expression.is_logged.swap(true, Ordering::Relaxed)
            {
                tracing::warn!(%error, "pattern treated as no match");
            }
            false
        })
    }

    /// Whether it matches.
    ///
    /// # Errors
    /// It takes too many steps.
    pub fn try_matches(&self, name: &str) -> Result<bool, TooManySteps> {
        match &self.rule {
            Rule::Everything => Ok(true),
            Rule::Expression(expression) => expression
                .regex
                .is_match(name)
                .map_err(|_| TooManySteps { text: self.text.clone(), name: name.into() }),
        }
    }
}

impl Expression {
    fn new(text: &str, steps: usize) -> Result<Arc<Self>, PatternError> {
        let regex = RegexBuilder::new(text)
            .backtrack_limit(steps)
            .delegate_size_limit(MAX_COMPILED_BYTES)
            .build()
            .map_err(|error| PatternError { text: text.into(), source: Box::new(error) })?;
        Ok(Arc::new(Self { regex, is_logged: AtomicBool::new(false) }))
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.text).finish()
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// Steps that matching with look-around or back-references may take: a few milliseconds, and far more than
/// names of 255 bytes need unless backtracking explodes.
const MAX_STEPS: usize = 100_000;

/// Steps for matching many names: less than a second.
const WALK_STEPS: usize = 20_000_000;

/// Steps available for each of many names, regardless of their number: twice the longest name, so that expressions whose
/// steps are linear in its length are never refused.
const MIN_STEPS: usize = 512;

/// Steps available for each of `names` names.
fn steps_for(names: usize) -> usize {
    (WALK_STEPS / names.max(1)).clamp(MIN_STEPS, MAX_STEPS)
}

/// Most bytes of memory that a compiled expression may take.
const MAX_COMPILED_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::new(pattern).unwrap().matches(name)
    }

    #[test]
    fn expressions_match_anywhere_unless_anchored() {
        assert!(matches("b", "abc") && matches("^a", "abc") && matches("", "abc"));
        assert!(!matches("^b", "abc") && !matches("^b$", "abc"));
        assert!(matches(".*", "") && matches(".*", "anything"));
    }

    #[test]
    fn look_around_is_understood() {
        assert!(matches("^(?!amq\\.).*", "mine"));
        assert!(!matches("^(?!amq\\.).*", "amq.direct"));
    }

    #[test]
    fn the_empty_permission_matches_no_name() {
        let none = Pattern::of_permission("").unwrap();
        assert!(!none.matches("q"));
        assert!(none.matches(""));
    }

    #[test]
    fn many_names_share_a_budget_of_steps() {
        assert_eq!(steps_for(0), MAX_STEPS);
        assert_eq!(steps_for(200) * 200, WALK_STEPS);
        assert_eq!(steps_for(10_000) * 10_000, WALK_STEPS);
        assert_eq!(steps_for(usize::MAX), MIN_STEPS);
        // Its steps grow with the square of the name's length.
        let (square, name) = (Pattern::new("((?!foo).)*bar").unwrap(), "a".repeat(80));
        assert_eq!(square.for_walk(100).try_matches(&name), Ok(false));
        assert!(square.for_walk(20_000).try_matches(&name).is_err());
        assert!(!square.for_walk(20_000).matches(&name) && !square.matches(&name));
    }

    #[test]
    fn usual_expressions_are_never_refused() {
        let name = "a".repeat(255);
        for usual in [
            "^(?!amq\\.).*",
            "^(?!amq\\.|mqtt-).+$",
            "^(?!.*(dlq|retry)$).*$",
            "(?<!x)a",
            "a(?=b)",
            "(.)b\\1",
        ] {
            let pattern = Pattern::new(usual).unwrap().for_walk(usize::MAX);
            assert!(pattern.try_matches(&name).is_ok(), "{usual}");
        }
    }

    #[test]
    fn expressions_with_too_many_steps_or_too_much_memory_are_refused() {
        let name = "a".repeat(255);
        assert!(Pattern::new(r"(a*)*\1b").unwrap().try_matches(&name).is_err(), "takes too many steps");
        assert!(Pattern::new("(\\w{500}){500}").is_err(), "takes too much memory");
        assert!(Pattern::new("(").unwrap_err().to_string().starts_with("'(' is not a regular expression"));
    }
}
