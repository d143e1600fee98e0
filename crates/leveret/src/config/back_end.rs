//! Ports of the upstream for protocols that are only relayed.

use super::relay::RelayUrl;
use super::value::{Value, quoted};

/// A port of the upstream, if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpstreamPort(pub(crate) Option<RelayUrl>);

impl Value for UpstreamPort {
    const KIND: &'static str = "URL";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self(None)),
            _ => match RelayUrl::parse(text)? {
                RelayUrl::Host { tls: true, .. } => {
                    Err("tls:// is not available here: relay WebSockets to it instead, with `relay`"
                        .to_owned())
                }
                url => Ok(Self(Some(url))),
            },
        }
    }

    fn to_toml(&self) -> String {
        quoted(&self.0.as_ref().map_or_else(|| "off".to_owned(), ToString::to_string))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_written_as_it_is_read() {
        for text in ["off", "tcp://rabbit:61613", "unix:/run/stomp"] {
            assert_eq!(UpstreamPort::parse(text).unwrap().to_toml(), quoted(text));
        }
        assert!(UpstreamPort::parse("tls://rabbit:61614").unwrap_err().contains("not available"));
        assert!(UpstreamPort::parse("rabbit:61613").is_err());
    }
}
