//! The variables of the environment: which are settings, and which are mistakes.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::layers::{ConfigError, FILE_VARIABLE};
use super::settings::{SETTINGS, variable};
use super::suggestion::setting_meant;

/// The variables that are set; an empty one counts as not set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment(BTreeMap<String, OsString>);

/// Precedes the name of every variable of Leveret's.
const PREFIX: &str = "LEVERET_";

/// Precedes those of `leveret ctl`, which a server leaves alone.
const CTL_PREFIX: &str = "LEVERET_CTL_";

impl Environment {
    pub(crate) fn of_process() -> Self {
        // A name that is not UTF-8 is none of ours.
        let named = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
        std::env::vars_os().filter_map(named).collect()
    }

    pub(super) fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(name).map(OsString::as_os_str)
    }

    /// Refuses a variable that looks like a setting and is none: without it the server would start, but not as its operator
    /// meant.
    pub(super) fn check_names(&self) -> Result<(), ConfigError> {
        for (name, value) in self.0.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            let is_known = name == FILE_VARIABLE
                || name.starts_with(CTL_PREFIX)
                || SETTINGS.iter().any(|setting| setting.variable() == *name);
            if is_known || is_of_platform(&name[PREFIX.len()..], value) {
                continue;
            }
            let meant = match setting_meant(&name[PREFIX.len()..]) {
                Some(key) => format!("did you mean {}?", variable(key)),
                None => "`leveret serve --help` lists all".to_owned(),
            };
            return Err(ConfigError::new(name, format!("unknown variable; {meant}")));
        }
        Ok(())
    }
}

impl<N: Into<String>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self(variables.filter(|(_, value)| !value.is_empty()).collect())
    }
}

/// Whether Kubernetes makes such a variable, without its prefix, in every container of a namespace that has a service called
/// leveret, or leveret-something ("Service", "Environment variables"); or Docker in one that is linked to a container with
/// such a name ("Legacy container links"): its name, and its own variables behind ENV_.
fn is_of_platform(name: &str, value: &OsStr) -> bool {
    let is_name = value.to_str().is_some_and(|value| value.starts_with('/'));
    let is_url = value
        .to_str()
        .is_some_and(|value| ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme)));
    let inner = format!("_{name}_");
    let numbered = inner.split_once("_PORT_").is_some_and(|(_, rest)| {
        rest.split_once('_').is_some_and(|(port, protocol)| {
            port.bytes().all(|byte| byte.is_ascii_digit())
                && ["TCP_", "UDP_", "SCTP_"].iter().any(|name| protocol.starts_with(name))
        })
    });
    inner.ends_with("_SERVICE_HOST_")
        || inner.contains("_SERVICE_PORT_")
        || inner.ends_with("_PORT_") && is_url
        || inner.ends_with("_NAME_") && is_name
        || inner.contains("_ENV_")
        || numbered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, value: &str) -> Option<String> {
        let environment: Environment = [(name, value)].into_iter().collect();
        environment.check_names().err().map(|error| error.to_string())
    }

    #[test]
    fn an_unknown_variable_is_refused_with_the_one_that_was_meant() {
        for (name, meant) in [
            ("LEVERET_UPSTREM", "LEVERET_UPSTREAM"),
            ("LEVERET_UPSTREAMS", "LEVERET_UPSTREAM"),
            ("LEVERET_HEARTBEET", "LEVERET_HEARTBEAT"),
            ("LEVERET_LISTEN", "LEVERET_AMQP"),
            ("LEVERET_RABBITMQ", "LEVERET_UPSTREAM"),
            ("LEVERET_DATA_FOLDER", "LEVERET_DATA_DIR"),
        ] {
            let line = format!("{name}: unknown variable; did you mean {meant}?");
            assert_eq!(refusal(name, "amqp://rabbit"), Some(line));
        }
        let far = refusal("LEVERET_SOMETHING_ELSE", "1").unwrap();
        assert_eq!(far, "LEVERET_SOMETHING_ELSE: unknown variable; `leveret serve --help` lists all");
    }

    #[test]
    fn variables_set_by_other_programs_are_ignored() {
        for (name, value) in [
            ("LEVERET_CONFIG", "x"),
            ("LEVERET_CTL_PASSWORD", "x"),
            ("LEVERET_UPSTREM", ""),
            ("RABBITMQ_NODENAME", "x"),
            ("LEVERET_SERVICE_HOST", "10.0.0.1"),
            ("LEVERET_SERVICE_PORT", "5672"),
            ("LEVERET_SERVICE_PORT_AMQP", "5672"),
            ("LEVERET_PORT", "tcp://10.0.0.1:5672"),
            ("LEVERET_PORT_5672_TCP", "tcp://10.0.0.1:5672"),
            ("LEVERET_PORT_5672_TCP_ADDR", "10.0.0.1"),
            ("LEVERET_POOL_SERVICE_HOST", "10.0.0.1"),
            ("LEVERET_POOL_PORT", "tcp://10.0.0.1:5672"),
            ("LEVERET_POOL_PORT_1883_TCP_PROTO", "tcp"),
            ("LEVERET_NAME", "/shop/leveret"),
            ("LEVERET_ENV_LEVERET_DEFAULT_USER", "shop"),
            ("LEVERET_1_NAME", "/shop/leveret_1"),
        ] {
            assert_eq!(refusal(name, value), None, "{name}");
        }
        assert_eq!(
            refusal("LEVERET_PORT", "5672").as_deref(),
            Some("LEVERET_PORT: unknown variable; did you mean LEVERET_AMQP?")
        );
    }
}
