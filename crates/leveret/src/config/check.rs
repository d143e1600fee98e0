//! Checks settings that contradict each other.

use broker::FrontEnd;
use server::{ClientProtocol, PROTOCOLS};

use super::address::ListenAddr;
use super::layers::{ConfigError, Effective};
use super::login::{AuthBackendName, JwksSource};
use super::requirement::check_requirements;
use super::settings::Config;

impl Config {
    /// Whether `ws` or `wss` is on.
    pub(super) fn serves_websocket(&self) -> bool {
        self.ws != ListenAddr::Off || self.wss != ListenAddr::Off
    }
}

/// Refuses settings that contradict each other, or have no effect without another.
pub(super) fn check(effective: &Effective) -> Result<(), ConfigError> {
    check_listeners(effective)?;
    check_relays(effective)?;
    check_certificates(effective)?;
    check_requirements(effective)?;
    check_default_user(effective)?;
    check_oauth2(effective)?;
    check_http_backend(effective)?;
    check_relayed_protocols(effective)
}

fn refuse(effective: &Effective, key: &str, reason: impl AsRef<str>) -> Result<(), ConfigError> {
    Err(ConfigError::new(effective.place(key), reason))
}

/// At least one listener is on, and no two have the same address.
fn check_listeners(effective: &Effective) -> Result<(), ConfigError> {
    let config = &effective.config;
    let listeners: Vec<(&str, &ListenAddr)> = config.of_type().collect();
    let own = listeners.iter().map(|(_, address)| *address);
    let mut all = own.chain(config.relay.0.iter().map(|relay| &relay.listen));
    if all.all(|listener| *listener == ListenAddr::Off) {
        return refuse(effective, "amqp", "every listener is off, there is nothing to serve");
    }
    for (second, (key, address)) in listeners.iter().enumerate() {
        let same = listeners[..second].iter().find(|(_, other)| other.overlaps(address));
        let Some((other, _)) = same else { continue };
        let (at_fault, other) = if effective.is_set(key) { (key, other) } else { (other, key) };
        return refuse(effective, at_fault, format!("the same address as {other} ({address})"));
    }
    Ok(())
}

/// Each certificate has its key.
fn check_certificates(effective: &Effective) -> Result<(), ConfigError> {
    let config = &effective.config;
    let (certificates, keys) = (config.tls_cert.0.len(), config.tls_key.0.len());
    if certificates != keys {
        let key = if certificates < keys { "tls_cert" } else { "tls_key" };
        return refuse(effective, key, "one tls_key is needed for each tls_cert, in the same order");
    }
    if config.upstream_cert.0.is_some() != config.upstream_key.0.is_some() {
        let key = if config.upstream_cert.0.is_some() { "upstream_key" } else { "upstream_cert" };
        return refuse(effective, key, "a certificate and its key are needed together");
    }
    Ok(())
}

/// The first user has one password, and no other than guest has that of guest, which everybody knows.
fn check_default_user(effective: &Effective) -> Result<(), ConfigError> {
    let config = &effective.config;
    let (password, file) = (config.default_password.0.is_some(), config.default_password_file.0.is_some());
    if password && file {
        return refuse(
            effective,
            "default_password_file",
            "default_password is set, too; one of them is needed",
        );
    }
    if !password && !file && config.default_user.0 != "guest" {
        return refuse(effective, "default_user", "needs default_password or default_password_file");
    }
    Ok(())
}

/// Tokens need a name to be for, and keys to be verified with.
fn check_oauth2(effective: &Effective) -> Result<(), ConfigError> {
    let config = &effective.config;
    if !config.auth_backends.contains(AuthBackendName::OAuth2) {
        return Ok(());
    }
    if config.oauth2_resource_server_id.0.is_none() {
        return refuse(effective, "oauth2_resource_server_id", "is needed for oauth2 in auth_backends");
    }
    if config.oauth2_jwks == JwksSource::Off {
        return refuse(effective, "oauth2_jwks", "is needed for oauth2 in auth_backends");
    }
    Ok(())
}

/// A service that is asked over HTTP has an address for each kind of question.
fn check_http_backend(effective: &Effective) -> Result<(), ConfigError> {
    let config = &effective.config;
    if !config.auth_backends.has_http() {
        return Ok(());
    }
    let paths = [
        ("auth_http_user_path", &config.auth_http_user_path),
        ("auth_http_vhost_path", &config.auth_http_vhost_path),
        ("auth_http_resource_path", &config.auth_http_resource_path),
        ("auth_http_topic_path", &config.auth_http_topic_path),
    ];
    match paths.into_iter().find(|(_, path)| path.0.is_none()) {
        Some((key, _)) => refuse(effective, key, "is needed for http in auth_backends"),
        None => Ok(()),
    }
}

/// In front of an upstream, protocols whose sessions cannot end here need an address to relay to.
fn check_relayed_protocols(effective: &Effective) -> Result<(), ConfigError> {
    let config = &effective.config;
    if config.upstream.is_empty() {
        return Ok(());
    }
    for protocol in &PROTOCOLS {
        let Some(port) = protocol.upstream_port.filter(|_| !protocol.is_pooled) else { continue };
        if config.upstream_port(port).is_some() {
            continue;
        }
        for listener in &protocol.listeners {
            if *config.listen_address(listener.setting) != ListenAddr::Off {
                let name = protocol.name;
                let reason = format!("needs {port}: in front of an upstream {name} is only relayed");
                return refuse(effective, listener.setting, reason);
            }
        }
    }
    Ok(())
}

/// Refuses relays that could not be reached, or that conflict with another path or listener.
fn check_relays(effective: &Effective) -> Result<(), ConfigError> {
    let config = &effective.config;
    let fault = |reason: String| Err(ConfigError::new(effective.place("relay"), reason));
    let relays = &config.relay.0;
    for (at, relay) in relays.iter().enumerate() {
        let name = relay.name();
        if let Some(path) = &relay.path {
            if ClientProtocol::of(FrontEnd::Amqp).paths_beside_amqp.contains(&path.as_str()) {
                return fault(format!(
                    "{path} is where AMQP is; give the relay another path, or a listener of its own"
                ));
            }
            if !config.serves_websocket() {
                return fault(format!("{path} needs ws or wss, which are off"));
            }
            if relays[..at].iter().any(|other| other.path.as_ref() == Some(path)) {
                return fault(format!("{path} is given twice"));
            }
        }
        if relay.tls.0 && config.tls_cert.0.is_empty() {
            return fault(format!("{name}: tls needs tls_cert and tls_key"));
        }
        let listen = &relay.listen;
        let same = config.of_type::<ListenAddr>().find(|(_, address)| address.overlaps(listen));
        let same = same.map(|(key, _)| key);
        let twice = relays[..at].iter().any(|other| other.listen.overlaps(listen)).then_some("another relay");
        if let Some(other) = same.or(twice) {
            return fault(format!("the same address as {other} ({listen})"));
        }
    }
    Ok(())
}
