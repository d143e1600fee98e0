//! The listening sockets that a service manager passes at start (sd_listen_fds(3)): those of socket units, and those that an
//! earlier process of the service has left with it.

use std::os::fd::OwnedFd;
use std::{fs, io};

use listenfd::ListenFd;
use transport::Inherited;

/// Takes the sockets; returns also the numbers of those that cannot be used, and why. The environment that names them is
/// changed, for which there must be no other thread yet.
pub(crate) fn inherit() -> (Inherited, Vec<(usize, io::Error)>) {
    debug_assert!(is_only_thread(), "the environment is changed while other threads may read it");
    let (inherited, mut unused) = (Inherited::default(), Vec::new());
    let mut passed = ListenFd::from_env();
    for index in 0..passed.len() {
        if let Err(error) = take(&mut passed, index).and_then(|socket| inherited.add(socket)) {
            unused.push((index, error));
        }
    }
    (inherited, unused)
}

/// Whether the process is single-threaded; `true` if that cannot be determined.
fn is_only_thread() -> bool {
    fs::read_dir("/proc/self/task").map_or(true, |threads| threads.count() == 1)
}

fn take(passed: &mut ListenFd, index: usize) -> io::Result<OwnedFd> {
    if let Ok(Some(socket)) = passed.take_tcp_listener(index) {
        return Ok(socket.into());
    }
    let socket = passed.take_unix_listener(index)?;
    socket.map(OwnedFd::from).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}
