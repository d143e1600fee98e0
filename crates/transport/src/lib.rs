//! Byte streams and their buffers, on which every connection of Leveret, to a client or to an upstream, is built.
//!
//! - [`Stream`]: TCP, Unix sockets and TLS behind one type.
//! - [`Listener`]: accepts connections; [`TcpListeners`]: several TCP listening sockets behind one `accept`.
//! - [`DescriptorShare`]: how many of the process's file descriptors connections may have.
//! - [`PeerState`]: detects that a peer has disconnected without reading from it.
//! - [`HostAndPort`], [`split_host_and_port`]: where a connection goes, as text.
//! - [`Inherited`]: listening sockets that the process was given when it started.
//! - [`Paced`]: a stream that is read every other millisecond while its peer is busy writing small pieces.
//! - [`tls`]: TLS for listeners and for connections to servers.
//! - [`Outbox`]: the out-buffer of a connection. Any task appends to it; the connection's own task writes it out.
//! - [`InnerOutbox`]: the reading end of one that belongs to no socket.
//! - [`Tally`]: the sum of the bytes waiting in several outboxes.
//! - [`Protocol`] and [`drive()`]: the loop that reads into a per-thread scratch buffer, hands input to a sans-IO
//!   protocol, and writes the gathered output once per batch.
//! - [`limit_busy_turns`], [`next_busy_turn`]: busy connections leave threads for quiet ones.
//! - A connection may wait for a disk in its turn ([`sync::work::run_deferred`]) without delaying others.
//! - [`turn_to_end`]: the clean-up of many connections that are lost at once does not delay the others.
//!
//! Invariants: an idle connection has neither a read nor a write buffer; reading stops while the peer does not accept the
//! bytes written to it; a peer that accepts nothing for the write timeout is disconnected, and so is one that resets the
//! connection while it is not read.
//!
//! Never add knowledge of any protocol here.

mod activity;
mod blocking;
mod buffer;
mod descriptors;
mod drive;
mod host_and_port;
mod inherited;
mod inner;
mod linger;
mod listener;
mod listeners;
mod outbox;
mod paced;
mod peer_state;
mod stream;
mod tally;
pub mod tls;
mod turn;

pub use buffer::OutBuf;
pub use descriptors::{DescriptorShare, set_descriptor_ceilings};
pub use drive::{Ended, Intent, MAX_UNCONSUMED, Protocol, Transit, drive, drive_on, now};
pub use host_and_port::{HostAndPort, parse_port, split_host_and_port};
pub use inherited::Inherited;
pub use inner::InnerOutbox;
pub use linger::linger;
pub use listener::{Listener, SharedSockets, SocketFile};
pub use listeners::TcpListeners;
pub use outbox::Outbox;
pub use paced::Paced;
pub use peer_state::{PEER_CHECK, PeerState, PeerWatch};
pub use stream::{ConnectOptions, Peer, Stream};
pub use tally::Tally;
pub use turn::{limit_busy_turns, next_busy_turn, turn_to_end};
