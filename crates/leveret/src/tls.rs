//! The TLS files, loaded at startup and read again on SIGHUP.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use transport::tls::{
    CaInfo, CertificateFiles, CertificateInfo, ClientCertificates, ClientTls, ClientTlsConfig,
    ClientTlsReload, Expiry, ServerTls, ServerTlsConfig, ServerTlsReload, TlsError, TlsFile, TlsInUse,
};

use crate::config::{Config, RelayEntry, RelayUrl, SettingError, VerifyClient};
use crate::relays::RELAY;

/// TLS for listeners and upstreams, as far as it is configured.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tls {
    /// For listeners.
    pub(crate) server: Option<Arc<ServerTls>>,
    /// For upstreams over TLS, of any protocol.
    pub(crate) client: Option<Arc<ClientTls>>,
    /// For the `tls://` upstreams of relays, by the index of the relay.
    pub(crate) relays: Vec<Option<Arc<ClientTls>>>,
}

impl Tls {
    /// Reads the configured files and logs their certificates.
    ///
    /// # Errors
    ///
    /// A file cannot be used.
    pub(crate) fn load(config: &Config) -> Result<Self, SettingError> {
        let mut tls = Self::default();
        if let Some(files) = server_files(config) {
            let server = ServerTls::load(files).map_err(of_server)?;
            log_in_use(&server.in_use());
            tls.server = Some(Arc::new(server));
        }
        if let Some(files) = client_files(config) {
            let (client, certificate) = ClientTls::load(files).map_err(of_client)?;
            certificate.iter().for_each(log_certificate);
            tls.client = Some(Arc::new(client));
        }
        for relay in &config.relay.0 {
            let Some(files) = relay_files(relay) else {
                tls.relays.push(None);
                continue;
            };
            let (client, _) = ClientTls::load(files)
                .map_err(|error| SettingError::new(RELAY, error).about(relay.name()))?;
            tls.relays.push(Some(Arc::new(client)));
        }
        Ok(tls)
    }

    /// Reads the files again, with those for these services, each after the setting that names its CA certificates. Nothing
    /// changes before the result is applied.
    ///
    /// # Errors
    ///
    /// A file cannot be used.
    pub(crate) fn prepare_reload<'a>(
        &'a self,
        services: &'a [(&'static str, Arc<ClientTls>)],
    ) -> Result<TlsReload<'a>, SettingError> {
        let mut reload = TlsReload::default();
        if let Some(server) = &self.server {
            reload.server = Some(server.prepare_reload().map_err(of_server)?);
        }
        if let Some(client) = &self.client {
            reload.client = Some(client.prepare_reload().map_err(of_client)?);
        }
        for relay in self.relays.iter().flatten() {
            let prepared = relay.prepare_reload().map_err(|error| SettingError::new(RELAY, error))?;
            reload.others.push(("relay's upstream", prepared));
        }
        for (setting, service) in services {
            let prepared = service.prepare_reload().map_err(|error| SettingError::new(setting, error))?;
            reload.others.push(("auth service's", prepared));
        }
        Ok(reload)
    }
}

/// The TLS files, which have been read again.
#[derive(Default)]
#[must_use = "the old contents stay in use until it is applied"]
pub(crate) struct TlsReload<'a> {
    server: Option<ServerTlsReload<'a>>,
    client: Option<ClientTlsReload<'a>>,
    /// Those of relays and services, each after whose it is.
    others: Vec<(&'static str, ClientTlsReload<'a>)>,
}

impl TlsReload<'_> {
    /// Uses the new contents for new connections, and logs the certificates.
    pub(crate) fn apply(self) {
        let Self { server, client, others } = self;
        if server.is_none() && client.is_none() && others.is_empty() {
            return tracing::info!("SIGHUP: no TLS files to reload");
        }
        if let Some(prepared) = server {
            log_in_use(&prepared.apply());
        }
        if let Some(prepared) = client {
            prepared.apply().iter().for_each(log_certificate);
            tracing::info!("upstream TLS files reloaded");
        }
        for (whose, prepared) in others {
            prepared.apply();
            tracing::info!("{whose} TLS files reloaded");
        }
    }
}

fn server_files(config: &Config) -> Option<ServerTlsConfig> {
    let pairs = config.tls_cert.0.iter().zip(&config.tls_key.0);
    let certificates: Vec<_> = pairs
        .map(|(certificate, key)| CertificateFiles { certificate: certificate.clone(), key: key.clone() })
        .collect();
    let client_certificates = match (config.tls_verify_client, config.tls_client_ca.0.clone()) {
        (VerifyClient::Off, _) | (_, None) => ClientCertificates::Off,
        (VerifyClient::Optional, Some(ca)) => ClientCertificates::Optional { ca },
        (VerifyClient::Required, Some(ca)) => ClientCertificates::Required { ca },
    };
    let login_from = config.tls_login_from;
    (!certificates.is_empty()).then_some(ServerTlsConfig { certificates, client_certificates, login_from })
}

fn client_files(config: &Config) -> Option<ClientTlsConfig> {
    let certificate = config.upstream_cert.0.clone().zip(config.upstream_key.0.clone());
    config.has_upstream_over_tls().then(|| ClientTlsConfig {
        ca: config.upstream_ca.0.clone(),
        certificate: certificate.map(|(certificate, key)| CertificateFiles { certificate, key }),
        server_name: config.upstream_server_name.0.clone(),
        verify: config.upstream_verify.0,
    })
}

fn relay_files(relay: &RelayEntry) -> Option<ClientTlsConfig> {
    matches!(relay.upstream, RelayUrl::Host { tls: true, .. }).then(|| ClientTlsConfig {
        ca: relay.upstream_ca.0.clone(),
        certificate: None,
        server_name: relay.upstream_server_name.0.clone(),
        verify: relay.upstream_verify.0,
    })
}

fn of_server(error: TlsError) -> SettingError {
    let key = match error.file {
        TlsFile::Certificate => "tls_cert",
        TlsFile::Key => "tls_key",
        TlsFile::Ca => "tls_client_ca",
    };
    SettingError::new(key, error)
}

fn of_client(error: TlsError) -> SettingError {
    let key = match error.file {
        TlsFile::Certificate => "upstream_cert",
        TlsFile::Key => "upstream_key",
        TlsFile::Ca => "upstream_ca",
    };
    SettingError::new(key, error)
}

fn log_in_use(in_use: &TlsInUse) {
    in_use.certificates.iter().for_each(log_certificate);
    if let Some(CaInfo { path, ends }) = &in_use.ca
        && let Some(Expiry { text, .. }) = ends_soon(ends, SystemTime::now())
    {
        let path = path.display();
        tracing::warn!(file = %path, expires = text, "CA certificate for clients expires within 30 days");
    }
}

fn log_certificate(certificate: &CertificateInfo) {
    if !certificate.in_time {
        tracing::warn!(%certificate, "TLS certificate loaded, but not valid now");
    } else if let Some(Expiry { text, .. }) = ends_soon(&certificate.ends, SystemTime::now()) {
        tracing::warn!(
            %certificate, expires = text, "TLS certificate loaded, but it or its chain expires within 30 days"
        );
    } else {
        tracing::info!(%certificate, "TLS certificate loaded");
    }
}

/// The earliest expiry, if it is soon or already past.
fn ends_soon(ends: &[Expiry], now: SystemTime) -> Option<&Expiry> {
    let soon = (now + WARNING).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let soon = i64::try_from(soon).unwrap_or(i64::MAX);
    ends.iter().filter(|end| end.at < soon).min_by_key(|end| end.at)
}

/// Enough time to renew a certificate by hand; programs renew theirs earlier.
const WARNING: Duration = Duration::from_hours(30 * 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_that_expire_within_thirty_days_expire_soon() {
        let ends = |days: &[i64]| {
            let end = |day: &i64| Expiry { at: day * 86_400, text: day.to_string() };
            let ends: Vec<_> = days.iter().map(end).collect();
            ends_soon(&ends, UNIX_EPOCH + Duration::from_hours(24 * 100)).map(|end| end.text.clone())
        };
        assert_eq!(ends(&[130, 5000]), None);
        assert_eq!(ends(&[5000, 129]).as_deref(), Some("129"), "of its chain");
        assert_eq!(ends(&[129, 99, 110]).as_deref(), Some("99"), "over, in fact");
    }
}
