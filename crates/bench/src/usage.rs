//! Helpers that check command lines, and durations in them and in reports.

use std::time::Duration;

use clap::{Args, Command};
use serde::{Deserialize, Deserializer, Serializer};

use crate::error::Error;

/// Parses arguments without the command's name. Later ones override earlier ones.
pub(crate) fn parse<T: Args>(words: &[impl AsRef<str>]) -> Result<T, clap::Error> {
    let command = Command::new("bench").no_binary_name(true).args_override_self(true);
    let matches = T::augment_args(command).try_get_matches_from(words.iter().map(|word| word.as_ref()))?;
    T::from_arg_matches(&matches)
}

/// Returns a usage error unless `holds`.
pub(crate) fn check(holds: bool, otherwise: &str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Usage(otherwise.to_owned())) }
}

/// Converts a duration given as `flag`, in seconds.
pub(crate) fn seconds(flag: &str, value: f64) -> Result<Duration, Error> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| Error::Usage(format!("{flag}: {value} is not a length of time")))
}

/// For `#[serde(with = "as_seconds")]`: durations as numbers of seconds.
pub(crate) mod as_seconds {
    use serde::de::Error as _;

    use super::{Deserialize, Deserializer, Duration, Serializer};

    pub(crate) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_secs_f64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
