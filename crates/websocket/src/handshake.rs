//! The opening handshake (RFC 6455, section 4) of both roles.
//!
//! A server parses a [`Head`], validates it ([`Upgrade::validate`]), and answers with [`Upgrade::accept`] or a
//! [`UpgradeRefusal`]. A client sends a [`ClientRequest`] and validates the answer with it.

mod client;
mod head;
mod key;
mod origin;
mod refusal;
mod server;

pub use client::{ClientRequest, UpgradeError, Upgraded};
pub use head::{Head, HeadError, MAX_HEAD, MAX_HEADERS};
pub use origin::{OriginPattern, OriginRules, ParseOriginError};
pub use refusal::{Status, UpgradeRefusal};
pub use server::Upgrade;
