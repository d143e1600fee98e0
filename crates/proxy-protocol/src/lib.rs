//! The PROXY protocol: a load balancer names the client it forwards, in a header before the first byte of the
//! connection (HAProxy, "The PROXY protocol, versions 1 & 2"). Sans-IO: bytes in, a [`ProxyHeader`] out, and back.
//!
//! - [`parse`]: parses a header, and never consumes a byte after it.
//! - [`write()`]: encodes one.
//!
//! Invariants: no input makes the parser panic or ask for more than [`MAX_LENGTH`] bytes in total; an encoded
//! header is parsed back as it was.
//!
//! The caller decides whether to trust a header. This crate must never contain sockets or clocks.

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::net::SocketAddr;

pub use read::{Parsed, parse};
pub use write::write;

/// The content of a header, about the connection that it precedes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeader {
    /// The sender acts for itself (version 2's LOCAL: a health check), or does not name a client (UNKNOWN,
    /// AF_UNSPEC, AF_UNIX): the addresses of the connection itself apply.
    Local,
    /// The sender forwards a client's connection.
    Proxied {
        /// The address of the client that connected to the sender.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
}

/// A version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyVersion {
    /// Version 1, a line of text.
    V1,
    /// Version 2, binary.
    V2,
}

/// The versions that a receiver accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptedVersions {
    /// Only this version.
    Only(ProxyVersion),
    /// Both; they are distinguished by their first bytes.
    Any,
}

impl AcceptedVersions {
    fn includes(self, version: ProxyVersion) -> bool {
        match self {
            Self::Only(only) => only == version,
            Self::Any => true,
        }
    }
}

/// Reasons why bytes are not a usable header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// The bytes do not begin like a header.
    NotAHeader,
    /// A header of a version that is not accepted.
    VersionRefused(ProxyVersion),
    /// A header longer than [`MAX_LENGTH`], or a line longer than the 107 bytes that version 1 allows.
    TooLong,
    /// The bytes begin like a header but are malformed; the text says how.
    Malformed(&'static str),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAHeader => f.write_str("no PROXY protocol header"),
            Self::VersionRefused(ProxyVersion::V1) => {
                f.write_str("PROXY protocol version 1 is not accepted here, only version 2")
            }
            Self::VersionRefused(ProxyVersion::V2) => {
                f.write_str("PROXY protocol version 2 is not accepted here, only version 1")
            }
            Self::TooLong => f.write_str("PROXY protocol header too long"),
            Self::Malformed(what) => write!(f, "malformed PROXY protocol header: {what}"),
        }
    }
}

impl std::error::Error for ParseError {}

/// Maximum length in bytes of a header, including all its TLVs. The addresses take 52 at most; load balancers
/// of the large clouds add a few hundred bytes of their own.
pub const MAX_LENGTH: usize = 4096;

/// The possible first bytes of a header. Neither AMQP, TLS, HTTP, MQTT nor STOMP begins with one of them.
pub const FIRST_BYTES: [u8; 2] = [b'P', SIGNATURE_V2[0]];

/// The signature at the start of a version 2 header.
const SIGNATURE_V2: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The signature at the start of a version 1 header.
const SIGNATURE_V1: &[u8] = b"PROXY ";
/// Length in bytes of version 2's fixed part: signature, version and command, family and protocol, length.
const FIXED_V2: usize = 16;
/// Maximum length in bytes of a version 1 line, including its end.
const MAX_V1_LENGTH: usize = 107;
