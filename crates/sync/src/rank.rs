//! The order in which a thread takes locks.

macro_rules! ranks {
    ($($rank:ident,)*) => {
        /// The rank of a lock. A thread that holds a lock takes only locks of later ranks, and so at most one of each.
        /// ARCHITECTURE.md, "Lock order", says which locks they are.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "ARCHITECTURE.md describes each, and a test compares the two lists")]
        pub enum Rank {
            $($rank,)*
        }

        impl Rank {
            /// All ranks, by number.
            pub(crate) const ALL: &[Self] = &[$(Self::$rank,)*];

            /// Whether a thread that holds a lock of rank `held` may take one of rank `next`. It may hold several
            /// dead-letter turns: it waits for a second one only with dead letters of that queue that it got before the
            /// other thread began.
            #[cfg(any(debug_assertions, feature = "loom", feature = "lock-profile"))]
            pub(crate) fn may_follow(held: u8, next: u8) -> bool {
                held < next || held == next && next == Self::DeadLettersTurn as u8
            }
        }
    };
}

ranks! {
    DefinitionBook,
    RetainedTopics,
    DeadLettersTurn,
    Users,
    Policies,
    Committer,
    JournalRounds,
    MqttSessions,
    RetainedTrees,
    RetainedTree,
    VirtualHosts,
    Purges,
    TopologyOrQueue,
    StoredQueues,
    QueueEvents,
    QueueIndex,
    CatalogueChanges,
    JournalRecords,
    ChannelDeliveries,
    ConsumerQueue,
    PoolConnections,
    Upstream,
    UpstreamClient,
    ReplayBytes,
    IncompleteMessages,
    MultiplexedSubscriptions,
    MultiplexedQueue,
    SubscriberInbox,
    Leaf,
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_architecture_md_is_this_one() {
        let document = include_str!("../../../ARCHITECTURE.md");
        let section = document.split("\n## Lock order\n").nth(1).unwrap().split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let documented: Vec<&str> = rows.map(|(rank, _)| rank).collect();
        let ranks: Vec<String> = Rank::ALL.iter().map(|rank| format!("{rank:?}")).collect();
        assert_eq!(documented, ranks);
    }
}
