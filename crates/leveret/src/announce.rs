//! The start-up lines for scripts: one per listener, on standard output.

use std::io::Write as _;

use parking_lot::Mutex;

/// An announced listener.
#[derive(Debug, Clone)]
pub(crate) struct Announced {
    /// The name in the announcement: `web-mqtt`.
    pub(crate) name: String,
    pub(crate) url: String,
    /// Whether it uses TLS, which the URL of a Unix socket does not show.
    pub(crate) is_tls: bool,
}

/// The announced listeners, in order.
static ANNOUNCED: Mutex<Vec<Announced>> = Mutex::new(Vec::new());

/// Prints `NAME  listening on URL` and flushes, so that the parent process can read the port at once.
///
/// A closed standard output is no reason to stop serving.
pub(crate) fn announce(name: &str, scheme: &str, url: &str) {
    let is_tls = matches!(scheme, "amqps" | "mqtts" | "stomps" | "wss" | "https");
    ANNOUNCED.lock().push(Announced { name: name.to_owned(), url: url.to_owned(), is_tls });
    let mut output = std::io::stdout().lock();
    let _ = write!(output, "{}", line(name, url)).and_then(|()| output.flush());
}

/// Returns the announced listeners, in order.
pub(crate) fn announced() -> Vec<Announced> {
    ANNOUNCED.lock().clone()
}

fn line(name: &str, url: &str) -> String {
    // Padded to the width of `amqps`, so that the AMQP lines align.
    format!("{name:<5} listening on {url}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_the_one_scripts_read() {
        assert_eq!(line("amqp", "amqp://127.0.0.1:5672"), "amqp  listening on amqp://127.0.0.1:5672\n");
        assert_eq!(line("web-mqtt", "ws://[::1]:1"), "web-mqtt listening on ws://[::1]:1\n");
    }
}
