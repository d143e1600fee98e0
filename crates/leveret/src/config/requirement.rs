//! The conditions that settings require of each other; the declaration of a setting names them.

use super::address::ListenAddr;
use super::choice::{InboundHeader, VerifyClient};
use super::data_dir::DataDir;
use super::layers::{ConfigError, Effective};
use super::login::AuthBackendName;
use super::settings::{Config, SETTINGS};

/// A condition on the other settings, without which a setting has no effect or cannot be obeyed.
pub(crate) struct Requirement {
    is_met: fn(&Config) -> bool,
    /// The complaint about a setting that is set all the same.
    otherwise: &'static str,
}

pub(super) const CERTIFICATE: Requirement =
    Requirement { is_met: |config| !config.tls_cert.0.is_empty(), otherwise: "needs tls_cert and tls_key" };

pub(super) const HTTPS: Requirement = Requirement {
    is_met: |config| config.https != ListenAddr::Off,
    otherwise: "has no effect without https",
};

pub(super) const WEBSOCKET: Requirement = Requirement {
    is_met: |config| {
        config.serves_websocket() || config.relay.0.iter().any(|relay| relay.listen != ListenAddr::Off)
    },
    otherwise: "has no effect without ws, wss or a relay that listens",
};

pub(super) const PROXY_PROTOCOL: Requirement = Requirement {
    is_met: |config| config.proxy_protocol != InboundHeader::Off,
    otherwise: "has no effect while proxy_protocol is off",
};

pub(super) const TRUSTED_PROXIES: Requirement =
    Requirement { is_met: |config| !config.trusted_proxies.is_empty(), otherwise: "needs trusted_proxies" };

pub(super) const CLIENT_CA: Requirement =
    Requirement { is_met: |config| config.tls_client_ca.0.is_some(), otherwise: "needs tls_client_ca" };

pub(super) const CLIENT_VERIFICATION: Requirement = Requirement {
    is_met: |config| config.tls_verify_client != VerifyClient::Off,
    otherwise: "has no effect while tls_verify_client is off",
};

pub(super) const LOGIN_BY_CERTIFICATE: Requirement =
    Requirement { otherwise: "needs tls_verify_client", ..CLIENT_VERIFICATION };

pub(super) const EMBEDDED_BROKER: Requirement = Requirement {
    is_met: |config| config.upstream.is_empty(),
    otherwise: "applies to the embedded broker only, not with an upstream",
};

pub(super) const OAUTH2: Requirement = Requirement {
    is_met: |config| config.auth_backends.contains(AuthBackendName::OAuth2),
    otherwise: "has no effect unless auth_backends has oauth2",
};

pub(super) const HTTP_BACKEND: Requirement = Requirement {
    is_met: |config| config.auth_backends.has_http(),
    otherwise: "has no effect unless auth_backends has http or cache:http",
};

pub(super) const CACHED_BACKEND: Requirement = Requirement {
    is_met: |config| config.auth_backends.contains(AuthBackendName::CachedHttp),
    otherwise: "has no effect unless auth_backends has cache:http",
};

pub(super) const UPSTREAM: Requirement = Requirement {
    is_met: |config| !config.upstream.is_empty(),
    otherwise: "has no effect without an upstream",
};

pub(super) const SPOOL: Requirement = Requirement {
    is_met: |config| !config.spool.0.is_empty(),
    otherwise: "has no effect without a rule of spool",
};

pub(super) const DATA_DIR: Requirement = Requirement {
    is_met: |config| config.data_dir != DataDir::Off,
    otherwise: "needs data_dir, a directory for the messages",
};

pub(super) const UPSTREAM_FOR_QUORUM: Requirement = Requirement {
    is_met: |config| !config.upstream.is_empty(),
    otherwise: "quorum needs an upstream: on the embedded broker sessions have classic queues, as the delivery limit of a \
                quorum queue would drop messages",
};

pub(super) const UPSTREAM_OVER_TLS: Requirement = Requirement {
    // A broker may move to another one over TLS.
    is_met: |config| config.upstream.is_empty() || config.has_upstream_over_tls(),
    otherwise: "has no effect without an upstream of amqps:// or tls://",
};

/// The settings that differ from their defaults and would be refused, or have no effect, with these.
pub(crate) fn without_effect(config: &Config) -> Vec<&'static str> {
    let defaults = Config::defaults(!config.upstream.is_empty());
    let unmet = SETTINGS.iter().filter(|setting| {
        setting.requires.iter().any(|required| !(required.is_met)(config))
            && (setting.to_toml)(config) != (setting.to_toml)(&defaults)
    });
    unmet.map(|setting| setting.key).collect()
}

/// Refuses a setting that differs from its default although a condition that it requires is not met.
pub(super) fn check_requirements(effective: &Effective) -> Result<(), ConfigError> {
    let (config, defaults) = (&effective.config, effective.defaults());
    for setting in SETTINGS {
        let unmet = setting.requires.iter().find(|required| !(required.is_met)(config));
        if let Some(unmet) = unmet
            && (setting.to_toml)(config) != (setting.to_toml)(&defaults)
        {
            return Err(ConfigError::new(effective.place(setting.key), unmet.otherwise));
        }
    }
    Ok(())
}
