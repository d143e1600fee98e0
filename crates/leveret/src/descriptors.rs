//! The limit of open files.

use rustix::process::{Resource, getrlimit, setrlimit};

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
