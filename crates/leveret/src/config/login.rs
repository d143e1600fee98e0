//! Settings of who may come in to the embedded broker.

use std::path::PathBuf;

use auth::ServiceUrl;

use super::choice::{list, parse_list};
use super::value::{Value, quoted};
use super::value_error::ValueError;

/// An authority that may be asked about a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthBackendName {
    /// The broker's own list of users.
    Internal,
    /// JSON Web Tokens.
    OAuth2,
}

impl AuthBackendName {
    const ALL: [Self; 2] = [Self::Internal, Self::OAuth2];

    fn word(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::OAuth2 => "oauth2",
        }
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        // RabbitMQ also takes the names of its modules.
        let word = match text.strip_prefix("rabbit_auth_backend_").unwrap_or(text) {
            "ldap" => return Err(NO_LDAP.into()),
            "http" | "cache" | "cache:http" => return Err(NO_HTTP.into()),
            word => word,
        };
        let known = Self::ALL.into_iter().find(|name| name.word() == word);
        known.ok_or_else(|| ValueError::NoneOf { text: text.to_owned(), words: &["internal", "oauth2"] })
    }
}

/// The complaint about a name that users of RabbitMQ may expect.
const NO_LDAP: &str =
    "ldap is not supported: an authorization server in front of the directory (oauth2) does it";

/// The same.
const NO_HTTP: &str =
    "http is not supported: an authorization server (oauth2), or users by definitions or the API, do it";

/// The authorities in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuthBackendList(pub(crate) Vec<AuthBackendName>);

impl AuthBackendList {
    /// Whether the authority is asked.
    pub(crate) fn contains(&self, name: AuthBackendName) -> bool {
        self.0.contains(&name)
    }
}

impl Value for AuthBackendList {
    const KIND: &'static str = "WORD";
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        AuthBackendName::parse(text).map(|name| Self(vec![name]))
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        let mut names = Vec::new();
        for text in texts {
            let name = AuthBackendName::parse(text)?;
            if names.contains(&name) {
                return Err(ValueError::Twice(name.word().to_owned()));
            }
            names.push(name);
        }
        if names.is_empty() { Err("must name at least one".into()) } else { Ok(Self(names)) }
    }

    fn to_toml(&self) -> String {
        list(self.0.iter().map(|name| quoted(name.word())))
    }
}

/// Where the keys that verify tokens are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JwksSource {
    Off,
    File(PathBuf),
    Url(ServiceUrl),
}

impl Value for JwksSource {
    const KIND: &'static str = "SOURCE";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err("must be the path of a file, a URL, or 'off'".into()),
            "off" => Ok(Self::Off),
            _ if text.contains("://") => ServiceUrl::parse(text).map(Self::Url).map_err(ValueError::Service),
            path => Ok(Self::File(path.into())),
        }
    }

    fn to_toml(&self) -> String {
        quoted(&match self {
            Self::Off => "off".to_owned(),
            Self::File(path) => path.to_string_lossy().into_owned(),
            Self::Url(url) => url.to_string(),
        })
    }
}

/// The text that scopes begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScopePrefix {
    /// The name of the resource server, and a dot.
    Auto,
    Text(String),
}

impl Value for ScopePrefix {
    const KIND: &'static str = "TEXT";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err("must be a text, 'auto' or 'none'".into()),
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::Text(String::new())),
            text => Ok(Self::Text(text.to_owned())),
        }
    }

    fn to_toml(&self) -> String {
        quoted(match self {
            Self::Auto => "auto",
            Self::Text(text) if text.is_empty() => "none",
            Self::Text(text) => text,
        })
    }
}

/// Names in order; `off` for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NameList(pub(crate) Vec<String>);

impl Value for NameList {
    const KIND: &'static str = "NAME";
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err("must be a name, or 'off'".into()),
            "off" => Ok(Self(Vec::new())),
            name => Ok(Self(vec![name.to_owned()])),
        }
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        parse_list(texts, |text| Self::parse(text).map(|names| names.0)).map(Self)
    }

    fn to_toml(&self) -> String {
        list(self.0.iter().map(|name| quoted(name)))
    }
}

/// Scopes or roles, and the scopes that each stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScopeAliases(pub(crate) Vec<(String, Vec<String>)>);

impl Value for ScopeAliases {
    const KIND: &'static str = "ALIAS=SCOPES";
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text == "off" {
            return Ok(Self(Vec::new()));
        }
        let fault = || ValueError::text(text, "is not an alias, '=' and scopes with blanks between them");
        let (alias, scopes) = text.split_once('=').ok_or_else(fault)?;
        let scopes: Vec<_> = scopes.split_ascii_whitespace().map(str::to_owned).collect();
        if alias.is_empty() || scopes.is_empty() {
            return Err(fault());
        }
        Ok(Self(vec![(alias.to_owned(), scopes)]))
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        let mut all: Vec<(String, Vec<String>)> = Vec::new();
        for entry in parse_list(texts, |text| Self::parse(text).map(|aliases| aliases.0))? {
            if all.iter().any(|(alias, _)| *alias == entry.0) {
                return Err(ValueError::Twice(entry.0));
            }
            all.push(entry);
        }
        Ok(Self(all))
    }

    fn to_toml(&self) -> String {
        list(self.0.iter().map(|(alias, scopes)| quoted(&format!("{alias}={}", scopes.join(" ")))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn authorities_are_asked_in_the_order_of_the_list() {
        let list = AuthBackendList::parse_all(&texts(&["oauth2", "rabbit_auth_backend_internal"])).unwrap();
        assert_eq!(list.0, [AuthBackendName::OAuth2, AuthBackendName::Internal]);
        assert_eq!(list.to_toml(), r#"["oauth2", "internal"]"#);
        assert!(AuthBackendList::parse_all(&[]).is_err());
        assert!(AuthBackendList::parse_all(&texts(&["internal", "internal"])).is_err());
    }

    #[test]
    fn authorities_that_are_not_supported_are_refused_by_their_names() {
        for name in ["ldap", "rabbit_auth_backend_ldap"] {
            let error = AuthBackendList::parse(name).unwrap_err().to_string();
            assert!(error.starts_with("ldap is not supported"), "{error}");
        }
        for name in ["http", "cache:http", "rabbit_auth_backend_http", "rabbit_auth_backend_cache"] {
            let error = AuthBackendList::parse(name).unwrap_err().to_string();
            assert!(error.starts_with("http is not supported"), "{error}");
        }
        assert!(AuthBackendList::parse("kerberos").unwrap_err().to_string().contains("none of: internal"));
    }

    #[test]
    fn keys_are_in_a_file_or_at_a_url() {
        assert_eq!(JwksSource::parse("off"), Ok(JwksSource::Off));
        assert_eq!(JwksSource::parse("./keys.json"), Ok(JwksSource::File("./keys.json".into())));
        assert_eq!(JwksSource::parse("https://idp/keys").unwrap().to_toml(), quoted("https://idp:443/keys"));
        assert!(JwksSource::parse("ftp://idp/keys").is_err());
    }

    #[test]
    fn prefixes_names_and_aliases_are_written_as_they_are_read() {
        for text in ["auto", "none", "api://rabbit/"] {
            assert_eq!(ScopePrefix::parse(text).unwrap().to_toml(), quoted(text));
        }
        let names = NameList::parse_all(&texts(&["email", "upn"])).unwrap();
        assert_eq!(names.to_toml(), r#"["email", "upn"]"#);
        assert_eq!(NameList::parse_all(&texts(&["off"])).unwrap().to_toml(), "[]");
        let aliases = ScopeAliases::parse_all(&texts(&["admin=a.tag:administrator  a.read:*/*"])).unwrap();
        assert_eq!(aliases.to_toml(), r#"["admin=a.tag:administrator a.read:*/*"]"#);
        for wrong in ["admin", "=a", "admin="] {
            assert!(ScopeAliases::parse(wrong).is_err(), "{wrong}");
        }
        assert!(ScopeAliases::parse_all(&texts(&["a=b", "a=c"])).is_err());
    }
}
