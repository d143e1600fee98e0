//! What command lines are checked with, and lengths of time in them and in reports.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

use crate::error::Error;

/// A usage error unless something holds.
pub(crate) fn check(holds: bool, otherwise: &str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Usage(otherwise.to_owned())) }
}

/// A length of time that was given as `flag`.
pub(crate) fn seconds(flag: &str, value: f64) -> Result<Duration, Error> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| Error::Usage(format!("{flag}: {value} is no length of time")))
}

/// For `#[serde(with = "as_seconds")]`: lengths of time as numbers of seconds.
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
