//! Limits on frames and connections. Each limit on a frame is checked before anything is allocated for the frame.

/// Bytes of a frame's command and headers together. They are parsed in one piece, which has to fit into the
/// input that a connection may leave unread. A token used as a password fits many times over.
pub const MAX_HEAD: usize = 64 * 1024;

/// Bytes of one header line; names, keys and tokens are far shorter.
pub(crate) const MAX_HEADER_LINE: usize = 16 * 1024;

/// Headers of one frame. RabbitMQ accepts 100 (since 3.12). The limit bounds the linear search for repeated headers.
pub(crate) const MAX_HEADERS: usize = 128;

/// Transactions that one connection may have open. A client may begin one and never end it.
pub(crate) const MAX_TRANSACTIONS: usize = 64;

/// Subscriptions of one connection; each takes a few hundred bytes and a consumer.
pub(crate) const MAX_SUBSCRIPTIONS: usize = 16 * 1024;

/// Subscriptions cancelled by the server whose messages a connection still lets its client acknowledge.
pub(crate) const MAX_CANCELLED: usize = 1024;

/// Line ends between the headers and the NUL of a frame without a body; clients send one or two.
pub(crate) const MAX_BLANK: u64 = 16;
