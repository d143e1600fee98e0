//! A consumer's messages that are not acknowledged upstream, so that one method can acknowledge many.

use std::collections::VecDeque;

use amqp::method::basic;

/// The delivery tags of a consumer's messages until they are acknowledged upstream. The prefetch bounds them.
#[derive(Debug, Default)]
pub(super) struct UnackedTags {
    /// In ascending order, each with whether its acknowledgement is due.
    tags: VecDeque<(u64, bool)>,
    /// Number of due acknowledgements.
    due: usize,
}

impl UnackedTags {
    /// Called for each message that arrives.
    pub(super) fn delivered(&mut self, delivery_tag: u64) {
        self.tags.push_back((delivery_tag, false));
    }

    /// Makes a message's acknowledgement due.
    pub(super) fn acknowledge(&mut self, delivery_tag: u64) {
        let found = self.tags.binary_search_by_key(&delivery_tag, |(tag, _)| *tag);
        if let Some((_, is_due)) = found.ok().and_then(|at| self.tags.get_mut(at)) {
            self.due += usize::from(!std::mem::replace(is_due, true));
        }
    }

    /// Passes the due acknowledgements to `send`: one `multiple` for all before the first message that is not due, and
    /// one each for those after it. So one unacknowledged message does not fill the window.
    pub(super) fn take_due(&mut self, mut send: impl FnMut(basic::Ack)) {
        let mut last = None;
        while let Some((delivery_tag, _)) = self.tags.pop_front_if(|(_, is_due)| *is_due) {
            last = Some(delivery_tag);
            self.due -= 1;
        }
        if let Some(delivery_tag) = last {
            send(basic::Ack { delivery_tag, multiple: true });
        }
        if self.due > 0 {
            self.due = 0;
            self.tags.retain(|(delivery_tag, is_due)| {
                if *is_due {
                    send(basic::Ack { delivery_tag: *delivery_tag, multiple: false });
                }
                !is_due
            });
        }
        if self.tags.is_empty() {
            // An idle client holds no buffer.
            self.tags = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The methods that are due, as text.
    fn due(unacked: &mut UnackedTags) -> Vec<String> {
        let mut all = Vec::new();
        unacked.take_due(|basic::Ack { delivery_tag, multiple }| {
            all.push(format!("{}{delivery_tag}", if multiple { "up to " } else { "" }));
        });
        all
    }

    #[test]
    fn messages_acked_in_order_take_one_method_and_no_message_is_acked_twice() {
        let mut unacked = UnackedTags::default();
        // A tag may be missing because it went to another connection of the pool.
        [1, 2, 3, 7, 8, 9].into_iter().for_each(|tag| unacked.delivered(tag));
        assert_eq!(due(&mut unacked), [""; 0]);
        [2, 1, 8, 8].into_iter().for_each(|tag| unacked.acknowledge(tag));
        assert_eq!(due(&mut unacked), ["up to 2", "8"]);
        [3, 7, 8, 5].into_iter().for_each(|tag| unacked.acknowledge(tag));
        assert_eq!(due(&mut unacked), ["up to 7"]);
        unacked.acknowledge(9);
        assert_eq!((due(&mut unacked), due(&mut unacked)), (vec!["up to 9".to_owned()], Vec::new()));
    }
}
