//! Reserves file descriptors for the rest of the process by limiting those of connections.
//!
//! A connection must never take the descriptor that the journal needs for its next file. A new descriptor gets the lowest
//! free number (POSIX), so a number at or above a ceiling shows that all below are in use. Such a connection is closed, and
//! the numbers from the ceiling on stay free.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorShare {
    /// A client: its own connection, and that of a relay for it.
    Clients,
    /// Connections that must work even when clients have used up their share: HTTP, upstreams, auth services.
    Others,
}

/// Descriptors of connections must be below these numbers. There is no limit until the process sets one.
static CLIENTS: AtomicI32 = AtomicI32::new(RawFd::MAX);
static OTHERS: AtomicI32 = AtomicI32::new(RawFd::MAX);

/// Sets the ceilings for the descriptors of connections. Open connections are not closed.
pub fn set_descriptor_ceilings(clients: u64, others: u64) {
    let number = |ceiling: u64| RawFd::try_from(ceiling).unwrap_or(RawFd::MAX);
    CLIENTS.store(number(clients), Ordering::Relaxed);
    OTHERS.store(number(others), Ordering::Relaxed);
}

impl DescriptorShare {
    /// Checks a socket that has just been opened.
    ///
    /// # Errors
    /// EMFILE if its descriptor is reserved for others. The caller then has to close it.
    pub fn check(self, socket: &impl AsFd) -> io::Result<()> {
        let ceiling = match self {
            Self::Clients => &CLIENTS,
            Self::Others => &OTHERS,
        };
        check_below(socket, ceiling.load(Ordering::Relaxed))
    }
}

fn check_below(socket: &impl AsFd, ceiling: RawFd) -> io::Result<()> {
    if socket.as_fd().as_raw_fd() < ceiling { Ok(()) } else { Err(io::Error::from_raw_os_error(EMFILE)) }
}

/// "Too many open files" (errno(3)), on Linux.
const EMFILE: i32 = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_at_the_ceiling_counts_as_one_too_many() {
        let file = tempfile::tempfile().unwrap();
        let number = file.as_raw_fd();
        assert!(check_below(&file, number + 1).is_ok());
        let error = check_below(&file, number).unwrap_err();
        assert_eq!(error.to_string(), "Too many open files (os error 24)");
    }
}
