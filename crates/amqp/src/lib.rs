//! AMQP 0-9-1 with RabbitMQ's extensions: the wire format and the state machines of a connection's both ends.
//!
//! # Parts
//! - The wire format: [`wire`] elementary types; [`table`] field tables; [`method`](mod@method) all methods, from one
//!   table of the specification; [`properties`] content headers; [`frame`] frames; [`error`] reply codes and faults.
//! - Opening a connection: [`sasl`] credentials; [`handshake`] both ends, from the protocol header to open-ok.
//! - [`queue_arguments`]: the arguments of `queue.declare` that RabbitMQ knows.
//! - An open connection: [`channel`] life cycles of channels and of the connection, at the server's end; [`content`]
//!   messages to and from frames; [`heartbeat`] when to send one and when the peer is dead.
//!
//! # Order of the calls
//! `handle_*` takes input, `poll_*` returns actions and output. A server's session, for each read:
//! 1. [`handshake::ServerHandshake::handle_input`] until it is open; `poll_event`, decide, `poll_output`.
//! 2. From then on [`Frame::parse`] at the front of the buffer, and for each frame [`channel::ConnectionLife::frame`].
//!    For a method on a channel: [`content::Assembler::check_method`], [`Method::decode`],
//!    [`channel::ChannelTable::method`]. If it carries content: [`content::Whole::peek`] at the bytes after it, else
//!    [`content::Assembler::expect`].
//! 3. For a header or body: [`channel::ChannelTable::content`], then [`content::Assembler::header`] or
//!    [`content::Assembler::body`].
//! 4. [`heartbeat::Heartbeat::received`] once per read and `sent` once per write; `poll` at `next_deadline`.
//!
//! A [`Fault`] that [`is_hard`](Fault::is_hard) becomes `connection.close`, any other `channel.close`, with its
//! [`reply_text`](Fault::reply_text); then call `start_closing` of the state machine in question.
//!
//! # Invariants
//! No input causes a panic, or an allocation larger than itself; lengths are checked before anything is allocated for
//! them; decoding borrows; a secret is neither printed nor cloned; an idle state machine takes a few words.
//!
//! # Out of scope
//! Sockets, threads, async, logging, and reading clocks: time comes in as an argument.

pub mod channel;
pub mod content;
pub mod error;
pub mod frame;
pub mod handshake;
pub mod heartbeat;
pub mod method;
pub mod properties;
pub mod queue_arguments;
pub mod sasl;
pub mod table;
pub mod wire;

pub use error::{Fault, ReplyCode};
pub use frame::{Frame, FrameKind};
pub use handshake::{Capabilities, ClientHandshake, Negotiated, ServerHandshake};
pub use method::Method;
pub use properties::{ContentHeader, Properties};
pub use queue_arguments::{ArgumentSpec, ArgumentValue, PolicyKey, QUEUE_ARGUMENTS};
pub use sasl::{Credentials, Mechanism};
pub use table::{FieldTable, FieldValue, RawTable};
pub use wire::DecodeError;
