//! Close codes and close frames (RFC 6455, 5.5.1 and 7.4).

use std::fmt;

use crate::fault::WebSocketFault;
use crate::frame::MAX_CONTROL_PAYLOAD;

/// Bytes of the longest reason: the space after the code in a control frame.
pub const MAX_REASON: usize = MAX_CONTROL_PAYLOAD - 2;

/// A code that a close frame may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CloseCode(u16);

impl CloseCode {
    /// The purpose of the connection is fulfilled.
    pub const NORMAL: Self = Self(1000);
    /// The server shuts down, or the browser leaves the page.
    pub const GOING_AWAY: Self = Self(1001);
    /// The peer broke RFC 6455.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// A kind of message that cannot be accepted, such as text where bytes are expected.
    pub const UNSUPPORTED: Self = Self(1003);
    /// Text that is not UTF-8.
    pub(crate) const INVALID_DATA: Self = Self(1007);
    /// The peer broke a rule of this server.
    pub const POLICY: Self = Self(1008);
    /// A message that is too big.
    pub(crate) const TOO_BIG: Self = Self(1009);
    /// The server, or its backend, failed.
    pub const INTERNAL: Self = Self(1011);
    /// The server has reached a limit.
    pub const TRY_AGAIN_LATER: Self = Self(1013);

    /// The code of this number, if a close frame may carry it: excludes 1004, 1005, 1006 and 1015, which are reserved,
    /// and unregistered codes (7.4.1, 7.4.2 and the IANA registry).
    pub const fn new(code: u16) -> Option<Self> {
        match code {
            1000..=1003 | 1007..=1014 | 3000..=4999 => Some(Self(code)),
            _ => None,
        }
    }

    /// The code as a number, as it is sent.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The body of a close frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloseFrame {
    /// The reason as a code (RFC 6455, section 7.4).
    pub code: CloseCode,
    /// The explanation for humans; often empty.
    pub reason: String,
}

impl CloseFrame {
    /// Parses an unmasked payload; `None` for an empty one.
    ///
    /// # Errors
    /// 1002 for half a code or one that must not be sent, 1007 for a reason that is not UTF-8.
    pub fn parse(payload: &[u8]) -> Result<Option<Self>, WebSocketFault> {
        let Some((code, reason)) = payload.split_first_chunk::<2>() else {
            return match payload {
                [] => Ok(None),
                _ => Err(WebSocketFault::protocol("close frame with half a code")),
            };
        };
        let code = CloseCode::new(u16::from_be_bytes(*code))
            .ok_or(WebSocketFault::protocol("close frame with a code that must not be sent"))?;
        let reason = simdutf8::basic::from_utf8(reason).map_err(|_| WebSocketFault {
            code: CloseCode::INVALID_DATA,
            reason: "close frame with a reason that is not UTF-8",
        })?;
        Ok(Some(Self { code, reason: reason.to_owned() }))
    }
}

/// The beginning of `reason` that fits a close frame, cut between characters.
pub(crate) fn fitting(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(MAX_REASON)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_must_not_be_sent_are_refused() {
        for good in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4999]
        {
            assert_eq!(CloseCode::new(good).map(CloseCode::get), Some(good));
        }
        for bad in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535] {
            assert_eq!(CloseCode::new(bad), None);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let reason = "é".repeat(100);
        assert_eq!(fitting(&reason).len(), 122);
        assert_eq!(fitting("short"), "short");
    }

    #[test]
    fn half_a_code_and_reasons_that_are_no_text_are_refused() {
        assert_eq!(CloseFrame::parse(b""), Ok(None));
        assert_eq!(CloseFrame::parse(b"\x03").unwrap_err().code, CloseCode::PROTOCOL_ERROR);
        assert_eq!(CloseFrame::parse(b"\x03\xe8\xff").unwrap_err().code, CloseCode::INVALID_DATA);
        let frame = CloseFrame::parse(b"\x03\xe9bye").unwrap().unwrap();
        assert_eq!((frame.code, frame.reason.as_str()), (CloseCode::GOING_AWAY, "bye"));
    }
}
