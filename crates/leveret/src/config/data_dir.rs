//! The directory in which the embedded broker stores durable data.

use std::env;
use std::path::PathBuf;

use super::value::{Value, quoted};
use super::value_error::ValueError;

/// The setting `data_dir`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DataDir {
    /// Nothing is stored on disk.
    Off,
    /// The system's directory for state: `STATE_DIRECTORY`, `XDG_STATE_HOME` or below `HOME`.
    Auto,
    /// This directory.
    At(PathBuf),
}

impl DataDir {
    /// The directory; `None` if nothing is to be stored.
    ///
    /// # Errors
    ///
    /// The setting is `auto`, and the environment names no directory.
    pub(crate) fn directory(&self) -> Result<Option<PathBuf>, ValueError> {
        self.directory_with(|name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
    }

    fn directory_with(
        &self,
        variable: impl Fn(&str) -> Option<PathBuf>,
    ) -> Result<Option<PathBuf>, ValueError> {
        match self {
            Self::Off => Ok(None),
            Self::At(directory) => Ok(Some(directory.clone())),
            Self::Auto => {
                let state = || variable("XDG_STATE_HOME").map(|state| state.join("leveret"));
                let home = || variable("HOME").map(|home| home.join(".local/state/leveret"));
                let directory = variable("STATE_DIRECTORY").or_else(state).or_else(home);
                let unknown = "'auto', but neither STATE_DIRECTORY, XDG_STATE_HOME nor HOME is set; name a directory, or 'off'";
                directory.map(Some).ok_or_else(|| unknown.into())
            }
        }
    }
}

impl Value for DataDir {
    const KIND: &'static str = "DIR";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err("must be the path of a directory, 'auto' or 'off'".into()),
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            path => Ok(Self::At(path.into())),
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Off => quoted("off"),
            Self::Auto => quoted("auto"),
            Self::At(directory) => quoted(&directory.to_string_lossy()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_asked_before_the_user() {
        let auto = |set: &[(&str, &str)]| {
            let set = set.to_vec();
            DataDir::Auto.directory_with(move |name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
            })
        };
        let all = [("HOME", "/h"), ("XDG_STATE_HOME", "/x"), ("STATE_DIRECTORY", "/s")];
        assert_eq!(auto(&all), Ok(Some("/s".into())));
        assert_eq!(auto(&all[..2]), Ok(Some("/x/leveret".into())));
        assert_eq!(auto(&all[..1]), Ok(Some("/h/.local/state/leveret".into())));
        assert!(auto(&[]).is_err());
    }
}
