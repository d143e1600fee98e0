//! The start-up lines for scripts: one per listener, on standard output.

use std::io::Write as _;

use parking_lot::Mutex;
use server::ListenerKind;

/// An announced listener.
#[derive(Debug, Clone)]
pub(crate) struct Announced {
    pub(crate) kind: ListenerKind,
    /// `unix:/path` for a Unix socket.
    pub(crate) url: String,
}

/// The announced listeners, in order.
static ANNOUNCED: Mutex<Vec<Announced>> = Mutex::new(Vec::new());

/// Prints `NAME  listening on URL` and flushes, so that the parent process can read the port at once.
///
/// A closed standard output is no reason to stop serving.
pub(crate) fn announce(listener: Announced) {
    let line = line(listener.kind.setting, &listener.url);
    ANNOUNCED.lock().push(listener);
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(line.as_bytes()).and_then(|()| output.flush());
}

/// Returns the announced listeners, in order.
pub(crate) fn announced() -> Vec<Announced> {
    ANNOUNCED.lock().clone()
}

fn line(setting: &str, url: &str) -> String {
    let name = setting.replace('_', "-");
    // Padded to the width of `amqps`, so that the AMQP lines align.
    format!("{name:<5} listening on {url}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_the_one_scripts_read() {
        assert_eq!(line("amqp", "amqp://127.0.0.1:5672"), "amqp  listening on amqp://127.0.0.1:5672\n");
        assert_eq!(line("web_mqtt", "ws://[::1]:1"), "web-mqtt listening on ws://[::1]:1\n");
    }
}
