//! permessage-deflate (RFC 7692), without context takeover in either direction: each message is compressed by itself,
//! so that no state is kept between messages, and no secret of one message affects the length of another.
//!
//! Compressors and decompressors belong to the thread. A connection holds a decompressor, some 40 KiB, only in the
//! middle of a compressed message of its peer.

use std::cell::{Cell, RefCell};

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::close::CloseCode;
use crate::fault::WebSocketFault;
use crate::handshake::Head;

/// The extension's name (7).
const NAME: &str = "permessage-deflate";

/// The largest window, as a power of two.
const MAX_WINDOW_BITS: u8 = 15;

/// The smallest window with which compression works; the RFC also has 8, which is declined.
const MIN_WINDOW_BITS: u8 = 9;

/// The end of every flushed block, which messages leave out (7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// From 1 to 9. Lower levels use fixed codes for a block, and higher ones mostly cost time.
const LEVEL: u32 = 3;

/// Bytes of a payload from which on compression is attempted.
const MIN_COMPRESSED: usize = 64;

/// Bytes that are inflated at once.
const CHUNK: usize = 16 * 1024;

/// The extension as negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deflate {
    /// The window of the server's compressor, as a power of two.
    window_bits: u8,
    /// Whether the client asked for a window no larger than that.
    limited: bool,
}

impl Deflate {
    /// Accepts the first acceptable offer of a request.
    pub fn negotiate(head: &Head<'_>) -> Option<Self> {
        head.elements("sec-websocket-extensions").find_map(Self::accept)
    }

    /// Checks one offer; declines parameters that are unknown, repeated or out of bounds (7.1).
    fn accept(offer: &str) -> Option<Self> {
        let mut parts = offer.split(';').map(str::trim);
        if !parts.next()?.eq_ignore_ascii_case(NAME) {
            return None;
        }
        let mut seen = Vec::new();
        let mut server_bits = None;
        for part in parts {
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name.trim_end(), Some(unquoted(value.trim_start()))),
                None => (part, None),
            };
            if seen.contains(&name) {
                return None;
            }
            seen.push(name);
            match (name, value) {
                ("server_no_context_takeover" | "client_no_context_takeover", None) => {}
                ("client_max_window_bits", None) => {}
                ("client_max_window_bits", Some(value)) => drop(window_bits(value)?),
                ("server_max_window_bits", Some(value)) => server_bits = Some(window_bits(value)?),
                _ => return None,
            }
        }
        let window_bits = server_bits.unwrap_or(MAX_WINDOW_BITS);
        (window_bits >= MIN_WINDOW_BITS).then_some(Self { window_bits, limited: server_bits.is_some() })
    }

    /// The value of the answer's Sec-WebSocket-Extensions. Neither side may keep context between messages, whether or
    /// not the client offered that (7.1.1).
    pub fn answer(&self) -> String {
        let mut answer = format!("{NAME}; server_no_context_takeover; client_no_context_takeover");
        if self.limited {
            answer.push_str(&format!("; server_max_window_bits={}", self.window_bits));
        }
        answer
    }

    /// Appends the compressed payload of a message to `out`; or nothing, and returns false, if that would not be
    /// shorter.
    pub fn compress<'p>(&self, payload: impl Iterator<Item = &'p [u8]> + Clone, out: &mut Vec<u8>) -> bool {
        let len: usize = payload.clone().map(<[u8]>::len).sum();
        if len < MIN_COMPRESSED {
            return false;
        }
        let start = out.len();
        COMPRESSORS.with_borrow_mut(|compressors| {
            let known = compressors.iter().position(|(bits, _)| *bits == self.window_bits);
            let at = known.unwrap_or_else(|| {
                let level = Compression::new(LEVEL);
                compressors
                    .push((self.window_bits, Compress::new_with_window_bits(level, false, self.window_bits)));
                compressors.len() - 1
            });
            let compressor = &mut compressors[at].1;
            payload.for_each(|piece| push(compressor, piece, FlushCompress::None, out));
            push(compressor, &[], FlushCompress::Sync, out);
            compressor.reset();
        });
        debug_assert!(out.ends_with(&TAIL));
        out.truncate(out.len() - TAIL.len());
        let shorter = out.len() - start < len;
        if !shorter {
            out.truncate(start);
        }
        shorter
    }
}

thread_local! {
    /// Compressors by window size.
    static COMPRESSORS: RefCell<Vec<(u8, Compress)>> = const { RefCell::new(Vec::new()) };
    /// A decompressor that is not in use.
    static SPARE: Cell<Option<Decompress>> = const { Cell::new(None) };
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; CHUNK].into_boxed_slice());
}

fn push(compressor: &mut Compress, mut piece: &[u8], flush: FlushCompress, out: &mut Vec<u8>) {
    loop {
        out.reserve(piece.len() / 2 + CHUNK / 16);
        let before = compressor.total_in();
        // Cannot fail: it receives no input after an end.
        let _ = compressor.compress_vec(piece, out, flush);
        piece = &piece[(compressor.total_in() - before) as usize..];
        // Unused capacity means that no output is pending.
        if piece.is_empty() && out.len() < out.capacity() {
            return;
        }
    }
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value)
}

/// 8 to 15, without a leading zero (7.1.2).
fn window_bits(value: &str) -> Option<u8> {
    let bits = value.parse().ok().filter(|bits| (8..=MAX_WINDOW_BITS).contains(bits))?;
    (!value.starts_with(['0', '+'])).then_some(bits)
}

/// Inflates one message.
pub(crate) struct Inflater {
    /// Set until it is dropped.
    stream: Option<Decompress>,
    /// Bytes of [`TAIL`] that it has consumed.
    tail: usize,
    /// Bytes that it has inflated.
    total: u64,
}

impl std::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inflater({} bytes)", self.total)
    }
}

/// Progress of inflating.
pub(crate) struct Inflated {
    /// Bytes of the input that were consumed.
    pub(crate) taken: usize,
    /// The output had no capacity left, and more may follow.
    pub(crate) full: bool,
}

impl Inflater {
    pub(crate) fn new() -> Self {
        let stream = SPARE.take().unwrap_or_else(|| Decompress::new(false));
        Self { stream: Some(stream), tail: 0, total: 0 }
    }

    /// Inflates `input`, appending at most `capacity` bytes to `out`. A message of more than `limit` bytes is refused
    /// before they are inflated.
    pub(crate) fn inflate(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        capacity: usize,
        limit: u64,
    ) -> Result<Inflated, WebSocketFault> {
        let Some(stream) = &mut self.stream else { return Err(NOT_DEFLATE) };
        let (mut taken, mut given) = (0, 0);
        SCRATCH.with_borrow_mut(|scratch| {
            loop {
                if given == capacity {
                    return Ok(Inflated { taken, full: true });
                }
                let size = CHUNK.min(capacity - given);
                let (read, written) = (stream.total_in(), stream.total_out());
                let status = stream.decompress(&input[taken..], &mut scratch[..size], FlushDecompress::Sync);
                let read = (stream.total_in() - read) as usize;
                let written = (stream.total_out() - written) as usize;
                let status = status.map_err(|_| NOT_DEFLATE)?;
                (taken, given) = (taken + read, given + written);
                self.total += written as u64;
                if self.total > limit {
                    return Err(WebSocketFault {
                        code: CloseCode::TOO_BIG,
                        reason: "message larger than the limit",
                    });
                }
                out.extend_from_slice(&scratch[..written]);
                match status {
                    // A last block may nevertheless be followed by others (7.2.3.4).
                    Status::StreamEnd => stream.reset(false),
                    // All available output, since there was room left.
                    Status::Ok | Status::BufError
                        if written < size && (taken == input.len() || read + written == 0) =>
                    {
                        return Ok(Inflated { taken, full: false });
                    }
                    Status::Ok | Status::BufError => {}
                }
            }
        })
    }

    /// Ends the message; returns false if that needs more output capacity.
    pub(crate) fn finish(
        &mut self,
        out: &mut Vec<u8>,
        capacity: usize,
        limit: u64,
    ) -> Result<bool, WebSocketFault> {
        let Inflated { taken, full } = self.inflate(&TAIL[self.tail..], out, capacity, limit)?;
        self.tail += taken;
        if !full && self.tail < TAIL.len() {
            return Err(NOT_DEFLATE);
        }
        Ok(!full)
    }
}

impl Drop for Inflater {
    fn drop(&mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        stream.reset(false);
        // The thread-local value is gone while the thread ends.
        let _ = SPARE.try_with(|spare| spare.set(Some(stream)));
    }
}

const NOT_DEFLATE: WebSocketFault =
    WebSocketFault { code: CloseCode::INVALID_DATA, reason: "compressed message that is not in DEFLATE" };
