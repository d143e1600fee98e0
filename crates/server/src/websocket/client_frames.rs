//! A client's frames, decoded for a protocol or for a relay's upstream.

use websocket::{
    CloseCode, CloseFrame, DecoderLimits, FrameDecoder, MessageKind, Role, WebSocketEvent, WebSocketFault,
    encode,
};

/// Bytes of control frames that may wait to be sent. Bounds the memory for a peer that pings without reading; the RFC
/// (5.5.3) permits answering only the last of several pings.
const MAX_WAITING_CONTROL: usize = 1024;

/// Where text is refused, output is binary; a client that sends text would misread it.
const TEXT_REFUSED: WebSocketFault = WebSocketFault {
    code: CloseCode::UNSUPPORTED,
    reason: "text is not accepted here: send binary messages",
};

/// Decodes the frames of a client, and answers its pings.
pub(crate) struct ClientFrames {
    decoder: FrameDecoder,
    /// Control frames to be sent.
    pub(crate) control: Vec<u8>,
}

/// The reason why decoding stopped.
pub(crate) enum DecodeStop {
    InputUsedUp,
    /// A piece of the maximum size has been inflated.
    More,
    End(PeerEnd),
}

/// How a peer ends a WebSocket.
pub(crate) enum PeerEnd {
    Closed(Option<CloseFrame>),
    Fault(WebSocketFault),
}

impl ClientFrames {
    /// The frames of a new connection. They may be compressed if that was negotiated.
    pub(crate) fn new(is_compressed: bool) -> Self {
        let decoder = FrameDecoder::new(Role::Server, DecoderLimits::NONE).with_deflate(is_compressed);
        Self { decoder, control: Vec::new() }
    }

    /// Appends the payload in `input` to `payload` and answers control frames. Returns the number of bytes taken, and why
    /// decoding stopped. Must not be called after the end.
    pub(crate) fn decode(
        &mut self,
        input: &[u8],
        payload: &mut Vec<u8>,
        accepts_text: bool,
    ) -> (usize, DecodeStop) {
        let mut taken = 0;
        loop {
            let good = payload.len();
            let step = match self.decoder.decode(&input[taken..], payload) {
                Ok(step) => step,
                Err(fault) => {
                    payload.truncate(good);
                    return (input.len(), DecodeStop::End(PeerEnd::Fault(fault)));
                }
            };
            taken += step.taken;
            match step.event {
                None => return (taken, DecodeStop::InputUsedUp),
                Some(WebSocketEvent::More) => return (taken, DecodeStop::More),
                Some(WebSocketEvent::MessageStart(MessageKind::Text)) if !accepts_text => {
                    return (input.len(), DecodeStop::End(PeerEnd::Fault(TEXT_REFUSED)));
                }
                Some(WebSocketEvent::Ping(ping)) => self.answer_ping(ping.payload()),
                Some(WebSocketEvent::Close(frame)) => {
                    return (input.len(), DecodeStop::End(PeerEnd::Closed(frame)));
                }
                Some(
                    WebSocketEvent::MessageStart(_) | WebSocketEvent::MessageEnd | WebSocketEvent::Pong(_),
                ) => {}
            }
        }
    }

    fn answer_ping(&mut self, payload: &[u8]) {
        if self.control.len() >= MAX_WAITING_CONTROL {
            self.control = Vec::new();
        }
        encode::pong(&mut self.control, None, payload);
    }
}

/// The answer to a client's close frame.
pub(crate) fn close_answer(frame: Option<&CloseFrame>) -> Vec<u8> {
    let mut answer = Vec::new();
    match frame {
        Some(frame) => encode::close(&mut answer, None, frame.code, ""),
        None => encode::empty_close(&mut answer, None),
    }
    answer
}
