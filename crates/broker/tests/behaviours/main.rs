//! Behaviours that applications written for RabbitMQ rely on, and that brokers often get wrong.
//!
//! | behaviour | tests in |
//! |---|---|
//! | confirms: unroutable is acked, refused by a full queue is nacked, a deleted queue is no reason for a nack | `confirms` |
//! | deliveries are not repeated or lost by prefetch, priorities, cancelling | `consuming` |
//! | messages are counted, with rates | `counting` |
//! | requeue restores the position and marks as redelivered | `requeue_order` |
//! | a leaving client's consumers and deliveries are handled in one step | `leaving` |
//! | exclusive queues belong to a session and are deleted with it | `exclusive_queues` |
//! | declare, passive, redeclare, names, delete with conditions | `declaring` |
//! | bindings, auto-delete exchanges, cycles, duplicates, the default exchange | `bindings` |
//! | CC and BCC, alternate exchanges, headers, user-id, expiration | `routing` |
//! | length limits, which refuse or drop messages | `length_limits` |
//! | time to live, of messages and queues | `expiry` |
//! | dead letters, and their header | `dead_letters` |
//! | quorum queues count deliveries and limit them | `quorum_queues` |
//! | behaviour of RabbitMQ 4 that differs from 3.10 | `rabbitmq_4` |
//! | consistent hash exchanges | `consistent_hash` |
//! | persistent messages of durable queues survive a power failure | `durable_messages` |
//! | messages leave memory for the disk, and come back in their positions | `paging` |
//! | so do messages that consumers have returned | `paging_returned` |
//! | so do messages of many short queues | `paging_many` |
//! | operators' tools read and change definitions | `managing` |
//! | the firehose reports publishes and deliveries | `firehose` |
//! | many threads at once | `many_threads` |

mod bindings;
mod confirms;
mod consistent_hash;
mod consuming;
mod counting;
mod dead_letters;
mod declaring;
mod disk_world;
mod durable_messages;
mod exclusive_queues;
mod expiry;
mod firehose;
mod flow;
mod leaving;
mod length_limits;
mod managing;
mod many_threads;
mod paging;
mod paging_many;
mod paging_returned;
mod paging_under_load;
mod permission_races;
mod quorum_queues;
mod rabbitmq_4;
mod repeated_arguments;
mod requeue_order;
mod routing;
mod world;
