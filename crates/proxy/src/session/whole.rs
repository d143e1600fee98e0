//! The fast path of publishing: whole messages in the read buffer are validated in place, and copied once.

use amqp::frame::{FRAME_END, HEADER_LEN, OVERHEAD, header, max_body_payload};
use amqp::{Fault, FrameKind};

use super::ProxySession;
use super::channel::ChannelPhase;
use super::side::SidePlacement;
use super::validate::{
    Need, is_mandatory, is_publish, is_to_default, publish_need, validate_properties, validate_publish,
};

impl ProxySession {
    /// Takes the message that begins with a `basic.publish` on channel `number`, and the messages on the same channel
    /// that follow in `rest`, as long as they are complete and plain. Nearly all messages are plain: the channel is
    /// placed, and the body is one frame that fits the upstream. Returns the number of bytes of `rest` that were taken.
    /// Returns `None`, having taken nothing, if the message must be processed frame by frame.
    ///
    /// # Errors
    /// As [`validate_publish`], for the first message.
    pub(super) fn whole_messages(
        &mut self,
        number: u16,
        publish: &[u8],
        rest: &[u8],
    ) -> Result<Option<usize>, Fault> {
        let max_size = self.pool.config().max_message_size.unwrap_or(u64::MAX);
        let Some(channel) = self.channels.get_mut(number) else { return Ok(None) };
        if !matches!(channel.phase, ChannelPhase::Open(None)) {
            return Ok(None);
        }
        let side = if channel.is_own() {
            &mut channel.general
        } else if channel.in_line.is_empty()
            && channel.general.is_quiet()
            && let Some(publishing) = channel.publishing.as_deref_mut()
        {
            publishing
        } else {
            return Ok(None);
        };
        if side.is_deferred() {
            return Ok(None);
        }
        let SidePlacement::Placed(route) = &side.place else { return Ok(None) };
        validate_publish(publish)?;
        let fits = |frame_max: u32| max_body_payload(frame_max);
        let largest = fits(route.upstream.frame_max).min(fits(self.link.frame_max));
        let scan = Scan { channel: number.to_be_bytes(), largest, max_size };
        if publish.len() > largest || publish_need(publish) != Need::Any {
            return Ok(None);
        }
        let Some(mut end) = scan.content(rest, is_to_default(publish)) else { return Ok(None) };
        let (mut messages, mut mandatory) = (1, is_mandatory(publish));
        while end < SPAN_MAX
            && let Some((publish, more)) = scan.message(&rest[end..])
        {
            end += more;
            messages += 1;
            mandatory |= is_mandatory(publish);
        }
        let out = self.output.to(&route.upstream);
        let before = out.len();
        out.reserve(publish.len() + OVERHEAD + end);
        // A payload came in a frame, whose length field is a u32.
        out.extend_from_slice(&header(FrameKind::Method, route.channel, publish.len() as u32));
        out.extend_from_slice(publish);
        out.push(FRAME_END);
        let start = out.len();
        out.extend_from_slice(&rest[..end]);
        if route.channel != number {
            set_channel(&mut out[start..], route.channel);
        }
        if side.keep(&out[before..], messages) {
            self.unproven.push(number);
        }
        side.count_publishes(messages, mandatory);
        self.output.count_messages(messages);
        Ok(Some(end))
    }
}

/// Criteria for plain messages.
struct Scan {
    channel: [u8; 2],
    /// Maximum payload size in bytes.
    largest: usize,
    /// Maximum body size in bytes.
    max_size: u64,
}

impl Scan {
    /// The `basic.publish` and the length of the plain message at the start of `input`, if there is one.
    #[inline]
    fn message<'i>(&self, input: &'i [u8]) -> Option<(&'i [u8], usize)> {
        let publish = self.payload(input, FrameKind::Method)?;
        if !is_publish(publish) || validate_publish(publish).is_err() || publish_need(publish) != Need::Any {
            return None;
        }
        let start = publish.len() + OVERHEAD;
        Some((publish, start + self.content(&input[start..], is_to_default(publish))?))
    }

    /// The length of the plain content at the start of `input`, of a message that goes `to_default` exchange or not.
    #[inline]
    fn content(&self, input: &[u8], to_default: bool) -> Option<usize> {
        let header = self.payload(input, FrameKind::Header)?;
        let (fixed, properties) = header.split_first_chunk::<12>()?;
        let size = u64::from_be_bytes(*fixed.last_chunk()?);
        // The class id, and weight 0.
        let is_valid = fixed.starts_with(&[0, amqp::method::BASIC_CLASS as u8, 0, 0]);
        if !is_valid || size > self.max_size || validate_properties(properties, to_default) != Ok(Need::Any) {
            return None;
        }
        let end = header.len() + OVERHEAD;
        if size == 0 {
            return Some(end);
        }
        let body = self.payload(&input[end..], FrameKind::Body)?;
        (body.len() as u64 == size).then_some(end + body.len() + OVERHEAD)
    }

    /// The payload of the whole frame at the start of `input`, if it is of this kind and on the channel.
    #[inline]
    fn payload<'i>(&self, input: &'i [u8], kind: FrameKind) -> Option<&'i [u8]> {
        let (head, rest) = input.split_first_chunk::<HEADER_LEN>()?;
        let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        let is_it = head[0] == kind as u8 && [head[1], head[2]] == self.channel && length <= self.largest;
        let payload = rest.get(..length)?;
        (is_it && rest.get(length) == Some(&FRAME_END)).then_some(payload)
    }
}

/// Rewrites the channel number of whole frames.
#[inline]
fn set_channel(frames: &mut [u8], channel: u16) {
    let mut rest = frames;
    while let Some((head, behind)) = rest.split_first_chunk_mut::<HEADER_LEN>() {
        head[1..3].copy_from_slice(&channel.to_be_bytes());
        let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        rest = behind.get_mut(length + 1..).unwrap_or_default();
    }
}

/// Approximate maximum of bytes taken at once, so that the broker gets work early.
const SPAN_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use amqp::frame::{write_content_header, write_frame, write_method};
    use amqp::method::basic;
    use amqp::properties::NO_PROPERTIES;

    use super::*;

    const SCAN: Scan = Scan { channel: [0, 3], largest: 100, max_size: 90 };

    fn message(channel: u16, bodies: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        write_method(&mut out, channel, basic::Publish { routing_key: "q", ..Default::default() });
        let size: usize = bodies.iter().map(|body| body.len()).sum();
        write_content_header(&mut out, channel, size as u64, NO_PROPERTIES);
        for body in bodies {
            write_frame(&mut out, FrameKind::Body, channel, |out| out.extend_from_slice(body));
        }
        out
    }

    #[test]
    fn incomplete_messages_are_not_taken() {
        for bodies in [&[][..], &[b"body".as_slice()]] {
            let bytes = message(3, bodies);
            let more = [&bytes[..], b"more"].concat();
            assert_eq!(SCAN.message(&more).map(|(_, length)| length), Some(bytes.len()));
            for cut in 0..bytes.len() {
                assert_eq!(SCAN.message(&bytes[..cut]), None, "{cut} bytes");
            }
        }
    }

    #[test]
    fn messages_that_are_not_plain_are_left_to_frame_by_frame_parsing() {
        assert_eq!(SCAN.message(&message(4, &[b"another channel"])), None);
        assert_eq!(SCAN.message(&message(3, &[b"in two", b"frames"])), None);
        assert_eq!(SCAN.message(&message(3, &[&[0; 91]])), None, "more than max_size");
        assert_eq!(SCAN.message(&message(3, &[&[0; 101]])), None, "more than a frame");
        let mut wrong = message(3, &[b"body"]);
        *wrong.last_mut().unwrap() = 0;
        assert_eq!(SCAN.message(&wrong), None);
        let mut immediate = Vec::new();
        write_method(&mut immediate, 3, basic::Publish { immediate: true, ..Default::default() });
        immediate.extend(&message(3, &[])[20..]);
        assert_eq!(SCAN.message(&immediate), None);
    }

    #[test]
    fn every_frame_gets_the_new_number_and_nothing_else_changes() {
        let mut bytes = [message(3, &[b"one"]), message(3, &[])].concat();
        set_channel(&mut bytes, 700);
        assert_eq!(bytes, [message(700, &[b"one"]), message(700, &[])].concat());
    }
}
