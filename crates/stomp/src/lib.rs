//! STOMP 1.0, 1.1 and 1.2: the wire format, and the server's end of a connection, sans-IO.
//!
//! # Parts
//! - The wire format: [`Decoder`] frames off a stream; [`Frame`], [`Headers`] and [`Payload`] what is in them;
//!   [`FrameWriter`] frames onto a stream; [`Version`] what differs; [`Fault`] what is wrong, in the words of an ERROR frame.
//! - [`limits`]: how much a frame may hold.
//! - [`destination`]: the forms of destinations that RabbitMQ's STOMP adapter knows, and the way back.
//! - [`server`]: one connection, from CONNECT to its end: versions, heart-beats, subscriptions, transactions, receipts. It
//!   says first in which order it is to be called.
//!
//! # What always holds
//! No input makes a function panic; nothing is allocated for a length that was merely announced; decoding borrows
//! where a frame lies in one read; frames do not depend on how the stream was cut into reads; an idle connection holds no
//! buffer; passwords are not printed.
//!
//! # Where it is lenient, as RabbitMQ is
//! Lines may end with CR LF in all versions; NUL bytes between frames are skipped; subscriptions need no id, as in 1.0;
//! a colon in a header's value need not be escaped. Everything else that the specifications forbid is refused.
//!
//! # What must never be added
//! Sockets, clocks that are read here, random numbers, knowledge of AMQP beyond the names in destinations, or of the
//! broker.

mod decode;
pub mod destination;
mod encode;
mod escape;
mod fault;
mod frame;
pub mod limits;
pub mod server;
mod version;

pub use decode::{Decoder, Step};
pub use encode::{END_OF_FRAME, FrameWriter};
pub use fault::Fault;
pub use frame::{Frame, Headers, Payload};
pub use version::Version;
