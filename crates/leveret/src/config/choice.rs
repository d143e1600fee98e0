//! Settings with a fixed set of words, names, and lists of files and networks.

use std::path::PathBuf;

use broker::{Compatibility, QueueKind};
use server::{AccessFormat, LineTarget, Network};
use transport::tls::{LoginFrom, SanType};

use super::spool::Unsuitable;
use super::value::{Value, quoted};
use super::value_error::ValueError;

/// Implements `Value` for a type whose values are words.
macro_rules! words {
    ($type:ty { $($word:literal => $value:expr),+ $(,)? }) => {
        impl Value for $type {
            const KIND: &'static str = "MODE";

            fn parse(text: &str) -> Result<Self, ValueError> {
                match text {
                    $($word => Ok($value),)+
                    _ => Err(ValueError::NoneOf { text: text.to_owned(), words: &[$($word),+] }),
                }
            }

            fn to_toml(&self) -> String {
                let words = [$(($word, $value)),+];
                quoted(words.iter().find(|(_, value)| value == self).map_or("", |(word, _)| word))
            }
        }
    };
}

/// `on` or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Switch(pub(crate) bool);

words!(Switch { "on" => Self(true), "off" => Self(false) });

/// How a service is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpMethodName {
    Get,
    Post,
}

words!(HttpMethodName { "get" => Self::Get, "post" => Self::Post });

/// Whether clients must present certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VerifyClient {
    Off,
    Optional,
    Required,
}

words!(VerifyClient { "off" => Self::Off, "optional" => Self::Optional, "required" => Self::Required });

words!(LoginFrom {
    "distinguished_name" => Self::DistinguishedName,
    "common_name" => Self::CommonName,
    "subject_alternative_name" => Self::SubjectAlternativeName(SanType::Dns),
    "san_email" => Self::SubjectAlternativeName(SanType::Email),
    "san_uri" => Self::SubjectAlternativeName(SanType::Uri),
});

/// The PROXY protocol headers that load balancers send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InboundHeader {
    Off,
    V1,
    V2,
    Any,
}

words!(InboundHeader { "off" => Self::Off, "v1" => Self::V1, "v2" => Self::V2, "any" => Self::Any });

words!(Unsuitable { "direct" => Self::Direct, "refuse" => Self::Refuse });

words!(Compatibility { "3.10" => Self::V3_10, "4" => Self::V4 });

words!(QueueKind { "classic" => Self::Classic, "quorum" => Self::Quorum });

words!(AccessFormat { "text" => Self::Text, "json" => Self::Json });

/// The target of the access log, or `None` for `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccessLogTarget(pub(crate) Option<LineTarget>);

impl Value for AccessLogTarget {
    const KIND: &'static str = "FILE";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err("must be the path of a file, 'stderr' or 'off'".into()),
            "off" => Ok(Self(None)),
            "stderr" => Ok(Self(Some(LineTarget::Stderr))),
            path => Ok(Self(Some(LineTarget::File(path.into())))),
        }
    }

    fn to_toml(&self) -> String {
        match &self.0 {
            None => quoted("off"),
            Some(LineTarget::Stderr) => quoted("stderr"),
            Some(LineTarget::File(path)) => quoted(&path.to_string_lossy()),
        }
    }
}

/// The effect of limits on clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitsMode {
    Enforce,
    Alarm,
}

words!(LimitsMode { "enforce" => Self::Enforce, "alarm" => Self::Alarm });

/// When the definitions are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefinitionsIf {
    /// The data directory is empty.
    Empty,
    Always,
}

words!(DefinitionsIf { "empty" => Self::Empty, "always" => Self::Always });

/// A password, or `None` for `off`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) Option<String>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(MASKED)
    }
}

/// Written in the place of a secret.
const MASKED: &str = "******";

impl Value for Secret {
    const KIND: &'static str = "PASSWORD";
    const SECRET: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err("must be a password, or 'off'".into()),
            "off" => Ok(Self(None)),
            // `leveret config print` writes this, which would otherwise become the password.
            MASKED => Err("is masked; the password itself is needed here".into()),
            _ => Ok(Self(Some(text.to_owned()))),
        }
    }

    fn to_toml(&self) -> String {
        quoted(if self.0.is_some() { MASKED } else { "off" })
    }
}

/// The PROXY protocol header sent to the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutboundHeader {
    Off,
    V1,
    V2,
}

words!(OutboundHeader { "off" => Self::Off, "v1" => Self::V1, "v2" => Self::V2 });

/// A host name, or `None` for `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostName(pub(crate) Option<String>);

impl Value for HostName {
    const KIND: &'static str = "HOST";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "off" => Ok(Self(None)),
            _ if text.is_empty() || text.contains(|character: char| !character.is_ascii_graphic()) => {
                Err(ValueError::text(text, "is not the name of a host"))
            }
            _ => Ok(Self(Some(text.to_owned()))),
        }
    }

    fn to_toml(&self) -> String {
        quoted(self.0.as_deref().unwrap_or("off"))
    }
}

/// A name of an object in the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BrokerName(pub(crate) String);

impl Value for BrokerName {
    const KIND: &'static str = "NAME";

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() { Err("must be a name".into()) } else { Ok(Self(text.to_owned())) }
    }

    fn to_toml(&self) -> String {
        quoted(&self.0)
    }
}

/// The name of an exchange other than the default one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExchangeName(pub(crate) String);

impl Value for ExchangeName {
    const KIND: &'static str = "NAME";

    fn parse(text: &str) -> Result<Self, ValueError> {
        // AMQP's short strings.
        if text.is_empty() || text.len() > 255 {
            return Err("must be the name of an exchange, of 1 to 255 bytes".into());
        }
        Ok(Self(text.to_owned()))
    }

    fn to_toml(&self) -> String {
        quoted(&self.0)
    }
}

/// A name, or `None` for `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OptionalName(pub(crate) Option<String>);

impl Value for OptionalName {
    const KIND: &'static str = "NAME";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err("must be a name, or 'off'".into()),
            "off" => Ok(Self(None)),
            _ => Ok(Self(Some(text.to_owned()))),
        }
    }

    fn to_toml(&self) -> String {
        quoted(self.0.as_deref().unwrap_or("off"))
    }
}

/// Files in order; `off` for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilePaths(pub(crate) Vec<PathBuf>);

impl Value for FilePaths {
    const KIND: &'static str = "FILE";
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err("must be the path of a file, or 'off'".into()),
            "off" => Ok(Self(Vec::new())),
            path => Ok(Self(vec![path.into()])),
        }
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        parse_list(texts, |text| Self::parse(text).map(|paths| paths.0)).map(Self)
    }

    fn to_toml(&self) -> String {
        list(self.0.iter().map(|path| quoted(&path.to_string_lossy())))
    }
}

/// The addresses of trusted load balancers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Networks {
    /// Networks that they connect from.
    pub(crate) networks: Vec<Network>,
    /// Whether peers on Unix sockets are included.
    pub(crate) unix: bool,
}

impl Networks {
    /// Whether no load balancer is trusted.
    pub(crate) fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.unix
    }
}

impl Value for Networks {
    const KIND: &'static str = "NETWORK";
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, ValueError> {
        let (networks, unix) = match text {
            "off" => (Vec::new(), false),
            "unix" => (Vec::new(), true),
            _ => {
                let fault = "is not a network (such as 10.0.0.0/8, fd00::/8 or 192.0.2.1)";
                (vec![text.parse().map_err(|_| ValueError::text(text, fault))?], false)
            }
        };
        Ok(Self { networks, unix })
    }

    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        let parts = parse_list(texts, |text| Self::parse(text).map(|one| vec![one]))?;
        Ok(Self {
            networks: parts.iter().flat_map(|part| part.networks.clone()).collect(),
            unix: parts.iter().any(|part| part.unix),
        })
    }

    fn to_toml(&self) -> String {
        let unix = self.unix.then(|| quoted("unix"));
        list(self.networks.iter().map(|network| quoted(&network.to_string())).chain(unix))
    }
}

pub(super) fn parse_list<T>(
    texts: &[String],
    parse: impl Fn(&str) -> Result<Vec<T>, ValueError>,
) -> Result<Vec<T>, ValueError> {
    if texts.len() > 1 && texts.iter().any(|text| text == "off") {
        return Err("'off' cannot be combined with others".into());
    }
    let lists = texts.iter().map(|text| parse(text)).collect::<Result<Vec<_>, _>>()?;
    Ok(lists.into_iter().flatten().collect())
}

/// An array of TOML.
pub(super) fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn words_are_written_as_they_are_read() {
        for word in ["off", "optional", "required"] {
            assert_eq!(VerifyClient::parse(word).unwrap().to_toml(), quoted(word));
        }
        for word in ["distinguished_name", "common_name", "subject_alternative_name", "san_email", "san_uri"]
        {
            assert_eq!(LoginFrom::parse(word).unwrap().to_toml(), quoted(word));
        }
        assert_eq!(
            VerifyClient::parse("maybe").unwrap_err().to_string(),
            "'maybe' is none of: off, optional, required"
        );
    }

    #[test]
    fn files_are_a_list_and_off_is_none() {
        let files = FilePaths::parse_all(&texts(&["a.pem", "b.pem"])).unwrap();
        assert_eq!(files.to_toml(), r#"["a.pem", "b.pem"]"#);
        assert_eq!(FilePaths::parse_all(&texts(&["off"])).unwrap().to_toml(), "[]");
        let error = FilePaths::parse_all(&texts(&["a.pem", "off"])).unwrap_err();
        assert_eq!(error.to_string(), "'off' cannot be combined with others");
    }

    #[test]
    fn networks_are_ranges_addresses_and_unix_sockets() {
        let networks = Networks::parse_all(&texts(&["10.0.0.0/8", "::1", "unix"])).unwrap();
        assert_eq!(networks.to_toml(), r#"["10.0.0.0/8", "::1/128", "unix"]"#);
        assert!(Networks::parse_all(&texts(&["off"])).unwrap().is_empty());
        assert!(Networks::parse("ten").unwrap_err().to_string().starts_with("'ten' is not a network"));
    }
}
