//! `leveret ctl upgrade`: has the running server start the program that is on its disk now, and waits for that to take over.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::api::{Api, path};
use super::output::Output;
use crate::Failure;

/// How long the successor may take to serve: as long as systemd gives the service to start, for it may have a long journal to
/// read.
const START_TIME: Duration = Duration::from_mins(15);

/// Pause between questions.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn run(api: &Api, output: &Output) -> Result<(), Failure> {
    let path = path(&["leveret", "upgrade"]);
    let before = api.post(&path, Vec::new())?;
    let deadline = Instant::now() + START_TIME;
    loop {
        // While the one has gone and the other reads its journal, nobody answers.
        let asked = api.get(&path);
        match asked.as_ref().map(|now| outcome(&before, now)) {
            Ok(Outcome::Replaced(reported)) => return output.done(&reported),
            Ok(Outcome::Failed(why)) => return Err(Failure::Run(why)),
            Ok(Outcome::UnderWay) | Err(_) if Instant::now() < deadline => thread::sleep(PAUSE),
            Ok(Outcome::UnderWay) => return Err(Failure::Run("the successor does not take over".to_owned())),
            Err(_) => return asked.map(drop),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    UnderWay,
    /// Another process has the place.
    Replaced(String),
    Failed(String),
}

fn outcome(before: &Value, now: &Value) -> Outcome {
    if now["process"] != before["process"] {
        let version = |of: &Value| of["version"].as_str().unwrap_or_default().to_owned();
        return Outcome::Replaced(format!(
            "process {} with version {} has taken over from process {} with version {}",
            now["process"],
            version(now),
            before["process"],
            version(before)
        ));
    }
    match now["upgrade"]["failure"].as_str() {
        Some(failure) => Outcome::Failed(format!(
            "the successor has ended, and the server continues: {failure}; its log says why"
        )),
        None => Outcome::UnderWay,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_answer_of_another_process_ends_the_wait() {
        let before = json!({"process": 7, "version": "1.0.0", "upgrade": {"process": 8, "failure": null}});
        assert_eq!(outcome(&before, &before), Outcome::UnderWay);
        let after = json!({"process": 8, "version": "1.1.0", "upgrade": null});
        let reported = "process 8 with version 1.1.0 has taken over from process 7 with version 1.0.0";
        assert_eq!(outcome(&before, &after), Outcome::Replaced(reported.to_owned()));
        let failed = json!({"process": 7, "upgrade": {"process": 8, "failure": "exit status: 2"}});
        assert!(matches!(outcome(&before, &failed), Outcome::Failed(why) if why.contains("exit status: 2")));
    }
}
