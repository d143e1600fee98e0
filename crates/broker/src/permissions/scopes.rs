//! The rights that a token grants by its scopes (RabbitMQ, "OAuth 2 Guide", "Scope-to-Permission Translation").
//!
//! `read:VHOST/NAME` lets its holder read from the queues and exchanges whose names match, `write:` and `configure:`
//! likewise. A third part, `write:VHOST/NAME/KEY`, is for the routing keys of topic exchanges, which are allowed only by
//! scopes that have one. In each part `*` stands for any text, and `%2F` for a slash.

use super::Access;

/// The scopes of one token, compiled for one virtual host.
#[derive(Debug, Default)]
pub(super) struct Scopes(Vec<Scope>);

#[derive(Debug)]
struct Scope {
    access: Access,
    name: Wildcard,
    /// `None` without a third part: no routing key is allowed.
    key: Option<Wildcard>,
}

/// A pattern in which `*` matches any text: the parts between the asterisks, as bytes without escapes.
#[derive(Debug)]
struct Wildcard(Vec<Vec<u8>>);

impl Scopes {
    /// Compiles the scopes that apply to the virtual host; others, and those that are not permissions, are skipped.
    pub(super) fn new(texts: &[Box<str>], vhost: &str) -> Self {
        Self(texts.iter().filter_map(|text| Scope::new(text, vhost)).collect())
    }

    /// Whether the virtual host may be opened: any permission in it suffices.
    pub(super) fn may_open(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether a queue or exchange may be used.
    pub(super) fn allow(&self, access: Access, name: &str) -> bool {
        self.of(access).any(|scope| scope.name.matches(name))
    }

    /// Whether a routing key may be used on a topic exchange.
    pub(super) fn allow_topic(&self, access: Access, exchange: &str, key: &str) -> bool {
        let allows = |scope: &Scope| {
            scope.name.matches(exchange) && scope.key.as_ref().is_some_and(|pattern| pattern.matches(key))
        };
        self.of(access).any(allows)
    }

    fn of(&self, access: Access) -> impl Iterator<Item = &Scope> {
        self.0.iter().filter(move |scope| scope.access == access)
    }
}

impl Scope {
    /// Compiles a scope; `None` if it is not a permission in this virtual host.
    fn new(text: &str, vhost: &str) -> Option<Self> {
        let (access, rest) = text.split_once(':')?;
        let access = match access {
            "read" => Access::Read,
            "write" => Access::Write,
            "configure" => Access::Configure,
            _ => return None,
        };
        let rest = rest.replace(VHOST_VARIABLE, &literal_in_scope(vhost));
        let mut parts = rest.split('/');
        let (vhosts, name, key) = (parts.next()?, parts.next()?, parts.next());
        if parts.next().is_some() || !Wildcard::new(vhosts)?.matches(vhost) {
            return None;
        }
        let key = match key {
            Some(key) => Some(Wildcard::new(key)?),
            None => None,
        };
        Some(Self { access, name: Wildcard::new(name)?, key })
    }
}

/// Replaced by the name of the current virtual host.
const VHOST_VARIABLE: &str = "{vhost}";

/// Escapes a text so that a scope matches it literally. RabbitMQ inserts variables unescaped, so that a user named `*` gets
/// everyone's permissions.
pub fn literal_in_scope(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '%' | '*' | '+' | '/' | '{' | '}' => escaped.push_str(&format!("%{:02X}", u32::from(character))),
            _ => escaped.push(character),
        }
    }
    escaped
}

impl Wildcard {
    /// Parses a pattern; `None` if it contains an incomplete escape, and so matches nothing.
    fn new(text: &str) -> Option<Self> {
        text.split('*').map(unescape).collect::<Option<Vec<_>>>().map(Self)
    }

    fn matches(&self, subject: &str) -> bool {
        let mut rest = subject.as_bytes();
        let Some((first, others)) = self.0.split_first() else { return false };
        let Some((last, middle)) = others.split_last() else { return rest == first };
        match rest.strip_prefix(first.as_slice()) {
            Some(after) => rest = after,
            None => return false,
        }
        // The earliest match of each part leaves the most text for the next.
        for part in middle {
            match find(rest, part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    if part.is_empty() {
        return Some(0);
    }
    text.windows(part.len()).position(|window| window == part)
}

/// Replaces `%XX` and `+` as in a URL's query, which is what RabbitMQ's plugin does.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let (high, low) = (hex(rest.next()?)?, hex(rest.next()?)?);
                high * 16 + low
            }
            other => other,
        });
    }
    Some(bytes)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes(texts: &[&str], vhost: &str) -> Scopes {
        Scopes::new(&texts.iter().map(|text| Box::from(*text)).collect::<Vec<_>>(), vhost)
    }

    #[test]
    fn a_scope_allows_only_vhosts_and_names_that_match_its_patterns() {
        for (scope, vhost, name, allowed) in [
            ("read:*/*", "/", "q", true),
            ("read:*/*", "other", "", true),
            ("read:%2F/*", "/", "q", true),
            ("read:%2F/*", "v", "q", false),
            ("read:%2f/q", "/", "q", true),
            ("read:*/q", "/", "qq", false),
            ("read:*/q*", "/", "qq", true),
            ("read:*/q*", "/", "aq", false),
            ("read:*/*q", "/", "aq", true),
            ("read:*/*q", "/", "qqa", false),
            ("read:*/a*b", "/", "abb", true),
            ("read:*/a*b", "/", "a", false),
            ("read:*/a*a", "/", "a", false),
            ("read:*/a*b*c", "/", "axbxc", true),
            ("read:*/a*b*c", "/", "acb", false),
            ("read:*/a**b", "/", "ab", true),
            ("read:*/a%2Ab", "/", "a*b", true),
            ("read:*/a%2Ab", "/", "axb", false),
            ("read:*/a+b", "/", "a b", true),
            ("read:*/%zz", "/", "%zz", false),
            ("read:*/%2", "/", "%2", false),
            ("read:*/q/k", "/", "q", true),
            ("read:*/q/k/more", "/", "q", false),
            ("read:q", "/", "q", false),
            ("read", "/", "q", false),
            ("own:*/*", "/", "q", false),
            ("write:*/*", "/", "q", false),
            ("read:{vhost}/q", "/", "q", true),
            ("read:*/{vhost}-q", "a*", "a*-q", true),
            ("read:*/{vhost}-q", "a*", "ab-q", false),
        ] {
            let scopes = scopes(&[scope], vhost);
            assert_eq!(scopes.allow(Access::Read, name), allowed, "{scope} {vhost} {name}");
        }
    }

    #[test]
    fn routing_keys_need_a_third_part() {
        for (scope, key, allowed) in [
            ("write:*/*", "k", false),
            ("write:*/*/*", "k", true),
            ("write:*/t/a.*", "a.b", true),
            ("write:*/t/a.*", "b.a", false),
            ("write:*/other/*", "k", false),
            ("read:*/t/*", "k", false),
            ("write:v/t/*", "k", false),
        ] {
            assert_eq!(scopes(&[scope], "/").allow_topic(Access::Write, "t", key), allowed, "{scope} {key}");
        }
    }

    #[test]
    fn any_permission_opens_the_virtual_host() {
        assert!(scopes(&["configure:%2F/x"], "/").may_open());
        assert!(!scopes(&["configure:v/x"], "/").may_open());
        assert!(!scopes(&["tag:administrator"], "/").may_open());
    }

    #[test]
    fn a_literal_text_stands_for_itself() {
        for text in ["*", "a/b", "100%", "a+b", "{vhost}", "plain"] {
            let scope = format!("read:*/{}", literal_in_scope(text));
            assert!(scopes(&[&scope], "/").allow(Access::Read, text), "{scope}");
        }
        assert!(!scopes(&["read:*/%2A"], "/").allow(Access::Read, "x"));
    }
}
