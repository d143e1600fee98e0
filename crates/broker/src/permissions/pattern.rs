//! The regular expressions of permissions and policies.

use std::fmt;

use fancy_regex::{Regex, RegexBuilder};

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

#[derive(Clone)]
enum Rule {
    /// `.*`, by far the most common expression, which needs no matching.
    Everything,
    Expression(Box<Regex>),
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// The expression is invalid, or it is too large.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let rule = match text {
            ".*" | "^.*" | ".*$" | "^.*$" => Rule::Everything,
            _ => Rule::Expression(Box::new(
                RegexBuilder::new(text)
                    .backtrack_limit(MAX_STEPS)
                    .delegate_size_limit(MAX_COMPILED_BYTES)
                    .build()
                    .map_err(|error| PatternError { text: text.into(), source: Box::new(error) })?,
            )),
        };
        Ok(Self { text: text.into(), rule })
    }

    /// Compiles an expression of permissions, where an empty one matches only the empty name.
    pub(super) fn of_permission(text: &str) -> Result<Self, PatternError> {
        Self::new(if text.is_empty() { "^$" } else { text })
    }

    /// The source text of the expression.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it matches. An expression that takes too many steps does not match.
    pub fn matches(&self, name: &str) -> bool {
        match &self.rule {
            Rule::Everything => true,
            Rule::Expression(expression) => expression.is_match(name).unwrap_or(false),
        }
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
    fn explosive_and_oversized_expressions_are_held_down() {
        let name = "a".repeat(255);
        assert!(!matches("^(?=(a+)+b)", &name), "takes too many steps");
        assert!(Pattern::new("(\\w{500}){500}").is_err(), "takes too much memory");
        assert!(Pattern::new("(").unwrap_err().to_string().starts_with("'(' is not a regular expression"));
    }
}
