//! The messages between a process and its successor.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::fd_passing::{MAX_SOCKETS, with_sockets};

/// The first message of a successor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: String,
}

/// The predecessor's answer, with its listening sockets.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub(super) version: String,
    /// Number of sockets that are sent with it.
    pub(super) sockets: usize,
    /// Whether it answers [`ListObjects`]: it is a broker, and of a release that does.
    #[serde(default, rename = "shows")]
    pub(super) can_list_objects: bool,
}

/// A request of a successor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum SuccessorRequest {
    Leave(Leave),
    ListObjects(ListObjects),
}

/// The successor's request for the objects of the predecessor's broker, against which it checks the definitions that it is
/// to load.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ListObjects {
    #[serde(rename = "show")]
    pub(super) kind: ObjectKind,
    /// Lists no objects if a client or an operator has defined any, since the successor then loads no definitions. A list
    /// of millions of queues takes seconds and memory.
    #[serde(default)]
    pub(super) only_if_untouched: bool,
}

/// See [`crate::definitions::ExistingObjects`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ObjectKind {
    Existing,
}

/// The answer to [`ListObjects`], which is followed by this number of bytes of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ObjectList {
    pub(super) bytes: usize,
}

/// The successor's request to end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Leave {
    /// The successor starts only after the predecessor's end, so that all clients are asked to leave at once.
    pub(super) at_once: bool,
    /// The clients that it can take over, if any.
    #[serde(default)]
    pub(super) clients: Option<Acceptable>,
}

/// The clients that a successor can take over.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Acceptable {
    /// See [`proxy::FORMAT`].
    pub(super) format: u32,
    /// The addresses of its upstreams.
    pub(super) upstreams: Vec<String>,
}

impl Acceptable {
    /// The clients of a pool with these upstreams.
    pub(super) fn of(config: &Config) -> Self {
        Self {
            format: proxy::FORMAT,
            upstreams: config
                .upstream
                .iter()
                .map(|upstream| format!("{}:{}", upstream.host, upstream.port))
                .collect(),
        }
    }

    /// Why it cannot take over the clients of a process that has `ours`.
    pub(super) fn refuses(&self, ours: &Self) -> Option<&'static str> {
        if self.format != ours.format {
            Some("its release has another format for them")
        } else if !ours.upstreams.iter().any(|upstream| self.upstreams.contains(upstream)) {
            Some("it is in front of another upstream")
        } else {
            None
        }
    }
}

/// A client that is handed over. This number of bytes of its state follows, then a [`Socket`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Client {
    pub(super) bytes: usize,
}

/// The client's socket, which is sent with it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Socket {}

/// The successor has received both.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Taken {}

/// The predecessor's last message: the successor is the service now.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Left {}

/// The most bytes of a message, more than any has.
const MAX_MESSAGE: usize = 4096;

/// Sends a message.
pub(super) fn send(stream: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(&line_of(message)?)
}

fn line_of(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Receives a message that comes without sockets; `None` at the end of the connection.
pub(super) fn receive<T: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        if stream.read(&mut byte)? == 0 {
            return if line.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        if byte == *b"\n" {
            return Ok(Some(serde_json::from_slice(&line)?));
        }
        line.extend(byte);
        check_length(&line)?;
    }
}

/// Sends a message with sockets.
pub(super) fn send_with_sockets(
    stream: &mut UnixStream,
    message: &impl Serialize,
    sockets: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let line = line_of(message)?;
    let sent = with_sockets(sockets, |ancillary| {
        sendmsg(&*stream, &[IoSlice::new(&line)], ancillary, SendFlags::NOSIGNAL)
    })?;
    // The sockets went with the first byte.
    stream.write_all(&line[sent..])
}

/// Sends a list of objects, of any length.
pub(super) fn send_objects(stream: &mut UnixStream, objects: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(objects)?;
    send(stream, &ObjectList { bytes: bytes.len() })?;
    stream.write_all(&bytes)
}

/// Receives a list of objects.
pub(super) fn receive_objects<T: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<T> {
    let Some(ObjectList { bytes }) = receive(stream)? else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let mut objects = Vec::new();
    stream.take(bytes as u64).read_to_end(&mut objects)?;
    Ok(serde_json::from_slice(&objects)?)
}

/// Receives a message and the sockets that come with it.
pub(super) fn receive_with_sockets<T: DeserializeOwned>(
    stream: &UnixStream,
) -> io::Result<(T, Vec<OwnedFd>)> {
    let (mut line, mut sockets) = (Vec::new(), Vec::new());
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    while line.last() != Some(&b'\n') {
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; MAX_MESSAGE];
        let received = recvmsg(
            stream.as_fd(),
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                sockets.extend(received);
            }
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(&bytes[..received.bytes]);
        check_length(&line)?;
    }
    Ok((serde_json::from_slice(&line)?, sockets))
}

fn check_length(line: &[u8]) -> io::Result<()> {
    if line.len() > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message without an end"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_arrive_with_their_message_and_not_with_the_next() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let listeners: Vec<_> = (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let sockets: Vec<_> = listeners.iter().map(|listener| listener.as_fd()).collect();
        let welcome = Welcome { version: "1".into(), sockets: sockets.len(), can_list_objects: true };
        send_with_sockets(&mut one, &welcome, &sockets).unwrap();
        send(&mut one, &Leave { at_once: true, clients: None }).unwrap();
        let (received, sockets): (Welcome, _) = receive_with_sockets(&other).unwrap();
        let address = |socket| std::net::TcpListener::from(socket).local_addr().unwrap();
        let addresses: Vec<_> = sockets.into_iter().map(address).collect();
        let bound: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        assert_eq!((received.sockets, addresses), (3, bound));
        assert!(receive::<Leave>(&mut other).unwrap().unwrap().at_once);
        drop(one);
        assert!(receive::<Leave>(&mut other).unwrap().is_none());
    }

    #[test]
    fn clients_continue_only_with_a_common_upstream() {
        let of = |format, upstreams: &[&str]| Acceptable {
            format,
            upstreams: upstreams.iter().map(|upstream| (*upstream).to_owned()).collect(),
        };
        let ours = of(1, &["a:5672", "b:5672"]);
        assert_eq!(of(1, &["b:5672", "c:5672"]).refuses(&ours), None);
        assert!(of(1, &["c:5672"]).refuses(&ours).is_some());
        assert!(of(2, &["a:5672"]).refuses(&ours).is_some());
        // A broker has no upstreams.
        assert!(of(1, &["a:5672"]).refuses(&of(1, &[])).is_some());
    }

    #[test]
    fn requests_and_a_list_of_any_length_arrive() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        send(&mut one, &ListObjects { kind: ObjectKind::Existing, only_if_untouched: true }).unwrap();
        send(&mut one, &Leave { at_once: true, clients: None }).unwrap();
        let mut received = || receive(&mut other).unwrap().unwrap();
        assert!(matches!(
            received(),
            SuccessorRequest::ListObjects(ListObjects { only_if_untouched: true, .. })
        ));
        assert!(matches!(received(), SuccessorRequest::Leave(Leave { at_once: true, clients: None })));
        // More than the socket's buffer holds.
        let objects = "x".repeat(1 << 20);
        let sent = std::thread::spawn({
            let objects = objects.clone();
            move || send_objects(&mut other, &objects).unwrap()
        });
        assert_eq!(receive_objects::<String>(&mut one).unwrap(), objects);
        sent.join().unwrap();
        // The message of an earlier release.
        let welcome: Welcome = serde_json::from_str(r#"{"version": "1", "sockets": 0}"#).unwrap();
        assert!(!welcome.can_list_objects);
    }

    #[test]
    fn a_message_without_an_end_is_refused() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        one.write_all(&[b'x'; MAX_MESSAGE + 1]).unwrap();
        assert_eq!(receive::<Hello>(&mut other).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
