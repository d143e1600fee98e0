//! The PROXY protocol: how a load balancer tells whom it speaks for, in a header before the first byte of the
//! connection (HAProxy, "The PROXY protocol, versions 1 & 2"). Sans-IO: bytes in, a [`Header`] out, and back.
//!
//! - [`parse`]: reads a header, byte-exact, so that nothing behind it is ever taken.
//! - [`write()`]: makes one.
//!
//! What always holds: no input makes the parser panic or ask for more than [`MAX_LENGTH`] bytes in all; a header that
//! was written is read back as what was put in.
//!
//! Whether a header may be believed is the caller's to judge. What must never be added: sockets, clocks.

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::net::SocketAddr;

pub use read::{Parsed, parse};
pub use write::write;

/// What a header says about the connection that it stands in front of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// The sender speaks for itself (version 2's LOCAL: a health check), or does not say for whom (UNKNOWN, AF_UNSPEC,
    /// AF_UNIX): the addresses of the connection itself count.
    Local,
    /// The sender speaks for somebody else.
    Proxied {
        /// Who connected to the sender.
        source: SocketAddr,
        /// Where to.
        destination: SocketAddr,
    },
}

/// A version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Which versions a receiver takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// This one only.
    Only(Version),
    /// Both; their first bytes tell them apart.
    Any,
}

impl Accepted {
    fn includes(self, version: Version) -> bool {
        match self {
            Self::Only(only) => only == version,
            Self::Any => true,
        }
    }
}

/// Why bytes are no header that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// They do not begin like one.
    NotAHeader,
    /// A header of a version that is not accepted here.
    VersionRefused(Version),
    /// A header longer than [`MAX_LENGTH`], or a line longer than the 107 bytes that version 1 allows.
    TooLong,
    /// Begins like a header and does not go on like one; what is wrong.
    Malformed(&'static str),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAHeader => f.write_str("no PROXY protocol header"),
            Self::VersionRefused(Version::V1) => {
                f.write_str("PROXY protocol version 1 is not accepted here, only version 2")
            }
            Self::VersionRefused(Version::V2) => {
                f.write_str("PROXY protocol version 2 is not accepted here, only version 1")
            }
            Self::TooLong => f.write_str("PROXY protocol header too long"),
            Self::Malformed(what) => write!(f, "malformed PROXY protocol header: {what}"),
        }
    }
}

impl std::error::Error for ParseError {}

/// Bytes of the longest header that is read, all its TLVs included. The addresses take 52 at most; load balancers of
/// the large clouds add some hundred bytes of their own.
pub const MAX_LENGTH: usize = 4096;

/// The first byte of a header is one of these. Neither AMQP, TLS, HTTP, MQTT nor STOMP begins so.
pub const FIRST_BYTES: [u8; 2] = [b'P', SIGNATURE_V2[0]];

/// What a header of version 2 begins with.
const SIGNATURE_V2: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// What a header of version 1 begins with.
const SIGNATURE_V1: &[u8] = b"PROXY ";
/// Bytes of version 2's fixed part: signature, version and command, family and protocol, length.
const FIXED_V2: usize = 16;
/// Bytes of the longest line of version 1, its end included.
const LONGEST_V1: usize = 107;
