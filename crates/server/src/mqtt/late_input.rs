//! The end of a connection whose session another one has claimed.

/// Most reads of such a connection: more than fill the receive buffer of a socket, and an end to a client that keeps sending.
const MAX_READS: u8 = 64;

/// The input of a connection that is to close because its client has connected again. All that the client sent before that has
/// come, but may not have been read: an acknowledgement that is lost has its message delivered again, and without its
/// DISCONNECT the client's will is published.
#[derive(Debug, Default)]
pub(super) struct LateInput {
    /// Reads since the claim.
    reads: u8,
    /// Whether nothing has been read since the last of them began.
    is_drained: bool,
}

impl LateInput {
    /// Input was read.
    pub(super) fn received(&mut self) {
        self.is_drained = false;
    }

    /// Whether the connection goes on until the next nudge, since the socket may have more. Between two nudges of its own a
    /// connection reads once, unless it pauses.
    pub(super) fn read_on(&mut self) -> bool {
        let reads_on = !self.is_drained && self.reads < MAX_READS;
        self.reads += u8::from(reads_on);
        self.is_drained = true;
        reads_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_read_until_it_has_no_more() {
        let mut input = LateInput::default();
        assert!(input.read_on());
        input.received();
        assert!(input.read_on() && !input.read_on());
    }

    #[test]
    fn a_client_that_keeps_sending_does_not_keep_its_connection() {
        let mut input = LateInput::default();
        let reads = (0..1000).take_while(|_| {
            input.received();
            input.read_on()
        });
        assert_eq!(reads.count(), usize::from(MAX_READS));
    }
}
