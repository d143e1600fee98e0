//! The versions of the protocol.

use std::fmt;

/// A version; later versions compare greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StompVersion {
    /// STOMP 1.0: headers are not escaped.
    V10,
    /// STOMP 1.1: headers are escaped, and there are heart-beats and NACK.
    V11,
    /// STOMP 1.2: carriage returns are escaped, too, and messages are acknowledged by their `ack` header.
    V12,
}

impl StompVersion {
    /// All versions, as ERROR frames list them.
    pub const ALL: &str = "1.0,1.1,1.2";

    /// The highest supported version in a header `accept-version`; 1.0 without the header, which clients of 1.0 do not send.
    pub fn negotiate(accepted: Option<&str>) -> Option<Self> {
        let Some(accepted) = accepted else { return Some(Self::V10) };
        let known = accepted.split(',').filter_map(|version| match version.trim() {
            "1.0" => Some(Self::V10),
            "1.1" => Some(Self::V11),
            "1.2" => Some(Self::V12),
            _ => None,
        });
        known.max()
    }

    /// The version as in the header `version`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V10 => "1.0",
            Self::V11 => "1.1",
            Self::V12 => "1.2",
        }
    }
}

impl fmt::Display for StompVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_common_version_is_chosen() {
        for (accepted, chosen) in [
            (None, Some(StompVersion::V10)),
            (Some("1.0,1.1,1.2"), Some(StompVersion::V12)),
            (Some("1.2,1.1"), Some(StompVersion::V12)),
            (Some("1.1, 1.0"), Some(StompVersion::V11)),
            (Some("2.0,1.0"), Some(StompVersion::V10)),
            (Some("2.0"), None),
            (Some(""), None),
        ] {
            assert_eq!(StompVersion::negotiate(accepted), chosen, "{accepted:?}");
        }
    }
}
