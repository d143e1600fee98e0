//! Equal warnings are logged once, and then counted: a client that tries again and again fills no log.

use std::collections::HashMap;
use std::fmt;
use std::fmt::Write as _;
use std::mem;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

/// The warnings and errors since the last report.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// By text: the level, and how often it came after the first time.
    seen: Mutex<HashMap<String, (Level, u64)>>,
}

/// Different texts that are remembered. Further ones are all logged: there is no repetition to be seen in them.
const MOST: usize = 1024;

/// The target of the lines that report repetitions, which are not counted themselves.
const REPORTS: &str = "leveret::repeated";

/// The modules that answer an operator (SIGHUP), who has to see each answer.
const ANSWERS: [&str; 2] = ["leveret::reload", "leveret::tls"];

impl Repeats {
    /// Whether an event is to be logged now.
    fn admits(&self, level: Level, text: String) -> bool {
        let mut seen = self.seen.lock();
        if let Some((_, times)) = seen.get_mut(&text) {
            *times += 1;
            return false;
        }
        if seen.len() < MOST {
            seen.insert(text, (level, 0));
        }
        true
    }

    /// Takes the texts that were repeated since the last call, with their number. These are not logged in full before the
    /// next call either; those that were not repeated are.
    fn take(&self) -> Vec<(Level, String, u64)> {
        let mut repeated = Vec::new();
        self.seen.lock().retain(|text, (level, times)| {
            let times = mem::take(times);
            if times > 0 {
                repeated.push((*level, text.clone(), times));
            }
            times > 0
        });
        repeated
    }

    /// Logs what was repeated since the last call.
    pub(super) fn report(&self) {
        for (level, text, times) in self.take() {
            let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
            if level == Level::ERROR {
                tracing::error!(target: REPORTS, "repeated {times}: {text}");
            } else {
                tracing::warn!(target: REPORTS, "repeated {times}: {text}");
            }
        }
    }
}

/// Drops the events that repeat a warning or an error.
pub(super) struct Collapse(pub(super) std::sync::Arc<Repeats>);

impl<S> Filter<S> for Collapse {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // Levels are ordered by how much they let through: INFO is above WARN.
        let target = metadata.target();
        if *metadata.level() > Level::WARN || target == REPORTS || ANSWERS.contains(&target) {
            return true;
        }
        let mut text = Text::default();
        event.record(&mut text);
        self.0.admits(*metadata.level(), text.message + &text.fields)
    }
}

/// The text of an event, without what differs from one connection of a client to the next.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "connection" => Ok(()),
            "message" => write!(self.message, "{value:?}"),
            "peer" => {
                let peer = format!("{value:?}");
                write!(self.fields, " peer={}", peer.rsplit_once(':').map_or(&*peer, |(host, _)| host))
            }
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_admitted_once_and_its_repetitions_are_counted_until_there_are_none() {
        let repeats = Repeats::default();
        let admits = |text: &str| repeats.admits(Level::WARN, text.to_owned());
        assert!(admits("a") && admits("b"));
        assert!(!admits("a") && !admits("a"));
        assert_eq!(repeats.take(), [(Level::WARN, "a".to_owned(), 2)]);
        assert!(!admits("a"), "it goes on: only its number is logged");
        assert!(admits("b"), "it was not repeated");
        assert_eq!(repeats.take(), [(Level::WARN, "a".to_owned(), 1)]);
        assert_eq!(repeats.take(), []);
        assert!(admits("a"), "it has stopped, and is news again");
    }

    #[test]
    fn no_more_than_so_many_texts_are_remembered() {
        let repeats = Repeats::default();
        for number in 0..MOST {
            assert!(repeats.admits(Level::ERROR, number.to_string()));
        }
        assert!(repeats.admits(Level::ERROR, "more".to_owned()));
        assert!(repeats.admits(Level::ERROR, "more".to_owned()));
        assert!(!repeats.admits(Level::ERROR, "0".to_owned()));
    }
}
