//! RFC 6455, the WebSocket protocol: the handshake and the frames of both roles, sans-IO.
//!
//! - [`handshake`]: the HTTP/1.1 head, the server's validation and answer, the client's request, origins.
//! - [`FrameDecoder`]: takes bytes as they arrive, returns payload as it arrives (no message is ever gathered), and reports
//!   the beginnings and ends of messages and control frames.
//! - [`encode`]: frames to be sent. The sender decides how a message is split.
//! - [`Deflate`]: the extension permessage-deflate (RFC 7692), without context from earlier messages.
//! - [`CloseCode`] and [`CloseFrame`]: the reason why a connection ends.
//! - [`forwarded`]: the client behind a reverse proxy, according to trusted peers only.
//!
//! Invariants: no input makes a function panic; nothing is allocated for a length that was merely announced; the events
//! of a [`FrameDecoder`] do not depend on how its input was cut into reads; text is known to be UTF-8 before it is returned;
//! inflated bytes are limited per call, and by the message limit before they are produced.
//!
//! Left out: other extensions. Reserved bits that were not negotiated are refused as the RFC (5.2) requires.
//!
//! Never add sockets, clocks, random numbers (masking keys come from the caller), or knowledge of the protocols inside.

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
pub use decode::{
    Control, DecoderLimits, FrameDecodeStep, FrameDecoder, MAX_INFLATED, MessageKind, Role, WebSocketEvent,
};
pub use deflate::Deflate;
pub use fault::WebSocketFault;
pub use frame::{FrameHeader, HeaderBytes, MAX_HEADER_LEN, Opcode};
pub use mask::mask;
pub use utf8::{NotUtf8, Utf8};
