//! The upstream pool: clients' channels on shared connections to an AMQP 0-9-1 broker.
//!
//! # Parts
//! - [`Pool`]: which upstream connections there are. [`Pool::authenticate`] and [`Pool::open`] let a client in only after
//!   the broker has accepted its credentials and virtual host (P1).
//! - [`Session`]: one client. It judges every frame before it is passed on (P2), and places the client's channels on
//!   upstream connections.
//! - An upstream connection: its task passes on what the broker sends; its table says which channel is whose.
//!
//! # Which channel goes where
//! Connections are *shared* by default: a client's channel is placed when its first frame has to go out, on a channel of
//! a connection that is open already, without waiting for anything (P6). Of the connections with the client's
//! credentials and virtual host it is the one with the fewest channels in use and bytes waiting; when even that one is
//! busy, another is opened for those who come next, up to a limit. Shared connections carry publishing, confirms,
//! declarations and bounded consumers: everything that can neither make the broker close the connection nor keep it busy
//! for one client. A consumer is bounded when it acknowledges, and its channel's prefetch for each consumer stands for no
//! more than [`PoolConfig::consumer_budget`]. Its deliveries wait in its client's out-buffer, and nobody waits for it.
//!
//! What publishes and what does anything else are on different shared connections (P10): a broker with a memory or disk alarm
//! stops reading a connection that publishes, with everything behind the message, and only those who consume can end the
//! alarm. So a connection has a *role* while channels of it are in use, and a client's channel that does both has an upstream
//! channel on one of either role. The order between them is kept where it could tell: see `session::channel::Channel`. One
//! that the broker has blocked gets publishers alone, and only those who publish there hear `connection.blocked`. A channel
//! that has only declared so far goes over to publishing where it is, when nobody else is there and there is no connection for
//! that yet. A client's own connection carries both, as if directly connected.
//!
//! An upstream channel is *leased*: when the client's channel ends it is proven clean and rests until the next client
//! needs one (P5), so that next to the messages hardly anything goes to the broker. `channel.open`, `channel.close` and
//! `confirm.select` are answered here. Confirms are renumbered for each lease.
//!
//! A client gets *its own* connection, unused until then or new, when one of its channels
//! - consumes without a bound, or gets messages, so that a slow client holds up nobody else (P3), and when more waits for
//!   a client of a shared connection than the budget allows, or than all that waits leaves room for: then its consumers
//!   move, and nothing is delivered meanwhile;
//! - consumes exclusively, from direct reply-to, or with arguments that RabbitMQ may fail over; or at all, when the client
//!   has declared a queue with auto-delete, for a move would delete that;
//! - declares an exclusive queue, which belongs to the connection (P4); from then on all its channels that name queues
//!   are there;
//! - uses transactions, purges a queue, deletes one conditionally, declares a stream or a queue with unusual arguments, or an
//!   exchange of a type that is not built in; publishes to, or declares, a client's end of direct reply-to, or publishes
//!   headers that RabbitMQ may fail over: depending on plugins, queue types and arguments the broker answers these by
//!   closing the connection (P2);
//! - publishes a message larger than [`session::STAGING_LIMIT`], which streams through. Smaller ones are held until they
//!   are complete, so that no channel is left in the middle of a message. When there is no room for what all clients have
//!   sent of those ([`PoolConfig::staging_total_max`]), clients wait for some, or, while connections may be opened, a few of them stream through as well;
//!   their channels go back to where they share when that is done.
//!
//! A channel that is shared already moves there: it is held, the old upstream channel is closed and confirmed closed, so
//! that nothing overtakes what was published, then qos and confirm mode are set again and confirms are renumbered. A
//! consumer goes along; what it had not acknowledged is delivered again, marked as redelivered, and late acknowledgements
//! of it are swallowed.
//! When the client ends, its own connection goes back to the pool as soon as all its channels are closed, or is closed
//! when it had an exclusive queue or half a message. Whole messages and plain declarations that a client which vanished
//! had waiting for its own connection go out on a shared one; what only its own connection may see is dropped.
//!
//! # When an upstream connection is lost
//! Or closed by its broker with 320 CONNECTION_FORCED: its clients keep their connections (P7). What a client has under way
//! on a channel is written down in the ledger of its lease until the broker has answered for it: messages and methods.
//! Messages outside confirm mode are over when something behind them is answered; where the client asks nothing, the session
//! asks for a *proof*, a `channel.flow` whose answer is for nobody. On another connection, to the address
//! that answers and has the fewest, limits and consumers are set up again, then what is left goes out in the same order.
//! Confirms and delivery tags go on counting as the client knows them; what settles an older delivery is swallowed.
//! - Messages larger than [`session::STAGING_LIMIT`] are not kept: unconfirmed ones are refused with `basic.nack`, and those
//!   outside confirm mode may be lost.
//! - A channel that was given back keeps its ledger until it is proven clean (P11). What is left of it when its connection is
//!   lost is handed over to another one, through an outage as well. After a fault that may be about it, it goes on a
//!   connection of its own, and is given up if that comes to the same end.
//! - The two upstream channels of a client's channel go on each by itself. What waited for one of them goes on waiting.
//! - A channel with a transaction, half of such a message under way outside confirm mode, or direct reply-to is closed with
//!   406; a client with an exclusive queue, or in the middle of a large delivery, with 320.
//! - Any other fault ends the client whose own connection it was on. On a shared one nobody can tell who is to blame, for
//!   `connection.close` names no channel, and with 541 no method either: clients with something under way there go on with it on connections of their own, where a fault that comes again
//!   ends the one who brings it about; all others go on as after a loss. Whoever waits for nothing but messages goes on
//!   after 541 INTERNAL_ERROR in any case, with pauses: quorum queues fail so while they choose a leader.
//! - What clients have declared that ends with a broker, transient and auto-delete exchanges and queues and their bindings, is
//!   remembered while they are there. When it may be gone, it is declared again before any channel of the virtual host is
//!   placed on a new connection, or its client hears 320 (`topology`).
//! - Clients wait for `outage_max` at most, and then hear 320. Those with nothing under way do not notice.
//!
//! # What always holds
//! - A frame is passed on only on a channel whose life cycle allows it, with content in order, well-formed, and none of
//!   what the broker answers with a connection error.
//! - On a leased channel only the session sends; `channel.close-ok` to the broker too, behind everything else it sent.
//! - An upstream channel is leased again only when it is proven clean: every answer has come, everything published on it
//!   in confirm mode is confirmed, and behind what has no answer, such as a publish outside confirm mode, another method
//!   was answered. Or after the broker has confirmed its close.
//! - A channel that was opened longer than `auth_ttl` ago is not leased to another client, for brokers remember on a
//!   channel what its user was allowed to do.
//! - Who waits for room for an incomplete message gets it in turn: whoever holds some for long without completing a message
//!   gives way, but only while others wait. Who waits for one of [`PoolConfig::max_connections`] gets it in turn as well;
//!   of those whose credentials no broker has accepted before, only a few stand in that line.
//! - What is kept to be sent again is bounded, for each client and for all, and so is what waits for a place; above that a
//!   client is not read. What is kept of clients that are gone has a bound of its own, [`PoolConfig::departed_total_max`]; above
//!   that a channel is closed for its client only when the broker has closed it.
//! - What waits for clients to read it is bounded likewise. The more waits for all, the less may wait for each: then the client, or its
//!   own connection, is not read, or its consumers move to one.
//! - Shared connections never wait for a client; a client's own connection waits for nobody else. A client waits only for
//!   the connections that carry, or would carry next, what it sends.
//! - A broker that said `connection.blocked` is waited for, however long it reads nothing. A client that has nothing waiting
//!   there is read meanwhile, for it may acknowledge.
//! - Nobody is placed on a connection that has heard, or lost, its broker's last word, even while its socket is open.
//! - A login speaks for others for `auth_ttl`; after half of that the broker is asked again in the background. A new
//!   secret (`connection.update-secret`) counts when the broker has accepted it in a handshake of its own.
//! - Credentials that a broker has accepted before do not queue behind others for a handshake.
//! - Passwords are kept once per set of credentials while connections are open, and of bounded numbers of logins accepted
//!   or refused last; they are compared in constant time, and never logged.
//!
//! # Lock order
//! The pool's table of connections, then an upstream connection's state, then a lease's ledger or a client link's events;
//! what clients have declared, the line for room of incomplete messages, outboxes, the table of addresses and a connection's sampled batch are leaves
//! (of these, only outboxes are touched under the line's lock). Nothing waits under any of them.
//!
//! # What must never be added
//! Listeners, HTTP, the client's handshake.

mod config;
mod doorkeeper;
mod frames;
mod histogram;
mod identities;
mod introduction;
mod kept;
mod link;
mod metrics;
mod pool;
mod refusal;
mod resolver;
pub mod session;
mod staging;
mod topology;
mod upstream;
mod waiting;

pub use config::{PoolConfig, UpstreamAddress, UpstreamTransport};
pub use histogram::{BOUNDS, Durations};
pub use identities::Identities;
pub use metrics::PoolMetrics;
pub use pool::{ClientInfo, ClientSide, DeletedVirtualHost, Login, Pool};
pub use refusal::Refusal;
pub use resolver::{Resolver, Resolving, SystemResolver};
pub use session::Session;
pub use upstream::UpstreamView;
