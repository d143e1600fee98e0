//! Checks settings of TLS, the PROXY protocol and relays that depend on each other.

use server::Routes;

use super::address::ListenAddr;
use super::choice::{InboundHeader, VerifyClient};
use super::layers::{ConfigError, Effective};
use super::settings::Config;

/// The settings that are listeners.
pub(super) fn listeners(config: &Config) -> [(&'static str, &ListenAddr); 15] {
    [
        ("amqp", &config.amqp),
        ("amqps", &config.amqps),
        ("ws", &config.ws),
        ("wss", &config.wss),
        ("mqtt", &config.mqtt),
        ("mqtts", &config.mqtts),
        ("web_mqtt", &config.web_mqtt),
        ("web_mqtts", &config.web_mqtts),
        ("stomp", &config.stomp),
        ("stomps", &config.stomps),
        ("web_stomp", &config.web_stomp),
        ("web_stomps", &config.web_stomps),
        ("http", &config.http),
        ("https", &config.https),
        ("prometheus", &config.prometheus),
    ]
}

/// Refuses combinations in which a setting would have no effect, or lacks another that it needs.
pub(super) fn check_transports(effective: &Effective) -> Result<(), ConfigError> {
    check_certificates(effective)?;
    check_relayed_protocols(effective)?;
    check_clients(effective)?;
    check_upstream_tls(effective)
}

fn refuse(effective: &Effective, key: &'static str, reason: &str) -> Result<(), ConfigError> {
    Err(ConfigError::new(effective.place(key), reason))
}

/// The listeners with TLS need certificates, each with its key.
fn check_certificates(effective: &Effective) -> Result<(), ConfigError> {
    let config = &effective.config;
    let (certificates, keys) = (config.tls_cert.0.len(), config.tls_key.0.len());
    if certificates != keys {
        let key = if certificates < keys { "tls_cert" } else { "tls_key" };
        return refuse(effective, key, "as many certificates as keys are needed, in the same order");
    }
    for (key, address) in [
        ("amqps", &config.amqps),
        ("wss", &config.wss),
        ("mqtts", &config.mqtts),
        ("web_mqtts", &config.web_mqtts),
        ("stomps", &config.stomps),
        ("web_stomps", &config.web_stomps),
        ("https", &config.https),
    ] {
        if *address != ListenAddr::Off && certificates == 0 {
            return refuse(effective, key, "needs tls_cert and tls_key");
        }
    }
    if !config.https_strict.is_zero() && config.https == ListenAddr::Off {
        return refuse(effective, "https_strict", "has no effect without https");
    }
    Ok(())
}

/// In front of an upstream, MQTT and STOMP need an address to relay to.
fn check_relayed_protocols(effective: &Effective) -> Result<(), ConfigError> {
    let config = &effective.config;
    if config.upstream.is_empty() {
        for (key, given) in [
            ("upstream_mqtt", config.upstream_mqtt.0.is_some()),
            ("upstream_stomp", config.upstream_stomp.0.is_some()),
        ] {
            if given {
                return refuse(effective, key, "has no effect without an upstream");
            }
        }
        return Ok(());
    }
    for (key, address) in [
        ("stomp", &config.stomp),
        ("stomps", &config.stomps),
        ("web_stomp", &config.web_stomp),
        ("web_stomps", &config.web_stomps),
    ] {
        if *address != ListenAddr::Off && config.upstream_stomp.0.is_none() {
            let reason = "needs upstream_stomp: in front of an upstream STOMP is only relayed";
            return refuse(effective, key, reason);
        }
    }
    for (key, address) in [
        ("mqtt", &config.mqtt),
        ("mqtts", &config.mqtts),
        ("web_mqtt", &config.web_mqtt),
        ("web_mqtts", &config.web_mqtts),
    ] {
        if *address != ListenAddr::Off && config.upstream_mqtt.0.is_none() {
            let reason = "needs upstream_mqtt: in front of an upstream MQTT is only relayed";
            return refuse(effective, key, reason);
        }
    }
    Ok(())
}

/// Clients' certificates and addresses are believed only with what they are checked against.
fn check_clients(effective: &Effective) -> Result<(), ConfigError> {
    let config = &effective.config;
    let verifies = config.tls_verify_client != VerifyClient::Off;
    let reads_header = config.proxy_protocol != InboundHeader::Off;
    let has_external = config.upstream_external.0.is_some();
    for (is_refused, key, reason) in [
        (verifies && config.tls_client_ca.0.is_none(), "tls_verify_client", "needs tls_client_ca"),
        (
            !verifies && config.tls_client_ca.0.is_some(),
            "tls_client_ca",
            "has no effect while tls_verify_client is off",
        ),
        (
            reads_header && config.trusted_proxies.is_empty(),
            "proxy_protocol",
            "needs trusted_proxies: whom to believe",
        ),
        (
            !reads_header && !config.trusted_proxies.is_empty(),
            "trusted_proxies",
            "has no effect while proxy_protocol is off",
        ),
        (
            has_external && config.upstream.is_empty(),
            "upstream_external",
            "has no effect without an upstream",
        ),
        (has_external && !verifies, "upstream_external", "needs tls_verify_client"),
    ] {
        if is_refused {
            return refuse(effective, key, reason);
        }
    }
    Ok(())
}

fn check_upstream_tls(effective: &Effective) -> Result<(), ConfigError> {
    let config = &effective.config;
    if config.upstream_cert.0.is_some() != config.upstream_key.0.is_some() {
        let key = if config.upstream_cert.0.is_some() { "upstream_key" } else { "upstream_cert" };
        return refuse(effective, key, "a certificate and its key are needed together");
    }
    if config.has_upstream_over_tls() {
        return Ok(());
    }
    for (key, given) in [
        ("upstream_ca", config.upstream_ca.0.is_some()),
        ("upstream_cert", config.upstream_cert.0.is_some()),
        ("upstream_server_name", config.upstream_server_name.0.is_some()),
        ("upstream_verify", !config.upstream_verify.0),
    ] {
        if given {
            return refuse(effective, key, "has no effect without an upstream of amqps:// or tls://");
        }
    }
    Ok(())
}

/// Refuses relays that could not be reached, or that conflict with another path or listener.
pub(super) fn check_relays(effective: &Effective) -> Result<(), ConfigError> {
    let config = &effective.config;
    let fault = |reason: String| Err(ConfigError::new(effective.place("relay"), reason));
    let no_websocket = config.ws == ListenAddr::Off && config.wss == ListenAddr::Off;
    let relays = &config.relay.0;
    for (at, relay) in relays.iter().enumerate() {
        let name = relay.name();
        if let Some(path) = &relay.path {
            if Routes::is_amqp_path(path) {
                return fault(format!(
                    "{path} is where AMQP is; give the relay another path, or a listener of its own"
                ));
            }
            if no_websocket {
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
        let same = listeners(config).into_iter().find(|(_, address)| address.overlaps(listen));
        let same = same.map(|(key, _)| key);
        let twice = relays[..at].iter().any(|other| other.listen.overlaps(listen)).then_some("another relay");
        if let Some(other) = same.or(twice) {
            return fault(format!("the same address as {other} ({listen})"));
        }
    }
    if config.webroot.0.is_some()
        && no_websocket
        && relays.iter().all(|relay| relay.listen == ListenAddr::Off)
    {
        return Err(ConfigError::new(
            effective.place("webroot"),
            "has no effect without ws, wss or a relay that listens",
        ));
    }
    Ok(())
}
