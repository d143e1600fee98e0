//! Decodes frames from a stream.

use std::borrow::Cow;

use bytes::Bytes;
use memchr::{memchr, memchr_iter};
use smallvec::SmallVec;

use crate::escape;
use crate::fault::StompFault;
use crate::frame::{FrameBody, Headers, StompFrame};
use crate::limits::{MAX_BLANK, MAX_HEAD, MAX_HEADER_LINE, MAX_HEADERS};
use crate::version::StompVersion;

/// The progress of one call of [`StompDecoder::decode`].
#[derive(Debug)]
pub struct StompDecodeStep<'a> {
    /// Bytes of the input that were consumed.
    pub taken: usize,
    /// The frame that ended there, if any.
    pub frame: Option<StompFrame<'a>>,
}

/// Decodes frames from a stream that arrives in pieces.
#[derive(Debug)]
pub struct StompDecoder {
    commands: &'static [&'static str],
    version: StompVersion,
    body_limit: u64,
    state: State,
    /// The head of a frame whose body arrives in later reads.
    head: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// At the beginning of a frame. The first `looked_at` bytes were searched and do not contain the end of its head.
    Head { looked_at: usize },
    /// Within a body, whose length may have been announced.
    Body { announced: Announced, body: Vec<u8> },
}

/// The body length that the head of a frame announces, and its limit.
#[derive(Debug, Clone, Copy)]
struct Announced {
    len: Option<usize>,
    /// The largest body allowed, in bytes.
    limit: u64,
}

impl StompDecoder {
    /// Decodes frames of clients, with bodies of up to `body_limit` bytes, initially as STOMP 1.0.
    pub fn of_clients(body_limit: u64) -> Self {
        Self::new(CLIENT_COMMANDS, body_limit)
    }

    /// Decodes frames of servers.
    pub fn of_servers(body_limit: u64) -> Self {
        Self::new(SERVER_COMMANDS, body_limit)
    }

    fn new(commands: &'static [&'static str], body_limit: u64) -> Self {
        let state = State::Head { looked_at: 0 };
        Self { commands, version: StompVersion::V10, body_limit, state, head: Vec::new() }
    }

    /// Sets the negotiated version, which applies to the frames that follow.
    pub fn set_version(&mut self, version: StompVersion) {
        self.version = version;
    }

    /// Consumes input from the front of `input`, up to the end of one frame. Call it again with the rest until it
    /// consumes nothing; the bytes it leaves are the beginning of a frame's head, [`MAX_HEAD`] bytes at most.
    ///
    /// # Errors
    /// The input is not a frame, or the frame is too large. The stream cannot be read any further.
    pub fn decode<'a>(&'a mut self, input: &'a [u8]) -> Result<StompDecodeStep<'a>, StompFault> {
        match &mut self.state {
            State::Head { looked_at } => {
                self.head = Vec::new();
                let skipped = if *looked_at == 0 { between_frames(input) } else { 0 };
                let input = &input[skipped..];
                match end_of_head(input, *looked_at) {
                    Some(end) => self.begin(input, skipped, end),
                    None => {
                        check_begin(input, self.commands)?;
                        // The end of the head may begin with the last two bytes.
                        *looked_at = input.len().saturating_sub(2);
                        Ok(StompDecodeStep { taken: skipped, frame: None })
                    }
                }
            }
            State::Body { .. } => self.continue_body(input),
        }
    }

    /// Handles a head that is complete and ends at `end`.
    fn begin<'a>(
        &'a mut self,
        input: &'a [u8],
        skipped: usize,
        end: usize,
    ) -> Result<StompDecodeStep<'a>, StompFault> {
        let (head, rest) = input.split_at(end);
        let (command, headers) = self.read_head(head)?;
        let announced = self.announced(command, &headers)?;
        let len = match announced.len {
            Some(len) => (rest.len() > len).then_some(len),
            None => memchr(0, rest),
        };
        announced.check(command, len.unwrap_or(rest.len().min(announced.len.unwrap_or(usize::MAX))))?;
        let Some(len) = len else {
            self.head = head.to_vec();
            let body = rest.to_vec();
            self.state = State::Body { announced, body };
            return Ok(StompDecodeStep { taken: skipped + input.len(), frame: None });
        };
        check_end(rest[len])?;
        check_blank(command, &rest[..len])?;
        self.state = State::Head { looked_at: 0 };
        let frame = StompFrame { command, headers, body: FrameBody::Borrowed(&rest[..len]) };
        Ok(StompDecodeStep { taken: skipped + end + len + 1, frame: Some(frame) })
    }

    /// Consumes more of a body.
    fn continue_body<'a>(&'a mut self, input: &'a [u8]) -> Result<StompDecodeStep<'a>, StompFault> {
        let State::Body { announced, body } = &mut self.state else {
            return Ok(StompDecodeStep { taken: 0, frame: None });
        };
        let end = match announced.len {
            Some(len) => len - body.len(),
            None => memchr(0, input).unwrap_or(input.len()),
        };
        let step = end.min(input.len());
        let line = self.head.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
        announced.check(&String::from_utf8_lossy(line), body.len() + step)?;
        body.extend_from_slice(&input[..step]);
        if step == input.len() {
            return Ok(StompDecodeStep { taken: step, frame: None });
        }
        check_end(input[step])?;
        // A stored body is accounted for by its length, not by its capacity.
        body.shrink_to_fit();
        let body = Bytes::from(std::mem::take(body));
        self.state = State::Head { looked_at: 0 };
        let (command, headers) = self.read_head(&self.head)?;
        check_blank(command, &body)?;
        let frame = StompFrame { command, headers, body: FrameBody::Owned(body) };
        Ok(StompDecodeStep { taken: step + 1, frame: Some(frame) })
    }

    /// Splits a head into command and headers.
    fn read_head<'h>(&self, head: &'h [u8]) -> Result<(&'h str, Headers<'h>), StompFault> {
        let head = std::str::from_utf8(head)
            .map_err(|_| StompFault::frame("command and headers must be UTF-8\n"))?;
        let mut lines = head.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
        let command = lines.next().unwrap_or_default();
        if !self.commands.contains(&command) {
            return Err(bad_command(command));
        }
        let version = match command {
            "CONNECT" | "STOMP" | "CONNECTED" => None,
            _ => Some(self.version),
        };
        let mut headers = Headers(SmallVec::new());
        let mut count = 0;
        for line in lines.take_while(|line| !line.is_empty()) {
            count += 1;
            if count > MAX_HEADERS {
                return Err(StompFault::frame(format!("a frame may have {MAX_HEADERS} headers at most\n")));
            }
            let (name, value) = read_header(line, version)?;
            if headers.get(&name).is_none() {
                headers.0.push((name, value));
            }
        }
        Ok((command, headers))
    }

    fn announced(&self, command: &str, headers: &Headers<'_>) -> Result<Announced, StompFault> {
        let limit = if may_have_body(command) { self.body_limit } else { MAX_BLANK };
        let len: Option<u64> = headers.number("content-length")?;
        let announced = Announced { len: len.map(|len| usize::try_from(len).unwrap_or(usize::MAX)), limit };
        announced.check(command, 0)?;
        Ok(announced)
    }
}

impl Announced {
    /// Checks the announced length and the bytes received so far against the limit.
    fn check(&self, command: &str, so_far: usize) -> Result<(), StompFault> {
        let at_least = self.len.unwrap_or_default().max(so_far);
        let fits = at_least as u64 <= self.limit && at_least < usize::MAX;
        match (fits, self.len) {
            (true, _) => Ok(()),
            (false, _) if !may_have_body(command) => Err(unwanted_body(command)),
            (false, Some(len)) => Err(too_large(&format!("size {len} "), self.limit)),
            (false, None) => Err(too_large("", self.limit)),
        }
    }
}

/// 1.2, "Body": only these may have one.
fn may_have_body(command: &str) -> bool {
    matches!(command, "SEND" | "MESSAGE" | "ERROR")
}

fn unwanted_body(command: &str) -> StompFault {
    StompFault::frame(format!("'{command}' must not have a body\n"))
}

/// Clients end other frames with a line end before their NUL, too; like RabbitMQ, this does not count it as a body.
fn check_blank(command: &str, body: &[u8]) -> Result<(), StompFault> {
    let is_blank = body.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
    if is_blank || may_have_body(command) { Ok(()) } else { Err(unwanted_body(command)) }
}

/// Worded as in RabbitMQ's channel.
fn too_large(size: &str, limit: u64) -> StompFault {
    let detail = format!("PRECONDITION_FAILED - message {size}is larger than configured max size {limit}");
    StompFault::new("precondition_failed", detail)
}

fn bad_command(command: &str) -> StompFault {
    let view: String = command.chars().take(MAX_COMMAND).collect();
    StompFault::new("Bad command", format!("Could not interpret command \"{}\"\n", view.escape_debug()))
}

/// Bytes at the front that lie between frames: line ends, which are heart-beats, and stray NULs.
fn between_frames(input: &[u8]) -> usize {
    let mut at = 0;
    loop {
        at += match &input[at..] {
            [b'\n' | 0, ..] => 1,
            [b'\r', b'\n', ..] => 2,
            _ => return at,
        };
    }
}

/// Finds the end of the empty line after the headers, searching from `from`.
fn end_of_head(input: &[u8], from: usize) -> Option<usize> {
    memchr_iter(b'\n', &input[from..]).map(|at| from + at + 1).find_map(|at| match &input[at..] {
        [b'\n', ..] => Some(at + 1),
        [b'\r', b'\n', ..] => Some(at + 2),
        _ => None,
    })
}

/// Checks that an incomplete head can still become a valid one, so that a peer with another protocol is refused at once.
fn check_begin(input: &[u8], commands: &[&str]) -> Result<(), StompFault> {
    if input.len() > MAX_HEAD {
        return Err(StompFault::frame(format!("headers of a frame may have {MAX_HEAD} bytes at most\n")));
    }
    let line = &input[..memchr(b'\n', input).unwrap_or(input.len())];
    let is_whole = line.len() < input.len();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let may_be = |command: &&str| {
        if is_whole { command.as_bytes() == line } else { command.as_bytes().starts_with(line) }
    };
    if commands.iter().any(may_be) { Ok(()) } else { Err(bad_command(&String::from_utf8_lossy(line))) }
}

fn check_end(byte: u8) -> Result<(), StompFault> {
    if byte == 0 {
        return Ok(());
    }
    Err(StompFault::frame("no NUL where content-length says that the body ends\n"))
}

/// Splits a header line into name and value. Without a version nothing is unescaped.
fn read_header(
    line: &str,
    version: Option<StompVersion>,
) -> Result<(Cow<'_, str>, Cow<'_, str>), StompFault> {
    if line.len() > MAX_HEADER_LINE {
        return Err(StompFault::frame(format!("a header may have {MAX_HEADER_LINE} bytes at most\n")));
    }
    let (name, value) = line.split_once(':').unwrap_or_default();
    if name.is_empty() {
        let view: String = line.chars().take(MAX_SHOWN).collect();
        return Err(StompFault::frame(format!("a header is a name, a colon and a value, not '{view}'\n")));
    }
    if line.contains(['\r', '\0']) {
        return Err(StompFault::frame("a header must not contain a carriage return or NUL\n"));
    }
    match version {
        None => Ok((name.into(), value.into())),
        // As in RabbitMQ: clients of 1.0 write `name: value`.
        Some(StompVersion::V10) => Ok((name.into(), value.trim_start_matches(' ').into())),
        Some(version) => Ok((escape::read(name, version)?, escape::read(value, version)?)),
    }
}

/// Characters of an unknown command that the ERROR frame quotes.
const MAX_COMMAND: usize = 32;

/// Characters of a line that the ERROR frame quotes.
const MAX_SHOWN: usize = 64;

const CLIENT_COMMANDS: &[&str] = &[
    "SEND",
    "ACK",
    "NACK",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "BEGIN",
    "COMMIT",
    "ABORT",
    "DISCONNECT",
    "CONNECT",
    "STOMP",
];

const SERVER_COMMANDS: &[&str] = &["MESSAGE", "RECEIPT", "ERROR", "CONNECTED"];

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(input: &[u8]) -> Result<(usize, Option<String>), StompFault> {
        let mut decoder = StompDecoder::of_clients(100);
        decoder.set_version(StompVersion::V12);
        let step = decoder.decode(input)?;
        let reported = step.frame.map(|frame| {
            let body = String::from_utf8_lossy(frame.body.bytes()).into_owned();
            format!("{} {:?} {body}", frame.command, frame.headers)
        });
        Ok((step.taken, reported))
    }

    fn reported(input: &[u8]) -> String {
        decode(input).unwrap().1.unwrap()
    }

    fn refused(input: &[u8]) -> String {
        decode(input).unwrap_err().to_string()
    }

    #[test]
    fn the_first_of_repeated_headers_counts() {
        assert_eq!(reported(b"SEND\na:1\nb:2\na:3\n\nx\0"), r#"SEND {"a": "1", "b": "2"} x"#);
    }

    #[test]
    fn a_body_with_a_content_length_may_contain_nul() {
        assert_eq!(reported(b"SEND\ncontent-length:3\n\na\0b\0"), "SEND {\"content-length\": \"3\"} a\0b");
        assert_eq!(reported(b"SEND\n\na\0b\0"), "SEND {} a");
        assert_eq!(reported(b"\n\r\n\0SEND\r\nd:e\r\n\r\n\0"), r#"SEND {"d": "e"} "#);
    }

    #[test]
    fn malformed_frames_are_refused_at_once() {
        for input in [&b"GET / HTTP/1.1\r\n"[..], b"AMQP\0\0\x09\x01", b"\x16\x03\x01", b"SEN D", b"send\n"] {
            assert!(refused(input).starts_with("Bad command: Could not interpret command"), "{input:?}");
        }
        assert!(decode(b"CONN").unwrap().1.is_none());
        assert!(refused(b"SEND\nx\n\n\0").contains("not 'x'"));
        assert!(refused(b"SEND\n:x\n\n\0").contains("not ':x'"));
        assert!(refused(b"SEND\na:\xff\n\n\0").contains("UTF-8"));
        assert!(refused(b"SEND\na:b\rc\n\n\0").contains("carriage return"));
        assert!(refused(b"SEND\ncontent-length:2\n\nabc\0").contains("no NUL"));
        assert!(refused(b"SEND\ncontent-length:-1\n\nabc\0").contains("'content-length' must be a number"));
        assert!(refused(b"BEGIN\ntransaction:t\n\nx\0").contains("'BEGIN' must not have a body"));
        assert!(refused(b"BEGIN\ncontent-length:17\n\n").contains("'BEGIN' must not have a body"));
        assert!(
            refused(b"BEGIN\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n")
                .contains("'BEGIN' must not have a body")
        );
    }

    #[test]
    fn limits_are_checked_before_anything_is_buffered() {
        let large = "message size 101 is larger than configured max size 100";
        assert!(refused(b"SEND\ncontent-length:101\n\n").ends_with(large));
        assert!(refused(b"SEND\ncontent-length:18446744073709551615\n\n").contains("larger"));
        let mut endless = b"SEND\n\n".to_vec();
        endless.resize(endless.len() + 101, b'x');
        assert!(refused(&endless).ends_with("message is larger than configured max size 100"));
        let long = [b"SEND\na:".to_vec(), vec![b'x'; MAX_HEADER_LINE], b"\n\n\0".to_vec()].concat();
        assert!(refused(&long).contains("16384 bytes"));
        let long = [b"SEND\n".to_vec(), b"a:b\n".repeat(MAX_HEADERS + 1), b"\n\0".to_vec()].concat();
        assert!(refused(&long).contains("128 headers"));
        let endless = [b"SEND\n".to_vec(), b"a:b\n".repeat(MAX_HEAD / 4)].concat();
        assert!(refused(&endless).contains("65536 bytes"));
    }

    #[test]
    fn old_clients_may_put_a_space_in_front_of_values() {
        let mut decoder = StompDecoder::of_clients(100);
        let step = decoder.decode(b"SEND\ndestination:  /queue/a\\n\n\n\0").unwrap();
        assert_eq!(step.frame.unwrap().headers.get("destination"), Some(r"/queue/a\n"));
    }
}
