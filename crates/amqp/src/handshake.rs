//! Opening a connection, from the protocol header to `connection.open-ok`, at either end.
//!
//! Both ends have the same methods. Call them in this order, for every chunk of input:
//! 1. `handle_input(&received)`: returns how many bytes it took; the rest belongs to a frame that is not complete yet,
//!    or comes after the handshake, and stays with the caller.
//! 2. `poll_event()` until `None`; answer the events that ask for a decision.
//! 3. `poll_output(&mut out)`: appends the bytes to be sent.
//! 4. After a decision, `handle_input` again with the remaining bytes: it consumes nothing while a decision is pending.
//!
//! Report the end of the stream with `handle_eof()`. The caller handles timeouts by dropping the state machine.

mod capabilities;
mod client;
mod negotiate;
mod server;

#[cfg(test)]
mod tests;

use crate::FieldTable;

pub use capabilities::Capabilities;
pub use client::{ClientEvent, ClientFailure, ClientHandshake, ClientOffer, Opened, ServerClose};
pub use negotiate::Negotiated;
pub use server::{OpenRequest, ServerEnd, ServerEvent, ServerHandshake, ServerOffer};

/// Bytes that a frame may take before limits are negotiated. The specification's minimum is 4096, but a JWT in
/// place of a password can exceed that, so RabbitMQ 4.1 allows 8192.
pub const HANDSHAKE_FRAME_MAX: u32 = 8192;

/// The only locale that RabbitMQ offers, and that clients ask for.
pub const LOCALE: &str = "en_US";

/// The product and the version of a server by its server-properties. The `version` of one that behaves as another product's
/// release is that product's: its own one is `implementation_version`.
pub fn product_and_version(properties: &FieldTable) -> (Option<&str>, Option<&str>) {
    let text = |key| properties.get(key)?.as_text();
    let product = text("product");
    let is_own = product.is_some() && product == text("implementation");
    let version = text("implementation_version").filter(|_| is_own).or_else(|| text("version"));
    (product, version)
}
