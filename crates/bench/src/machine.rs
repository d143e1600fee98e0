//! The machine that a run was made on, for its report.

use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};

/// The facts that a reader needs to tell whether figures are comparable.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// CPU model, as the kernel names it.
    pub(crate) cpu: String,
    /// Memory in bytes.
    pub(crate) memory_bytes: u64,
    /// Kernel release.
    pub(crate) kernel: String,
    /// Name of the distribution.
    pub(crate) system: String,
    /// Version of the load generator.
    pub(crate) generator: String,
}

impl Machine {
    /// Describes the machine; unknown facts are `unknown` or 0.
    pub(crate) fn describe() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: or_unknown(value_of(&read("/proc/cpuinfo"), "model name", ':')),
            memory_bytes: value_of(&read("/proc/meminfo"), "MemTotal", ':')
                .and_then(|text| text.strip_suffix(" kB")?.trim().parse::<u64>().ok())
                .map_or(0, |kib| kib * 1024),
            kernel: or_unknown(Some(read("/proc/sys/kernel/osrelease").trim().to_owned())),
            system: or_unknown(value_of(&read("/etc/os-release"), "PRETTY_NAME", '=')),
            generator: concat!("leveret bench ", env!("CARGO_PKG_VERSION")).into(),
        }
    }
}

/// Describes the machine in one line.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, cpu, memory_bytes, kernel, system, generator } = self;
        let memory = *memory_bytes as f64 / f64::from(1 << 30);
        write!(f, "{generator} on {system}, Linux {kernel}, {cores} × {cpu}, {memory:.1} GiB")
    }
}

fn value_of(text: &str, key: &str, separator: char) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(separator)?;
        (name.trim() == key).then(|| value.trim().trim_matches('"').to_owned())
    })
}

fn or_unknown(text: Option<String>) -> String {
    text.filter(|t| !t.is_empty()).unwrap_or_else(|| "unknown".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_without_surrounding_whitespace_and_quotes() {
        assert_eq!(value_of("a\t: 1\nmodel name\t: X: Y\n", "model name", ':').as_deref(), Some("X: Y"));
        assert_eq!(value_of("PRETTY_NAME=\"D 12\"", "PRETTY_NAME", '=').as_deref(), Some("D 12"));
        assert_eq!(value_of("", "k", ':'), None);
    }

    #[test]
    fn this_machine_has_cores_and_memory() {
        let machine = Machine::describe();
        assert!(machine.cores > 0 && machine.memory_bytes > 0);
    }
}
