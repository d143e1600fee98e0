//! Upstream ports for protocols that are only relayed.

use super::relay::RelayUrl;
use super::settings::Config;
use super::value::{Value, quoted};
use super::value_error::ValueError;

/// A port of the upstream, or `None` for `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpstreamPort(pub(crate) Option<RelayUrl>);

impl UpstreamPort {
    fn is_over_tls(&self) -> bool {
        matches!(self.0, Some(RelayUrl::Host { tls: true, .. }))
    }
}

impl Config {
    /// Whether the connection to any upstream port uses TLS.
    pub(crate) fn has_upstream_over_tls(&self) -> bool {
        let mut ports = self.of_type::<UpstreamPort>();
        self.upstream.iter().any(|upstream| upstream.tls) || ports.any(|(_, port)| port.is_over_tls())
    }

    /// Whether the process stores anything in `data_dir`: a broker does, and a pool with a spool.
    pub(crate) fn uses_data_dir(&self) -> bool {
        self.upstream.is_empty() || !self.spool.0.is_empty()
    }

    /// The port of the upstream in the setting `key`, if it is given.
    pub(crate) fn upstream_port(&self, key: &str) -> Option<&RelayUrl> {
        self.of_type::<UpstreamPort>().find(|(own, _)| *own == key)?.1.0.as_ref()
    }
}

impl Value for UpstreamPort {
    const KIND: &'static str = "URL";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "off" => Ok(Self(None)),
            _ => RelayUrl::parse(text).map(|url| Self(Some(url))),
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
        for text in ["off", "tcp://rabbit:61613", "tls://rabbit:61614", "unix:/run/stomp"] {
            assert_eq!(UpstreamPort::parse(text).unwrap().to_toml(), quoted(text));
        }
        assert!(UpstreamPort::parse("rabbit:61613").is_err());
    }
}
