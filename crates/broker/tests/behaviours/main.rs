//! What applications written for RabbitMQ rely on, and brokers often get wrong.
//!
//! | behaviour | tests in |
//! |---|---|
//! | confirms: unroutable is acked, refused by a full queue is nacked, a deleted queue is no reason to nack | `confirms` |
//! | deliveries are not repeated or lost by prefetch, priorities, cancelling | `consuming` |
//! | what goes through is counted, with rates | `counting` |
//! | requeue restores the place and marks as redelivered | `requeue_order` |
//! | exclusive queues belong to a session and go with it | `exclusive_queues` |
//! | declare, passive, redeclare, names, delete with conditions | `declaring` |
//! | bindings, exchanges that go with them, cycles, duplicates, the default exchange | `bindings` |
//! | CC and BCC, alternate exchanges, headers, user-id, expiration | `routing` |
//! | length limits and what they refuse or drop | `length_limits` |
//! | time to live, of messages and queues | `expiry` |
//! | dead letters, and their header | `dead_letters` |
//! | quorum queues count deliveries and limit them | `quorum_queues` |
//! | consistent hash exchanges | `consistent_hash` |
//! | persistent messages of durable queues outlive a loss of power | `durable_messages` |
//! | messages leave memory for the disk, and come back in their place | `paging` |
//! | what operators' tools read and change | `managing` |
//! | the firehose tells of what is published and delivered | `firehose` |
//! | many threads at once | `many_threads` |

mod bindings;
mod confirms;
mod consistent_hash;
mod consuming;
mod counting;
mod dead_letters;
mod declaring;
mod durable_messages;
mod exclusive_queues;
mod expiry;
mod firehose;
mod kept;
mod length_limits;
mod managing;
mod many_threads;
mod paging;
mod paging_under_load;
mod permission_races;
mod quorum_queues;
mod repeated_arguments;
mod requeue_order;
mod routing;
mod world;
