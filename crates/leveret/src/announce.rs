//! The lines of start-up that scripts read: one per listener, on standard output.

use std::io::Write as _;

use parking_lot::Mutex;

/// Name and URL of each listener that was announced.
static ANNOUNCED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Prints `NAME  listening on URL` and flushes, so that whoever started the process can read the port at once.
///
/// A closed standard output is no reason to stop serving.
pub(crate) fn announce(name: &str, url: &str) {
    ANNOUNCED.lock().push((name.to_owned(), url.to_owned()));
    let mut output = std::io::stdout().lock();
    let _ = write!(output, "{}", line(name, url)).and_then(|()| output.flush());
}

/// The listeners of this process, by the names that scripts read, and their URLs.
pub(crate) fn announced() -> Vec<(String, String)> {
    ANNOUNCED.lock().clone()
}

fn line(name: &str, url: &str) -> String {
    // As wide as `amqps`, so that the lines of AMQP align.
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
