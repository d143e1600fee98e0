//! `bench all`: every study, one after the other, in one report.

use clap::{Args, Command, FromArgMatches, ValueEnum};
use serde::Serialize;

use crate::churn::{self, ChurnArguments};
use crate::error::Error;
use crate::proxy::{self, ProxyArguments};
use crate::publish::{self, PublishArguments};
use crate::routing::{self, RoutingArguments};
use crate::strategies::{self, StrategiesArguments};
use crate::stream::arguments::check;
use crate::stream::{self, StreamArguments, watch_as_study};
use crate::study::Watch;
use crate::study::arguments::OutputArguments;
use crate::study::results::{Results, write_all};
use crate::study::systems::{SystemArguments, Systems};
use crate::websockets::{self, WebSocketsArguments};

/// Make every study, and one report of them all
///
/// The proxy study has the first system as its broker. WebSocket connections are studied where `--websocket` tells what
/// to connect to.
#[derive(Debug, Clone, Args)]
pub(crate) struct AllArguments {
    #[command(flatten)]
    systems: SystemArguments,
    /// A system for the study of WebSocket connections, as its --system; may be repeated
    #[arg(long = "websocket", value_name = "NAME=PROTOCOL+ws://HOST:PORT/PATH[,pid=N]")]
    websockets: Vec<String>,
    /// The system that the proxy study has as its broker [default: the first]
    #[arg(long, value_name = "NAME")]
    broker: Option<String>,
    /// Only these studies; may be repeated
    #[arg(long, value_enum, value_name = "STUDY,...", value_delimiter = ',')]
    only: Vec<Part>,
    /// How often everything is measured [default: as each study has it]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Few and short measurements, to see that everything works; each study ends within a minute
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    outputs: OutputArguments,
}

/// A study that takes part.
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

/// Everything as JSON.
#[derive(Serialize)]
struct Whole<'r> {
    study: &'static str,
    studies: &'r [Results],
}

impl AllArguments {
    /// Makes the studies; whether all expectations were met, of which there are none. `watch` is told the share that is
    /// done, and what is being done.
    pub(crate) fn run(&self, watch: Watch<'_>) -> Result<Vec<Results>, Error> {
        let systems = self.systems.systems()?;
        let wanted = |part: &Part| {
            let possible = *part != Part::Websockets || !self.websockets.is_empty();
            if self.only.is_empty() { possible } else { self.only.contains(part) }
        };
        check(
            !self.only.contains(&Part::Websockets) || !self.websockets.is_empty(),
            "--only websockets: --websocket tells what to connect to",
        )?;
        let parts: Vec<Part> = Part::value_variants().iter().copied().filter(wanted).collect();
        let mut results = Vec::new();
        for (done, part) in parts.iter().enumerate() {
            let name = part.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
            let mut watch = |share: f64, doing: &str| {
                watch((done as f64 + share) / parts.len() as f64, &format!("{name}: {doing}"));
            };
            results.push(self.part(*part, &systems, &mut watch)?);
        }
        Ok(results)
    }

    /// Writes one report of them all.
    pub(crate) fn write(&self, results: &[Results]) -> Result<(), Error> {
        let texts: Vec<String> =
            results.iter().map(|study| format!("## {}\n\n{}", study.title(), study.text())).collect();
        let whole = Whole { study: "all", studies: results };
        write_all(results, "Leveret's studies", &whole, &texts.join("\n"), &self.outputs)
    }

    fn part(&self, part: Part, systems: &Systems, watch: Watch<'_>) -> Result<Results, Error> {
        match part {
            Part::Publish => {
                let mut arguments: PublishArguments = self.parsed(&[])?;
                arguments.systems.given = Some(systems.clone());
                publish::run(&arguments.plan()?, watch).map(Results::Cells)
            }
            Part::Proxy => {
                let mut arguments: ProxyArguments = self.parsed(&[])?;
                arguments.broker = Some(self.broker(systems)?.clone());
                proxy::run(&arguments.plan()?, watch).map(Results::Cells)
            }
            Part::Strategies => {
                let mut arguments: StrategiesArguments = self.parsed(&[])?;
                arguments.systems.given = Some(systems.clone());
                strategies::run(&arguments.plan()?, watch).map(Results::Cells)
            }
            Part::Stream => {
                let mut arguments: StreamArguments = self.parsed(&[])?;
                arguments.systems.given = Some(systems.clone());
                let plan = arguments.plan()?;
                stream::run(&plan, watch_as_study(plan.rounds, watch))
                    .map(|report| Results::Stream(Box::new(report)))
            }
            Part::Routing => {
                // At full length the first system that is worse than linear would take hours.
                let limit = if self.quick { "0.5" } else { "2" };
                let arguments = Self::parse(self.quick, None, &["--limit-seconds", limit]);
                let mut arguments: RoutingArguments = arguments?;
                arguments.systems.given = Some(systems.clone());
                routing::run(&arguments.plan()?, watch).map(Results::Routing)
            }
            Part::Churn => {
                let mut arguments: ChurnArguments = self.parsed(&[])?;
                arguments.systems.given = Some(systems.clone());
                churn::run(&arguments.plan()?, watch).map(Results::Cells)
            }
            Part::Websockets => {
                let given: Vec<&str> = self.websockets.iter().flat_map(|text| ["--system", text]).collect();
                let arguments: WebSocketsArguments = Self::parse(self.quick, None, &given)?;
                websockets::run(&arguments.plan()?, |doing| watch(0.0, doing)).map(Results::WebSockets)
            }
        }
    }

    fn broker<'s>(&self, systems: &'s Systems) -> Result<&'s stream::System, Error> {
        let Some(name) = &self.broker else { return Ok(&systems[0]) };
        let known = systems.iter().find(|system| system.name == *name);
        known.ok_or_else(|| Error::Usage(format!("--broker: no system is named {name:?}")))
    }

    fn parsed<T: Args + FromArgMatches>(&self, more: &[&str]) -> Result<T, Error> {
        Self::parse(self.quick, self.rounds, more)
    }

    /// A study's arguments, as they are with these on its command line.
    fn parse<T: Args + FromArgMatches>(
        quick: bool,
        rounds: Option<usize>,
        more: &[&str],
    ) -> Result<T, Error> {
        let mut words: Vec<String> = more.iter().map(|word| (*word).to_owned()).collect();
        words.extend(quick.then(|| "--quick".to_owned()));
        words.extend(rounds.map(|rounds| format!("--rounds={rounds}")));
        let command = T::augment_args(Command::new("all").no_binary_name(true));
        let matches = command.try_get_matches_from(words).map_err(|error| Error::Usage(error.to_string()))?;
        T::from_arg_matches(&matches).map_err(|error| Error::Usage(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::stream::fake_broker::{FakeBroker, Fate};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        all: AllArguments,
    }

    fn run(arguments: &[&str]) -> Result<Vec<Results>, Error> {
        Cli::parse_from([&["all"], arguments].concat()).all.run(&mut |_, _| {})
    }

    #[test]
    fn the_studies_that_are_wanted_become_one_report() {
        let (broker, folder) = (FakeBroker::start(|_| Fate::Delivered), tempfile::tempdir().unwrap());
        let path = folder.path().to_str().unwrap();
        let system = format!("fake={}", broker.uri());
        let arguments =
            ["all", "--system", &system, "--quick", "--rounds", "1", "--only", "strategies,stream"];
        let cli = Cli::parse_from([&arguments[..], &["--output", path]].concat());
        let mut shares = Vec::new();
        let results = cli.all.run(&mut |share, _| shares.push(share)).unwrap();
        assert!(shares.is_sorted() && shares.last().is_some_and(|share| *share <= 1.0), "{shares:?}");
        cli.all.write(&results).unwrap();
        let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
        for part in ["id=\"stream\"", "id=\"strategies\"", "href=\"#strategies\"", "Produced and consumed"] {
            assert!(page.contains(part), "{part}");
        }
        let json = std::fs::read_to_string(folder.path().join("results.json")).unwrap();
        assert!(json.contains("\"study\": \"strategies\""));
        let csv = std::fs::read_to_string(folder.path().join("results.csv")).unwrap();
        assert!(
            csv.lines().any(|line| line.starts_with("stream,\"stream\",publishers,1,\"fake\",rate,1,")),
            "{csv}"
        );
    }

    #[test]
    fn what_could_never_work_is_refused() {
        for arguments in [&["--only", "websockets"][..], &["--broker", "none", "--only", "proxy"]] {
            assert!(run(arguments).unwrap_err().is_usage(), "{arguments:?}");
        }
    }
}
