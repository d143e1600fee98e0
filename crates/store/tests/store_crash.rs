//! The whole store on a disk that fails on purpose, against a model: journal, queues' own segments, continuous
//! retirement, and definitions. After every crash the store has exactly the state of a prefix of the log, and that has
//! everything that was ever reported to be on disk.
//!
//! `LEVERET_CRASH_SEEDS=10000` runs more seeds, `LEVERET_CRASH_FIRST=n` begins at another.

mod store_model;

use store_model::{Outcome, Run};

#[test]
fn nothing_confirmed_is_missing_and_nothing_settled_is_back() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("LEVERET_CRASH_FIRST").unwrap_or(0);
    let seeds = number("LEVERET_CRASH_SEEDS").unwrap_or(200);
    let mut sum = Outcome::default();
    for seed in first..first + seeds {
        match Run::new(seed).play() {
            Ok(outcome) => sum.add(&outcome),
            Err(broken) => panic!("seed {seed}: {broken}"),
        }
    }
    println!("{seeds} seeds, {sum:?}");
    assert!(sum.confirmed > seeds && sum.crashes > seeds && sum.retired > seeds, "{sum:?}");
}

#[test]
fn the_test_notices_a_disk_that_does_not_sync() {
    let broken = (0..30).filter(|&seed| Run::new(seed).with_ignored_syncs().play().is_err()).count();
    assert!(broken > 20, "only {broken} of 30 runs noticed");
}
