//! The listening sockets that a service manager passes at start (sd_listen_fds(3)): those of socket units, and those that an
//! earlier process of the service has left with it.

use std::io;
use std::os::fd::OwnedFd;

use listenfd::ListenFd;
use transport::Inherited;

/// Takes the sockets. The environment that tells of them is changed, for which there must be no other thread yet.
pub(crate) fn inherit() -> Inherited {
    let inherited = Inherited::default();
    let mut passed = ListenFd::from_env();
    for index in 0..passed.len() {
        if let Err(error) = take(&mut passed, index).and_then(|socket| inherited.add(socket)) {
            tracing::warn!(%error, index, "a file descriptor of the service manager is not used");
        }
    }
    inherited
}

fn take(passed: &mut ListenFd, index: usize) -> io::Result<OwnedFd> {
    if let Ok(Some(socket)) = passed.take_tcp_listener(index) {
        return Ok(socket.into());
    }
    let socket = passed.take_unix_listener(index)?;
    socket.map(OwnedFd::from).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}
