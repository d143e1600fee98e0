//! The origins of pages that may connect over WebSocket.

use websocket::handshake::{OriginPattern, OriginRules};

use super::choice::list;
use super::value::{Value, quoted};
use super::value_error::ValueError;

/// Rules for origins; `local` stands for several of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origins(pub(crate) OriginRules);

/// The hosts that `local` stands for. The owner of any other name could make it resolve to this machine.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

impl Value for Origins {
    const KIND: &'static str = "ORIGIN";
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        let rules: &[&str] = if text == "local" { &LOCAL } else { &[text] };
        let wrong = |source| ValueError::Origin { text: text.to_owned(), source };
        let rules = rules.iter().map(|rule| rule.parse::<OriginPattern>().map_err(wrong));
        Ok(Self(OriginRules(rules.collect::<Result<_, _>>()?)))
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        let lists = texts.iter().map(|text| Self::parse(text)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(OriginRules(lists.into_iter().flat_map(|list| list.0.0).collect())))
    }

    fn to_toml(&self) -> String {
        list(self.0.0.iter().map(|rule| quoted(&rule.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_stands_for_the_names_of_this_machine() {
        let origins = Origins::parse_all(&["local".to_owned(), "*.example.com".to_owned()]).unwrap();
        for (origin, allowed) in [
            ("http://localhost:8080", true),
            ("http://127.0.0.1", true),
            ("https://[::1]:1", true),
            ("https://app.example.com", true),
            ("https://example.org", false),
            ("null", false),
        ] {
            assert_eq!(origins.0.allow(Some(origin)), allowed, "{origin}");
        }
        assert_eq!(origins.to_toml(), r#"["localhost", "127.0.0.1", "[::1]", "*.example.com"]"#);
    }

    #[test]
    fn an_invalid_origin_is_reported() {
        let error = Origins::parse("https://a/b").unwrap_err().to_string();
        assert!(error.starts_with("'https://a/b' is not an origin"), "{error}");
    }
}
