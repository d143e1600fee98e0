//! The server that simulations step without sockets. Its limits are small, so that tests reach them.

use std::sync::Arc;
use std::time::Duration;

use broker::Broker;

use crate::backend::{Backend, Clock};
use crate::limits::ConnectionLimits;
use crate::server::{Server, ServerConfig};

pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const CONSUMER_TIMEOUT: Duration = Duration::from_secs(1800);
pub(crate) const FRAME_MAX: u32 = 4096;

/// A server without listeners, on which a user may have `per_user` connections; 0 is no limit.
pub(crate) fn server_of(broker: Arc<Broker>, clock: Clock, per_user: usize) -> Server {
    let config = ServerConfig {
        limits: ConnectionLimits { total: 0, per_ip: 0, per_user }.into(),
        channel_max: 255,
        frame_max: FRAME_MAX,
        heartbeat: 0,
        max_message_size: 20_000,
        incomplete_limit: 1 << 20,
        stomp_default_user: None,
        outbox_limit: 1 << 20,
        handshake_timeout: HANDSHAKE_TIMEOUT,
        write_timeout: Duration::from_secs(10),
        drain_idle_timeout: Duration::from_secs(2),
        consumer_timeout: CONSUMER_TIMEOUT,
        product: "Leveret".to_owned(),
        access_log: None,
    };
    Server::new(config, Backend::Broker(broker), clock, "test")
}

/// Resident memory of this process, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
