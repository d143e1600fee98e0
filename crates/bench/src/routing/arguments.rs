//! The command line of `bench routing`, and the checked plan that it becomes.

use std::fmt;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::page;
use crate::error::Error;
use crate::metric::grouped;
use crate::study::arguments::OutputArguments;
use crate::study::expect::{Condition, conditions};
use crate::study::systems::{SystemArguments, Systems};
use crate::usage::{check, seconds};

/// Create, use and delete growing numbers of queues and bindings; find out whether their costs grow with them
#[derive(Debug, Clone, Args)]
pub(crate) struct RoutingArguments {
    #[command(flatten)]
    pub(crate) systems: SystemArguments,
    /// Study to run; may be repeated
    #[arg(long, value_enum, value_name = "STUDY", default_value = "scaling")]
    pub(crate) study: Vec<RoutingStudy>,
    /// Exchange types; may be repeated [default: all]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) exchange: Vec<StudiedExchange>,
    /// Numbers of queues and bindings grow in powers of this base
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) base: u64,
    /// Most queues, as an exponent of the base [default: 15]
    #[arg(long, value_name = "EXPONENT")]
    pub(crate) queues: Option<u32>,
    /// Most bindings of a queue, as an exponent of the base [default: 11]
    #[arg(long, value_name = "EXPONENT")]
    pub(crate) bindings: Option<u32>,
    /// Most bindings in all, as an exponent of the base [default: the larger of the other two]
    #[arg(long, value_name = "EXPONENT")]
    pub(crate) combined: Option<u32>,
    /// Messages published at each number of queues [default: 100]
    #[arg(long, value_name = "N")]
    pub(crate) messages: Option<u64>,
    /// Publish fewer messages, but at least 10, where this many copies would come into queues
    #[arg(long, value_name = "N", default_value_t = 4_000_000)]
    pub(crate) copies: u64,
    /// Send requests and messages ahead of their answers, instead of one at a time
    #[arg(long)]
    pub(crate) pipelined: bool,
    /// Leave out measurements of a level that would probably take longer than this, in seconds [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) limit_seconds: Option<f64>,
    /// Bindings of the queue that `--study deletion` deletes; queues of the connection that `--study exclusive` closes
    /// [default: 100000]
    #[arg(long, value_name = "N")]
    pub(crate) bulk: Option<u64>,
    /// Few queues and bindings, to see that everything works
    #[arg(long)]
    pub(crate) quick: bool,
    /// Fail unless this holds wherever it was measured, such as 'growth<1.15'; or somewhere only, as 'topic create:
    /// growth<1.15' or 'direct publish, 4 bindings per queue@128: ratio(a/b, mean)<0.2'; may be repeated
    #[arg(long, value_name = "CONDITION")]
    pub(crate) expect: Vec<String>,
    #[command(flatten)]
    pub(crate) outputs: OutputArguments,
}

/// A study of routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RoutingStudy {
    /// Costs at growing numbers of queues and bindings
    Scaling,
    /// How long confirms wait while a queue with very many bindings is deleted
    Deletion,
    /// How long very many exclusive queues outlive their connection
    Exclusive,
}

/// The type of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StudiedExchange {
    /// Random keys
    Direct,
    /// Random keys of three words; a quarter of the patterns has a `*`, another a `#`
    Topic,
    /// Two random headers, both required
    Headers,
    /// Random keys, which the exchange ignores
    Fanout,
}

impl StudiedExchange {
    /// The type's name in AMQP.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Topic => "topic",
            Self::Headers => "headers",
            Self::Fanout => "fanout",
        }
    }
}

/// A checked command line.
#[derive(Debug, Clone)]
pub(crate) struct RoutingPlan {
    /// The systems, in the order given.
    pub(crate) systems: Systems,
    /// The studies to run.
    pub(crate) studies: Vec<RoutingStudy>,
    /// Exchange types, in order.
    pub(crate) kinds: Vec<StudiedExchange>,
    /// Numbers of bindings and queues.
    pub(crate) levels: Vec<BindingLevel>,
    /// Settings common to all points.
    pub(crate) settings: RoutingSettings,
    /// Conditions on the result.
    pub(super) expectations: Vec<Condition>,
}

/// A number of bindings for each queue, and the numbers of queues to measure with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BindingLevel {
    /// Exponent of the base that gives `bindings`.
    pub(crate) exponent: u32,
    /// Bindings of each queue.
    pub(crate) bindings: u64,
    /// Numbers of queues, ascending.
    pub(crate) queues: Vec<u64>,
}

/// Settings common to all points.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct RoutingSettings {
    /// The base of the powers.
    pub(crate) base: u64,
    /// Most messages at each point.
    pub(crate) messages: u64,
    /// The approximate limit on copies of these messages in queues.
    pub(crate) copies: u64,
    /// Whether requests were sent ahead of answers.
    pub(crate) pipelined: bool,
    /// Points that would take longer than this, in seconds, are left out.
    pub(crate) limit_seconds: f64,
    /// Number of bindings or queues in the deletion and exclusive studies.
    pub(crate) bulk: u64,
}

/// Describes the settings for reports.
impl fmt::Display for RoutingSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.pipelined { "pipelined" } else { "one operation at a time" };
        write!(f, "powers of {}; {} messages a point; {mode}; ", self.base, grouped(self.messages as f64))?;
        write!(f, "what would probably take longer than {} s is left out", self.limit_seconds)
    }
}

impl RoutingSettings {
    /// The number of messages to publish when each goes to `queues` queues.
    pub(super) fn messages_for(&self, queues: u64) -> u64 {
        (self.copies / queues.max(1)).max(MIN_MESSAGES).min(self.messages)
    }
}

impl RoutingArguments {
    /// Checks the arguments against each other.
    ///
    /// # Errors
    /// A description of the problem, for the command line.
    pub(crate) fn plan(&self) -> Result<RoutingPlan, Error> {
        let or = |given: Option<u64>, full, quick| given.unwrap_or(if self.quick { quick } else { full });
        let exponent = |given: Option<u32>, full, quick| or(given.map(u64::from), full, quick) as u32;
        let (queues, bindings) = (exponent(self.queues, 15, 6), exponent(self.bindings, 11, 4));
        let combined = self.combined.unwrap_or(queues.max(bindings));
        let limit = self.limit_seconds.unwrap_or(if self.quick { 1.0 } else { 10.0 });
        let settings = RoutingSettings {
            base: self.base,
            messages: or(self.messages, 100, 20),
            copies: self.copies,
            pipelined: self.pipelined,
            limit_seconds: seconds("--limit-seconds", limit)?.as_secs_f64(),
            bulk: or(self.bulk, 100_000, 2_000),
        };
        check(self.base >= 2, "--base must be at least 2")?;
        check(settings.messages > 0, "--messages must be at least 1")?;
        check(settings.bulk > 0, "--bulk must be at least 1")?;
        let largest = self.base.checked_pow(combined.max(queues).max(bindings));
        check(
            largest.is_some_and(|largest| largest <= MAX_OBJECTS),
            "--queues, --bindings or --combined: more than 100 million",
        )?;
        let mut kinds = self.exchange.clone();
        if kinds.is_empty() {
            kinds = StudiedExchange::value_variants().to_vec();
        }
        let mut studies = self.study.clone();
        studies.dedup();
        let (systems, levels) = (self.systems.systems()?, levels(self.base, queues, bindings, combined));
        let names: Vec<&str> = systems.iter().map(|system| system.name.as_str()).collect();
        let scenarios = page::scenarios(&kinds, &levels);
        let measured = |condition: &Condition| {
            studies.contains(&RoutingStudy::Scaling)
                && scenarios.iter().any(|name| condition.selects_some(name))
        };
        let expectations = conditions(&self.expect, measured, &names)?;
        Ok(RoutingPlan { systems, studies, kinds, levels, settings, expectations })
    }
}

/// All levels whose first point is within `combined`; the arguments are exponents of `base`, whose powers fit 64 bits.
fn levels(base: u64, queues: u32, bindings: u32, combined: u32) -> Vec<BindingLevel> {
    (0..=bindings.min(combined))
        .map(|exponent| BindingLevel {
            exponent,
            bindings: base.pow(exponent),
            queues: (0..=queues.min(combined - exponent)).map(|e| base.pow(e)).collect(),
        })
        .collect()
}

impl RoutingPlan {
    /// The longest that a point should take.
    pub(super) fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.settings.limit_seconds)
    }
}

/// With fewer messages, one late wake-up would dominate the result.
const MIN_MESSAGES: u64 = 10;
/// Most queues or bindings; more than any machine can handle for now.
const MAX_OBJECTS: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::parse;

    fn plan(arguments: &[&str]) -> Result<RoutingPlan, Error> {
        parse::<RoutingArguments>(arguments).unwrap().plan()
    }

    #[test]
    fn by_default_the_exponents_of_queues_and_bindings_share_the_larger_one() {
        let levels = plan(&[]).unwrap().levels;
        assert_eq!(levels.len(), 12);
        for level in &levels {
            assert_eq!(level.bindings, 1 << level.exponent);
            assert_eq!(level.queues.len() as u32, 16 - level.exponent);
            assert_eq!(level.queues.last().unwrap() * level.bindings, 1 << 15);
        }
    }

    #[test]
    fn combined_limits_queues_times_bindings_and_nothing_else() {
        let levels = levels(4, 3, 5, 6);
        let counts: Vec<_> = levels.iter().map(|level| level.queues.len()).collect();
        assert_eq!(counts, [4, 4, 4, 4, 3, 2], "up to 4^3 queues, and 4^6 bindings in all");
        assert_eq!(super::levels(2, 15, 11, 0), [BindingLevel { exponent: 0, bindings: 1, queues: vec![1] }]);
    }

    #[test]
    fn messages_are_limited_by_the_copies_they_make() {
        let mut settings = plan(&["--messages", "1000"]).unwrap().settings;
        settings.copies = 100_000;
        assert_eq!([1, 100, 500, 1 << 20].map(|queues| settings.messages_for(queues)), [1000, 1000, 200, 10]);
        settings.messages = 3;
        assert_eq!(settings.messages_for(1 << 20), 3);
    }

    #[test]
    fn quick_is_small_but_explicit_options_override_it() {
        let plan =
            plan(&["--quick", "--messages", "7", "--exchange", "topic", "--study", "exclusive"]).unwrap();
        assert_eq!((plan.levels.len(), plan.settings.messages), (5, 7));
        assert_eq!((plan.kinds, plan.studies), (vec![StudiedExchange::Topic], vec![RoutingStudy::Exclusive]));
    }

    #[test]
    fn invalid_arguments_are_usage_errors() {
        for arguments in [
            &["--base", "1"][..],
            &["--messages", "0"],
            &["--bulk", "0"],
            &["--combined", "64"],
            &["--limit-seconds=-1"],
            &["--expect", "direct create, 3 bindings per queue: mean<1s"],
            &["--exchange", "direct", "--expect", "topic create: growth<1"],
            &["--study", "exclusive", "--expect", "growth<1"],
        ] {
            assert!(plan(arguments).unwrap_err().is_usage(), "{arguments:?}");
        }
    }
}
