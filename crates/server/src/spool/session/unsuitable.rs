//! Closes the channel of a publish that can be neither spooled nor published directly.

use std::time::Instant;

use amqp::frame::{self, Frame};
use amqp::method::channel;
use amqp::{Fault, Method, ReplyCode};

use super::SpoolingSession;
use super::publishing::PUBLISH;

impl SpoolingSession {
    /// Closes a channel with 406 PRECONDITION_FAILED because of a publish. The rest of the publish is discarded.
    pub(super) fn refuse(
        &mut self,
        number: u16,
        exchange: &str,
        what: &str,
        now: Instant,
    ) -> Result<usize, Fault> {
        let vhost = self.queue.vhost();
        let text = format!("{what} to exchange '{exchange}' in vhost '{vhost}' cannot be spooled");
        let fault = Fault::new(ReplyCode::PreconditionFailed, text).caused_by(PUBLISH);
        let (reply_text, (class_id, method_id)) = (fault.reply_text(), fault.method);
        let close =
            channel::Close { reply_code: fault.code.code(), reply_text: &reply_text, class_id, method_id };
        self.contents.send(&self.outbox, number, close);
        self.channels.remove(number);
        self.release_incomplete();
        self.refused.add(number);
        self.continue_refusing(now).map(|()| 0)
    }

    /// Sends one of the spool's own methods to the upstream's session.
    pub(super) fn send_upstream<'a>(
        &mut self,
        number: u16,
        method: impl Into<Method<'a>>,
        now: Instant,
    ) -> Result<usize, Fault> {
        let mut bytes = Vec::new();
        frame::write_method(&mut bytes, number, method);
        match Frame::parse(&bytes, 0) {
            Ok(Some(frame)) => self.inner.handle_frame(frame, &[], now).map(|_| 0),
            _ => Ok(0),
        }
    }

    /// Continues closing refused channels, after answers of the upstream's session.
    pub(super) fn continue_refusing(&mut self, now: Instant) -> Result<(), Fault> {
        while let Some(number) = self.refused.next_to_close(&self.contents) {
            let (reply_code, (class_id, method_id)) = (ReplyCode::Success.code(), PUBLISH);
            let close = channel::Close { reply_code, reply_text: "", class_id, method_id };
            self.send_upstream(number, close, now)?;
        }
        while let Some(number) = self.refused.next_to_confirm() {
            self.send_upstream(number, channel::CloseOk {}, now)?;
        }
        self.refused.forget_confirmed();
        Ok(())
    }
}
