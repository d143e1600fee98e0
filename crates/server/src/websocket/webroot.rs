//! Files for requests that are not upgrades.
//!
//! tower-http's `ServeDir` handles ranges, conditional requests and content types. It is called for one request
//! at a time, and its answer is written here: a second HTTP server after the head that has already been read
//! would bring buffers and timeouts of its own. So each answer ends its connection. Checks that `ServeDir`
//! lacks are made first: no links out of the directory, no hidden files, and only plain files.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::websocket::handshake::{Head, Status, UpgradeRefusal};
use bytes::Bytes;
use http::{HeaderName, Request, Response, header};
use http_body_util::BodyExt;
use percent_encoding::percent_decode_str;
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;
use tower_http::services::ServeDir;
use tower_http::services::fs::ServeFileSystemResponseBody as FileBody;
use transport::{Outbox, Stream, linger};

use super::WebSocketConfig;
use super::upgrade::answer_refusal;
use crate::server::{AcceptedConnection, ConnectionListEntry, Shared};

/// Bytes per read of a file.
const CHUNK: usize = 32 * 1024;

/// The request header fields that `ServeDir` uses.
const FIELDS: [HeaderName; 4] =
    [header::RANGE, header::IF_RANGE, header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE];

/// The one hidden directory that is meant to be public (RFC 8615).
const WELL_KNOWN: &str = ".well-known";

/// A directory whose files are served.
pub struct Webroot {
    directory: PathBuf,
    files: ServeDir,
    transfers: Semaphore,
}

impl Webroot {
    /// Most files sent at the same time, whatever [`Webroot::open`] is given. Each transfer holds one chunk.
    pub const MAX_TRANSFERS: usize = 512;

    /// Serves `directory`. Each of the `transfers` that are possible at the same time keeps a file open; beyond that, the
    /// answer is 503.
    ///
    /// # Errors
    /// Fails if it does not exist or is not a directory.
    pub fn open(directory: &Path, transfers: usize) -> io::Result<Self> {
        let directory = fs::canonicalize(directory)?;
        if !directory.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let files = ServeDir::new(&directory).with_buf_chunk_size(CHUNK);
        Ok(Self { directory, files, transfers: Semaphore::new(transfers.min(Self::MAX_TRANSFERS)) })
    }

    /// Whether a path may be served: a plain file in the directory, or a directory in it with an index.
    fn admits(&self, path: &str) -> bool {
        let inside = |path: &Path| {
            let found = fs::canonicalize(path).ok().filter(|found| found.starts_with(&self.directory));
            found.and_then(|found| fs::metadata(found).ok())
        };
        let path = self.directory.join(path.trim_start_matches('/'));
        match inside(&path) {
            Some(found) if found.is_dir() => {
                inside(&path.join("index.html")).is_some_and(|index| index.is_file())
            }
            found => found.is_some_and(|file| file.is_file()),
        }
    }
}

impl fmt::Debug for Webroot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webroot").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// A request for a file.
#[derive(Debug)]
pub(super) struct FileRequest {
    request: Request<()>,
    /// The decoded path, if it may be requested.
    path: Option<String>,
}

impl FileRequest {
    /// Accepts a request that is not an upgrade as a file request if it is a GET or HEAD.
    pub(super) fn of(head: &Head<'_>) -> Option<Self> {
        let is_file_request = matches!(head.method, "GET" | "HEAD")
            && !head.lists("upgrade", "websocket")
            && head.header("sec-websocket-key").is_none()
            && !head.has_body();
        if !is_file_request {
            return None;
        }
        let mut request = Request::builder().method(head.method).uri(head.path);
        for name in FIELDS {
            let value = head.single(name.as_str());
            if let Some(value) = value.filter(|value| name != header::RANGE || has_small_numbers(value)) {
                request = request.header(name, value);
            }
        }
        Some(Self { request: request.body(()).ok()?, path: decode(head.path) })
    }
}

/// Whether the numbers in a range fit into 64 bits, as those of real files do. Any other range is ignored (RFC 9110,
/// 14.2), so that its arithmetic cannot overflow.
fn has_small_numbers(range: &str) -> bool {
    let mut numbers =
        range.split(|character: char| !character.is_ascii_digit()).filter(|number| !number.is_empty());
    numbers.all(|number| number.parse::<u64>().is_ok())
}

/// Percent-decodes a path. `None` if it leads upwards or to a hidden file.
fn decode(path: &str) -> Option<String> {
    let decoded = percent_decode_str(path).decode_utf8().ok()?;
    let inner = decoded.strip_prefix('/')?;
    let mut segments = inner.strip_suffix('/').unwrap_or(inner).split('/');
    let is_plain = |segment: &str| {
        let is_hidden = segment.starts_with('.') && segment != WELL_KNOWN;
        !segment.is_empty() && !is_hidden && !segment.contains(['\\', '\0'])
    };
    (inner.is_empty() || segments.all(is_plain)).then(|| decoded.clone().into_owned())
}

/// Answers a request for a file, and ends its connection.
pub(super) async fn serve(
    shared: Arc<Shared>,
    config: Arc<WebSocketConfig>,
    mut stream: Stream,
    accepted: AcceptedConnection,
    file: FileRequest,
) {
    // Never appended to: it represents the connection in the list that a drain waits for.
    let _listed = ConnectionListEntry::new(&shared, accepted.id, &Arc::new(Outbox::new(0)));
    let asked = file.request.uri().path().to_owned();
    let Some(webroot) = config.routes.webroot.clone() else { return };
    let Ok(_transfer) = webroot.transfers.try_acquire() else {
        let refusal = UpgradeRefusal::new(Status::Unavailable, "too many files are being sent; try again");
        return answer_refusal(&mut stream, &refusal).await;
    };
    let (status, sent) = match find(&webroot, file).await {
        Ok(answer) => {
            let status = answer.status().as_u16();
            (status, write(&mut stream, answer, shared.config.write_timeout).await)
        }
        Err(refusal) => {
            answer_refusal(&mut stream, &refusal).await;
            (refusal.status as u16, Ok(()))
        }
    };
    if sent.is_ok() {
        linger(&mut stream).await;
    }
    let error = sent.err().map(|error| error.to_string());
    tracing::debug!(connection = accepted.id, peer = %accepted.peer, path = asked, status, error, "file served");
}

async fn find(webroot: &Arc<Webroot>, file: FileRequest) -> Result<Response<FileBody>, UpgradeRefusal> {
    let not_found = || UpgradeRefusal::new(Status::NotFound, "file not found");
    let path = file.path.ok_or_else(not_found)?;
    let validate = Arc::clone(webroot);
    // A disk may be slow, and other connections must not wait for it.
    let admitted = tokio::task::spawn_blocking(move || validate.admits(&path)).await;
    if !admitted.unwrap_or(false) {
        return Err(not_found());
    }
    webroot.files.clone().try_call(file.request).await.map_err(|_| not_found())
}

/// Writes an answer, giving up on a client that accepts nothing for `timeout`.
async fn write(stream: &mut Stream, answer: Response<FileBody>, timeout: Duration) -> io::Result<()> {
    let (head, mut body) = answer.into_parts();
    let mut bytes =
        format!("HTTP/1.1 {}\r\nConnection: close\r\nX-Content-Type-Options: nosniff\r\n", head.status)
            .into_bytes();
    for (name, value) in &head.headers {
        let value = value.as_bytes();
        let (value, rest) =
            if *name == header::CONTENT_TYPE { content_type(value) } else { (value, &b""[..]) };
        for part in [name.as_str().as_bytes(), b": ", value, rest, b"\r\n"] {
            bytes.extend_from_slice(part);
        }
    }
    bytes.extend_from_slice(b"\r\n");
    let mut chunk = Bytes::from(bytes);
    loop {
        let writing = async {
            stream.write_all(&chunk).await?;
            stream.flush().await
        };
        tokio::time::timeout(timeout, writing).await??;
        let Some(frame) = body.frame().await else { return Ok(()) };
        let Ok(data) = frame?.into_data() else { return Ok(()) };
        chunk = data;
    }
}

/// The content type of a file, and the charset to append. Without a charset, browsers guess by the reader's
/// language; scripts have a single type (RFC 9239), whatever their file name.
fn content_type(guessed: &[u8]) -> (&[u8], &[u8]) {
    match guessed {
        b"application/javascript" => (b"text/javascript", b"; charset=utf-8"),
        _ if guessed.starts_with(b"text/") => (guessed, b"; charset=utf-8"),
        _ => (guessed, b""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traversal_hidden_and_malformed_paths_are_refused() {
        for path in ["/", "/a", "/a/b.html", "/a/", "/a%20b", "/%C3%A9", "/.well-known/x", "/a..b"] {
            assert!(decode(path).is_some(), "{path}");
        }
        for path in [
            "/..",
            "/../etc/passwd",
            "/a/../b",
            "/%2e%2e/etc/passwd",
            "/a/%2E%2E",
            "/..%2fetc",
            "/.env",
            "/.git/config",
            "//a",
            "/a//b",
            "/a%00",
            "/a%5c..%5cb",
            "/%2fetc/passwd",
            "/%ff",
            "a",
            "/./a",
        ] {
            assert_eq!(decode(path), None, "{path}");
        }
    }

    #[test]
    fn symlinks_out_of_the_directory_are_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "s").unwrap();
        let inside = tempfile::tempdir().unwrap();
        let root = inside.path();
        fs::write(root.join("file"), "f").unwrap();
        fs::create_dir(root.join("empty")).unwrap();
        fs::create_dir(root.join("site")).unwrap();
        let link = |from: &Path, to: PathBuf| std::os::unix::fs::symlink(from, to).unwrap();
        link(&outside.path().join("secret"), root.join("link"));
        link(outside.path(), root.join("directory"));
        link(&outside.path().join("secret"), root.join("site/index.html"));
        link(&root.join("file"), root.join("alias"));
        let webroot = Webroot::open(root, 1).unwrap();
        for (path, admitted) in [
            ("/file", true),
            ("/alias", true),
            ("/link", false),
            ("/directory/secret", false),
            ("/site/", false),
            ("/empty/", false),
            ("/", false),
            ("/none", false),
        ] {
            assert_eq!(webroot.admits(path), admitted, "{path}");
        }
    }

    #[test]
    fn a_webroot_must_be_a_directory() {
        assert!(Webroot::open(Path::new("/does/not/exist"), 1).is_err());
        assert!(Webroot::open(Path::new("/etc/passwd"), 1).is_err());
    }
}
