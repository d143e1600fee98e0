//! The auth backends that are asked about logins to the embedded broker, as the settings name them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use auth::{
    AuthBackend, AuthChain, CacheSettings, HttpAuthBackend, HttpAuthBackendMethod, HttpAuthBackendSettings,
    KeySource, OAuth2, ServiceClient, ServiceTimes, SplitAuthBackend, TokenPolicy,
};
use broker::Broker;
use server::Clock;
use transport::tls::{ClientTls, ClientTlsConfig};

use crate::config::{
    AuthBackendChoice, AuthBackendName, Config, FilePath, HttpMethodName, JwksSource, OptionalUrl,
    ScopePrefix, SettingError,
};

/// The settings that name the CA certificates of services.
const HTTP_CA: &str = "auth_http_ca";
const JWKS_CA: &str = "oauth2_jwks_ca";

/// How long the server of `oauth2_jwks` may take: a client waits for it that logs in, for 10 s in all.
const JWKS_TIMES: ServiceTimes =
    ServiceTimes { connect: Duration::from_secs(3), request: Duration::from_secs(5) };

/// The auth backends beside the broker's own list of users, to be reloaded.
#[derive(Clone, Default)]
pub(crate) struct Logins {
    tokens: Option<OAuth2>,
    /// `None` if there is the broker's own list alone.
    chain: Option<Arc<AuthChain>>,
    /// TLS for services that are asked, each after the setting that names its CA certificates.
    service_tls: Vec<(&'static str, Arc<ClientTls>)>,
}

impl Logins {
    /// Reads the files of the auth backends in the settings.
    ///
    /// # Errors
    /// A file that a setting names cannot be used.
    pub(crate) fn read(config: &Config, clock: Clock) -> Result<Self, SettingError> {
        let mut logins = Self::default();
        if config.auth_backends.0 == [AuthBackendChoice::One(AuthBackendName::Internal)] {
            // The broker does that by itself.
            return Ok(logins);
        }
        let services = Services::set_up(config)?;
        if let Some(tls) = services.plain.as_ref().and_then(HttpAuthBackend::tls) {
            logins.service_tls.push((HTTP_CA, Arc::clone(tls)));
        }
        let mut backends = Vec::new();
        for backend in &config.auth_backends.0 {
            backends.push(match backend {
                AuthBackendChoice::One(AuthBackendName::Internal) => AuthBackend::Internal,
                AuthBackendChoice::One(AuthBackendName::OAuth2) => {
                    let source = key_source(config)?;
                    if let KeySource::Service(client) = &source
                        && let Some(tls) = client.tls()
                    {
                        logins.service_tls.push((JWKS_CA, Arc::clone(tls)));
                    }
                    let tokens = tokens(config, source, clock)?;
                    logins.tokens = Some(tokens.clone());
                    AuthBackend::OAuth2(tokens)
                }
                AuthBackendChoice::One(name) => match services.backend(*name)? {
                    SplitAuthBackend::Internal => AuthBackend::Internal,
                    SplitAuthBackend::Http(http) => AuthBackend::Http(http),
                },
                AuthBackendChoice::Split { authn, authz } => {
                    AuthBackend::Split { authn: services.backend(*authn)?, authz: services.backend(*authz)? }
                }
            });
        }
        logins.chain = Some(Arc::new(AuthChain::new(backends)));
        Ok(logins)
    }

    /// Has the broker ask these auth backends.
    pub(crate) fn serve(&self, broker: &Broker) {
        if let Some(chain) = &self.chain {
            broker.set_auth_backends(Arc::clone(chain) as _);
        }
    }

    /// TLS for services that are asked, each after the setting that names its CA certificates.
    pub(crate) fn service_tls(&self) -> &[(&'static str, Arc<ClientTls>)] {
        &self.service_tls
    }

    /// Reads the file of token verification keys again. If it cannot be used, the previous keys stay in effect.
    pub(crate) fn reload(&self) {
        if let Some(Err(error)) = self.tokens.as_ref().map(OAuth2::reload) {
            tracing::error!(%error, "SIGHUP: token verification keys not reloaded (oauth2_jwks)");
        }
    }
}

/// The service that is asked over HTTP, if there is one.
#[derive(Default)]
struct Services {
    plain: Option<HttpAuthBackend>,
    /// The same one.
    cached: Option<HttpAuthBackend>,
}

impl Services {
    fn set_up(config: &Config) -> Result<Self, SettingError> {
        if !config.auth_backends.has_http() {
            return Ok(Self::default());
        }
        let url = |key, url: &OptionalUrl| url.0.clone().ok_or_else(|| SettingError::new(key, NotSet));
        let settings = HttpAuthBackendSettings {
            user: url("auth_http_user_path", &config.auth_http_user_path)?,
            vhost: url("auth_http_vhost_path", &config.auth_http_vhost_path)?,
            resource: url("auth_http_resource_path", &config.auth_http_resource_path)?,
            topic: url("auth_http_topic_path", &config.auth_http_topic_path)?,
            method: match config.auth_http_method {
                HttpMethodName::Get => HttpAuthBackendMethod::Get,
                HttpMethodName::Post => HttpAuthBackendMethod::Post,
            },
            tls: trusting(&config.auth_http_ca),
            times: ServiceTimes {
                connect: config.auth_http_connection_timeout,
                request: config.auth_http_request_timeout,
            },
        };
        let plain = HttpAuthBackend::new(settings).map_err(|error| SettingError::new(HTTP_CA, error))?;
        if !plain.is_over_tls() {
            tracing::warn!(
                "auth_http_*_path is not https: passwords and answers can be read and forged on the network path"
            );
        }
        let cache =
            CacheSettings { ttl: config.auth_cache_ttl, caches_refusals: config.auth_cache_refusals.0 };
        let cached = plain.cached(cache).ok_or_else(|| SettingError::new("auth_backends", NoRandomBytes))?;
        Ok(Self { plain: Some(plain), cached: Some(cached) })
    }

    /// One of two auth backends; the caller has handled tokens.
    fn backend(&self, name: AuthBackendName) -> Result<SplitAuthBackend, SettingError> {
        let service = match name {
            AuthBackendName::Internal => return Ok(SplitAuthBackend::Internal),
            AuthBackendName::Http => &self.plain,
            AuthBackendName::CachedHttp => &self.cached,
            AuthBackendName::OAuth2 => &None,
        };
        let service = service.clone().ok_or_else(|| SettingError::new("auth_backends", NotSet))?;
        Ok(SplitAuthBackend::Http(service))
    }
}

/// The auth backend that takes tokens, with the keys of this source.
fn tokens(config: &Config, source: KeySource, clock: Clock) -> Result<OAuth2, SettingError> {
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
    let clock = Arc::new(move || clock.timestamp(Instant::now()));
    OAuth2::new(policy, source, clock).map_err(|error| SettingError::new("oauth2_jwks", error))
}

/// Where the keys are that verify tokens.
fn key_source(config: &Config) -> Result<KeySource, SettingError> {
    let url = match &config.oauth2_jwks {
        JwksSource::File(path) => return Ok(KeySource::File(path.clone())),
        JwksSource::Url(url) => url,
        JwksSource::Off => return Err(SettingError::new("oauth2_jwks", NoKeys)),
    };
    let client = ServiceClient::new(url.clone(), trusting(&config.oauth2_jwks_ca), JWKS_TIMES);
    let client = client.map_err(|error| SettingError::new(JWKS_CA, error))?;
    if !client.is_over_tls() {
        tracing::warn!(
            "oauth2_jwks is not https: keys can be forged on the network path, which would allow anyone to log in"
        );
    }
    Ok(KeySource::Service(Box::new(client)))
}

/// The settings have been checked before they are used.
#[derive(Debug, thiserror::Error)]
#[error("is off")]
struct NoKeys;

/// The same.
#[derive(Debug, thiserror::Error)]
#[error("is needed for http in auth_backends")]
struct NotSet;

/// The key of the cache cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot get random bytes for the cache")]
struct NoRandomBytes;

/// A client's TLS that trusts these CA certificates, or those of the system.
fn trusting(ca: &FilePath) -> ClientTlsConfig {
    ClientTlsConfig { ca: ca.0.clone(), certificate: None, server_name: None, verify: true }
}
