//! `bench compare`: two runs of a study drawn together.

use std::fs;
use std::path::PathBuf;

use clap::Args;

use super::arguments::OutputArguments;
use super::report::StudyReport;
use super::results::Results;
use crate::error::Error;

/// Put two runs of the same study side by side, as written by --json or --output
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
        let report = joined(a?, b?)?;
        Results::Cells(report).write(&self.outputs)
    }
}

/// Both runs as one, in which the systems of each have its letter before their names.
fn joined(a: StudyReport, b: StudyReport) -> Result<StudyReport, Error> {
    if a.study != b.study {
        return Err(Error::Usage(format!("one run is of {}, the other one of {}", a.study, b.study)));
    }
    let [mut a, b] = [("A", a), ("B", b)].map(|(letter, mut report)| {
        let rename = |name: &mut String| *name = format!("{letter}:{name}");
        report.systems.iter_mut().for_each(|system| rename(&mut system.name));
        report.cells.iter_mut().for_each(|cell| rename(&mut cell.system));
        report.notes.iter_mut().for_each(rename);
        report
    });
    if a.machine.to_string() != b.machine.to_string() {
        a.notes.push(format!("The machines differ; B ran on {}.", b.machine));
    }
    if a.parameters != b.parameters {
        let text: Vec<String> = b.parameters.iter().map(|p| format!("{} {}", p.name, p.value)).collect();
        a.notes.push(format!("The parameters differ; those of B: {}.", text.join("; ")));
    }
    a.title += ": two runs";
    a.systems.extend(b.systems);
    a.notes.extend(b.notes);
    a.expectations.clear();
    // A cell of B stands behind the same cell of A.
    for cell in b.cells {
        let same = |other: &super::report::CellReport| {
            other.scenario == cell.scenario && other.axis == cell.axis && other.at == cell.at
        };
        let at = a.cells.iter().rposition(same).map_or(a.cells.len(), |last| last + 1);
        a.cells.insert(at, cell);
    }
    Ok(a)
}

#[cfg(test)]
mod tests {
    use super::super::grid::tests::report;
    use super::*;

    #[test]
    fn two_runs_stand_side_by_side_cell_by_cell() {
        let (a, mut b) = (report(), report());
        b.parameters[0].value = "1 KiB".into();
        let both = joined(a, b).unwrap();
        let names: Vec<&str> = both.cells[..5].iter().map(|cell| cell.system.as_str()).collect();
        assert_eq!(names, ["A:direct", "A:proxy", "B:direct", "B:proxy", "A:direct"]);
        assert_eq!(both.systems.len(), 4);
        assert!(both.notes.iter().any(|note| note.contains("1 KiB")), "{:?}", both.notes);
        assert!(!both.notes.iter().any(|note| note.contains("machines differ")));
    }

    #[test]
    fn runs_of_different_studies_do_not_compare() {
        let (a, mut b) = (report(), report());
        b.study = "churn".into();
        assert!(joined(a, b).unwrap_err().is_usage());
    }
}
