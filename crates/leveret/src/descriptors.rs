//! The open file limit, and the share of it that connections may use.

use rustix::process::{Resource, getrlimit, setrlimit};
use server::Webroot;

use crate::config::Config;

/// Raises the soft limit of open files to the hard limit. Systems start processes with a low soft limit, often
/// 1,024, for the sake of programs that use `select`. Each connection is an open file, and each relayed one is
/// two.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the open file limit");
    }
}

/// Reserves descriptors for what is not a client. Reports a `max_connections` that is more than what is left, with a warning
/// unless it is the default: nobody has asked for that many.
pub(crate) fn reserve(config: &Config, is_pool: bool) {
    let (Some(shares), Some(open_files)) = (shares(config, is_pool), open_file_limit()) else { return };
    transport::set_descriptor_ceilings(shares.clients, shares.others);
    let max_connections = config.max_connections.0.map(u64::from);
    if let Some(max_connections) = max_connections.filter(|most| *most > shares.connections) {
        let in_effect = shares.connections;
        if config.max_connections == Config::defaults(is_pool).max_connections {
            tracing::debug!(max_connections, in_effect, open_files, "{LOWERED}");
        } else {
            tracing::warn!(max_connections, in_effect, open_files, "{LOWERED}");
        }
    }
}

const LOWERED: &str = "max_connections is lowered to what the open file limit allows: raise the hard limit (LimitNOFILE, ulimit -Hn)";

/// How many client connections may be open: `max_connections`, or what the limit of open files leaves for them. 0 for no
/// limit.
pub(crate) fn connection_limit(config: &Config, is_pool: bool) -> usize {
    let possible =
        shares(config, is_pool).map(|shares| usize::try_from(shares.connections).unwrap_or(usize::MAX));
    let wanted = Some(config.max_connections.or_none()).filter(|most| *most > 0);
    wanted.into_iter().chain(possible).min().unwrap_or(0)
}

/// How many files of the webroot may be sent at the same time.
pub(crate) fn webroot_transfers(config: &Config) -> usize {
    let possible =
        shares(config, false).map(|shares| usize::try_from(shares.transfers).unwrap_or(usize::MAX));
    possible.unwrap_or(Webroot::MAX_TRANSFERS)
}

fn shares(config: &Config, is_pool: bool) -> Option<DescriptorShares> {
    let upstreams = if is_pool { config.upstream_connections_total } else { 0 };
    let transfers = if config.webroot.0.is_some() { Webroot::MAX_TRANSFERS as u64 } else { 0 };
    open_file_limit().map(|limit| DescriptorShares::of(limit, u64::from(upstreams), transfers))
}

fn open_file_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// How the descriptors are shared out.
#[derive(Debug, PartialEq, Eq)]
struct DescriptorShares {
    /// Number of client connections.
    connections: u64,
    /// Descriptors of clients, and of relays for them, are below this.
    clients: u64,
    /// Those of HTTP and of connections to upstreams and services are below this.
    others: u64,
    /// Number of files of the webroot that are sent.
    transfers: u64,
}

impl DescriptorShares {
    /// `upstreams` is how many upstream connections a pool may have, and `transfers` how many files of the webroot may be sent.
    fn of(limit: u64, upstreams: u64, transfers: u64) -> Self {
        let most = limit / LEAST_PARTS;
        let transfers = transfers.min(most);
        let others = limit - FILES.min(most) - transfers;
        let clients = others - OPERATION.min(most) - upstreams.min(most);
        Self { connections: clients - AT_START.min(most), clients, others, transfers }
    }
}

/// Descriptors that no connection gets, for files: segments of the journal (some ten) and of queues (64 that the store keeps
/// open, and those being written), directories that are synced, certificates, logs, definitions, and for name resolution.
const FILES: u64 = 128;
/// Descriptors that clients leave for HTTP, so that probes and operators find an overloaded server, and for services that check
/// logins.
const OPERATION: u64 = 64;
/// Descriptors that are open before the first client comes: listeners, the runtime's own, the store. Should there be more, the
/// last clients are closed as they come, one every 100 ms, instead of being refused.
const AT_START: u64 = 64;
/// No reserve takes more than this part of a small limit: all five leave clients more than a third of it.
const LEAST_PARTS: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_descriptors_for_files_operators_and_upstreams() {
        let shares = DescriptorShares::of(20_000, 0, 0);
        let expected =
            DescriptorShares { connections: 19_744, clients: 19_808, others: 19_872, transfers: 0 };
        assert_eq!(shares, expected);
        let shares = DescriptorShares::of(1_000_000, 4096, 512);
        let expected =
            DescriptorShares { connections: 995_136, clients: 995_200, others: 999_360, transfers: 512 };
        assert_eq!(shares, expected);
    }

    #[test]
    fn more_than_a_third_of_a_small_limit_stays_for_clients() {
        let shares = DescriptorShares::of(256, 4096, 512);
        assert_eq!(shares, DescriptorShares { connections: 96, clients: 128, others: 192, transfers: 32 });
        let shares = DescriptorShares::of(0, 4096, 512);
        assert_eq!(shares, DescriptorShares { connections: 0, clients: 0, others: 0, transfers: 0 });
    }
}
