//! A new process replaces a running one without refusing any client: it gets the listening sockets.
//!
//! The running process (the predecessor) listens at a Unix socket in the abstract namespace, which is named after the user and
//! the first address of its listeners ([`socket_name`]). A successor with the same configuration connects there:
//!
//! | successor | predecessor |
//! |---|---|
//! | `Hello`: its version | checks that it is the same user, or root |
//! | | `Welcome`: its version, and its listening sockets as ancillary data |
//! | `ListObjects`, if it is to load definitions into a broker's data directory | `ObjectList`, and the names of that broker's objects |
//! | takes those sockets whose addresses its configuration has | leaves the files of Unix sockets alone from now on |
//! | `Leave`: when it can serve; before that if it is a broker or has a spool | notifies the service manager, answers `Left`, and drains |
//! | waits for the end of the connection, if it starts only then | |
//! | otherwise continues with the clients: answers each with `Taken` | `Client` for each that it can hand over: its state, then its socket |
//! | | ends |
//!
//! A client whose `Taken` does not come in time is taken back: the connection is shut down, so that a later `Taken` fails, and
//! the successor does not serve it. Of two processes one at most reads a client's socket.
//!
//! Each message is a line of JSON. A successor that ends before `Leave` changes nothing, and one whose predecessor has ended by
//! itself continues.

mod clients;
mod messages;
mod running;
mod spawn;
mod starting;
mod succession;
mod upgrade;

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

pub(crate) use running::Offer;
use starting::Predecessor;
pub(crate) use succession::Succession;
pub(crate) use upgrade::{UpgradeError, Upgrades};

use crate::config::{Config, ListenAddr};

/// Maximum time for a message from the other process, which does no slow work before it answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The socket at which a process with this configuration accepts a successor; `None` if no listener has a fixed address.
fn socket_name(config: &Config) -> Option<SocketAddr> {
    let fixed = |address: &&ListenAddr| match address {
        ListenAddr::Off => false,
        ListenAddr::Unix(_) => true,
        ListenAddr::Tcp { .. } | ListenAddr::Several(_) => {
            address.places().iter().all(|(_, port)| *port != 0)
        }
    };
    let (key, address) = config.of_type::<ListenAddr>().find(|(_, address)| fixed(address))?;
    let user = rustix::process::geteuid().as_raw();
    // The kernel accepts 107 bytes; long paths differ at their end.
    let full = format!("leveret-takeover/{user}/{key}/{address}");
    let name = full.get(full.len().saturating_sub(MAX_NAME)..)?;
    SocketAddr::from_abstract_name(name).ok()
}

/// Bytes of an abstract name (unix(7)).
const MAX_NAME: usize = 107;

/// Checks that the process at the other end has the rights of this one: anybody may use the abstract namespace.
fn check_peer(stream: &UnixStream) -> io::Result<rustix::process::Pid> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    if peer.uid == rustix::process::geteuid() || peer.uid.is_root() {
        Ok(peer.pid)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("user {} is another", peer.uid.as_raw())))
    }
}
