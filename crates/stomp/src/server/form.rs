//! MESSAGE frames, and the identifiers by which they are acknowledged.

use std::fmt::{self, Display};
use std::sync::Arc;

use crate::encode::FrameWriter;
use crate::version::StompVersion;

/// The form in which the messages of one subscription are written.
#[derive(Debug, Clone)]
pub struct MessageForm {
    version: StompVersion,
    session: Arc<str>,
    tag: Box<str>,
    /// Whether messages have an `ack` header (1.2) by which they are acknowledged.
    reports_ack: bool,
}

impl MessageForm {
    pub(super) fn new(version: StompVersion, session: Arc<str>, tag: Box<str>, is_acked: bool) -> Self {
        Self { version, session, tag, reports_ack: is_acked && version == StompVersion::V12 }
    }

    /// The form of replies to the `/temp-queue` of this name, as if the client had subscribed to it with its path as the id.
    pub fn of_replies(version: StompVersion, session: Arc<str>, name: &str) -> Self {
        Self::new(version, session, format!("{TAG_OF_ID}{TEMP_QUEUE}{name}").into(), false)
    }

    /// The subscription's consumer tag, formed as in RabbitMQ: `T_` and its id, or `Q_` and its destination.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The id of the subscription; `None` if it was identified by its destination.
    pub fn id(&self) -> Option<&str> {
        self.tag.strip_prefix(TAG_OF_ID)
    }

    /// Begins a MESSAGE frame and writes all headers that do not come from the message itself.
    pub fn begin<'o>(
        &self,
        out: &'o mut Vec<u8>,
        destination: impl Display,
        delivery_tag: u64,
        redelivered: bool,
    ) -> FrameWriter<'o> {
        let mut frame = FrameWriter::new(out, self.version, "MESSAGE");
        if let Some(id) = self.id() {
            frame.header("subscription", id);
        }
        let id = MessageId { form: self, delivery_tag };
        frame.display("destination", destination).display("message-id", &id);
        frame.header("redelivered", if redelivered { "true" } else { "false" });
        if self.reports_ack {
            frame.display("ack", id);
        }
        frame
    }
}

struct MessageId<'f> {
    form: &'f MessageForm,
    delivery_tag: u64,
}

impl Display for MessageId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MessageForm { tag, session, .. } = self.form;
        write!(f, "{tag}{SEPARATOR}{session}{SEPARATOR}{}", self.delivery_tag)
    }
}

/// Splits the identifier of a message of this session into its subscription's tag and its delivery tag.
pub(super) fn parse_message_id<'i>(id: &'i str, session: &str) -> Option<(&'i str, u64)> {
    // Parsed from the end, since the tag is chosen by the client and may contain anything.
    let (rest, delivery_tag) = id.rsplit_once(SEPARATOR)?;
    let (tag, of_session) = rest.rsplit_once(SEPARATOR)?;
    // 0 would mean all outstanding messages.
    let delivery_tag = delivery_tag.parse().ok().filter(|tag| *tag != 0)?;
    (of_session == session).then_some((tag, delivery_tag))
}

/// Prefix of the tag of a subscription with an id.
pub(super) const TAG_OF_ID: &str = "T_";
/// Prefix of the tag of a subscription that is identified by its destination.
pub(super) const TAG_OF_DESTINATION: &str = "Q_";
/// Prefix that ids of subscriptions must not have, as it is reserved for replies.
pub(super) const TEMP_QUEUE: &str = "/temp-queue/";
const SEPARATOR: &str = "@@";
