//! `bench all`: all studies, one after the other, in one report.

use std::io::{self, IsTerminal};
use std::time::Instant;

use clap::{Args, ValueEnum};

use crate::churn::ChurnArguments;
use crate::error::Error;
use crate::proxy::ProxyArguments;
use crate::publish::PublishArguments;
use crate::routing::RoutingArguments;
use crate::strategies::StrategiesArguments;
use crate::stream::StreamArguments;
use crate::study::Watch;
use crate::study::arguments::OutputArguments;
use crate::study::results::{Results, write_several};
use crate::study::systems::{System, SystemArguments, Systems};
use crate::usage::{check, parse};
use crate::{Job, Outcome, Study};

/// Run all studies, and write one report of them all
///
/// The first system is the broker of the proxy study. The study of WebSocket connections takes part if
/// `--websocket` names a system.
#[derive(Debug, Clone, Args)]
pub(crate) struct AllArguments {
    #[command(flatten)]
    systems: SystemArguments,
    /// A system for the study of WebSocket connections, as its --system; may be repeated
    #[arg(long = "websocket", value_name = "NAME=PROTOCOL+ws://HOST:PORT/PATH[,pid=N]")]
    websockets: Vec<String>,
    /// The systems to use as brokers of the proxy study, the others beside the first [default: the first system]
    #[arg(long = "broker", value_name = "NAME,...", value_delimiter = ',')]
    brokers: Vec<String>,
    /// Only these studies; may be repeated
    #[arg(long, value_enum, value_name = "STUDY,...", value_delimiter = ',')]
    only: Vec<Part>,
    /// Rounds of every measurement [default: as each study has it]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Few and short measurements, to see that everything works; each study ends within a minute
    #[arg(long)]
    quick: bool,
    /// Options of one study, as on its own command line, such as 'strategies: --rounds 3 --workers 5,50'; may be repeated
    #[arg(long = "set", value_name = "STUDY: OPTION...")]
    settings: Vec<String>,
    /// Fail unless this holds in a study, such as 'stream: ratio(broker/rabbitmq)>5' or 'publish: async@3: rate>10k'; may
    /// be repeated
    #[arg(long, value_name = "STUDY: CONDITION")]
    expect: Vec<String>,
    #[command(flatten)]
    outputs: OutputArguments,
}

/// A study that can take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Publish,
    Proxy,
    Strategies,
    Stream,
    Routing,
    Churn,
    Websockets,
}

/// The results of the studies, and the first failure; the other studies run nevertheless.
#[derive(Debug)]
pub(crate) struct StudyResults {
    results: Vec<Results>,
    failure: Option<Error>,
}

impl AllArguments {
    /// Checks all arguments, then runs the studies; a failure of one does not prevent the others. `watch`
    /// receives the share that is done, and a description of the current step.
    pub(crate) fn run(&self, watch: Watch<'_>) -> Result<StudyResults, Error> {
        let systems = self.systems.systems()?;
        let parts = self.parts()?;
        let jobs = parts.iter().map(|part| self.job(*part, &systems)).collect::<Result<Vec<_>, _>>()?;
        let (mut results, mut failure, all) = (Vec::new(), None, jobs.len() as f64);
        for (done, (part, job)) in parts.iter().zip(jobs).enumerate() {
            let name = part.name();
            let mut watch = |share: f64, doing: &str| {
                watch((done as f64 + share) / all, &format!("{name}: {doing}"));
            };
            let began = Instant::now();
            match job(&mut watch) {
                Ok(study) => results.push(study),
                Err(error) => {
                    say(&format!("{name}: {error}"));
                    failure.get_or_insert(error);
                }
            }
            say(&format!("{name}: {:.0} s", began.elapsed().as_secs_f64()));
        }
        Ok(StudyResults { results, failure })
    }

    /// Writes one report of all studies; returns whether all expectations were met.
    ///
    /// # Errors
    /// The error of the first study that failed; the results of the others are written before.
    pub(crate) fn write(&self, StudyResults { results, failure }: StudyResults) -> Result<Outcome, Error> {
        if !results.is_empty() {
            write_several(&results, "Leveret's studies", &self.outputs)?;
        }
        match failure {
            Some(error) => Err(error),
            None if results.iter().all(Results::met) => Ok(Outcome::Met),
            None => Ok(Outcome::NotMet),
        }
    }

    /// The studies to run.
    fn parts(&self) -> Result<Vec<Part>, Error> {
        check(
            !self.only.contains(&Part::Websockets) || !self.websockets.is_empty(),
            "--only websockets: --websocket tells what to connect to",
        )?;
        let wanted = |part: &Part| {
            let possible = *part != Part::Websockets || !self.websockets.is_empty();
            if self.only.is_empty() { possible } else { self.only.contains(part) }
        };
        let parts: Vec<Part> = Part::value_variants().iter().copied().filter(wanted).collect();
        for (flag, texts) in [("--set", &self.settings), ("--expect", &self.expect)] {
            for text in texts {
                let (part, _) = addressed(flag, text)?;
                check(parts.contains(&part), &format!("{flag} {text}: this study is not made"))?;
            }
        }
        Ok(parts)
    }

    fn job(&self, part: Part, systems: &Systems) -> Result<Job, Error> {
        let given = Some(systems.clone());
        let study = match part {
            Part::Publish => {
                let mut arguments: PublishArguments = self.parsed(part, &[])?;
                arguments.systems.given = given;
                Study::Publish(arguments)
            }
            Part::Proxy => {
                let mut arguments: ProxyArguments = self.parsed(part, &[])?;
                arguments.brokers = self.brokers(systems)?;
                Study::Proxy(arguments)
            }
            Part::Strategies => {
                let mut arguments: StrategiesArguments = self.parsed(part, &[])?;
                arguments.systems.given = given;
                Study::Strategies(arguments)
            }
            Part::Stream => {
                let mut arguments: StreamArguments = self.parsed(part, &[])?;
                arguments.systems.given = given;
                Study::Stream(Box::new(arguments))
            }
            Part::Routing => {
                // At full length, the first system that is worse than linear would take hours.
                let limit = if self.quick { "0.5" } else { "2" };
                let mut arguments: RoutingArguments = self.parsed(part, &["--limit-seconds", limit])?;
                arguments.systems.given = given;
                Study::Routing(arguments)
            }
            Part::Churn => {
                let mut arguments: ChurnArguments = self.parsed(part, &[])?;
                arguments.systems.given = given;
                Study::Churn(arguments)
            }
            Part::Websockets => {
                let given: Vec<&str> = self.websockets.iter().flat_map(|text| ["--system", text]).collect();
                Study::Websockets(self.parsed(part, &given)?)
            }
        };
        study.job().map(|(job, _)| job)
    }

    /// The brokers of the proxy study.
    fn brokers(&self, systems: &Systems) -> Result<Vec<System>, Error> {
        if self.brokers.is_empty() {
            return Ok(vec![systems[0].clone()]);
        }
        let named = |name: &String| {
            let known = systems.iter().find(|system| system.name == *name).cloned();
            known.ok_or_else(|| Error::Usage(format!("--broker: no system is named {name:?}")))
        };
        let brokers = self.brokers.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        let repeated = |(at, name)| self.brokers[..at].contains(name);
        check(!self.brokers.iter().enumerate().any(repeated), "--broker: a system is named twice")?;
        Ok(brokers)
    }

    /// Parses a study's arguments: `own`, then those of --set, then the options common to all studies.
    fn parsed<T: Args>(&self, part: Part, own: &[&str]) -> Result<T, Error> {
        let mut words: Vec<String> = own.iter().map(|word| (*word).to_owned()).collect();
        words.extend(self.quick.then(|| "--quick".to_owned()));
        // The routing study has no rounds, and the rounds of the WebSocket study, each a whole fleet, have their own setting.
        if !matches!(part, Part::Routing | Part::Websockets) {
            words.extend(self.rounds.map(|rounds| format!("--rounds={rounds}")));
        }
        for text in &self.settings {
            let (of, options) = addressed("--set", text)?;
            if of == part {
                words.extend(options.split_whitespace().map(str::to_owned));
            }
        }
        for text in &self.expect {
            let (of, condition) = addressed("--expect", text)?;
            if of == part {
                words.push(format!("--expect={}", condition.trim()));
            }
        }
        parse(&words).map_err(|error| Error::Usage(format!("{}: {error}", part.name())))
    }
}

impl Part {
    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }
}

/// Splits a text such as `strategies: --rounds 3` into the study it is for and the rest.
fn addressed<'t>(flag: &str, text: &'t str) -> Result<(Part, &'t str), Error> {
    let known = |(name, rest): (&str, &'t str)| Some((Part::from_str(name.trim(), false).ok()?, rest));
    text.split_once(':')
        .and_then(known)
        .ok_or_else(|| Error::Usage(format!("{flag} {text}: it begins with the name of a study and a colon")))
}

/// Reports progress if there is no progress bar.
fn say(line: &str) {
    if !io::stderr().is_terminal() {
        eprintln!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::stream::fake_broker::{FakeBroker, ScriptedFate};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        all: AllArguments,
    }

    fn run(arguments: &[&str]) -> Result<StudyResults, Error> {
        Cli::parse_from([&["all"], arguments].concat()).all.run(&mut |_, _| {})
    }

    #[test]
    fn the_studies_that_are_wanted_become_one_report() {
        let (broker, directory) =
            (FakeBroker::start(|_| ScriptedFate::Delivered), tempfile::tempdir().unwrap());
        let path = directory.path().to_str().unwrap();
        let system = format!("fake={}", broker.uri());
        let arguments =
            ["all", "--system", &system, "--quick", "--rounds", "1", "--only", "strategies,stream"];
        let cli = Cli::parse_from([&arguments[..], &["--output", path]].concat());
        let mut shares = Vec::new();
        let results = cli.all.run(&mut |share, _| shares.push(share)).unwrap();
        assert!(shares.is_sorted() && shares.last().is_some_and(|share| *share <= 1.0), "{shares:?}");
        assert_eq!(cli.all.write(results).unwrap(), Outcome::Met);
        let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
        for part in ["id=\"stream\"", "id=\"strategies\"", "href=\"#strategies\"", "Produced and consumed"] {
            assert!(page.contains(part), "{part}");
        }
        let json = std::fs::read_to_string(directory.path().join("results.json")).unwrap();
        assert!(json.contains("\"study\": \"strategies\""));
        let csv = std::fs::read_to_string(directory.path().join("results.csv")).unwrap();
        assert!(
            csv.lines().any(|line| line.starts_with("stream,\"stream\",publishers,1,\"fake\",rate,1,")),
            "{csv}"
        );
    }

    #[test]
    fn a_study_gets_its_own_options_and_expectations() {
        let broker = FakeBroker::start(|_| ScriptedFate::Delivered);
        let system = format!("fake={}", broker.uri());
        let arguments =
            ["all", "--system", &system, "--quick", "--only", "strategies,churn", "--rounds", "2"];
        let given =
            ["--set", "strategies: --rounds 1 --workers 3 --messages 5", "--set", "churn: --kind channel"];
        let expected =
            ["--expect", "strategies: one connection@3: rate>0", "--expect", "strategies: rate>1000M"];
        let cli = Cli::parse_from([&arguments[..], &given, &expected].concat());
        let found = cli.all.run(&mut |_, _| {}).unwrap();
        let [Results::Cells(strategies), Results::Cells(churn)] = &found.results[..] else {
            panic!("{found:?}")
        };
        assert!(strategies.cells.iter().all(|cell| cell.at == 3.0 && cell.figures[0].values.len() == 1));
        assert!(
            churn.cells.iter().all(|cell| cell.scenario == "channel" && cell.figures[0].values.len() == 2)
        );
        assert_eq!(
            strategies.expectations.iter().map(|verdict| verdict.met).collect::<Vec<_>>(),
            [true, false]
        );
        assert_eq!(cli.all.write(found).unwrap(), Outcome::NotMet);
    }

    #[test]
    fn a_study_that_fails_does_not_take_the_others_with_it() {
        let broker = FakeBroker::start(|_| ScriptedFate::Delivered);
        let directory = tempfile::tempdir().unwrap();
        let closed_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (system, web) = (format!("fake={}", broker.uri()), format!("gone=amqp+ws://{closed_port}/"));
        let arguments = ["all", "--system", &system, "--websocket", &web, "--quick", "--rounds", "1"];
        let rest = ["--only", "websockets,stream", "--output", directory.path().to_str().unwrap()];
        let cli = Cli::parse_from([&arguments[..], &rest].concat());
        let found = cli.all.run(&mut |_, _| {}).unwrap();
        assert_eq!(found.results.len(), 1);
        let error = cli.all.write(found).unwrap_err();
        assert!(error.to_string().contains("gone") && !error.is_usage(), "{error}");
        assert!(directory.path().join("report.html").exists());
    }

    #[test]
    fn invalid_arguments_are_usage_errors() {
        for arguments in [
            &["--only", "websockets"][..],
            &["--broker", "none", "--only", "proxy"],
            &["--broker", "default,default", "--only", "proxy"],
            &["--only", "churn", "--set", "stream: --rounds 1"],
            &["--set", "churn: --speed 1"],
            &["--set", "rounds 1"],
            &["--expect", "churn: speed>1"],
        ] {
            assert!(run(arguments).unwrap_err().is_usage(), "{arguments:?}");
        }
    }
}
