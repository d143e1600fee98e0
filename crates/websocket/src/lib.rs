//! RFC 6455, the WebSocket protocol: the handshake and the frames of both roles, sans-IO.
//!
//! - [`handshake`]: the HTTP/1.1 head, the server's judgement of it and its answer, the client's request, origins.
//! - [`Decoder`]: takes bytes as they come, hands payload out as it comes (no message is ever gathered), and tells of
//!   messages' beginnings and ends and of control frames.
//! - [`encode`]: frames to be sent. Whoever sends decides what a message is.
//! - [`Deflate`]: the extension permessage-deflate (RFC 7692), without memory of earlier messages.
//! - [`CloseCode`] and [`CloseFrame`]: why a connection ends.
//! - [`forwarded`]: who is behind a reverse proxy, believed from trusted peers only.
//!
//! What always holds: no input makes a function panic; nothing is allocated for a length that was merely announced; the
//! events of a [`Decoder`] do not depend on how its input was cut into reads; text is known to be UTF-8 before it is
//! handed out; what is inflated is bounded per call and by the limit of a message before it exists.
//!
//! Left out: other extensions. Reserved bits that were not negotiated are refused as the RFC (5.2) asks for.
//!
//! What must never be added: sockets, clocks, random numbers (masking keys come from the caller), knowledge of the
//! protocols inside.

mod close;
mod decode;
mod deflate;
pub mod encode;
mod fault;
pub mod forwarded;
mod frame;
pub mod handshake;
mod mask;
mod utf8;

pub use close::{CloseCode, CloseFrame, MAX_REASON};
pub use decode::{Control, Decoder, Event, Limits, MAX_INFLATED, MessageKind, Role, Step};
pub use deflate::Deflate;
pub use fault::Fault;
pub use frame::{Header, HeaderBytes, MAX_CONTROL_PAYLOAD, MAX_HEADER_LEN, Opcode};
pub use mask::mask;
pub use utf8::{NotUtf8, Utf8};
