//! The layers of the configuration: a flag overrides a variable, which overrides the file, which overrides the
//! default.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::address::mask_credentials;
use super::check::check;
use super::environment::Environment;
use super::file;
use super::settings::{Config, SETTINGS, Setting, flag, variable};
use super::value_error::ValueError;

/// The settings given on the command line, not yet parsed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags {
    /// The file named by `--config`.
    pub(crate) file: Option<PathBuf>,
    /// The texts of the flags by key.
    pub(crate) values: BTreeMap<&'static str, Vec<String>>,
}

/// The configuration and the origin of each value.
#[derive(Debug, Clone)]
pub(crate) struct Effective {
    /// The values.
    pub(crate) config: Config,
    origins: BTreeMap<&'static str, Origin>,
    /// Why variables of RabbitMQ's have no effect, for the log.
    pub(crate) ignored: Option<String>,
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Not set in any layer.
    Default,
    /// A line of the configuration file.
    File { path: PathBuf, line: usize },
    /// A variable of the environment.
    Variable,
    /// A variable of the environment that is RabbitMQ's.
    Alias(&'static str),
    /// A flag of the command line.
    Flag,
}

/// A mistake in the configuration: one line that begins with the key at fault, as spelt in its layer. It has no source,
/// whose text might hold a password.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("{place}: {reason}")]
pub(crate) struct ConfigError {
    place: String,
    reason: String,
}

impl ConfigError {
    pub(super) fn new(place: impl Into<String>, reason: impl AsRef<str>) -> Self {
        // A URL given for the wrong setting is quoted like any other mistake, but without its password.
        Self { place: place.into(), reason: mask_credentials(reason.as_ref()) }
    }
}

/// The variable that names the file when `--config` does not.
pub(crate) const FILE_VARIABLE: &str = "LEVERET_CONFIG";

/// Reads all layers.
///
/// Every value of every layer is validated, including those that a higher layer overrides.
///
/// # Errors
///
/// The first mistake: an unreadable file, an unknown key or variable, an invalid value, or values that
/// contradict each other.
pub(crate) fn load(flags: &Flags, environment: &Environment) -> Result<Effective, ConfigError> {
    environment.check_names()?;
    let mut layers = aliases(environment)?;
    layers.extend(file_layer(flags, environment)?);
    layers.extend(variables(environment)?);
    layers.extend(flags.values.iter().map(|(key, texts)| Given {
        key,
        texts: texts.clone(),
        origin: Origin::Flag,
    }));

    let mut effective =
        Effective { config: Config::defaults(false), origins: BTreeMap::new(), ignored: None };
    for given in layers {
        effective.apply(given)?;
    }
    effective.drop_aliases();
    effective.adjust_defaults();
    check(&effective)?;
    Ok(effective)
}

/// A setting that differs after a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// Its key.
    pub(crate) key: &'static str,
    /// The new value, as TOML without secrets.
    pub(crate) value: String,
    /// Whether it has changed now; otherwise it changes at the next start.
    pub(crate) live: bool,
}

/// The texts that one layer has for one key.
pub(super) struct Given {
    pub(super) key: &'static str,
    pub(super) texts: Vec<String>,
    pub(super) origin: Origin,
}

impl Effective {
    /// The settings in effect as a usable configuration file: one line for each, with its origin as a comment.
    pub(crate) fn to_toml(&self) -> String {
        let lines: Vec<_> = self
            .describe()
            .map(|(setting, value, origin)| (format!("{} = {value}", setting.key), origin))
            .collect();
        let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0);
        lines.into_iter().map(|(line, origin)| format!("{line:<width$}  # {origin}\n")).collect()
    }

    /// The settings in effect as objects, each with its key, its value as TOML without secrets, its origin, and
    /// whether SIGHUP changes it.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let settings = self.describe().map(|(setting, value, origin)| {
            // Text without the quotes of TOML, unless they are within a list or a table.
            let parsed = value.parse::<toml::Value>().ok();
            let text = parsed.as_ref().and_then(toml::Value::as_str);
            serde_json::json!({
                "key": setting.key, "value": text.unwrap_or(&value), "origin": origin, "live": setting.is_live,
            })
        });
        settings.collect()
    }

    /// Takes over the live settings from a newly read configuration. Returns every setting that differs.
    pub(crate) fn take_live(&mut self, wanted: &Effective) -> Vec<Change> {
        let mut changes = Vec::new();
        for setting in SETTINGS {
            let value = (setting.to_toml)(&wanted.config);
            if value == (setting.to_toml)(&self.config) {
                continue;
            }
            let live = setting.is_live;
            if live {
                (setting.copy)(&mut self.config, &wanted.config);
                self.origins.remove(setting.key);
                self.origins
                    .extend(wanted.origins.get(setting.key).map(|origin| (setting.key, origin.clone())));
            }
            changes.push(Change { key: setting.key, value, live });
        }
        changes
    }

    /// Each setting with its value as TOML and its origin, in the order of the reference.
    fn describe(&self) -> impl Iterator<Item = (&'static Setting, String, String)> {
        SETTINGS.iter().map(|setting| {
            let value = (setting.to_toml)(&self.config);
            let origin = match self.origin(setting.key) {
                Origin::Default => "default".to_owned(),
                Origin::File { path, line } => format!("{}:{line}", path.display()),
                Origin::Variable => setting.variable(),
                Origin::Alias(name) => (*name).to_owned(),
                Origin::Flag => format!("--{}", setting.flag()),
            };
            (setting, value, origin)
        })
    }

    fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    fn apply(&mut self, given: Given) -> Result<(), ConfigError> {
        let Given { key, texts, origin } = given;
        let fault = |error: ValueError| ConfigError::new(origin.place(key), error.to_string());
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) {
            (setting.apply)(&mut self.config, &texts).map_err(fault)?;
            self.origins.insert(setting.key, origin);
        }
        Ok(())
    }

    /// Drops the values of RabbitMQ's variables where something else says who the first user is, or where they do not: all of
    /// them together, so that no user gets the password, or the tag, that was meant for another.
    fn drop_aliases(&mut self) {
        let is_alias = |key: &str| matches!(self.origin(key), Origin::Alias(_));
        let config = &self.config;
        let own_user = SETTINGS.iter().filter(|setting| setting.alias.is_some());
        let mut own_user = own_user.filter(|setting| self.is_set(setting.key) && !is_alias(setting.key));
        let has_password = config.default_password.0.is_some() || config.default_password_file.0.is_some();
        let why = if !config.upstream.is_empty() {
            // They are for a broker, which may run beside this pool, in the same container or shell.
            None
        } else if config.definitions.0.is_some() {
            Some("definitions is set, which has the users".to_owned())
        } else if let Some(setting) = own_user.next() {
            Some(format!("{} is set", setting.key))
        } else if !has_password && config.default_user.0 != "guest" {
            Some("there is no password (RABBITMQ_DEFAULT_PASS)".to_owned())
        } else {
            return;
        };
        let mut dropped = Vec::new();
        self.origins.retain(|_, origin| match origin {
            Origin::Alias(name) => {
                dropped.push(*name);
                false
            }
            _ => true,
        });
        let names = (!dropped.is_empty()).then(|| dropped.join(", "));
        self.ignored = names.zip(why).map(|(names, why)| format!("{names}: ignored, as {why}"));
    }

    /// Applies the defaults for use with an upstream, if there is one.
    fn adjust_defaults(&mut self) {
        let defaults = self.defaults();
        for setting in SETTINGS.iter().filter(|setting| !self.origins.contains_key(setting.key)) {
            (setting.copy)(&mut self.config, &defaults);
        }
    }

    /// The values that the settings have if no layer sets them.
    pub(super) fn defaults(&self) -> Config {
        Config::defaults(!self.config.upstream.is_empty())
    }

    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }

    /// The key as spelt in the layer it came from, for error lines.
    pub(super) fn place(&self, key: &str) -> String {
        self.origin(key).place(key)
    }
}

impl Origin {
    /// The key as this layer spells it, for error lines.
    fn place(&self, key: &str) -> String {
        match self {
            Self::Default => key.to_owned(),
            Self::File { path, line } => format!("{}:{line}: {key}", path.display()),
            Self::Variable => variable(key),
            Self::Alias(name) => (*name).to_owned(),
            Self::Flag => format!("--{}", flag(key)),
        }
    }
}

fn file_layer(flags: &Flags, environment: &Environment) -> Result<Vec<Given>, ConfigError> {
    if let Some(path) = &flags.file {
        return file::read(path, "--config");
    }
    match environment.get(FILE_VARIABLE) {
        Some(path) => file::read(Path::new(path), FILE_VARIABLE),
        None => Ok(Vec::new()),
    }
}

/// Reads the variable of every key.
fn variables(environment: &Environment) -> Result<Vec<Given>, ConfigError> {
    let read = |setting: &Setting| {
        let value = value_of(environment, setting.variable())?;
        Ok(value.map(|value| Given {
            key: setting.key,
            texts: if setting.repeated { elements(&value) } else { vec![value] },
            origin: Origin::Variable,
        }))
    };
    SETTINGS.iter().filter_map(|setting| read(setting).transpose()).collect()
}

/// Reads RabbitMQ's variable of every key that has one. They are below all other layers, and count only if these have none of
/// them: a file made for Leveret says more about it than a variable that was set for RabbitMQ.
fn aliases(environment: &Environment) -> Result<Vec<Given>, ConfigError> {
    let read = |setting: &Setting| {
        let Some(name) = setting.alias else { return Ok(None) };
        let value = value_of(environment, name.to_owned())?;
        Ok(value.map(|value| Given { key: setting.key, texts: vec![value], origin: Origin::Alias(name) }))
    };
    SETTINGS.iter().filter_map(|setting| read(setting).transpose()).collect()
}

fn value_of(environment: &Environment, name: String) -> Result<Option<String>, ConfigError> {
    let value = environment.get(&name).map(|value| value.to_owned().into_string()).transpose();
    value.map_err(|_| ConfigError::new(name, "is not valid UTF-8"))
}

/// Splits a list at commas. Commas within braces belong to a table.
fn elements(value: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let parts = value.split(|character: char| {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    });
    parts.map(|text| text.trim().to_owned()).collect()
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
