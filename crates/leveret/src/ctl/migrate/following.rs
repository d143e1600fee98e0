//! Follows a migration until its end.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use server::MoveDirection;

use super::{END_PHASES, Migrate, PATH, report};
use crate::Failure;
use crate::ctl::api::path;

/// Interval of lines about it.
const REPORT: Duration = Duration::from_secs(5);
/// Clients are asked to leave when what is left moves in this time.
const DRAIN_ESTIMATE: Duration = Duration::from_secs(1);
/// How long no more than that is left, and nothing is refused, before they are.
const SETTLED: Duration = Duration::from_secs(2);
/// Or so few messages are left.
const FEW: u64 = 100;
/// How long nothing may move while other consumers are served first, or queues are missing.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long nothing may change during the change to a pool. A successor may take that long to serve.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_mins(6);

impl Migrate<'_> {
    pub(super) fn wait_for_start(&self) -> Result<(), Failure> {
        loop {
            let status = self.api.get(&path(&PATH))?;
            match status["phase"].as_str() {
                Some("starting") => thread::sleep(self.intervals.look),
                Some("failed") => return Err(failure(&status)),
                _ => return Ok(()),
            }
        }
    }

    /// Waits until little is left to move.
    fn wait_for_messages(&self) -> Result<Value, Failure> {
        let begun = Instant::now();
        let (mut reported, mut since, mut first, mut last) = (begun, begun, None, 0);
        let mut few_since = None;
        loop {
            let status = self.api.get(&path(&PATH))?;
            self.check_same(&status)?;
            match status["phase"].as_str().unwrap_or_default() {
                "moving" => {}
                // Another command has begun the same move again,
                "starting" => {
                    thread::sleep(self.intervals.look);
                    continue;
                }
                // or its end.
                phase if END_PHASES.contains(&phase) && !self.command.stay => return Ok(status),
                _ => return Err(failure(&status)),
            }
            let left = match self.way {
                MoveDirection::Out => status["left"].as_u64().unwrap_or(0),
                MoveDirection::In => u64::MAX,
            };
            let moved = moved(&status);
            if moved != last {
                (last, since) = (moved, Instant::now());
            }
            // Few are those that move in a moment at the rate since the beginning.
            let moved_since = moved.saturating_sub(*first.get_or_insert(moved));
            let rate = moved_since as f64 / begun.elapsed().as_secs_f64();
            let few = FEW.max((rate * DRAIN_ESTIMATE.as_secs_f64()) as u64);
            if left > few || queues(&status).any(is_troubled) {
                few_since = None;
            }
            // Refusals are not known yet for a queue that has just been looked at.
            let is_little = left <= few && few_since.get_or_insert_with(Instant::now).elapsed() >= SETTLED;
            if status["is_done"] == true || is_little {
                return Ok(status);
            }
            if is_stuck(&status, since.elapsed()) {
                report::troubles(&status, self.output)?;
                return Err(Failure::Run(
                    "messages of these queues do not move, and stay: remedy that and run the same command again".to_owned(),
                ));
            }
            if reported.elapsed() >= REPORT {
                reported = Instant::now();
                self.report(&status, moved)?;
            }
            thread::sleep(self.intervals.look);
        }
    }

    /// Prints how many messages have moved, and what is in the way; makes queues that are missing.
    fn report(&self, status: &Value, moved: u64) -> Result<(), Failure> {
        self.output.remark(&format!("{moved} messages have moved"))?;
        // Clients may have declared queues meanwhile.
        if queues(status).any(|queue| queue["cause"] == "missing") {
            match self.define(false) {
                // They are still missing at the next report.
                Err(Failure::Passing(line)) => self.output.remark(&line)?,
                defined => drop(defined?),
            }
        }
        for queue in queues(status).filter(|queue| is_troubled(queue)) {
            let text = |key: &str| queue[key].as_str().unwrap_or_default();
            let (vhost, name, trouble) = (text("vhost"), text("name"), text("trouble"));
            self.output.remark(&format!("queue '{name}' of virtual host '{vhost}': {trouble}"))?;
        }
        Ok(())
    }

    pub(super) fn move_out(&self) -> Result<(), Failure> {
        let before = self.wait_for_messages()?;
        if self.command.stay {
            return self.output.done("few messages are left; the migration continues until --stop");
        }
        self.step("cut-over").or_else(|failure| self.unless_in(&END_PHASES, failure))?;
        self.output.remark("clients are closed, and the rest moves")?;
        self.wait_for_pool(&before)
    }

    /// Sees the change to a pool through.
    pub(super) fn wait_for_pool(&self, before: &Value) -> Result<(), Failure> {
        let mut progress = Progress::default();
        loop {
            // While one process has gone and the other starts, nobody answers.
            let status = self.api.get(&path(&PATH));
            let known = status.as_ref().ok();
            let idle = progress.idle(known, Instant::now());
            if let Some(status) = known {
                self.check_same(status)?;
            }
            match known.and_then(|status| status["phase"].as_str()) {
                Some("last_definitions") => self.define_last()?,
                Some("moved") => {
                    let status = status?;
                    self.output
                        .remark(&format!("this server is a pool in front of {}", addresses(&status)))?;
                    return report::compare(&status, self.way, self.output);
                }
                Some("failed") => return Err(failure(&status?)),
                // Another process with nothing to tell: a broker has taken over again.
                Some("none") if known.is_some_and(|status| status["process"] != before["process"]) => {
                    return Err(Failure::Run(
                        "the migration is not complete, its log says why, and the server is a broker: run the same command again"
                            .to_owned(),
                    ));
                }
                _ if idle > SUCCESSOR_TIMEOUT => {
                    return status.and(Err(Failure::Run("no pool has taken over".to_owned())));
                }
                _ => {}
            }
            thread::sleep(self.intervals.look);
        }
    }

    pub(super) fn move_in(&self) -> Result<(), Failure> {
        let status = self.wait_for_messages()?;
        self.api.remove(&path(&PATH))?;
        report::compare(&status, self.way, self.output)
    }
}

/// The last change of a server that becomes a pool.
#[derive(Default)]
struct Progress {
    /// Its phase, its process, and how many messages have moved.
    seen: Option<(Value, Value, u64)>,
    since: Option<Instant>,
}

impl Progress {
    /// Returns for how long nothing has changed. A server that does not answer has not.
    fn idle(&mut self, status: Option<&Value>, now: Instant) -> Duration {
        let seen = status.map(|status| (status["phase"].clone(), status["process"].clone(), moved(status)));
        if seen.is_some() && seen != self.seen {
            (self.seen, self.since) = (seen, Some(now));
        }
        now.duration_since(*self.since.get_or_insert(now))
    }
}

/// Messages that have moved.
fn moved(status: &Value) -> u64 {
    queues(status).filter_map(|queue| queue["moved"].as_u64()).sum()
}

fn failure(status: &Value) -> Failure {
    let phase = status["phase"].as_str().unwrap_or_default();
    let why = status["failure"].as_str().map_or_else(|| format!("the migration is {phase}"), str::to_owned);
    Failure::Run(format!("{why}; run the same command again to go on"))
}

fn queues(status: &Value) -> impl Iterator<Item = &Value> {
    status["queues"].as_array().into_iter().flatten()
}

/// The AMQP addresses of the other broker, by commas.
fn addresses(status: &Value) -> String {
    let addresses = status["addresses"].as_array().into_iter().flatten();
    addresses.filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

fn is_troubled(queue: &Value) -> bool {
    queue["trouble"].is_string()
}

/// Whether nothing has moved for this time, and nothing will before an operator does something.
fn is_stuck(status: &Value, idle: Duration) -> bool {
    let has =
        |queue: &Value, causes: &[&str]| queue["cause"].as_str().is_some_and(|cause| causes.contains(&cause));
    let is_active = |queue: &Value| matches!(queue["state"].as_str(), Some("moving" | "waiting"));
    let permanent: &[&str] =
        if idle >= STALL_TIMEOUT { &["refused", "consumers", "missing"] } else { &["refused"] };
    queues(status).any(|queue| has(queue, permanent))
        && !queues(status).any(|queue| is_active(queue) && !has(queue, permanent))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_move_is_stuck_when_all_that_is_left_needs_an_operator() {
        let status = |queues: &[(&str, Option<&str>)]| {
            let queues: Vec<_> =
                queues.iter().map(|(state, cause)| json!({"state": state, "cause": cause})).collect();
            json!({ "queues": queues })
        };
        let (soon, late) = (Duration::ZERO, STALL_TIMEOUT);
        let refused = ("refused", Some("refused"));
        assert!(is_stuck(&status(&[refused, ("empty", None)]), soon));
        assert!(!is_stuck(&status(&[refused, ("moving", None)]), late));
        assert!(!is_stuck(&status(&[refused, ("waiting", Some("full"))]), late), "somebody may make room");
        let consumers = status(&[refused, ("waiting", Some("consumers")), ("waiting", Some("missing"))]);
        assert!(!is_stuck(&consumers, soon) && is_stuck(&consumers, late));
        assert!(!is_stuck(&status(&[("empty", None)]), late));
        // Others have their turn.
        assert!(!is_stuck(&status(&[refused, ("waiting", None)]), late));
    }

    #[test]
    fn a_long_change_to_a_pool_is_waited_for_while_it_goes_on() {
        let status =
            |phase: &str, moved: u64| json!({"phase": phase, "process": 1, "queues": [{"moved": moved}]});
        let (mut progress, begun) = (Progress::default(), Instant::now());
        let mut idle = |status: Option<Value>, minutes| {
            progress.idle(status.as_ref(), begun + Duration::from_mins(minutes))
        };
        let minutes = Duration::from_mins;
        assert_eq!(idle(None, 0), minutes(0));
        assert_eq!(idle(None, 5), minutes(5), "it counts from the beginning if nobody has ever answered");
        assert_eq!(idle(Some(status("moving_rest", 10)), 5), minutes(0));
        assert_eq!(idle(Some(status("moving_rest", 10)), 10), minutes(5));
        assert_eq!(idle(Some(status("moving_rest", 11)), 10), minutes(0));
        assert_eq!(idle(Some(status("handing_over", 11)), 15), minutes(0));
        assert_eq!(idle(None, 20), minutes(5));
        assert_eq!(idle(Some(status("handing_over", 11)), 21), minutes(6), "the same as before");
    }
}
