//! The claims of a token: its user and its scopes.

use std::collections::BTreeSet;

use broker::literal_in_scope;
use serde_json::{Map, Value};

use crate::error::TokenError;
use crate::token::TokenPolicy;

/// The most scopes of one token, as in RabbitMQ's plugin.
const MAX_SCOPES: usize = 2048;

/// The most bytes of all scopes of one token after replacing aliases and variables. They stay in memory as long as its
/// connection.
const MAX_SCOPE_BYTES: usize = 128 << 10;

/// The claim in which Keycloak stores the scopes of a requesting party token.
const REQUESTING_PARTY_SCOPES: &str = "authorization.permissions.scopes";

/// Precedes the user's tags among the scopes.
const TAG: &str = "tag:";

/// Replaced when permissions are checked, not here: a connection chooses its virtual host later.
const VHOST: &str = "vhost";

/// Levels of a path that are followed.
const MAX_DEPTH: usize = 16;

/// A number of seconds since 1970 (RFC 7519, NumericDate).
pub(crate) fn numeric_date(value: &Value) -> Option<u64> {
    // A cast of a float saturates.
    value.as_u64().or_else(|| Some(value.as_f64().filter(|seconds| *seconds >= 0.0)? as u64))
}

/// Whether `aud`, a list or a space-separated string, contains the resource server.
pub(crate) fn audience_contains(claims: &Map<String, Value>, resource_server_id: &str) -> bool {
    match claims.get("aud") {
        Some(Value::String(text)) => text.split_ascii_whitespace().any(|word| word == resource_server_id),
        Some(Value::Array(list)) => list.iter().any(|member| member.as_str() == Some(resource_server_id)),
        _ => false,
    }
}

/// The tags among scopes.
pub(crate) fn tags_of(scopes: &[String]) -> Vec<String> {
    scopes.iter().filter_map(|scope| scope.strip_prefix(TAG)).map(str::to_owned).collect()
}

impl TokenPolicy {
    /// The scopes of a token that are for this server, without their prefix and with variables replaced.
    ///
    /// # Errors
    /// The token exceeds the limits.
    pub(crate) fn scopes(&self, claims: &Map<String, Value>) -> Result<Vec<String>, TokenError> {
        let mut found = Vec::new();
        if let Some(value) = claims.get("scope") {
            self.texts_of(value, &mut found);
        }
        let paths = self.additional_scopes_keys.iter().map(String::as_str);
        for path in paths.chain([REQUESTING_PARTY_SCOPES]) {
            let keys: Vec<_> = path.split('.').filter(|key| !key.is_empty()).take(MAX_DEPTH).collect();
            if let Some(value) = keys.first().and_then(|key| claims.get(*key)) {
                self.follow(value, &keys[1..], &mut found);
            }
        }
        let aliases: Vec<_> =
            found.iter().filter_map(|scope| self.scope_aliases.get(scope)).flatten().cloned().collect();
        found.extend(aliases);

        let mut scopes = BTreeSet::new();
        let mut bytes = 0;
        for scope in found.iter().filter_map(|scope| scope.strip_prefix(self.scope_prefix.as_str())) {
            let scope = expand(scope, claims);
            bytes += scope.len();
            if bytes > MAX_SCOPE_BYTES || scopes.len() == MAX_SCOPES {
                return Err(TokenError::TooManyScopes);
            }
            scopes.insert(scope);
        }
        Ok(scopes.into_iter().collect())
    }

    /// Collects the scopes at the end of a path, through objects and through all members of lists.
    fn follow(&self, value: &Value, keys: &[&str], found: &mut Vec<String>) {
        match (value, keys.split_first()) {
            (value, None) => self.texts_of(value, found),
            (Value::Object(object), Some((key, rest))) => {
                if let Some(value) = object.get(*key) {
                    self.follow(value, rest, found);
                }
            }
            (Value::Array(list), Some(_)) => list.iter().for_each(|member| self.follow(member, keys, found)),
            _ => {}
        }
    }

    /// Collects scopes from a space-separated string, a list of strings, or an object with those of each resource server.
    fn texts_of(&self, value: &Value, found: &mut Vec<String>) {
        match value {
            Value::String(text) => found.extend(text.split_ascii_whitespace().map(str::to_owned)),
            Value::Array(list) => {
                found.extend(list.iter().filter_map(Value::as_str).map(str::to_owned));
            }
            Value::Object(object) => {
                let own = object.get(&self.resource_server_id);
                let mut texts = Vec::new();
                // No authorization server nests objects here.
                if let Some(own) = own.filter(|own| !own.is_object()) {
                    self.texts_of(own, &mut texts);
                }
                found.extend(texts.iter().map(|text| format!("{}.{text}", self.resource_server_id)));
            }
            _ => {}
        }
    }
}

/// Replaces `{claim}` by the claim's text, which is then taken literally.
fn expand(scope: &str, claims: &Map<String, Value>) -> String {
    let mut expanded = String::with_capacity(scope.len());
    let mut rest = scope;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else { break };
        expanded.push_str(before);
        match claims.get(name).and_then(Value::as_str) {
            _ if name == VHOST => expanded.push_str("{vhost}"),
            Some(text) => expanded.push_str(&literal_in_scope(text)),
            None => expanded.push_str(&literal_in_scope(name)),
        }
        rest = after;
        if expanded.len() > MAX_SCOPE_BYTES {
            // The caller, who counts the bytes, refuses it.
            break;
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy() -> TokenPolicy {
        TokenPolicy {
            resource_server_id: "rabbitmq".into(),
            scope_prefix: "rabbitmq.".into(),
            verify_aud: true,
            ..TokenPolicy::default()
        }
    }

    fn scopes(policy: &TokenPolicy, claims: &Value) -> Vec<String> {
        policy.scopes(claims.as_object().unwrap()).unwrap()
    }

    #[test]
    fn scopes_are_words_or_a_list_and_lose_their_prefix() {
        for scope in [
            json!("rabbitmq.read:*/* other.write:*/*  rabbitmq.tag:management openid"),
            json!(["rabbitmq.tag:management", "rabbitmq.read:*/*", "rabbitmq.read:*/*", 5, "openid"]),
        ] {
            assert_eq!(scopes(&policy(), &json!({ "scope": scope })), ["read:*/*", "tag:management"]);
        }
        let bare = TokenPolicy { scope_prefix: String::new(), ..policy() };
        assert_eq!(scopes(&bare, &json!({ "scope": "read:*/*" })), ["read:*/*"]);
        assert!(scopes(&policy(), &json!({})).is_empty());
    }

    #[test]
    fn further_claims_may_have_scopes() {
        let policy = TokenPolicy {
            additional_scopes_keys: vec!["roles".into(), "realm.access".into(), "list.in".into()],
            ..policy()
        };
        let claims = json!({
            "roles": { "rabbitmq": ["read:a/a"], "other": ["read:b/b"] },
            "realm": { "access": "rabbitmq.read:c/c" },
            "list": [{ "in": ["rabbitmq.read:d/d"] }, { "in": "rabbitmq.read:e/e" }, 5],
            "authorization": { "permissions": [{ "scopes": ["rabbitmq.read:f/f"] }] },
        });
        assert_eq!(scopes(&policy, &claims), ["read:a/a", "read:c/c", "read:d/d", "read:e/e", "read:f/f"]);
    }

    #[test]
    fn an_alias_stands_for_its_scopes() {
        let aliases =
            [("admin".to_owned(), vec!["rabbitmq.tag:administrator".into(), "rabbitmq.read:*/*".into()])];
        let policy = TokenPolicy { scope_aliases: aliases.into(), ..policy() };
        assert_eq!(scopes(&policy, &json!({ "scope": "admin" })), ["read:*/*", "tag:administrator"]);
        assert!(scopes(&policy, &json!({ "scope": "administrator" })).is_empty());
    }

    #[test]
    fn variables_are_replaced_with_claims_without_widening_a_scope() {
        let claims = json!({ "scope": "rabbitmq.read:{vhost}/{sub}-{none}-{", "sub": "*/a" });
        assert_eq!(scopes(&policy(), &claims), ["read:{vhost}/%2A%2Fa-none-{"]);
    }

    #[test]
    fn scopes_are_bounded() {
        let many: Vec<_> = (0..=MAX_SCOPES).map(|number| format!("rabbitmq.read:{number}/*")).collect();
        let refused = policy().scopes(json!({ "scope": many }).as_object().unwrap());
        assert_eq!(refused, Err(TokenError::TooManyScopes));
        let long = json!({ "scope": format!("rabbitmq.{}", "{c}".repeat(1000)), "c": "x".repeat(1000) });
        assert_eq!(policy().scopes(long.as_object().unwrap()), Err(TokenError::TooManyScopes));
    }

    #[test]
    fn the_audience_is_a_list_or_words() {
        let contains = |aud: Value| audience_contains(json!({ "aud": aud }).as_object().unwrap(), "rabbitmq");
        assert!(contains(json!(["other", "rabbitmq"])) && contains(json!("other rabbitmq")));
        assert!(!contains(json!("rabbitmq2")) && !contains(json!(["rabbit"])) && !contains(json!(5)));
        assert!(!audience_contains(&Map::new(), "rabbitmq"));
    }

    #[test]
    fn times_are_numbers_of_seconds() {
        assert_eq!(numeric_date(&json!(5)), Some(5));
        assert_eq!(numeric_date(&json!(5.9)), Some(5));
        assert_eq!(numeric_date(&json!(1e300)), Some(u64::MAX));
        for wrong in [json!(-1), json!("5"), json!(null)] {
            assert_eq!(numeric_date(&wrong), None);
        }
    }
}
