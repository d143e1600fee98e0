//! Suggests the intended name for an unknown one.

use super::settings::SETTINGS;

/// The setting intended by an unknown flag, key or variable, given without its dashes or prefix.
pub(crate) fn setting_meant(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase().replace('-', "_");
    let exact = SETTINGS.iter().map(|setting| setting.key).find(|key| *key == name);
    let usual = || USUAL.iter().find(|(_, names)| names.contains(&name.as_str())).map(|(key, _)| *key);
    exact.or_else(usual).or_else(|| nearest(&name, SETTINGS.iter().map(|setting| setting.key)))
}

/// The most similar name, unless more than a third of its letters differ.
pub(crate) fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let distance = |known: &'n str| (strsim::osa_distance(name, known), known);
    let (distance, known) = known.into_iter().map(distance).min_by_key(|(distance, _)| *distance)?;
    (distance <= known.len() / 3).then_some(known)
}

/// The end of a message about an unknown name: `; did you mean amqp?`, or nothing if none is near.
pub(crate) fn did_you_mean(meant: Option<&str>) -> String {
    meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default()
}

/// Names that other servers have for a setting, by its key.
const USUAL: [(&str, &[&str]); 8] = [
    (
        "amqp",
        &[
            "listen",
            "listener",
            "listeners",
            "port",
            "bind",
            "address",
            "addr",
            "host",
            "amqp_port",
            "amqp_address",
        ],
    ),
    (
        "upstream",
        &["rabbitmq", "rabbit", "broker", "backend", "server", "url", "uri", "amqp_url", "amqp_uri"],
    ),
    ("http", &["management", "management_port", "http_port", "http_address", "api", "dashboard", "admin"]),
    ("data_dir", &["data", "data_folder", "dir", "datadir", "storage"]),
    ("tls_cert", &["cert", "certificate", "certfile", "cert_file", "tls"]),
    ("tls_key", &["key", "keyfile", "key_file", "private_key"]),
    ("log", &["log_level", "loglevel", "verbose", "debug", "level"]),
    ("default_user", &["user", "username", "login"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_found_by_a_slip_another_spelling_or_its_usual_name() {
        for (name, key) in [
            ("amqq", "amqp"),
            ("frame-max", "frame_max"),
            ("FRAME_MAX", "frame_max"),
            ("max_conections", "max_connections"),
            ("upsteram", "upstream"),
            ("listen", "amqp"),
            ("port", "amqp"),
        ] {
            assert_eq!(setting_meant(name), Some(key), "{name}");
        }
        assert_eq!(setting_meant("zz"), None);
        assert_eq!(setting_meant("something_else"), None);
    }

    #[test]
    fn every_usual_name_leads_to_a_setting_and_is_none_itself() {
        for (key, names) in USUAL {
            let is_setting = |name: &str| SETTINGS.iter().any(|setting| setting.key == name);
            assert!(is_setting(key), "{key}");
            assert!(!names.iter().any(|name| is_setting(name)), "{key}");
        }
    }
}
