//! `bench compare`: two runs of a study, or of all, drawn together.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

use super::arguments::OutputArguments;
use super::report::{CellReport, StudyReport};
use super::results::{Results, write_several};
use crate::error::Error;
use crate::machine::Machine;
use crate::report::StreamReport;
use crate::routing::arguments::StudiedExchange;
use crate::routing::report::RoutingReport;
use crate::stream::table::describe;
use crate::websockets::report::WebSocketsReport;

/// Compare two runs of the same study, as written by --json or --output; or of several studies, each with the
/// one of the same name
#[derive(Debug, Clone, Args)]
pub(crate) struct CompareArguments {
    /// The run that ratios are relative to
    a: PathBuf,
    /// The other run
    b: PathBuf,
    #[command(flatten)]
    outputs: OutputArguments,
}

impl CompareArguments {
    pub(crate) fn run(&self) -> Result<(), Error> {
        let [a, b] = [&self.a, &self.b].map(|path| {
            let text = fs::read_to_string(path);
            let named = |cause: String| Error::Usage(format!("{}: {cause}", path.display()));
            let text = text.map_err(|error| named(error.to_string()))?;
            serde_json::from_str(&text).map_err(|error| named(format!("no study's results: {error}")))
        });
        match (a?, b?) {
            (ComparedRun::One(a), ComparedRun::One(b)) => both(*a, *b)?.write(&self.outputs),
            (a, b) => {
                let (pairs, alone) = paired(a.studies(), b.studies())?;
                alone.iter().for_each(|left| eprintln!("{left}: only one of the runs has it"));
                write_several(&pairs, "Two runs of Leveret's studies", &self.outputs)
            }
        }
    }
}

/// The results that one command wrote.
#[derive(Deserialize)]
#[serde(untagged)]
enum ComparedRun {
    /// `bench all`.
    All {
        studies: Vec<Results>,
    },
    One(Box<Results>),
}

impl ComparedRun {
    fn studies(self) -> Vec<Results> {
        match self {
            Self::All { studies } => studies,
            Self::One(study) => vec![*study],
        }
    }
}

/// Pairs each study of the first run with the second run's study of the same name; also returns the names of
/// studies without a counterpart.
fn paired(a: Vec<Results>, mut b: Vec<Results>) -> Result<(Vec<Results>, Vec<String>), Error> {
    let (mut pairs, mut alone) = (Vec::new(), Vec::new());
    for study in a {
        match b.iter().position(|other| other.name() == study.name()) {
            Some(at) => pairs.push(both(study, b.remove(at))?),
            None => alone.push(format!("A:{}", study.name())),
        }
    }
    alone.extend(b.iter().map(|study| format!("B:{}", study.name())));
    if pairs.is_empty() {
        return Err(Error::Usage(format!("the runs have no study in common: {}", alone.join(", "))));
    }
    Ok((pairs, alone))
}

/// Combines two runs of the same study into one.
fn both(a: Results, b: Results) -> Result<Results, Error> {
    if a.name() != b.name() {
        return Err(Error::Usage(format!("one run is of {}, the other one of {}", a.name(), b.name())));
    }
    Ok(match (a, b) {
        (Results::Cells(a), Results::Cells(b)) => Results::Cells(joined(a, b)),
        (Results::Stream(a), Results::Stream(b)) => Results::Stream(Box::new(streams(*a, *b))),
        (Results::Routing(a), Results::Routing(b)) => Results::Routing(routings(a, b)),
        (Results::WebSockets(a), Results::WebSockets(b)) => Results::WebSockets(fleets(a, b)),
        // Studies of the same name are of the same kind.
        (a, _) => a,
    })
}

const LETTERS: [&str; 2] = ["A", "B"];

/// Prefixes a name with the letter of its run.
fn lettered(letter: &str, name: &mut String) {
    *name = format!("{letter}:{name}");
}

/// Notes for a reader who compares the runs; `facts` are the settings of each.
fn differences(machines: [&Machine; 2], facts: [String; 2]) -> Vec<String> {
    let mut notes = Vec::new();
    let [a, b] = machines;
    if a.to_string() != b.to_string() {
        notes.push(format!("The machines differ; B ran on {b}."));
    }
    let [a, b] = facts;
    if a != b {
        notes.push(format!("The parameters differ; those of B: {b}."));
    }
    notes
}

fn streams(mut a: StreamReport, mut b: StreamReport) -> StreamReport {
    for (letter, run) in LETTERS.into_iter().zip([&mut a, &mut b]) {
        run.systems.iter_mut().for_each(|system| lettered(letter, &mut system.name));
        run.notes.iter_mut().for_each(|note| lettered(letter, note));
    }
    let facts = [&a, &b].map(|run| describe(&run.workload));
    let mut notes = differences([&a.machine, &b.machine], facts);
    // The description may omit a setting.
    if a.workload != b.workload && describe(&a.workload) == describe(&b.workload) {
        notes.push("The parameters differ in what their description leaves out; see the runs' files.".into());
    }
    a.notes.splice(0..0, notes);
    a.systems.extend(b.systems);
    a.notes.extend(b.notes);
    a.expectations.clear();
    a
}

fn routings(mut a: RoutingReport, mut b: RoutingReport) -> RoutingReport {
    for (letter, run) in LETTERS.into_iter().zip([&mut a, &mut b]) {
        run.systems.iter_mut().for_each(|system| lettered(letter, &mut system.name));
        run.series.iter_mut().for_each(|series| lettered(letter, &mut series.system));
        run.growth.iter_mut().for_each(|growth| lettered(letter, &mut growth.system));
        run.bulk.iter_mut().for_each(|bulk| lettered(letter, &mut bulk.system));
        run.notes.iter_mut().for_each(|note| lettered(letter, note));
    }
    let facts = [&a, &b].map(|run| run.settings.to_string());
    a.notes.splice(0..0, differences([&a.machine, &b.machine], facts));
    a.systems.extend(b.systems);
    a.series.extend(b.series);
    // Series are grouped by exchange type, in the order of the first run.
    let mut kinds: Vec<StudiedExchange> = Vec::new();
    a.series.iter().for_each(|series| {
        if !kinds.contains(&series.exchange) {
            kinds.push(series.exchange);
        }
    });
    a.series.sort_by_key(|series| kinds.iter().position(|kind| *kind == series.exchange));
    a.growth.extend(b.growth);
    a.bulk.extend(b.bulk);
    a.notes.extend(b.notes);
    a.expectations.clear();
    a
}

fn fleets(mut a: WebSocketsReport, mut b: WebSocketsReport) -> WebSocketsReport {
    for (letter, run) in LETTERS.into_iter().zip([&mut a, &mut b]) {
        run.systems.iter_mut().for_each(|system| lettered(letter, &mut system.name));
    }
    let facts = [&a, &b].map(|run| run.settings.to_string());
    a.notes = differences([&a.machine, &b.machine], facts);
    // Each system's rounds have separate titles if either run had several.
    a.settings.rounds = a.settings.rounds.max(b.settings.rounds);
    a.systems.extend(b.systems);
    a.expectations.clear();
    a
}

/// Combines both runs into one, in which the names of the systems are prefixed with the letter of the run.
fn joined(mut a: StudyReport, mut b: StudyReport) -> StudyReport {
    for (letter, run) in LETTERS.into_iter().zip([&mut a, &mut b]) {
        run.systems.iter_mut().for_each(|system| lettered(letter, &mut system.name));
        run.cells.iter_mut().for_each(|cell| lettered(letter, &mut cell.system));
        run.notes.iter_mut().for_each(|note| lettered(letter, note));
    }
    let facts = [&a, &b].map(StudyReport::parameters_text);
    a.notes.extend(differences([&a.machine, &b.machine], facts));
    a.title += ": two runs";
    a.systems.extend(b.systems);
    a.notes.extend(b.notes);
    a.expectations.clear();
    // A cell of B is placed after the same cell of A.
    for cell in b.cells {
        let same = |other: &CellReport| {
            other.scenario == cell.scenario && other.axis == cell.axis && other.at == cell.at
        };
        let at = a.cells.iter().rposition(same).map_or(a.cells.len(), |last| last + 1);
        a.cells.insert(at, cell);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::super::grid::tests::report;
    use super::*;
    use crate::metric::Metric;
    use crate::report::tests::{round, system};
    use crate::stream::arguments::tests::workload;

    #[test]
    fn two_runs_stand_side_by_side_cell_by_cell() {
        let (a, mut b) = (report(), report());
        b.parameters[0].value = "1 KiB".into();
        let both = joined(a, b);
        let names: Vec<&str> = both.cells[..5].iter().map(|cell| cell.system.as_str()).collect();
        assert_eq!(names, ["A:direct", "A:proxy", "B:direct", "B:proxy", "A:direct"]);
        assert_eq!(both.systems.len(), 4);
        assert!(both.notes.iter().any(|note| note.contains("1 KiB")), "{:?}", both.notes);
        assert!(!both.notes.iter().any(|note| note.contains("machines differ")));
    }

    /// The results after writing and reading, as the command does.
    fn read(results: &Results) -> Results {
        serde_json::from_str(&serde_json::to_string(results).unwrap()).unwrap()
    }

    #[test]
    fn runs_of_different_studies_do_not_compare() {
        let (a, mut b) = (report(), report());
        b.study = "churn".into();
        assert!(both(Results::Cells(a), Results::Cells(b)).unwrap_err().is_usage());
    }

    fn named(name: &str) -> Results {
        Results::Cells(StudyReport { study: name.into(), ..report() })
    }

    #[test]
    fn studies_of_the_same_name_are_paired_in_two_runs_of_all() {
        let (a, b) =
            (["publish", "proxy", "churn"].map(named), ["churn", "publish", "strategies"].map(named));
        let whole = |studies: &[Results]| {
            let text = serde_json::json!({"study": "all", "studies": studies}).to_string();
            serde_json::from_str::<ComparedRun>(&text).unwrap().studies()
        };
        let (pairs, alone) = paired(whole(&a), whole(&b)).unwrap();
        assert_eq!(pairs.iter().map(Results::name).collect::<Vec<_>>(), ["publish", "churn"]);
        assert_eq!(alone, ["A:proxy", "B:strategies"]);
        let Results::Cells(first) = &pairs[0] else { panic!() };
        assert_eq!((first.cells[0].system.as_str(), first.systems.len()), ("A:direct", 4));
        // A single study can be compared with one of several.
        let one =
            serde_json::from_str::<ComparedRun>(&serde_json::to_string(&named("churn")).unwrap()).unwrap();
        assert!(matches!(one, ComparedRun::One(_)));
        assert_eq!(paired(one.studies(), whole(&b)).unwrap().0.len(), 1);
        let nothing = paired(whole(&a[1..2]), whole(&b[..1])).unwrap_err();
        assert!(nothing.is_usage() && nothing.to_string().contains("A:proxy, B:churn"), "{nothing}");
    }

    #[test]
    fn runs_of_streams_are_read_back_and_keep_their_rounds() {
        let run = |rate: f64| {
            let workload = workload(&["--rate", "0..50", "--property", "priority=3", "--queues", "2"]);
            let systems = vec![system("it", vec![round(rate, 0), round(rate, 1)])];
            let (machine, notes) = (Machine::describe(), vec!["Mind this.".to_owned()]);
            Results::Stream(Box::new(StreamReport {
                machine,
                workload,
                systems,
                notes,
                expectations: vec![],
            }))
        };
        let Results::Stream(report) = both(read(&run(10.0)), read(&run(30.0))).unwrap() else { panic!() };
        let rates: Vec<_> =
            report.systems.iter().map(|s| (&*s.name, s.figure(Metric::Rate), s.rounds.len())).collect();
        assert_eq!(rates, [("A:it", Some(10.0), 2), ("B:it", Some(30.0), 2)]);
        assert_eq!(report.notes, ["A:Mind this.", "B:Mind this."]);
    }
}
