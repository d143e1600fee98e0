//! Assembles a message from its frames.

use std::borrow::Cow;

use super::check_size;
use crate::error::{Fault, ReplyCode};
use crate::properties::ContentHeader;

/// The content assembly of one channel. `M` is the part of the method that the caller needs once the content is
/// complete, such as exchange and routing key. One word while idle.
#[derive(Debug)]
pub struct Assembler<M>(Option<Box<Pending<M>>>);

#[derive(Debug)]
struct Pending<M> {
    method: M,
    /// Class and method id, to attribute later faults to the method.
    ids: (u16, u16),
    /// `None` until the header arrives.
    body: Option<PendingBody>,
}

#[derive(Debug)]
struct PendingBody {
    properties: Vec<u8>,
    bytes: Vec<u8>,
    size: usize,
}

/// A complete message, borrowed from the frame that completed it where possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content<'a, M> {
    /// As given to [`Assembler::expect`].
    pub method: M,
    /// Property flags and list as they are on the wire, not validated.
    pub properties: Cow<'a, [u8]>,
    /// The body, complete: borrowed if it came in one frame.
    pub body: Cow<'a, [u8]>,
}

/// The result of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assembled<'a, M> {
    /// More frames are needed.
    More,
    /// The message is complete, and the assembler idle.
    Complete(Content<'a, M>),
}

impl<M> Assembler<M> {
    /// Creates an assembler that waits for a method.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Whether no content is expected.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.0.is_none()
    }

    /// Bytes of memory used by the body so far.
    pub fn buffered_len(&self) -> usize {
        let body = self.0.as_ref().and_then(|pending| pending.body.as_ref());
        body.map_or(0, |body| body.bytes.capacity())
    }

    /// Begins the content of `method`, whose class and method id are `ids`. Call [`Self::check_method`] first.
    pub fn expect(&mut self, method: M, ids: (u16, u16)) {
        self.0 = Some(Box::new(Pending { method, ids, body: None }));
    }

    /// Whether a method frame may come now.
    ///
    /// # Errors
    /// 505 UNEXPECTED_FRAME while content is expected.
    #[inline]
    pub fn check_method(&self) -> Result<(), Fault> {
        match &self.0 {
            None => Ok(()),
            Some(pending) => Err(pending.unexpected()),
        }
    }

    /// Takes a content header. `max_size` limits the body, in bytes.
    ///
    /// # Errors
    /// 505 UNEXPECTED_FRAME out of order, for another class or with a weight; 406 or 501 for a body that is too large
    /// ([`check_size`]). After an error the assembler is idle.
    pub fn header<'a>(
        &mut self,
        header: ContentHeader<'a>,
        max_size: u64,
    ) -> Result<Assembled<'a, M>, Fault> {
        let mut pending = self.0.take().ok_or_else(expected_method)?;
        if pending.body.is_some() {
            return Err(pending.unexpected());
        }
        header.check().map_err(|fault| fault.caused_by(pending.ids))?;
        check_size(header.body_size, max_size).map_err(|fault| fault.caused_by(pending.ids))?;
        if header.body_size == 0 {
            return Ok(Assembled::Complete(Content {
                method: pending.method,
                properties: Cow::Borrowed(header.properties),
                body: Cow::Borrowed(&[]),
            }));
        }
        // `check_size` has bounded it far below `usize::MAX`.
        let size = header.body_size as usize;
        pending.body = Some(PendingBody { properties: header.properties.to_vec(), bytes: Vec::new(), size });
        self.0 = Some(pending);
        Ok(Assembled::More)
    }

    /// Takes the payload of a body frame.
    ///
    /// # Errors
    /// 505 UNEXPECTED_FRAME out of order; 501 FRAME_ERROR for more bytes than the header announced. After an error
    /// the assembler is idle.
    pub fn body<'a>(&mut self, piece: &'a [u8]) -> Result<Assembled<'a, M>, Fault> {
        let Some(body) = self.0.as_mut().and_then(|pending| pending.body.as_mut()) else {
            return Err(self.0.take().map_or_else(expected_method, |pending| pending.unexpected()));
        };
        let missing = body.size - body.bytes.len();
        if piece.len() < missing {
            body.append(piece);
            return Ok(Assembled::More);
        }
        let Some(Pending { method, ids, body: Some(mut body) }) = self.0.take().map(|pending| *pending)
        else {
            return Err(expected_method());
        };
        if piece.len() > missing {
            let text = "content body frame exceeds remaining content size";
            return Err(Fault::new(ReplyCode::FrameError, text).caused_by(ids));
        }
        let whole = if body.bytes.is_empty() {
            Cow::Borrowed(piece)
        } else {
            body.append(piece);
            Cow::Owned(body.bytes)
        };
        Ok(Assembled::Complete(Content { method, properties: Cow::Owned(body.properties), body: whole }))
    }
}

impl<M> Default for Assembler<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl PendingBody {
    /// Appends `piece`; the buffer grows with the received bytes, to at most the announced size.
    fn append(&mut self, piece: &[u8]) {
        let needed = self.bytes.len() + piece.len();
        if needed > self.bytes.capacity() {
            let target = needed.max(self.bytes.capacity() * 2).max(INITIAL_CAPACITY).min(self.size);
            self.bytes.reserve_exact(target - self.bytes.len());
        }
        self.bytes.extend_from_slice(piece);
    }
}

impl<M> Pending<M> {
    #[cold]
    fn unexpected(&self) -> Fault {
        let text = match self.body {
            None => "expected content header for class 60, got non content header frame instead",
            Some(_) => "expected content body, got non content body frame instead",
        };
        Fault::new(ReplyCode::UnexpectedFrame, text).caused_by(self.ids)
    }
}

#[cold]
fn expected_method() -> Fault {
    Fault::new(ReplyCode::UnexpectedFrame, "expected method frame, got non method frame instead")
}

/// Bytes allocated for a body's first piece, or the whole body if that is smaller: common messages need one allocation, while a
/// peer that announces a large body and sends little of it uses little memory.
const INITIAL_CAPACITY: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::BASIC_CLASS;
    use crate::properties::NO_PROPERTIES;

    const PUBLISH: (u16, u16) = (60, 40);
    const LIMIT: u64 = 16 * 1024 * 1024;

    fn header(body_size: u64) -> ContentHeader<'static> {
        ContentHeader { class_id: BASIC_CLASS, weight: 0, body_size, properties: NO_PROPERTIES }
    }

    fn expecting() -> Assembler<&'static str> {
        let mut assembler = Assembler::new();
        assembler.expect("publish", PUBLISH);
        assembler
    }

    fn complete<'a, M: std::fmt::Debug>(progress: Assembled<'a, M>) -> Content<'a, M> {
        match progress {
            Assembled::Complete(content) => content,
            Assembled::More => panic!("incomplete"),
        }
    }

    #[test]
    fn an_idle_assembler_is_one_word() {
        assert_eq!(size_of::<Assembler<[u64; 100]>>(), size_of::<usize>());
    }

    #[test]
    fn a_message_without_body_is_complete_with_its_header() {
        let mut assembler = expecting();
        let content = complete(assembler.header(header(0), LIMIT).unwrap());
        assert_eq!((content.method, &*content.body), ("publish", &b""[..]));
        assert!(assembler.is_idle());
    }

    #[test]
    fn a_body_in_one_frame_is_borrowed_not_copied() {
        let mut assembler = expecting();
        assert_eq!(assembler.header(header(5), LIMIT), Ok(Assembled::More));
        let content = complete(assembler.body(b"hello").unwrap());
        assert!(matches!(content.body, Cow::Borrowed(b"hello")));
        assert!(assembler.is_idle());
    }

    #[test]
    fn pieces_of_any_size_are_joined() {
        let mut assembler = expecting();
        assembler.header(header(6), LIMIT).unwrap();
        for piece in [&b"ab"[..], b"", b"c", b"d"] {
            assert_eq!(assembler.body(piece), Ok(Assembled::More));
        }
        assert_eq!(complete(assembler.body(b"ef").unwrap()).body, &b"abcdef"[..]);
    }

    #[test]
    fn an_oversize_body_is_refused_before_it_is_buffered() {
        let fault = expecting().header(header(17), 16).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "406 PRECONDITION_FAILED - message size 17 is larger than configured max size 16"
        );
        assert!(!fault.is_hard());
        assert_eq!(fault.method, PUBLISH);
        let fault = expecting().header(header(u64::MAX), u64::MAX).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "501 FRAME_ERROR - content body size 18446744073709551615 exceeds maximum allowed size 536870912"
        );
        assert!(fault.is_hard());
    }

    #[test]
    fn the_body_buffer_grows_with_the_received_bytes() {
        let mut assembler = expecting();
        assembler.header(header(LIMIT), LIMIT).unwrap();
        let capacity =
            |assembler: &Assembler<_>| assembler.0.as_ref().unwrap().body.as_ref().unwrap().bytes.capacity();
        assert_eq!(capacity(&assembler), 0);
        assembler.body(b"x").unwrap();
        assert!(capacity(&assembler) <= INITIAL_CAPACITY);
        let piece = vec![0; 100_000];
        let mut sent = 1;
        while sent + piece.len() < LIMIT as usize {
            assembler.body(&piece).unwrap();
            sent += piece.len();
            assert!(capacity(&assembler) <= (2 * sent).max(INITIAL_CAPACITY));
        }
        let content = complete(assembler.body(&piece[..LIMIT as usize - sent]).unwrap());
        let Cow::Owned(body) = content.body else { panic!("borrowed") };
        assert_eq!((body.len(), body.capacity()), (LIMIT as usize, LIMIT as usize));
    }

    #[test]
    fn wrong_order_has_rabbitmqs_texts() {
        let text = |fault: Fault| {
            assert!(fault.is_hard());
            fault.reply_text()
        };
        let mut idle = Assembler::<()>::new();
        let expected = "UNEXPECTED_FRAME - expected method frame, got non method frame instead";
        assert_eq!(text(idle.body(b"x").unwrap_err()), expected);
        assert_eq!(text(idle.header(header(1), LIMIT).unwrap_err()), expected);

        let expected =
            "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead";
        assert_eq!(text(expecting().check_method().unwrap_err()), expected);
        assert_eq!(text(expecting().body(b"x").unwrap_err()), expected);

        let in_body = || {
            let mut assembler = expecting();
            assembler.header(header(5), LIMIT).unwrap();
            assembler
        };
        let expected = "UNEXPECTED_FRAME - expected content body, got non content body frame instead";
        assert_eq!(text(in_body().check_method().unwrap_err()), expected);
        assert_eq!(text(in_body().header(header(1), LIMIT).unwrap_err()), expected);

        let other = ContentHeader { class_id: 50, ..header(1) };
        assert_eq!(
            text(expecting().header(other, LIMIT).unwrap_err()),
            "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead"
        );
        for class_id in [BASIC_CLASS, 50] {
            let weighted = ContentHeader { class_id, weight: 1, ..header(1) };
            assert_eq!(
                text(expecting().header(weighted, LIMIT).unwrap_err()),
                "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead"
            );
        }
        assert_eq!(
            text(in_body().body(b"123456").unwrap_err()),
            "FRAME_ERROR - content body frame exceeds remaining content size"
        );
    }
}
