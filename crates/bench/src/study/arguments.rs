//! The options that the command lines of studies have in common.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::Cell;
use super::expect::{Condition, check_all};
use crate::error::Error;
use crate::link::milliseconds;
use crate::study::systems::System;
use crate::usage::{check, seconds};

/// Options of every study.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonArguments {
    /// Rounds of every measurement
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// How long each measurement takes, in seconds
    #[arg(long, value_name = "SECONDS")]
    time: Option<f64>,
    /// Few and short measurements, to see that everything works; ends within a minute
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) outputs: OutputArguments,
    /// Fail unless this holds wherever it was measured, such as 'p99<5ms' or 'ratio(a/b)>3'; or in some cells only, as
    /// 'SCENARIO: p99<5ms', '@50: p99<60ms', 'SCENARIO@50: rate>10'; may be repeated
    #[arg(long, value_name = "CONDITION")]
    expect: Vec<String>,
}

/// The outputs of results besides the terminal.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OutputArguments {
    /// Write report.html (a page with tables and plots), results.json and results.csv into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Write everything as JSON to this file; - is the standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write medians and spread as CSV to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
}

/// A study's defaults for options that are not given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Defaults {
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) quick_rounds: usize,
    pub(crate) quick_seconds: f64,
}

/// The checked options of every study.
#[derive(Debug, Clone)]
pub(crate) struct Common {
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    pub(super) expectations: Vec<Condition>,
}

impl CommonArguments {
    /// Whether a duration was given.
    pub(crate) fn has_time(&self) -> bool {
        self.time.is_some()
    }

    /// Validates the options.
    pub(crate) fn check(&self, defaults: Defaults) -> Result<Common, Error> {
        let (rounds, time) = if self.quick {
            (defaults.quick_rounds, defaults.quick_seconds)
        } else {
            (defaults.rounds, defaults.seconds)
        };
        let rounds = self.rounds.unwrap_or(rounds);
        check(rounds > 0, "--rounds must be at least 1")?;
        let expectations = self.expect.iter().map(|text| text.parse()).collect::<Result<_, _>>();
        Ok(Common {
            rounds,
            time: seconds("--time", self.time.unwrap_or(time))?,
            expectations: expectations.map_err(Error::Expect)?,
        })
    }
}

impl Common {
    /// Checks that every expectation applies to cells and systems that will be measured.
    pub(super) fn check_cells(&self, cells: &[Cell], systems: &[System]) -> Result<(), Error> {
        let names: Vec<&str> = systems.iter().map(|system| system.name.as_str()).collect();
        let measured =
            |condition: &Condition| cells.iter().any(|cell| condition.selects(cell.scenario, cell.at));
        check_all(&self.expectations, measured, &names)
    }
}

/// Validates round trips given in milliseconds.
pub(crate) fn round_trips(given: &[f64]) -> Result<Vec<f64>, Error> {
    given.iter().try_for_each(|&time| milliseconds("--latency", time).map(drop))?;
    Ok(given.to_vec())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::usage::parse;

    pub(crate) const DEFAULTS: Defaults =
        Defaults { rounds: 3, seconds: 2.0, quick_rounds: 1, quick_seconds: 0.1 };

    pub(crate) fn common(arguments: &[&str]) -> Common {
        parse::<CommonArguments>(arguments).unwrap().check(DEFAULTS).unwrap()
    }

    #[test]
    fn quick_is_short_but_explicit_options_override_it() {
        let quick = common(&["--quick", "--rounds", "7"]);
        assert_eq!((quick.rounds, quick.time), (7, Duration::from_millis(100)));
        assert_eq!(common(&[]).rounds, 3);
    }

    #[test]
    fn invalid_arguments_are_usage_errors() {
        for arguments in [&["--rounds", "0"][..], &["--time=-1"], &["--expect", "x: speed>1"]] {
            assert!(
                parse::<CommonArguments>(arguments).unwrap().check(DEFAULTS).unwrap_err().is_usage(),
                "{arguments:?}"
            );
        }
        assert!(round_trips(&[-1.0]).unwrap_err().is_usage());
    }
}
