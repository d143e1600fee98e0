//! How much a frame may hold. Each limit is held against a frame before anything is allocated for it.

/// Bytes of a frame's command and headers together. They are looked at in one piece, which has to fit what a connection
/// may leave unread; a token as password fits many times.
pub const MAX_HEAD: usize = 64 * 1024;

/// Bytes of one header line: names, keys and tokens are shorter by far.
pub const MAX_HEADER_LINE: usize = 16 * 1024;

/// Headers of one frame. RabbitMQ takes 100 (since 3.12); each is looked for among those before it.
pub const MAX_HEADERS: usize = 128;

/// Transactions that one connection may have open. Each is begun by name and may be forgotten by its client.
pub const MAX_TRANSACTIONS: usize = 64;

/// Subscriptions of one connection: each takes some hundred bytes and a consumer.
pub const MAX_SUBSCRIPTIONS: usize = 16 * 1024;

/// Line ends between the headers of a frame that has no body and its NUL: clients send one or two.
pub(crate) const MAX_BLANK: u64 = 16;
