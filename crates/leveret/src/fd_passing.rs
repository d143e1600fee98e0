//! Passes sockets to other processes as ancillary data (unix(7), SCM_RIGHTS).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};

/// Sockets in one message: SCM_MAX_FD of Linux, which no configuration of listeners gets near.
pub(crate) const MAX_SOCKETS: usize = 253;

/// Has `send` send a message with these sockets, of which there may be none.
///
/// # Errors
/// There are more than [`MAX_SOCKETS`], or `send` fails.
pub(crate) fn with_sockets(
    sockets: &[BorrowedFd<'_>],
    send: impl FnOnce(&mut SendAncillaryBuffer<'_, '_, '_>) -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !sockets.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(sockets)) {
        let text = format!("{} are too many sockets", sockets.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(send(&mut ancillary)?)
}
