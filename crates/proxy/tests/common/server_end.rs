//! The server's part of a client's connection, as small as it can be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use amqp::frame::write_method;
use amqp::method::connection;
use amqp::{Fault, Frame, FrameKind, Method};
use proxy::{Export, ProxySession, SessionState};
use transport::{Intent, Outbox, Protocol};

/// A minimal version of the server crate: a session behind a stream.
pub(super) struct ServerEnd {
    pub(super) session: ProxySession,
    pub(super) outbox: Arc<Outbox>,
    pub(super) frame_max: u32,
    pub(super) intent: Intent,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) leaving: Arc<AtomicBool>,
    pub(super) exported: Option<SessionState>,
}

impl ServerEnd {
    /// Takes the next step to another process, if it is to leave.
    fn leave(&mut self, now: Instant) {
        if self.intent == Intent::Finish || !self.leaving.load(Ordering::SeqCst) {
            return;
        }
        match self.session.export(now) {
            Export::Later => {}
            Export::Leaving => self.intent = Intent::Pause,
            Export::Done(state) => {
                self.exported = Some(*state);
                self.intent = Intent::HandOver;
            }
            Export::Impossible(why) => self.validate(Err(Fault::new(amqp::ReplyCode::ConnectionForced, why))),
        }
    }

    fn validate(&mut self, result: Result<(), Fault>) {
        let Err(fault) = result else { return };
        let close = connection::Close {
            reply_code: fault.code.code(),
            reply_text: &fault.reply_text(),
            class_id: fault.method.0,
            method_id: fault.method.1,
        };
        self.outbox.append(|buf| write_method(buf.tail(), 0, close));
        self.intent = Intent::Finish;
    }

    fn check_capacity(&mut self) {
        if self.intent != Intent::Finish {
            self.intent = if self.session.has_capacity() { Intent::Run } else { Intent::Pause };
        }
    }
}

impl Protocol for ServerEnd {
    fn handle_input(&mut self, input: &[u8], now: Instant) -> usize {
        let mut taken = 0;
        while let (Intent::Run | Intent::Pause, Ok(Some(frame))) =
            (self.intent, Frame::parse(&input[taken..], self.frame_max))
        {
            taken += frame.wire_len();
            if frame.channel == 0
                && let Ok(Method::ConnectionUpdateSecret(update)) = Method::decode(frame.payload)
            {
                if self.session.update_secret(update.new_secret).unwrap() {
                    self.outbox.append(|buf| write_method(buf.tail(), 0, connection::UpdateSecretOk {}));
                }
                continue;
            }
            if frame.channel == 0 && frame.kind == FrameKind::Method {
                if self.session.close(now) {
                    self.outbox.append(|buf| write_method(buf.tail(), 0, connection::CloseOk {}));
                    self.intent = Intent::Finish;
                }
                continue;
            }
            let result = self.session.handle_frame(frame, &input[taken..], now);
            self.validate(result.map(|more| taken += more));
        }
        self.session.flush(now);
        self.check_capacity();
        self.leave(now);
        taken
    }

    fn handle_eof(&mut self) {
        self.intent = Intent::Finish;
    }

    fn handle_nudge(&mut self, now: Instant) {
        let result = self.session.handle_nudge(now);
        self.validate(result);
        if self.intent != Intent::Finish && self.session.is_closed() {
            self.outbox.append(|buf| write_method(buf.tail(), 0, connection::CloseOk {}));
            self.intent = Intent::Finish;
        }
        if self.intent != Intent::Finish && self.draining.load(Ordering::SeqCst) && self.session.is_settled()
        {
            self.validate(Err(Fault::new(amqp::ReplyCode::ConnectionForced, "shutdown")));
        }
        self.check_capacity();
        self.leave(now);
    }

    fn handle_capacity(&mut self) {
        self.session.handle_capacity();
    }

    fn handle_written(&mut self, _now: Instant) {}

    fn handle_deadline(&mut self, _now: Instant) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn intent(&self) -> Intent {
        self.intent
    }
}
