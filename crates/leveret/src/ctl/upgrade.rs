//! `leveret ctl upgrade`: has the running server start the program that is on its disk now, and waits for that to take over.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::api::{Api, path};
use super::output::Output;
use crate::Failure;

/// How long the successor may take to serve: as long as systemd gives the service to start, for it may have a long journal to
/// read.
const START_TIMEOUT: Duration = Duration::from_mins(15);

/// Pause between questions.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn run(api: &Api, output: &Output) -> Result<(), Failure> {
    let path = path(&["leveret", "upgrade"]);
    let before = api.post(&path, Vec::new())?;
    let deadline = Instant::now() + START_TIMEOUT;
    let processes = Processes::of(api, &before);
    loop {
        // Checked before the request: a process that has exited by now does not answer it.
        let have_ended = processes.as_ref().is_some_and(Processes::have_ended);
        // Nobody answers between the exit of the old process and the end of the new one's journal recovery.
        let asked = api.get(&path);
        match asked.as_ref().map(|now| outcome(&before, now)) {
            Ok(Outcome::Replaced(reported)) => return output.done(&reported),
            Ok(Outcome::Failed(why)) => return Err(Failure::Run(why)),
            Err(Failure::Passing(_)) if have_ended => {
                return Err(Failure::Run(
                    "the server has ended, and then its successor did: nobody serves; the log says why"
                        .to_owned(),
                ));
            }
            Ok(Outcome::UnderWay) | Err(_) if Instant::now() < deadline => thread::sleep(PAUSE),
            Ok(Outcome::UnderWay) => return Err(Failure::Run("the successor does not take over".to_owned())),
            Err(_) => return asked.map(drop),
        }
    }
}

/// The server and its successor, both on this machine.
struct Processes([u64; 2]);

impl Processes {
    /// `None` if one of them cannot be seen from here: the server may be in a container, or somebody else's.
    fn of(api: &Api, before: &Value) -> Option<Self> {
        let ids = [before["process"].as_u64()?, before["upgrade"]["process"].as_u64()?];
        (api.endpoint().is_local() && ids.into_iter().all(is_alive)).then_some(Self(ids))
    }

    fn have_ended(&self) -> bool {
        !self.0.into_iter().any(is_alive)
    }
}

/// Whether a process runs: one that has ended may wait for its parent to take note (proc(5), `/proc/pid/stat`).
fn is_alive(process: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
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
    fn a_process_that_its_parent_has_not_waited_for_has_ended() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = child.id().into();
        assert!(is_alive(process) && !Processes([process, process]).have_ended());
        drop(child.stdin.take());
        // Returns once it has ended, and leaves it a zombie.
        let exited = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let id = rustix::process::WaitId::Pid(rustix::process::Pid::from_child(&child));
        rustix::process::waitid(id, exited).unwrap();
        assert!(!is_alive(process));
        child.wait().unwrap();
        assert!(!is_alive(process));
    }

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
