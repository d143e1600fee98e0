//! MQTT 3.1, 3.1.1 and 5.0: the wire format, and the server's end of a connection, sans-IO.
//!
//! # Parts
//! - The wire format: [`wire`], the elementary types; [`PacketProperties`] of 5.0, from one table of the
//!   specification; [`packet`], all packets, of both ends; [`PacketDecoder`], which reads packets from a stream;
//!   [`ReasonCode`] and [`MqttFault`], which describe errors.
//! - [`topic`]: topic names and filters, shared subscriptions, and their AMQP counterparts.
//! - [`session`]: the state that outlives a connection, and its form on disk.
//! - [`server`]: one connection, from CONNECT to its end: windows, packet identifiers, the steps of QoS 1 and
//!   2, topic aliases, Keep Alive, wills. Its documentation begins with the order of the calls.
//!
//! # Invariants
//! No input makes a function panic; the packet size limit is checked on the header alone, and nothing is
//! allocated for a length that was only announced; decoding borrows, and a decoded packet is well-formed for
//! its version; packets do not depend on how the stream was cut into reads; an idle connection takes a few
//! hundred bytes; passwords are not printed.
//!
//! # Left out
//! Enhanced authentication: AUTH is read and written, but a CONNECT that asks for it is refused with 0x8C.
//!
//! # Must never be added
//! Sockets, reading the clock, random numbers, knowledge of AMQP beyond the form of its routing keys,
//! knowledge of the broker.

mod decode;
mod fault;
pub mod packet;
mod properties;
mod reason;
pub mod server;
pub mod session;
pub mod topic;
pub mod wire;

pub use decode::{DecodeStep, FixedHeader, MAX_HEADER_LEN, PacketDecoder};
pub use fault::MqttFault;
pub use packet::{MqttVersion, Packet, QoS};
pub use properties::{Holder, PacketProperties, Property, PropertyList};
pub use reason::ReasonCode;
