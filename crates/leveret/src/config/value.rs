//! The types of settings: how each is parsed from text and written back as TOML.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::suggestion::nearest;
use super::value_error::ValueError;

/// The type of a setting.
///
/// Text is the one form that all layers share: flags and variables are text, and values of the file are
/// converted to it.
pub(crate) trait Value: Sized {
    /// The placeholder for the value in `--help`, such as `ADDR`.
    const KIND: &'static str;
    /// Whether several values may be given.
    const REPEATED: bool = false;
    /// Whether the file may give a value as a table, which `parse` then receives as an inline table.
    const TABLES: bool = false;
    /// Whether it is a secret, which is masked when written, and has no flag.
    const SECRET: bool = false;

    /// Parses one value. The error describes the mistake without naming the setting.
    fn parse(text: &str) -> Result<Self, ValueError>;

    /// Parses all texts that one layer has for the setting.
    fn parse_all(texts: &[String]) -> Result<Self, ValueError> {
        match texts {
            [text] => Self::parse(text),
            _ => Err("takes one value, not a list".into()),
        }
    }

    /// The value as TOML that can be parsed again, except for secrets, which are masked.
    fn to_toml(&self) -> String;
}

/// Refuses a value outside `least..=most`; the bounds have the syntax of the setting.
pub(super) fn within<T: Value + PartialOrd>(
    value: &T,
    least: &'static str,
    most: &'static str,
) -> Result<(), ValueError> {
    if *value < T::parse(least)? || *value > T::parse(most)? {
        return Err(ValueError::OutOfRange { least, most });
    }
    Ok(())
}

/// The text as a TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn whole_number<T: TryFrom<u64>>(text: &str) -> Result<T, ValueError> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits {
        return Err(ValueError::text(text, "is not a whole number"));
    }
    let number = text.parse::<u64>().ok().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| ValueError::text(text, "is too large"))
}

/// Splits `16MiB` into its digits and its unit.
fn number_and_unit(text: &str) -> (&str, &str) {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim())
}

impl Value for u16 {
    const KIND: &'static str = "N";

    fn parse(text: &str) -> Result<Self, ValueError> {
        whole_number(text)
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Value for u32 {
    const KIND: &'static str = "N";

    fn parse(text: &str) -> Result<Self, ValueError> {
        whole_number(text)
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

/// A span of time: a number of seconds, or a number with `ms`, `s`, `m` or `h`.
impl Value for Duration {
    const KIND: &'static str = "DURATION";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError::text(text, "is not a duration (such as 10, 10s, 500ms, 2m or 1h)");
        let (number, unit) = number_and_unit(text);
        let number = number.parse::<u64>().map_err(|_| wrong())?;
        let milliseconds_each = match unit {
            "ms" => 1,
            "" | "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(wrong()),
        };
        number.checked_mul(milliseconds_each).map(Self::from_millis).ok_or_else(wrong)
    }

    fn to_toml(&self) -> String {
        let milliseconds = self.as_millis();
        if milliseconds.is_multiple_of(1_000) {
            quoted(&format!("{}s", milliseconds / 1_000))
        } else {
            quoted(&format!("{milliseconds}ms"))
        }
    }
}

/// A number of bytes, written without a unit, or with a binary (`MiB`) or decimal (`MB`) one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

const SIZE_UNITS: [(&str, u64); 7] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
];

impl Value for ByteSize {
    const KIND: &'static str = "SIZE";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError::text(text, "is not a size (such as 1048576, 64KiB, 16MiB or 50MB)");
        let (number, unit) = number_and_unit(text);
        let number = number.parse::<u64>().map_err(|_| wrong())?;
        let bytes_each = match unit {
            "" => 1,
            _ => SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1,
        };
        number.checked_mul(bytes_each).map(Self).ok_or_else(wrong)
    }

    fn to_toml(&self) -> String {
        let fitting = SIZE_UNITS.iter().filter(|(_, bytes)| self.0 != 0 && self.0.is_multiple_of(*bytes));
        let unit = fitting.max_by_key(|(_, bytes)| bytes);
        match unit {
            Some((name, bytes)) => quoted(&format!("{}{name}", self.0 / bytes)),
            None => self.0.to_string(),
        }
    }
}

/// The largest value that may be configured, here and in RabbitMQ.
const LARGEST_MESSAGE: ByteSize = ByteSize(512 << 20);

/// The maximum message size, or `None` for `unlimited`: as large as the backend accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageSize(pub(crate) Option<ByteSize>);

impl MessageSize {
    /// In bytes, for the embedded broker.
    pub(crate) fn of_broker(self) -> u64 {
        self.0.unwrap_or(LARGEST_MESSAGE).0
    }
}

impl Value for MessageSize {
    const KIND: &'static str = "SIZE";

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text == "unlimited" {
            return Ok(Self(None));
        }
        let most = ByteSize::parse(text).map_err(|error| error.nor("unlimited"))?;
        if most.0 == 0 || most > LARGEST_MESSAGE {
            return Err("must be between 1 and 512MiB, or 'unlimited'".into());
        }
        Ok(Self(Some(most)))
    }

    fn to_toml(&self) -> String {
        self.0.map_or_else(|| quoted("unlimited"), |most| most.to_toml())
    }
}

/// A maximum number, or `None` for `unlimited`.
///
/// Zero is refused: in other programs it means "none" as often as it means "any number".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Option<u32>);

impl Value for Limit {
    const KIND: &'static str = "N";

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text == "unlimited" {
            return Ok(Self(None));
        }
        match whole_number(text).map_err(|error: ValueError| error.nor("unlimited"))? {
            0 => Err("must be at least 1, or 'unlimited'".into()),
            most => Ok(Self(Some(most))),
        }
    }

    fn to_toml(&self) -> String {
        self.0.map_or_else(|| quoted("unlimited"), |most| most.to_string())
    }
}

impl Limit {
    /// The number, or 0 for no limit.
    pub(crate) fn or_none(self) -> usize {
        self.0.map_or(0, |most| most as usize)
    }
}

/// Maximum bytes per second, or `None` for `unlimited`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateLimit(pub(crate) Option<ByteSize>);

impl RateLimit {
    /// The number of bytes, or 0 for no limit.
    pub(crate) fn or_none(self) -> usize {
        self.0.map_or(0, |most| usize::try_from(most.0).unwrap_or(usize::MAX))
    }
}

impl Value for RateLimit {
    const KIND: &'static str = "SIZE";

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text == "unlimited" {
            return Ok(Self(None));
        }
        match ByteSize::parse(text).map_err(|error| error.nor("unlimited"))? {
            ByteSize(0) => Err("must be at least 1, or 'unlimited'".into()),
            most => Ok(Self(Some(most))),
        }
    }

    fn to_toml(&self) -> String {
        self.0.map_or_else(|| quoted("unlimited"), |most| most.to_toml())
    }
}

/// A file, or `None` for `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilePath(pub(crate) Option<PathBuf>);

impl Value for FilePath {
    const KIND: &'static str = "FILE";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err("must be the path of a file, or 'off'".into()),
            "off" => Ok(Self(None)),
            path => Ok(Self(Some(path.into()))),
        }
    }

    fn to_toml(&self) -> String {
        quoted(&self.0.as_ref().map_or("off".into(), |path| path.to_string_lossy()))
    }
}

/// Number of threads that run the sessions; `auto` is one for each core this process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerThreads(Option<NonZeroUsize>);

/// Far above any machine's cores; a typing error must not start a million threads.
const MAX_WORKER_THREADS: usize = 1024;

impl WorkerThreads {
    /// The number to start, at least one.
    pub(crate) fn count(self) -> usize {
        self.0.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
    }
}

impl Value for WorkerThreads {
    const KIND: &'static str = "N";

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text == "auto" {
            return Ok(Self(None));
        }
        let threads = whole_number(text).map_err(|error: ValueError| error.nor("auto"))?;
        match NonZeroUsize::new(threads) {
            Some(threads) if threads.get() <= MAX_WORKER_THREADS => Ok(Self(Some(threads))),
            _ => Err("must be between 1 and 1024, or 'auto'".into()),
        }
    }

    fn to_toml(&self) -> String {
        self.0.map_or_else(|| quoted("auto"), |threads| threads.to_string())
    }
}

/// The log filter: one level, or directives in the syntax of `tracing-subscriber`'s `EnvFilter`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogFilter(pub(crate) String);

/// The target of a directive that is surely a mistyped crate of this program, and the crate that was meant. Other targets may
/// be libraries.
fn mistyped_target(directive: &str) -> Option<(&str, &'static str)> {
    let target = directive.split_once('=')?.0.split([':', '[']).next()?.trim();
    let meant = nearest(target, LOG_TARGETS).filter(|meant| *meant != target)?;
    Some((target, meant))
}

/// The crates that log.
const LOG_TARGETS: [&str; 7] = ["admin", "auth", "broker", "leveret", "proxy", "server", "store"];

const LOG_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

impl Value for LogFilter {
    const KIND: &'static str = "LEVEL";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let directives = text.contains(['=', ',']);
        // A lone word would be taken for a module's name, so `--log verbose` would silently log nothing.
        let valid = if directives {
            tracing_subscriber::EnvFilter::builder().parse(text).is_ok()
        } else {
            LOG_LEVELS.contains(&text)
        };
        if !valid {
            return Err(ValueError::text(
                text,
                "is neither a level (error, warn, info, debug, trace, off) nor directives such as info,proxy=debug",
            ));
        }
        if let Some((target, meant)) = text.split(',').find_map(mistyped_target) {
            return Err(ValueError::LogTarget { target: target.to_owned(), meant });
        }
        Ok(Self(text.to_owned()))
    }

    fn to_toml(&self) -> String {
        quoted(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn same<T: Value + PartialEq + std::fmt::Debug>(text: &str, value: T, toml: &str) {
        assert_eq!(T::parse(text).as_ref(), Ok(&value));
        assert_eq!(value.to_toml(), toml);
    }

    #[track_caller]
    fn refused<T: Value + std::fmt::Debug>(text: &str, reason: &str) {
        assert_eq!(T::parse(text).unwrap_err().to_string(), reason);
    }

    #[test]
    fn numbers_are_whole_and_fit() {
        same("65535", 65535_u16, "65535");
        refused::<u16>("65536", "'65536' is too large");
        refused::<u32>("99999999999999999999999", "'99999999999999999999999' is too large");
        for text in ["", "-1", "+1", "1.5", "ten", " 1"] {
            refused::<u32>(text, &format!("'{text}' is not a whole number"));
        }
    }

    #[test]
    fn durations_have_units_and_default_to_seconds() {
        same("10", Duration::from_secs(10), "\"10s\"");
        same("10s", Duration::from_secs(10), "\"10s\"");
        same("1500ms", Duration::from_millis(1500), "\"1500ms\"");
        same("2m", Duration::from_secs(120), "\"120s\"");
        same("1 h", Duration::from_secs(3600), "\"3600s\"");
        for text in ["", "s", "10d", "-1s", "99999999999999999h"] {
            refused::<Duration>(
                text,
                &format!("'{text}' is not a duration (such as 10, 10s, 500ms, 2m or 1h)"),
            );
        }
    }

    #[test]
    fn sizes_are_bytes_with_binary_or_decimal_units() {
        same("0", ByteSize(0), "0");
        same("131072", ByteSize(131_072), "\"128KiB\"");
        same("16MiB", ByteSize(16 << 20), "\"16MiB\"");
        same("1 GiB", ByteSize(1 << 30), "\"1GiB\"");
        same("1000", ByteSize(1000), "1000");
        same("50MB", ByteSize(50_000_000), "\"50MB\"");
        same("2GB", ByteSize(2_000_000_000), "\"2GB\"");
        same("1024MB", ByteSize(1_024_000_000), "\"1024MB\"");
        same("100TB", ByteSize(100_000_000_000_000), "\"100TB\"");
        for text in ["", "16Mb", "MiB", "1e6", "99999999999999999GiB"] {
            refused::<ByteSize>(
                text,
                &format!("'{text}' is not a size (such as 1048576, 64KiB, 16MiB or 50MB)"),
            );
        }
    }

    #[test]
    fn a_limit_is_a_number_or_unlimited() {
        same("7", Limit(Some(7)), "7");
        same("unlimited", Limit(None), "\"unlimited\"");
        refused::<Limit>("0", "must be at least 1, or 'unlimited'");
        refused::<Limit>("many", "'many' is not a whole number, nor 'unlimited'");
    }

    #[test]
    fn the_largest_message_may_be_left_open() {
        same("64MiB", MessageSize(Some(ByteSize(64 << 20))), "\"64MiB\"");
        same("unlimited", MessageSize(None), "\"unlimited\"");
        refused::<MessageSize>("0", "must be between 1 and 512MiB, or 'unlimited'");
        refused::<MessageSize>("513MiB", "must be between 1 and 512MiB, or 'unlimited'");
    }

    #[test]
    fn a_rate_is_a_size_or_unlimited() {
        same("1MiB", RateLimit(Some(ByteSize(1 << 20))), "\"1MiB\"");
        same("unlimited", RateLimit(None), "\"unlimited\"");
        refused::<RateLimit>("0", "must be at least 1, or 'unlimited'");
        let reason = "'much' is not a size (such as 1048576, 64KiB, 16MiB or 50MB), nor 'unlimited'";
        refused::<RateLimit>("much", reason);
    }

    #[test]
    fn a_file_is_a_path_or_off() {
        same("off", FilePath(None), "\"off\"");
        same("./off", FilePath(Some("./off".into())), "\"./off\"");
        refused::<FilePath>("", "must be the path of a file, or 'off'");
    }

    #[test]
    fn worker_threads_are_counted_or_automatic() {
        same("auto", WorkerThreads(None), "\"auto\"");
        same("3", WorkerThreads(NonZeroUsize::new(3)), "3");
        assert_eq!(WorkerThreads::parse("3").unwrap().count(), 3);
        assert!(WorkerThreads::parse("auto").unwrap().count() >= 1);
        refused::<WorkerThreads>("0", "must be between 1 and 1024, or 'auto'");
        refused::<WorkerThreads>("1025", "must be between 1 and 1024, or 'auto'");
        refused::<WorkerThreads>("two", "'two' is not a whole number, nor 'auto'");
    }

    #[test]
    fn a_log_filter_is_a_known_level_or_directives() {
        same("debug", LogFilter("debug".to_owned()), "\"debug\"");
        same("info,proxy=trace", LogFilter("info,proxy=trace".to_owned()), "\"info,proxy=trace\"");
        same("info,hyper=debug", LogFilter("info,hyper=debug".to_owned()), "\"info,hyper=debug\"");
        refused::<LogFilter>("info,proxxy=debug", "there is no target 'proxxy'; did you mean proxy?");
        for text in ["", "verbose", "proxy=loud"] {
            refused::<LogFilter>(
                text,
                &format!(
                    "'{text}' is neither a level (error, warn, info, debug, trace, off) nor directives such as info,proxy=debug"
                ),
            );
        }
    }

    #[test]
    fn the_log_targets_are_the_crates_that_depend_on_tracing() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut logging: Vec<String> = std::fs::read_dir(crates)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| {
                let manifest = std::fs::read_to_string(entry.path().join("Cargo.toml")).unwrap();
                manifest.lines().any(|line| line == "tracing.workspace = true")
            })
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        logging.sort_unstable();
        assert_eq!(logging, LOG_TARGETS);
    }

    #[test]
    fn a_bound_is_part_of_the_range() {
        assert_eq!(within(&4096_u32, "4096", "8192"), Ok(()));
        assert_eq!(within(&8192_u32, "4096", "8192"), Ok(()));
        assert_eq!(
            within(&8193_u32, "4096", "8192").unwrap_err().to_string(),
            "must be between 4096 and 8192"
        );
        assert_eq!(within(&ByteSize(0), "1", "1MiB").unwrap_err().to_string(), "must be between 1 and 1MiB");
    }
}
