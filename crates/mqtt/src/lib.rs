//! MQTT 3.1, 3.1.1 and 5.0: the wire format, and the server's end of a connection, sans-IO.
//!
//! # Parts
//! - The wire format: [`wire`] elementary types; [`Properties`] of 5.0, from one table of the specification; [`packet`]
//!   all packets, of both ends; [`Decoder`] packets off a stream; [`ReasonCode`] and [`Fault`] what is wrong.
//! - [`topic`]: topic names and filters, shared subscriptions, and their AMQP counterparts.
//! - [`session`]: what outlives a connection, and how it looks on disk.
//! - [`server`]: one connection, from CONNECT to its end: windows, packet identifiers, the steps of QoS 1 and 2, topic
//!   aliases, Keep Alive, wills. It says first in which order it is to be called.
//!
//! # What always holds
//! No input makes a function panic; the limit on a packet is judged by its header alone, and nothing is allocated for a
//! length that was merely announced; decoding borrows, and what was decoded is well-formed for its version; packets do
//! not depend on how the stream was cut into reads; an idle connection takes a few hundred bytes; passwords are not
//! printed.
//!
//! # Left out
//! Enhanced authentication: AUTH is read and written, but a CONNECT that asks for it is refused with 0x8C.
//!
//! # What must never be added
//! Sockets, clocks that are read here, random numbers, knowledge of AMQP beyond the form of its routing keys, or of
//! the broker.

mod decode;
mod fault;
pub mod packet;
mod properties;
mod reason;
pub mod server;
pub mod session;
pub mod topic;
pub mod wire;

pub use decode::{Decoder, Header, MAX_HEADER_LEN, MAX_LEFT, Step};
pub use fault::Fault;
pub use packet::{Packet, QoS, Version};
pub use properties::{Holder, Properties, Property, PropertyList};
pub use reason::ReasonCode;
