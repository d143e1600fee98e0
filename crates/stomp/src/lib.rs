//! STOMP 1.0, 1.1 and 1.2: the wire format, and the server's end of a connection, sans-IO.
//!
//! # Parts
//! - The wire format: [`StompDecoder`] reads frames from a stream into [`StompFrame`], [`Headers`] and
//!   [`FrameBody`]; [`FrameWriter`] writes them; [`StompVersion`] covers the differences; [`StompFault`] holds an
//!   error, worded as in an ERROR frame.
//! - [`limits`]: the size limits of frames and connections.
//! - [`destination`]: the forms of destinations that RabbitMQ's STOMP adapter knows, parsed and written.
//! - [`server`]: one connection, from CONNECT to its end: versions, heart-beats, subscriptions, transactions,
//!   receipts. Its documentation begins with the order of the calls.
//!
//! # Invariants
//! No input makes a function panic; nothing is allocated for a length that was only announced; a frame that
//! lies in one read is decoded without a copy; frames do not depend on how the stream was cut into reads; an
//! idle connection has no buffer; passwords are not printed.
//!
//! # Lenient like RabbitMQ
//! Lines may end with CR LF in all versions; NUL bytes between frames are skipped; subscriptions need no id, as in 1.0;
//! a colon in a header's value need not be escaped. Everything else that the specifications forbid is refused.
//!
//! # Must never be added
//! Sockets, reading the clock, random numbers, knowledge of AMQP beyond the names in destinations, knowledge
//! of the broker.

mod decode;
pub mod destination;
mod encode;
mod escape;
mod fault;
mod frame;
pub mod limits;
pub mod server;
mod version;

pub use decode::{StompDecodeStep, StompDecoder};
pub use encode::{END_OF_FRAME, FrameWriter};
pub use fault::StompFault;
pub use frame::{FrameBody, Headers, StompFrame};
pub use version::StompVersion;
