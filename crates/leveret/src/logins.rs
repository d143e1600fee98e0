//! The authorities that are asked about logins to the embedded broker, as the settings name them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use auth::{AuthChain, ChainLink, KeySource, OAuth2, ServiceClient, ServiceTimes, TokenPolicy};
use broker::Broker;
use server::Clock;
use transport::tls::ClientTlsConfig;

use crate::config::{AuthBackendName, Config, FilePath, JwksSource, ScopePrefix, SettingError};

/// How long the server of `oauth2_jwks` may take: a client waits for it that logs in, for 10 s in all.
const JWKS_TIMES: ServiceTimes =
    ServiceTimes { connect: Duration::from_secs(3), request: Duration::from_secs(5) };

/// The authorities beside the broker's own list of users, to be reloaded.
#[derive(Clone, Default)]
pub(crate) struct Logins {
    tokens: Option<OAuth2>,
}

impl Logins {
    /// Has the broker ask the authorities of the settings.
    ///
    /// # Errors
    /// A file that a setting names cannot be used.
    pub(crate) fn set_up(broker: &Broker, config: &Config, clock: Clock) -> Result<Self, SettingError> {
        let mut logins = Self::default();
        if config.auth_backends.0 == [AuthBackendName::Internal] {
            // The broker does that by itself.
            return Ok(logins);
        }
        let mut links = Vec::new();
        for name in &config.auth_backends.0 {
            links.push(match name {
                AuthBackendName::Internal => ChainLink::Internal,
                AuthBackendName::OAuth2 => {
                    let tokens = tokens(config, clock)?;
                    logins.tokens = Some(tokens.clone());
                    ChainLink::OAuth2(tokens)
                }
            });
        }
        broker.set_auth_backends(Arc::new(AuthChain::new(links)));
        Ok(logins)
    }

    /// Reads the files again. One that cannot be used stays as it was.
    pub(crate) fn reload(&self) {
        if let Some(Err(error)) = self.tokens.as_ref().map(OAuth2::reload) {
            tracing::error!(%error, "SIGHUP: keys that verify tokens not reloaded (oauth2_jwks)");
        }
    }
}

/// The authority that takes tokens.
fn tokens(config: &Config, clock: Clock) -> Result<OAuth2, SettingError> {
    let resource_server_id = config.oauth2_resource_server_id.0.clone().unwrap_or_default();
    let scope_prefix = match &config.oauth2_scope_prefix {
        ScopePrefix::Auto => format!("{resource_server_id}."),
        ScopePrefix::Text(text) => text.clone(),
    };
    let policy = TokenPolicy {
        resource_server_id,
        scope_prefix,
        verify_aud: config.oauth2_verify_aud.0,
        username_claims: config.oauth2_username_claims.0.clone(),
        additional_scopes_keys: config.oauth2_additional_scopes.0.clone(),
        scope_aliases: config.oauth2_scope_aliases.0.iter().cloned().collect::<BTreeMap<_, _>>(),
    };
    let source = match &config.oauth2_jwks {
        JwksSource::File(path) => KeySource::File(path.clone()),
        JwksSource::Url(url) => {
            let client = ServiceClient::new(url.clone(), trusting(&config.oauth2_jwks_ca), JWKS_TIMES);
            KeySource::Service(client.map_err(|error| SettingError::new("oauth2_jwks_ca", error))?)
        }
        JwksSource::Off => return Err(SettingError::new("oauth2_jwks", NoKeys)),
    };
    if let KeySource::Service(client) = &source
        && !client.is_over_tls()
    {
        tracing::warn!(
            "oauth2_jwks is not https: whoever can change its answers on the way can let anybody in"
        );
    }
    let clock = Arc::new(move || clock.timestamp(Instant::now()));
    OAuth2::new(policy, source, clock).map_err(|error| SettingError::new("oauth2_jwks", error))
}

/// The settings have been checked before they are used.
#[derive(Debug, thiserror::Error)]
#[error("is off")]
struct NoKeys;

/// A client's TLS that trusts these authorities, or those of the system.
fn trusting(authorities: &FilePath) -> ClientTlsConfig {
    ClientTlsConfig { authorities: authorities.0.clone(), certificate: None, server_name: None, verify: true }
}
