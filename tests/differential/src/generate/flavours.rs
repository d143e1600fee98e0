//! What a program is about, beyond what all are about: few things at once, so that each is met in depth.

use crate::rng::Rng;

/// Which parts of the brokers a program goes to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flavours {
    /// Queues and exchanges that have policies.
    pub(super) policies: bool,
    /// Users who may not do everything.
    pub(super) users: bool,
    /// Direct reply-to.
    pub(super) replies: bool,
    /// A consistent hash exchange.
    pub(super) hash: bool,
    /// Queues of type quorum.
    pub(super) quorum: bool,
    /// Chains of queues that dead-letter to each other.
    pub(super) letters: bool,
    /// Times to live that end while the program waits.
    pub(super) timed: bool,
}

impl Flavours {
    pub(super) fn choose(rng: &mut Rng, timed: bool) -> Self {
        let plain = rng.chance(30);
        let mut any = |percent| rng.chance(percent) && !plain;
        Self {
            policies: any(25),
            users: any(25),
            replies: any(25),
            hash: any(12),
            // RabbitMQ takes its time over them, and looks every five seconds for what is due.
            quorum: any(6) && !timed,
            letters: any(25),
            timed,
        }
    }
}
