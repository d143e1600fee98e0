//! The upstream pool: clients' channels on shared connections to an AMQP 0-9-1 broker.
//!
//! # Parts
//! - [`Pool`]: the set of upstream connections. [`Pool::authenticate`] and [`Pool::open`] admit a client only
//!   after the broker has accepted its credentials and virtual host (P1).
//! - [`ProxySession`]: one client. It validates every frame before passing it on (P2), and places the client's
//!   channels on upstream connections.
//! - An upstream connection: its task passes on what the broker sends; its table maps each channel to the
//!   client that leases it.
//!
//! # Which channel goes where
//! Connections are *shared* by default: a client's channel is placed when its first frame has to go out, on a
//! channel of a connection that is already open, without waiting for anything (P6). Among the connections
//! with the client's credentials and virtual host the pool picks the one with the fewest channels in use and
//! bytes waiting; when even that one is busy, another is opened for later clients, up to a limit. Shared
//! connections carry publishing, confirms, declarations and bounded consumers: everything that can neither
//! make the broker close the connection nor keep it busy for one client. A consumer is bounded when it
//! acknowledges and its per-consumer prefetch amounts to no more than [`PoolConfig::consumer_budget`]. Its
//! deliveries wait in its client's out-buffer, and no other client waits for them.
//!
//! Publishing and everything else use different shared connections (P10): a broker with a memory or disk
//! alarm stops reading a connection that publishes, with everything behind the message, and only consumers
//! can end the alarm. So a connection has a *role* while channels of it are in use, and a client's channel
//! that does both has an upstream channel on one of either role. The order between them is preserved wherever
//! it is observable: see `session::channel::Channel`. A connection that the broker has blocked is given to
//! publishers only, and only clients that publish there receive `connection.blocked`. A channel that has only
//! declared so far switches to publishing in place, when no other channel uses the connection and there is no
//! connection for publishing yet. A client's own connection carries both, as if directly connected.
//!
//! An upstream channel is *leased*: when the client's channel ends it is proven clean and rests until the next
//! client needs one (P5), so that the broker sees hardly any traffic besides the messages. The proxy answers
//! `channel.open`, `channel.close` and `confirm.select` itself. Confirms are renumbered for each lease.
//!
//! A client gets *its own* connection, unused until then or new, when one of its channels
//! - consumes without a bound or gets messages, so that a slow client delays nobody else (P3); also when the
//!   backlog of a client on a shared connection exceeds its budget, or what the backlog of all clients leaves
//!   it: its consumers then move, and nothing is delivered meanwhile;
//! - consumes exclusively, from direct reply-to, or with arguments that may crash RabbitMQ's channel; or
//!   consumes at all, when the client has declared an auto-delete queue, because a move would delete it;
//! - declares an exclusive queue, which belongs to the connection (P4); from then on all its channels that
//!   name queues are there;
//! - uses transactions, purges a queue, deletes one conditionally, declares a stream or a queue with unusual
//!   arguments, or an exchange of a type that is not built in; publishes to, or declares, a client's end of
//!   direct reply-to, or publishes headers that may crash RabbitMQ's channel: depending on plugins, queue
//!   types and arguments the broker answers these by closing the connection (P2);
//! - publishes a message larger than 1 MiB (`session::STAGING_LIMIT`), which streams through. Smaller ones are held
//!   until they are complete, so that no channel is left in the middle of a message. When incomplete messages of all
//!   clients exhaust [`PoolConfig::staging_total_max`], further clients wait for room or, while connections may be
//!   opened, a few of them stream through as well; their channels return to shared connections afterwards.
//!
//! A channel that is already on a shared connection moves there: its frames are held, the old upstream channel is
//! closed and confirmed closed, so that nothing overtakes earlier publishes, then qos and confirm mode are set
//! again and confirms are renumbered. A consumer moves along; its unacknowledged deliveries are delivered again,
//! marked as redelivered, and late acknowledgements for them are swallowed. When the client ends, its own
//! connection returns to the pool as soon as all its channels are closed, or is closed if it had an exclusive queue
//! or half a message. If a client vanished, its whole messages and plain declarations still waiting for its own
//! connection go out on a shared one; anything that only its own connection may see is dropped.
//!
//! # When an upstream connection is lost
//! A connection is also lost when its broker closes it with 320 CONNECTION_FORCED. Its clients keep theirs
//! (P7). The ledger of each lease records the messages and methods a client has in flight until the broker
//! has replied to them. Messages outside confirm mode are settled once something behind them is answered; if
//! the client requests no reply, the session sends a *proof*, a `channel.flow` whose reply is not passed on.
//! On another connection, to the responding address with the fewest connections, limits and consumers are set
//! up again, then the remaining entries go out in the same order. Confirms and delivery tags continue the
//! client's numbering; acknowledgements of older deliveries are swallowed.
//! - A consumer of a stream continues behind the last message that was passed on to its client, which has its offset in
//!   a header (`upstream::ledger::position`), after a loss as after a move. A consumer that the client made without
//!   an offset may be of another queue, whose messages were in a stream once: the broker refuses the offset, and the
//!   consumer is made without one. It is made later if its queue has not started yet.
//! - Messages larger than 1 MiB (`session::STAGING_LIMIT`) are not kept: unconfirmed ones are refused with
//!   `basic.nack`, and those outside confirm mode may be lost.
//! - A channel that was given back keeps its ledger until it is proven clean (P11). If its connection is lost, its
//!   remaining entries are handed over to another one, through an outage as well. After a fault that these may have
//!   caused, they go out on a connection of their own, and are given up if that ends the same way.
//! - The two upstream channels of a client's channel recover independently. Frames waiting for one of them
//!   keep waiting.
//! - A channel with a transaction, half of a large message, or direct reply-to is closed with 406; a client with an
//!   exclusive queue, or in the middle of a large delivery, with 320.
//! - Any other fault ends the client whose own connection it was on. On a shared one the culprit cannot be
//!   identified, because `connection.close` names no channel, and with 541 no method either: clients with something
//!   in flight there continue on connections of their own, where a repeated fault ends only the client that causes
//!   it; all others continue as after a loss. A client that waits for nothing but messages always continues after
//!   541 INTERNAL_ERROR, with pauses: quorum queues fail this way while they elect a leader.
//! - Declarations that do not survive a broker restart, namely transient and auto-delete exchanges and queues
//!   and their bindings, are remembered while the clients that made them are connected. When they may be
//!   gone, they are declared again before any channel of the virtual host is placed on a new connection; if
//!   that fails, the client receives 320 (`topology`).
//! - Clients wait for at most `outage_max`, and then receive 320. Those with nothing in flight do not notice.
//!
//! # When the process is replaced
//! A client can continue in the pool of another process, with its socket ([`ProxySession::export`], [`Pool::resume`]). Its
//! channels leave the broker once everything published is confirmed, and what a session is made of becomes a
//! [`SessionState`]: numbers, limits, consumers, frames that were not sent, and declarations that a restart undoes. There its
//! channels are placed as after the loss of a connection. A client stays, and is closed, if it has something that ends with
//! its upstream connection: an exclusive or auto-delete queue, a transaction, or direct reply-to.
//!
//! # Invariants
//! - A frame is passed on only on a channel whose life cycle allows it, with content in order, well-formed,
//!   and nothing that the broker answers with a connection error.
//! - On a leased channel only the session sends; it also sends `channel.close-ok` to the broker, behind
//!   everything else it sent, and behind the rest of a message that it is streaming.
//! - An upstream channel is leased again only when it is proven clean: every reply has come, everything
//!   published on it in confirm mode is confirmed, and frames without a reply, such as a publish outside
//!   confirm mode, are followed by a method that was answered. Or after the broker has confirmed its close.
//! - A channel that was opened longer than `auth_ttl` ago is not leased to another client, because brokers
//!   cache permissions per channel.
//! - Clients that wait for room for an incomplete message get it in turn: a client that has held room for
//!   long without completing a message gives way, but only while others wait. Clients that wait for one of
//!   [`PoolConfig::max_connections`] get it in turn as well; among those whose credentials no broker has
//!   accepted before, only a few may wait at a time.
//! - Frames kept for replay are bounded, per client and in total, and so are frames waiting for placement;
//!   above the bound a client is not read. Frames kept for departed clients have a bound of their own,
//!   [`PoolConfig::departed_total_max`]; above that a channel is closed for its client only when the broker
//!   has closed it.
//! - The backlog of clients that do not read is bounded likewise. The larger the total backlog, the less each
//!   client may have waiting; beyond that the client, or its own connection, is not read, or its consumers
//!   move to one.
//! - Shared connections never wait for a client; a client's own connection waits for no other client. A
//!   client waits only for the connections that carry, or would carry next, what it sends.
//! - A broker that said `connection.blocked` is waited for, however long it reads nothing. A client that has
//!   nothing waiting there is read meanwhile, because it may acknowledge.
//! - No client is placed on a connection after its broker's close or the end of its stream, even while its
//!   socket is open.
//! - A verified login is valid for other clients for `auth_ttl`; after half of that the broker is asked again
//!   in the background. A new secret (`connection.update-secret`) takes effect once the broker has accepted
//!   it in a separate handshake. It is passed on where all clients of a connection have sent the same (`upstream::secret`):
//!   nothing moves, and nothing is delivered again. A channel moves from a connection that others share with a
//!   former secret: at once if nothing comes of it, and one with consumers before its next method that needs rights.
//! - Credentials that a broker has accepted before do not queue behind others for a handshake.
//! - Passwords are kept once per set of credentials while connections are open, and for a bounded number of
//!   recently accepted or refused logins; they are compared in constant time, and never logged.
//!
//! # What must never be added
//! Listeners, HTTP, the client's handshake.

mod ack_frames;
mod auth_gate;
mod client_properties;
mod config;
mod connector;
pub mod encoded;
mod frames;
mod histogram;
mod identities;
#[cfg(test)]
mod limit_table_tests;
mod link;
mod metrics;
mod pool;
mod quota;
mod refusal;
mod replay_buffer;
mod resolver;
mod session;
mod staging;
#[cfg(test)]
mod test_random;
mod topology;
mod upstream;
mod waiting;

pub use config::{PoolConfig, UpstreamAddress, UpstreamTransport};
pub use connector::{Connecting, Connector, TcpConnector};
pub use histogram::{BOUNDS, Durations};
pub use identities::Identities;
pub use metrics::PoolMetrics;
pub use pool::{AddressState, ClientInfo, ClientSide, DeletedVirtualHost, Login, Pool, VerifiedLogin};
pub use refusal::Refusal;
pub use resolver::{Resolver, Resolving, SystemResolver};
pub use session::{Export, FORMAT, ProxySession, SessionState, may_cost_connection};
pub use upstream::{UpstreamView, is_stall};
