//! Encodes frames.

use std::fmt::{self, Display, Write};

use crate::escape;
use crate::version::StompVersion;

/// Ends a frame, after its body. RabbitMQ adds the line end for clients that wait for one; all others take it
/// as a heart-beat.
pub const END_OF_FRAME: &[u8] = b"\0\n";

/// Writes the head of a frame.
#[derive(Debug)]
pub struct FrameWriter<'o> {
    out: &'o mut Vec<u8>,
    /// Decides how headers are escaped.
    version: StompVersion,
}

impl<'o> FrameWriter<'o> {
    /// Begins a frame. CONNECT and CONNECTED are written as in 1.0, regardless of the version (1.2, "Value Encoding").
    pub fn new(out: &'o mut Vec<u8>, version: StompVersion, command: &str) -> Self {
        out.extend_from_slice(command.as_bytes());
        out.push(b'\n');
        let is_plain = matches!(command, "CONNECT" | "STOMP" | "CONNECTED");
        Self { out, version: if is_plain { StompVersion::V10 } else { version } }
    }

    /// Adds a header line, with its name and value escaped.
    pub fn header(&mut self, name: &str, value: &str) -> &mut Self {
        escape::write(self.out, name, self.version, true);
        self.out.push(b':');
        escape::write(self.out, value, self.version, false);
        self.out.push(b'\n');
        self
    }

    /// Adds a header whose value is formatted.
    pub fn display(&mut self, name: &str, value: impl Display) -> &mut Self {
        escape::write(self.out, name, self.version, true);
        self.out.push(b':');
        // Writing into memory does not fail; a value whose `Display` fails is left incomplete.
        let _ = write!(Escaping { out: self.out, version: self.version }, "{value}");
        self.out.push(b'\n');
        self
    }

    /// Ends the head of a frame whose body has `body_len` bytes; the caller appends the body and [`END_OF_FRAME`].
    pub fn end_head(self, body_len: usize) {
        if body_len > 0 {
            // Writing into a vector does not fail.
            let _ = std::io::Write::write_fmt(self.out, format_args!("content-length:{body_len}\n"));
        }
        self.out.push(b'\n');
    }

    /// Ends the frame with this body.
    pub fn end(self, body: &[u8]) {
        let Self { out, version } = self;
        FrameWriter { out, version }.end_head(body.len());
        out.extend_from_slice(body);
        out.extend_from_slice(END_OF_FRAME);
    }
}

struct Escaping<'o> {
    out: &'o mut Vec<u8>,
    version: StompVersion,
}

impl Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape::write(self.out, text, self.version, false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_frame_with_a_body_has_a_content_length() {
        let mut out = Vec::new();
        let mut frame = FrameWriter::new(&mut out, StompVersion::V12, "MESSAGE");
        frame.header("destination", "/queue/a:b").display("n", 7);
        frame.end(b"x\0y");
        FrameWriter::new(&mut out, StompVersion::V12, "RECEIPT").end(b"");
        let expected = b"MESSAGE\ndestination:/queue/a\\cb\nn:7\ncontent-length:3\n\nx\0y\0\nRECEIPT\n\n\0\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn connected_is_not_escaped() {
        let mut out = Vec::new();
        let mut frame = FrameWriter::new(&mut out, StompVersion::V12, "CONNECTED");
        frame.header("server", r"a:b\c");
        frame.end(b"");
        assert_eq!(out, b"CONNECTED\nserver:a:b\\c\n\n\0\n");
    }
}
