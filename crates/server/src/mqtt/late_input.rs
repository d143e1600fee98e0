//! The remaining input of a connection whose session another connection has claimed.

/// Most reads of such a connection: more than the receive buffer of a socket takes, but a bound for a client that keeps
/// sending.
const MAX_READS: u8 = 64;

/// Bounds the reading of a connection that is to close because its client has connected again. All that the client sent
/// before is in the socket, but may be unread: without its acknowledgements messages would be redelivered, and without
/// its DISCONNECT its will would be published.
#[derive(Debug, Default)]
pub(super) struct LateInput {
    /// Reads since the claim.
    reads: u8,
    /// Whether nothing has been received since the last of these reads began.
    is_drained: bool,
}

impl LateInput {
    /// Called when input was read.
    pub(super) fn received(&mut self) {
        self.is_drained = false;
    }

    /// Whether the connection stays open until the next nudge, since the socket may have more. Between two of its own
    /// nudges a connection reads once, unless reading is paused.
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
    fn a_socket_is_read_until_it_is_empty() {
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
