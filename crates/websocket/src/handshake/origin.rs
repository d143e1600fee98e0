//! Origins whose pages may connect (RFC 6455, 10.2).
//!
//! A browser lets any page connect anywhere and merely sends the page's origin. Without these rules, a server on this
//! machine would be open to every page that its user visits.

use std::fmt;
use std::str::FromStr;

/// One rule: `*`, `null`, or `[scheme://]host[:port]` where the host may begin with `*.`, which stands for one or more
/// labels before the rest. An omitted part matches anything, but an origin's default port counts as its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginPattern {
    text: String,
    rule: Rule,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Any,
    /// The origin of pages that have none: from files, or in a sandbox.
    Null,
    Host {
        scheme: Option<String>,
        host: Host,
        port: Option<u16>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Exactly(String),
    /// The host must end with this, which begins with a dot.
    Under(String),
}

/// The rules of a server. A client that sends no origin is no browser, and is always allowed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OriginRules(pub Vec<OriginPattern>);

impl OriginRules {
    /// Whether a page from `origin` may connect.
    pub fn allow(&self, origin: Option<&str>) -> bool {
        origin.is_none_or(|origin| self.0.iter().any(|pattern| pattern.matches(origin)))
    }
}

impl OriginPattern {
    /// Whether the rule matches this origin, as a browser writes it.
    pub fn matches(&self, origin: &str) -> bool {
        let (scheme, host, port) = match &self.rule {
            Rule::Any => return true,
            Rule::Null => return origin == "null",
            Rule::Host { scheme, host, port } => (scheme, host, port),
        };
        let Some(origin) = Parts::of(origin).filter(|parts| parts.scheme.is_some()) else { return false };
        let host_matches = match host {
            Host::Exactly(host) => origin.host == *host,
            Host::Under(suffix) => origin.host.len() > suffix.len() && origin.host.ends_with(suffix),
        };
        host_matches
            && scheme.as_ref().is_none_or(|scheme| origin.scheme.as_ref() == Some(scheme))
            && port.is_none_or(|port| origin.port_or_usual() == Some(port))
    }
}

/// Text that is no rule.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[error("not an origin (such as https://app.example.com, *.example.com, localhost, null or *)")]
pub struct ParseOriginError;

impl FromStr for OriginPattern {
    type Err = ParseOriginError;

    fn from_str(text: &str) -> Result<Self, ParseOriginError> {
        let rule = match text {
            "*" => Rule::Any,
            "null" => Rule::Null,
            _ => {
                let parts = Parts::of(text).ok_or(ParseOriginError)?;
                let host = match parts.host.strip_prefix('*') {
                    Some(suffix) if suffix.len() > 1 && suffix.starts_with('.') => {
                        Host::Under(suffix.to_owned())
                    }
                    Some(_) => return Err(ParseOriginError),
                    None => Host::Exactly(parts.host.clone()),
                };
                if parts.host.trim_start_matches('*').contains('*') {
                    return Err(ParseOriginError);
                }
                let port = if parts.scheme.is_some() { parts.port_or_usual() } else { parts.port };
                Rule::Host { scheme: parts.scheme, host, port }
            }
        };
        Ok(Self { text: text.to_owned(), rule })
    }
}

impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The parts of an origin, in lower case.
struct Parts {
    scheme: Option<String>,
    /// A name or address; IPv6 in brackets.
    host: String,
    port: Option<u16>,
}

impl Parts {
    fn of(text: &str) -> Option<Self> {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
            None => (None, text),
        };
        let (host, port) = match rest.rfind(':') {
            // Colons within brackets belong to an address.
            Some(colon) if !rest[colon..].contains(']') => {
                (&rest[..colon], Some(rest[colon + 1..].parse().ok()?))
            }
            _ => (rest, None),
        };
        let is_address = host.starts_with('[') && host.ends_with(']');
        let is_name = !host.is_empty()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte));
        (is_address || is_name).then(|| Self { scheme, host: host.to_ascii_lowercase(), port })
    }

    fn port_or_usual(&self) -> Option<u16> {
        self.port.or(match self.scheme.as_deref() {
            Some("http") => Some(80),
            Some("https") => Some(443),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(rule: &str, origin: &str) -> bool {
        rule.parse::<OriginPattern>().unwrap().matches(origin)
    }

    #[test]
    fn a_host_alone_allows_every_scheme_and_port() {
        assert!(allows("example.com", "https://example.com"));
        assert!(allows("example.com", "http://EXAMPLE.com:8080"));
        assert!(allows("[::1]", "http://[::1]:3000"));
        for other in [
            "https://example.com.evil.org",
            "https://notexample.com",
            "https://www.example.com",
            "example.com",
        ] {
            assert!(!allows("example.com", other), "{other}");
        }
    }

    #[test]
    fn an_origin_in_full_allows_itself_only() {
        assert!(allows("https://example.com", "https://example.com"));
        assert!(allows("https://example.com:443", "https://example.com"));
        assert!(allows("http://example.com:8080", "http://example.com:8080"));
        assert!(!allows("https://example.com", "http://example.com"));
        assert!(!allows("https://example.com", "https://example.com:8443"));
        assert!(!allows("example.com:8080", "http://example.com"));
    }

    #[test]
    fn a_wildcard_stands_for_names_before_the_rest() {
        assert!(allows("*.example.com", "https://app.example.com"));
        assert!(allows("*.example.com", "https://a.b.example.com:8443"));
        assert!(allows("https://*.example.com", "https://app.example.com"));
        for other in [
            "https://example.com",
            "https://evilexample.com",
            "https://.example.com.evil.org",
            "https://.example.com",
        ] {
            assert!(!allows("*.example.com", other), "{other}");
        }
    }

    #[test]
    fn pages_without_an_origin_need_a_rule_of_their_own() {
        assert!(allows("null", "null") && allows("*", "null") && allows("*", "nonsense"));
        assert!(!allows("example.com", "null"));
        let rules = OriginRules(vec!["example.com".parse().unwrap()]);
        assert!(
            rules.allow(None)
                && !rules.allow(Some("https://other"))
                && rules.allow(Some("https://example.com"))
        );
    }

    #[test]
    fn invalid_origin_patterns_are_refused() {
        for text in ["", "https://", "*example.com", "a.*.com", "*.", "http://a/b", "a b", "a:port", "**"] {
            assert_eq!(text.parse::<OriginPattern>(), Err(ParseOriginError), "{text:?}");
        }
    }
}
