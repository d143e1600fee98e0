//! The setting `spool`: which publishes are confirmed here and forwarded later.
//!
//! A rule is given as an inline TOML table, or as a table `[[spool]]` in the file.

use server::SpoolRule;

use super::choice::list;
use super::file;
use super::suggestion::nearest;
use super::value::{Value, quoted};
use super::value_error::ValueError;

/// The rules in their configured order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SpoolRules(pub(crate) Vec<SpoolRule>);

/// The treatment of a publish that cannot be spooled although a rule matches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsuitable {
    Direct,
    Refuse,
}

/// The keys of a rule, in the order of their display.
const KEYS: [&str; 3] = ["vhost", "user", "exchange"];

const NO_RULE: &str = "is not a table such as {exchange = \"^orders$\"}";

fn rule(text: &str) -> Result<SpoolRule, ValueError> {
    let document: toml::Table = toml::from_str(&format!("spool = {text}")).map_err(ValueError::Table)?;
    let Some(toml::Value::Table(table)) = document.get("spool").filter(|_| document.len() == 1) else {
        return Err(ValueError::text(text, NO_RULE));
    };
    let mut expressions: [Option<String>; 3] = Default::default();
    for (key, value) in table {
        let Some(at) = KEYS.iter().position(|known| known == key) else {
            let meant = nearest(key, KEYS);
            return Err(ValueError::UnknownKey { table: "spool rule", meant }.in_key(key));
        };
        match file::texts(value, false).map_err(|error| error.in_key(key))?.as_slice() {
            [one] => expressions[at] = Some(one.clone()),
            _ => return Err(ValueError::from("takes one expression, not a list").in_key(key)),
        }
    }
    let [vhost, user, exchange] = &expressions;
    SpoolRule::new(vhost.as_deref(), user.as_deref(), exchange.as_deref())
        .map_err(|error| ValueError::Pattern(error.to_string()))
}

fn to_toml(rule: &SpoolRule) -> String {
    let keys = KEYS.iter().zip(rule.texts());
    let parts: Vec<_> = keys.filter_map(|(key, text)| Some(format!("{key} = {}", quoted(text?)))).collect();
    if parts.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", parts.join(", ")) }
}

/// The rules; `off` for none.
impl Value for SpoolRules {
    const KIND: &'static str = "SPOOL";
    const REPEATED: bool = true;
    const TABLES: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "off" => Ok(Self(Vec::new())),
            _ => rule(text).map(|rule| Self(vec![rule])),
        }
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        let mut rules = Vec::new();
        for text in texts {
            let one = Self::parse(text)?.0;
            if one.is_empty() && texts.len() > 1 {
                return Err("'off' cannot be combined with a rule".into());
            }
            rules.extend(one);
        }
        Ok(Self(rules))
    }

    fn to_toml(&self) -> String {
        list(self.0.iter().map(to_toml))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_as_they_are_read() {
        for text in ["{}", r#"{ exchange = "^$" }"#, r#"{ vhost = "^/$", user = "edge", exchange = "a|b" }"#]
        {
            assert_eq!(SpoolRules::parse(text).map(|rules| rules.to_toml()), Ok(format!("[{text}]")));
        }
        assert_eq!(SpoolRules::parse("off").map(|rules| rules.0.len()), Ok(0));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, complaint) in [
            (r#"{ exchange = "(" }"#, "'(' is not a regular expression"),
            (r#"{ queue = "q" }"#, "queue: unknown key of a spool rule"),
            (r#"{ exchnge = "q" }"#, "exchnge: unknown key of a spool rule; did you mean exchange?"),
            ("5", "is not a table such as"),
        ] {
            let error = SpoolRules::parse(text).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
