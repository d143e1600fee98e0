//! Logs equal warnings once and then counts them, so that a client that retries cannot flood the log.

use std::collections::HashMap;
use std::fmt;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::mem;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

use super::fields::write_value;

/// The warnings and errors since the last report.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// By the hash of the module and the whole text.
    seen: Mutex<HashMap<u64, Seen>>,
    /// With keys that no client knows: none can make its warning pass for another's.
    hashes: RandomState,
}

/// A warning or an error that has been logged.
#[derive(Debug)]
struct Seen {
    level: Level,
    /// At most [`MAX_TEXT`] bytes.
    text: String,
    /// Number of repetitions after the first time.
    times: u64,
}

/// Maximum number of distinct texts to remember. Further ones are all logged: there is no repetition to detect.
const MAX_TEXTS: usize = 1024;

/// Bytes of a text that are remembered, for the report: clients choose parts of some, such as their user's name. All texts
/// together take half a MiB at most.
const MAX_TEXT: usize = 512;

/// The target of the lines that report repetitions, which are not counted themselves.
const REPORTS: &str = "leveret::repeated";

/// The targets whose warnings are all logged.
const NEVER_REPEATS: [&str; 7] = [
    // Operators wait for these (SIGHUP), and must see each of them.
    "leveret::reload",
    "leveret::tls",
    // These report state changes, which alternate and so never repeat.
    "leveret::alarms",
    "proxy::state",
    "server::spool::forwarder",
    "server::spool::local::limits",
    "store::journal::commit",
];

impl Repeats {
    /// Whether an event is to be logged now.
    fn admits(&self, level: Level, target: &str, event: &impl Record) -> bool {
        let mut text = Text::new(&self.hashes);
        text.hasher.write(target.as_bytes());
        event.record(&mut text);
        let mut seen = self.seen.lock();
        if let Some(seen) = seen.get_mut(&text.hasher.finish()) {
            seen.times += 1;
            return false;
        }
        if seen.len() < MAX_TEXTS {
            seen.insert(text.hasher.finish(), Seen { level, text: text.shown(), times: 0 });
        }
        true
    }

    /// Forgets all texts, so that each is logged in full again when it comes next: a filter that lets these lines pass may
    /// drop those of the report. Returns those that were repeated.
    fn take(&self) -> Vec<Seen> {
        let seen = mem::take(&mut *self.seen.lock());
        seen.into_values().filter(|seen| seen.times > 0).collect()
    }

    /// Logs what was repeated since the last call.
    pub(super) fn report(&self) {
        for Seen { level, text, times } in self.take() {
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
        if *metadata.level() > Level::WARN || target == REPORTS || NEVER_REPEATS.contains(&target) {
            return true;
        }
        self.0.admits(*metadata.level(), target, event)
    }
}

/// Something whose text is written field by field: an event.
trait Record {
    fn record(&self, text: &mut Text);
}

impl Record for Event<'_> {
    fn record(&self, text: &mut Text) {
        Event::record(self, text);
    }
}

/// The text of an event, without what differs from one connection of a client to the next: the hash of all of it, and its
/// beginning.
struct Text {
    hasher: <RandomState as std::hash::BuildHasher>::Hasher,
    message: String,
    fields: String,
}

impl Text {
    fn new(hashes: &RandomState) -> Self {
        Self { hasher: hashes.build_hasher(), message: String::new(), fields: String::new() }
    }

    /// The message and then the fields, cut.
    fn shown(mut self) -> String {
        self.message.push_str(&self.fields);
        if self.message.len() > MAX_TEXT {
            self.message.truncate(self.message.floor_char_boundary(MAX_TEXT - CUT.len()));
            self.message.push_str(CUT);
        }
        self.message
    }
}

/// Ends a text that was cut.
const CUT: &str = "...";

/// Hashes all that is written, and keeps the beginning of it.
struct Part<'t> {
    hasher: &'t mut <RandomState as std::hash::BuildHasher>::Hasher,
    text: &'t mut String,
}

impl fmt::Write for Part<'_> {
    fn write_str(&mut self, written: &str) -> fmt::Result {
        self.hasher.write(written.as_bytes());
        // One byte more shows that it is to be cut.
        let remaining = (MAX_TEXT + 1).saturating_sub(self.text.len());
        self.text.push_str(&written[..written.ceil_char_boundary(remaining)]);
        Ok(())
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let Self { hasher, message, fields } = self;
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "connection" => Ok(()),
            "message" => write!(Part { hasher, text: message }, "{value:?}"),
            "peer" => {
                let peer = format!("{value:?}");
                let host = peer.rsplit_once(':').map_or(&*peer, |(host, _)| host);
                write!(Part { hasher, text: fields }, " peer={host}")
            }
            name => {
                let mut part = Part { hasher, text: fields };
                write!(part, " {name}=").and_then(|()| write_value(&mut part, value))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::{EnvFilter, Layer as _};

    use super::*;

    impl Record for &str {
        fn record(&self, text: &mut Text) {
            let Text { hasher, message, .. } = text;
            Part { hasher, text: message }.write_str(self).unwrap();
        }
    }

    fn taken(repeats: &Repeats) -> Vec<(String, u64)> {
        repeats.take().into_iter().map(|seen| (seen.text, seen.times)).collect()
    }

    #[test]
    fn the_modules_whose_warnings_are_all_logged_exist() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        // Other targets are named where they log.
        let modules = NEVER_REPEATS.iter().filter(|target| target.matches("::").count() > 1);
        for target in modules {
            let path = target.replacen("::", "/src/", 1).replace("::", "/");
            assert!(crates.join(&path).with_extension("rs").exists(), "{target}");
        }
    }

    #[test]
    fn a_text_is_admitted_once_and_its_repetitions_are_counted_until_the_next_report() {
        let repeats = Repeats::default();
        let admits = |text: &str| repeats.admits(Level::WARN, "here", &text);
        assert!(admits("a") && admits("b"));
        assert!(!admits("a") && !admits("a"));
        assert!(repeats.admits(Level::WARN, "elsewhere", &"a"), "another module's");
        assert_eq!(taken(&repeats), [("a".to_owned(), 2)]);
        assert!(admits("a") && admits("b") && !admits("a"), "each is logged again after a report");
        assert_eq!(taken(&repeats), [("a".to_owned(), 1)]);
        assert_eq!(taken(&repeats), []);
    }

    #[test]
    fn no_more_than_a_limited_number_of_texts_is_remembered() {
        let repeats = Repeats::default();
        let admits = |text: &str| repeats.admits(Level::ERROR, "here", &text);
        for number in 0..MAX_TEXTS {
            assert!(admits(&number.to_string()));
        }
        assert!(admits("more") && admits("more"));
        assert!(!admits("0"));
    }

    #[test]
    fn long_texts_are_compared_to_their_end_but_only_their_start_is_stored() {
        let repeats = Repeats::default();
        let long = "\u{fc}".repeat(100_000);
        let admits = |text: &str| repeats.admits(Level::WARN, "here", &text);
        assert!(admits(&long) && admits(&(long.clone() + "b")) && !admits(&long));
        let remembered: usize = repeats.seen.lock().values().map(|seen| seen.text.capacity()).sum();
        assert!(remembered <= 2 * 2 * (MAX_TEXT + 8), "{remembered} bytes of two texts");
        let [(text, 1)] = &taken(&repeats)[..] else { panic!("it was repeated once") };
        assert!(text.len() <= MAX_TEXT && text.ends_with("\u{fc}..."), "{text}");
    }

    /// Where the lines of a log go in a test.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that are logged with a filter.
    fn logged(filter: &str, events: impl FnOnce(&Repeats)) -> Vec<String> {
        let (lines, repeats) = (Lines::default(), Arc::new(Repeats::default()));
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).without_time();
        let layer = layer.with_writer(move || writer.clone()).with_filter(Collapse(Arc::clone(&repeats)));
        let subscriber = tracing_subscriber::registry().with(EnvFilter::new(filter)).with(layer);
        tracing::subscriber::with_default(subscriber, || events(&repeats));
        let text = String::from_utf8(lines.0.lock().clone()).unwrap();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    fn refuse(connection: u64, peer: &str) {
        tracing::warn!(target: "server::client", connection, %peer, "login refused");
    }

    #[test]
    fn a_retrying_client_is_logged_once_per_interval_with_any_filter() {
        let events = |repeats: &Repeats| {
            for interval in 0..2 {
                (0..3).for_each(|attempt| refuse(10 * interval + attempt, &format!("192.0.2.1:{attempt}")));
                repeats.report();
            }
        };
        let first = "WARN server::client: login refused connection=0 peer=192.0.2.1:0";
        let second = "WARN server::client: login refused connection=10 peer=192.0.2.1:0";
        assert_eq!(logged("server=warn", events), [first, second]);
        let report = "WARN leveret::repeated: repeated 2 times: login refused peer=192.0.2.1";
        assert_eq!(logged("info", events), [first, report, second, report]);
    }

    #[test]
    fn a_change_of_state_is_logged_each_time() {
        let events = |_: &Repeats| {
            for _ in 0..2 {
                tracing::warn!(target: "proxy::state", "upstream connection failed");
                tracing::info!(target: "proxy::state", "upstream reachable again");
            }
        };
        assert_eq!(logged("info", events).len(), 4);
    }
}
