//! The lines of start-up that scripts read: one per listener, on standard output.

use std::io::Write as _;

/// Prints `NAME  listening on URL` and flushes, so that whoever started the process can read the port at once.
///
/// A closed standard output is no reason to stop serving.
pub(crate) fn announce(name: &str, url: &str) {
    let mut output = std::io::stdout().lock();
    let _ = write!(output, "{}", line(name, url)).and_then(|()| output.flush());
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
