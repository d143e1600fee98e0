//! The journal on a disk that fails on purpose, against a model: after every crash exactly a prefix of the log is
//! found, and it has everything that was ever reported to be on disk.
//!
//! `LEVERET_CRASH_SEEDS=10000` runs more seeds, `LEVERET_CRASH_FIRST=n` begins at another.

mod journal_model;

use journal_model::Run;

#[test]
fn nothing_confirmed_is_missing_and_nothing_settled_is_back() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("LEVERET_CRASH_FIRST").unwrap_or(0);
    let seeds = number("LEVERET_CRASH_SEEDS").unwrap_or(300);
    let (mut confirmed, mut crashes) = (0, 0);
    for seed in first..first + seeds {
        let run = Run::new(seed);
        match run.play() {
            Ok(outcome) => {
                confirmed += outcome.confirmed;
                crashes += outcome.crashes;
            }
            Err(broken) => panic!("seed {seed}: {broken}"),
        }
    }
    println!("{seeds} seeds, {crashes} crashes, {confirmed} messages confirmed before one");
    assert!(confirmed > seeds && crashes > seeds);
}

#[test]
fn the_test_notices_a_disk_that_does_not_sync() {
    let broken = (0..50).filter(|&seed| Run::new(seed).with_ignored_syncs().play().is_err()).count();
    assert!(broken > 40, "only {broken} of 50 runs noticed");
}
