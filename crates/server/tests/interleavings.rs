//! Deliveries of several queues to one connection, in every possible interleaving (`make loom`).

use server::loom_models;

#[test]
fn capacity_that_comes_back_reaches_every_consumer_that_waits_for_it() {
    loom_models::outbox_capacity();
}

#[test]
fn credit_that_comes_back_reaches_every_consumer_that_waits_for_it() {
    loom_models::credit();
}
