//! Decoding of incoming frames.

use crate::close::{CloseCode, CloseFrame};
use crate::deflate::{Inflated, Inflater};
use crate::fault::WebSocketFault;
use crate::frame::{FrameHeader, MAX_CONTROL_PAYLOAD, Opcode};
use crate::mask::mask;
use crate::utf8::Utf8;

/// This end of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Accepts masked frames only (RFC 6455, 5.1).
    Server,
    /// Accepts unmasked frames only.
    Client,
}

/// Limits on the messages of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecoderLimits {
    /// Bytes of a message's payload. Checked from the headers alone, and for compressed messages before inflating. A caller
    /// that forwards payload as it arrives needs no limit.
    pub message: u64,
}

impl DecoderLimits {
    /// No limit: payload is forwarded and never gathered.
    pub const NONE: Self = Self { message: u64::MAX };
}

/// The payload type of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// UTF-8.
    Text,
    /// Bytes.
    Binary,
}

/// An item found in the input, apart from payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebSocketEvent {
    /// A message begins; its payload follows.
    MessageStart(MessageKind),
    /// The message has ended.
    MessageEnd,
    /// A call has inflated the maximum; call again with the rest of the input, even if that is empty.
    More,
    /// Answer it with a pong of the same payload.
    Ping(Control),
    /// An answer to a ping, or an unsolicited pong.
    Pong(Control),
    /// The peer's last frame; any further input is discarded.
    Close(Option<CloseFrame>),
}

/// The payload of a ping or pong.
#[derive(Clone, Copy)]
pub struct Control {
    bytes: [u8; MAX_CONTROL_PAYLOAD],
    len: u8,
}

impl Control {
    /// The payload, at most 125 bytes.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Unmasks a payload, which is known to fit from its header.
    fn new(payload: &[u8], key: Option<[u8; 4]>) -> Self {
        let mut bytes = [0; MAX_CONTROL_PAYLOAD];
        bytes[..payload.len()].copy_from_slice(payload);
        if let Some(key) = key {
            mask(key, &mut bytes[..payload.len()]);
        }
        Self { bytes, len: payload.len() as u8 }
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Control({:?})", self.payload())
    }
}

impl PartialEq for Control {
    fn eq(&self, other: &Self) -> bool {
        self.payload() == other.payload()
    }
}

impl Eq for Control {}

/// The result of one call of [`FrameDecoder::decode`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameDecodeStep {
    /// Bytes of the input that were consumed.
    pub taken: usize,
    /// The event at that point. `None` if the input is consumed, except for an incomplete header or control frame, which
    /// must be passed again together with more bytes.
    pub event: Option<WebSocketEvent>,
}

/// The most bytes that a call of [`FrameDecoder::decode`] inflates: one byte may inflate to a thousand, so the caller has
/// to be able to stop in between.
pub const MAX_INFLATED: usize = 64 * 1024;

/// Bytes that are unmasked at once before they are inflated.
const UNMASKED: usize = 4096;

/// Decodes a peer's frames. Buffers no payload, so an idle decoder takes only a few words.
#[derive(Debug)]
pub struct FrameDecoder {
    role: Role,
    limits: DecoderLimits,
    /// Whether messages may be compressed.
    deflate: bool,
    /// The inflater of the current message, if that is compressed.
    inflater: Option<Box<Inflater>>,
    /// The current message.
    message: Option<MessageKind>,
    /// Bytes that the frames of `message` have announced.
    message_len: u64,
    /// The current data frame.
    frame: Option<DataFrame>,
    utf8: Utf8,
    /// The peer has closed or broken the protocol: all further input is discarded.
    over: bool,
}

#[derive(Debug, Clone, Copy)]
struct DataFrame {
    /// Bytes of payload that have not arrived yet.
    remaining: u64,
    fin: bool,
    /// The masking key for the next byte.
    key: Option<[u8; 4]>,
}

impl FrameDecoder {
    /// A decoder at the first byte after the handshake.
    pub fn new(role: Role, limits: DecoderLimits) -> Self {
        Self {
            role,
            limits,
            deflate: false,
            inflater: None,
            message: None,
            message_len: 0,
            frame: None,
            utf8: Utf8::default(),
            over: false,
        }
    }

    /// Allows compressed messages if permessage-deflate was negotiated.
    #[must_use]
    pub fn with_deflate(mut self, negotiated: bool) -> Self {
        self.deflate = negotiated;
        self
    }

    /// Decodes from the front of `input` to the next event, or to the end; unmasked payload on the way is appended to
    /// `out`. Call again until there is no event.
    ///
    /// # Errors
    /// The peer broke the protocol. Discard the bytes that this call appended to `out`; all further input is discarded.
    pub fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<FrameDecodeStep, WebSocketFault> {
        if self.over {
            return Ok(FrameDecodeStep { taken: input.len(), event: None });
        }
        let step = self.advance(input, out);
        self.over |=
            matches!(step, Err(_) | Ok(FrameDecodeStep { event: Some(WebSocketEvent::Close(_)), .. }));
        step
    }

    /// Whether a message has begun and not ended.
    pub fn is_within_message(&self) -> bool {
        self.message.is_some()
    }

    fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<FrameDecodeStep, WebSocketFault> {
        let mut taken = 0;
        loop {
            // The rest of the current data frame first; it may end in a later read.
            if let Some(frame) = &mut self.frame {
                if let Some(inflater) = &mut self.inflater {
                    let before = out.len();
                    let inflated = frame.inflate(&input[taken..], inflater, self.limits.message, out)?;
                    taken += inflated.taken;
                    if self.message == Some(MessageKind::Text) {
                        self.utf8.push(&out[before..]).map_err(|_| NOT_TEXT)?;
                    }
                    if inflated.full {
                        // A few compressed bytes can inflate to very many: the caller forwards the present ones first.
                        return Ok(FrameDecodeStep { taken, event: Some(WebSocketEvent::More) });
                    }
                } else {
                    taken += frame.take_payload(&input[taken..], self.message, &mut self.utf8, out)?;
                }
                if frame.remaining > 0 {
                    return Ok(FrameDecodeStep { taken, event: None });
                }
                let fin = frame.fin;
                self.frame = None;
                if fin {
                    self.inflater = None;
                    self.end_message()?;
                    return Ok(FrameDecodeStep { taken, event: Some(WebSocketEvent::MessageEnd) });
                }
            }
            // Then the next frame's header. An incomplete one is not consumed, and is passed again with more input.
            let rest = &input[taken..];
            let Some((header, header_len)) = FrameHeader::parse(rest, self.deflate)? else {
                return Ok(FrameDecodeStep { taken, event: None });
            };
            self.check_mask(&header)?;
            if header.opcode.is_control() {
                // It may come between the frames of a message, and is consumed completely, so `self.frame` stays as it is.
                // At most 125, as was checked.
                let end = header_len + header.len as usize;
                let Some(payload) = rest.get(header_len..end) else {
                    return Ok(FrameDecodeStep { taken, event: None });
                };
                let event = control_event(&header, payload)?;
                return Ok(FrameDecodeStep { taken: taken + end, event: Some(event) });
            }
            taken += header_len;
            if let Some(event) = self.begin_frame(&header)? {
                return Ok(FrameDecodeStep { taken, event: Some(event) });
            }
        }
    }

    fn check_mask(&self, header: &FrameHeader) -> Result<(), WebSocketFault> {
        match (self.role, header.mask) {
            (Role::Server, None) => Err(WebSocketFault::protocol("frame of a client is not masked")),
            (Role::Client, Some(_)) => Err(WebSocketFault::protocol("frame of a server is masked")),
            _ => Ok(()),
        }
    }

    /// Starts a data frame; returns an event if a message starts with it.
    fn begin_frame(&mut self, header: &FrameHeader) -> Result<Option<WebSocketEvent>, WebSocketFault> {
        let kind = match (header.opcode, self.message) {
            (Opcode::Continuation, None) => {
                return Err(WebSocketFault::protocol("continuation of no message"));
            }
            (Opcode::Continuation, Some(_)) => None,
            (_, Some(_)) => return Err(WebSocketFault::protocol("new message within another")),
            (Opcode::Text, None) => Some(MessageKind::Text),
            (_, None) => Some(MessageKind::Binary),
        };
        let so_far = if kind.is_some() { 0 } else { self.message_len };
        self.message_len = so_far.saturating_add(header.len);
        if self.message_len > self.limits.message {
            return Err(WebSocketFault { code: CloseCode::TOO_BIG, reason: "message larger than the limit" });
        }
        self.frame = Some(DataFrame { remaining: header.len, fin: header.fin, key: header.mask });
        if header.compressed {
            self.inflater = Some(Box::new(Inflater::new()));
        }
        Ok(kind.map(|kind| {
            self.message = Some(kind);
            WebSocketEvent::MessageStart(kind)
        }))
    }

    fn end_message(&mut self) -> Result<(), WebSocketFault> {
        self.message = None;
        self.utf8.finish().map_err(|_| NOT_TEXT)
    }
}

const NOT_TEXT: WebSocketFault =
    WebSocketFault { code: CloseCode::INVALID_DATA, reason: "text that is not UTF-8" };

impl DataFrame {
    /// Consumes payload of a compressed message, as far as the inflated bytes fit, and ends the message if the frame does.
    /// If the result is not full, no payload of the frame is left in the input.
    fn inflate(
        &mut self,
        input: &[u8],
        inflater: &mut Inflater,
        limit: u64,
        out: &mut Vec<u8>,
    ) -> Result<Inflated, WebSocketFault> {
        let end = out.len() + MAX_INFLATED;
        let mut taken = 0;
        loop {
            let rest = &input[taken..];
            let len = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(rest.len()).min(UNMASKED);
            let mut bytes = [0; UNMASKED];
            bytes[..len].copy_from_slice(&rest[..len]);
            if let Some(key) = self.key {
                mask(key, &mut bytes[..len]);
            }
            let inflated = inflater.inflate(&bytes[..len], out, end - out.len(), limit)?;
            taken += inflated.taken;
            self.remaining -= inflated.taken as u64;
            if let Some(key) = &mut self.key {
                key.rotate_left(inflated.taken % 4);
            }
            if inflated.full {
                return Ok(Inflated { taken, full: true });
            }
            if self.remaining == 0 {
                let full = self.fin && !inflater.finish(out, end - out.len(), limit)?;
                return Ok(Inflated { taken, full });
            }
            if taken == input.len() {
                return Ok(Inflated { taken, full: false });
            }
        }
    }

    fn take_payload(
        &mut self,
        input: &[u8],
        message: Option<MessageKind>,
        utf8: &mut Utf8,
        out: &mut Vec<u8>,
    ) -> Result<usize, WebSocketFault> {
        let len = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(input.len());
        let start = out.len();
        out.extend_from_slice(&input[..len]);
        let piece = &mut out[start..];
        if let Some(key) = self.key {
            self.key = Some(mask(key, piece));
        }
        self.remaining -= len as u64;
        if message == Some(MessageKind::Text) {
            utf8.push(piece).map_err(|_| NOT_TEXT)?;
        }
        Ok(len)
    }
}

fn control_event(header: &FrameHeader, payload: &[u8]) -> Result<WebSocketEvent, WebSocketFault> {
    let control = Control::new(payload, header.mask);
    Ok(match header.opcode {
        Opcode::Ping => WebSocketEvent::Ping(control),
        Opcode::Pong => WebSocketEvent::Pong(control),
        _ => WebSocketEvent::Close(CloseFrame::parse(control.payload())?),
    })
}
