//! Listeners and sessions: a transport, a protocol and a back end are joined here.
//!
//! - [`Server`]: accepts connections within [`ConnectionLimits`], runs them, and drains them.
//! - [`Door`]: the one door to the back ends, the embedded [`broker::Broker`] or the upstream [`proxy::Pool`].
//! - `amqp`: AMQP 0-9-1 clients: the connection ([`transport::Protocol`]) and its session behind the door.
//!
//! What always holds: a client that cannot be served ends alone, with its protocol's own error; nothing that a client
//! sends is answered by another client's task.
//!
//! Lock order: a queue of the broker, then a channel's deliveries, then an outbox.
//!
//! What must never be added: command-line arguments, HTTP.

mod amqp;
mod door;
mod limits;
mod listener;
mod metrics;
mod server;

pub use door::{Clock, Door};
pub use limits::{ConnectionCounter, ConnectionLimits, LimitReached, Place};
pub use listener::{Listener, SocketFile};
pub use metrics::{Counter, Metrics};
pub use server::{Server, ServerConfig};
