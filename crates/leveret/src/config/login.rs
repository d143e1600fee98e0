//! Settings of authentication and authorisation at the embedded broker.

use std::path::PathBuf;

use auth::ServiceUrl;

use super::choice::{list, parse_list};
use super::value::{Value, quoted};
use super::value_error::ValueError;

/// An auth backend that may be asked about a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthBackendName {
    /// The broker's own list of users.
    Internal,
    /// JSON Web Tokens.
    OAuth2,
    /// A service queried over HTTP.
    Http,
    /// The same service, with cached answers.
    CachedHttp,
}

impl AuthBackendName {
    const ALL: [Self; 4] = [Self::Internal, Self::OAuth2, Self::Http, Self::CachedHttp];

    fn word(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::OAuth2 => "oauth2",
            Self::Http => "http",
            Self::CachedHttp => "cache:http",
        }
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        // RabbitMQ also takes the names of its modules.
        let word = match text.strip_prefix("rabbit_auth_backend_").unwrap_or(text) {
            "ldap" => return Err(NO_LDAP.into()),
            // The other backends have no answers to cache.
            "cache" => "cache:http",
            "cache:internal" | "cache:oauth2" => return Err(ONLY_HTTP.into()),
            word => word,
        };
        let known = Self::ALL.into_iter().find(|name| name.word() == word);
        known.ok_or_else(|| ValueError::NoneOf {
            text: text.to_owned(),
            words: &["internal", "oauth2", "http", "cache:http"],
        })
    }
}

/// The complaint about a name that users of RabbitMQ may expect.
const NO_LDAP: &str = "ldap is not supported: an authorization server in front of the directory (oauth2) does it, or a service (http)";

/// The same.
const ONLY_HTTP: &str = "only http has answers to cache (cache:http): the others know theirs by themselves";

/// The complaint about tokens whose rights somebody else is to know.
const NO_SPLIT_TOKENS: &str = "oauth2 does both or neither: a token brings its rights with it";

/// One that lets users in by itself, or two that both have to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthBackendChoice {
    /// Checks the password or token, and says what the user may do.
    One(AuthBackendName),
    /// `AUTHN+AUTHZ`: the first checks the password, the second says what the user may do.
    Split { authn: AuthBackendName, authz: AuthBackendName },
}

impl AuthBackendChoice {
    fn parse(text: &str) -> Result<Self, ValueError> {
        let Some((authn, authz)) = text.split_once('+') else {
            return AuthBackendName::parse(text).map(Self::One);
        };
        let (authn, authz) = (AuthBackendName::parse(authn)?, AuthBackendName::parse(authz)?);
        match (authn, authz) {
            (AuthBackendName::OAuth2, _) | (_, AuthBackendName::OAuth2) => Err(NO_SPLIT_TOKENS.into()),
            (one, other) if one == other => Ok(Self::One(one)),
            (authn, authz) => Ok(Self::Split { authn, authz }),
        }
    }

    fn word(self) -> String {
        match self {
            Self::One(name) => name.word().to_owned(),
            Self::Split { authn, authz } => format!("{}+{}", authn.word(), authz.word()),
        }
    }

    fn has(self, name: AuthBackendName) -> bool {
        match self {
            Self::One(one) => one == name,
            Self::Split { authn, authz } => authn == name || authz == name,
        }
    }
}

/// The auth backends in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuthBackendList(pub(crate) Vec<AuthBackendChoice>);

impl AuthBackendList {
    /// Whether the auth backend is asked.
    pub(crate) fn contains(&self, name: AuthBackendName) -> bool {
        self.0.iter().any(|backend| backend.has(name))
    }

    /// Whether a service is asked over HTTP.
    pub(crate) fn has_http(&self) -> bool {
        self.contains(AuthBackendName::Http) || self.contains(AuthBackendName::CachedHttp)
    }
}

impl Value for AuthBackendList {
    const KIND: &'static str = "BACKEND";
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        AuthBackendChoice::parse(text).map(|backend| Self(vec![backend]))
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        let mut backends = Vec::new();
        for text in texts {
            let backend = AuthBackendChoice::parse(text)?;
            if backends.contains(&backend) {
                return Err(ValueError::Twice(backend.word()));
            }
            backends.push(backend);
        }
        if backends.is_empty() { Err("must name at least one".into()) } else { Ok(Self(backends)) }
    }

    fn to_toml(&self) -> String {
        list(self.0.iter().map(|backend| quoted(&backend.word())))
    }
}

/// The address of a service, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OptionalUrl(pub(crate) Option<ServiceUrl>);

impl Value for OptionalUrl {
    const KIND: &'static str = "URL";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "off" => Ok(Self(None)),
            url => ServiceUrl::parse(url).map(|url| Self(Some(url))).map_err(ValueError::Service),
        }
    }

    fn to_toml(&self) -> String {
        quoted(&self.0.as_ref().map_or_else(|| "off".to_owned(), ToString::to_string))
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
    fn backends_are_asked_in_the_order_of_the_list() {
        let list = AuthBackendList::parse_all(&texts(&["oauth2", "rabbit_auth_backend_internal"])).unwrap();
        assert_eq!(list.0, [AuthBackendName::OAuth2, AuthBackendName::Internal].map(AuthBackendChoice::One));
        assert_eq!(list.to_toml(), r#"["oauth2", "internal"]"#);
        assert!(AuthBackendList::parse_all(&[]).is_err());
        assert!(AuthBackendList::parse_all(&texts(&["internal", "internal"])).is_err());
    }

    #[test]
    fn backends_that_are_not_supported_are_refused_by_their_names() {
        for name in ["ldap", "rabbit_auth_backend_ldap"] {
            let error = AuthBackendList::parse(name).unwrap_err().to_string();
            assert!(error.starts_with("ldap is not supported"), "{error}");
        }
        for name in ["cache:internal", "cache:oauth2"] {
            let error = AuthBackendList::parse(name).unwrap_err().to_string();
            assert!(error.starts_with("only http has answers to cache"), "{error}");
        }
        assert!(AuthBackendList::parse("kerberos").unwrap_err().to_string().contains("none of: internal"));
    }

    #[test]
    fn two_backends_may_share_the_work() {
        let names = ["internal+http", "rabbit_auth_backend_cache+internal", "http+rabbit_auth_backend_http"];
        let list = AuthBackendList::parse_all(&texts(&names)).unwrap();
        assert_eq!(list.to_toml(), r#"["internal+http", "cache:http+internal", "http"]"#);
        assert!(list.has_http() && list.contains(AuthBackendName::CachedHttp));
        assert!(!AuthBackendList::parse("internal").unwrap().has_http());
        assert!(AuthBackendList::parse_all(&texts(&["cache:http", "cache"])).is_err(), "the same twice");
        for wrong in ["internal+oauth2", "oauth2+http"] {
            let error = AuthBackendList::parse(wrong).unwrap_err().to_string();
            assert!(error.starts_with("oauth2 does both or neither"), "{error}");
        }
        assert!(AuthBackendList::parse("internal+").is_err() && AuthBackendList::parse("a+b+c").is_err());
    }

    #[test]
    fn a_service_has_a_url_or_none() {
        assert_eq!(OptionalUrl::parse("off").unwrap().to_toml(), quoted("off"));
        assert_eq!(OptionalUrl::parse("http://a/user").unwrap().to_toml(), quoted("http://a:80/user"));
        assert!(OptionalUrl::parse("").is_err() && OptionalUrl::parse("a/user").is_err());
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
