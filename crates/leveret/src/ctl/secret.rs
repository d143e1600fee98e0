//! Reads passwords from a variable, a file, standard input or the terminal, and never from the command line,
//! which everybody on the machine can read.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, IsTerminal as _, Write as _};
use std::path::Path;

use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex};

use crate::{Failure, password_file};

/// The variable with the password for logging in to the API.
pub(super) const LOGIN: &str = "LEVERET_CTL_PASSWORD";
/// The variable with a user's new password.
pub(super) const NEW: &str = "LEVERET_CTL_NEW_PASSWORD";

/// The variable with the password for logging in to the other broker of a move.
pub(super) const OTHER: &str = "LEVERET_CTL_OTHER_PASSWORD";

/// The password of `user`. It defaults to guest for the user guest, as in RabbitMQ's tools.
pub(super) fn login(user: &str, file: Option<&Path>) -> Result<String, Failure> {
    ask(user, file, LOGIN, "--password-file")
}

/// The same for the other broker of a move.
pub(super) fn other(user: &str, file: Option<&Path>) -> Result<String, Failure> {
    ask(user, file, OTHER, "--other-password-file")
}

fn ask(user: &str, file: Option<&Path>, variable: &str, flag: &str) -> Result<String, Failure> {
    if let Some(path) = file {
        return of_file(path);
    }
    if let Some(password) = of_variable(variable)? {
        return Ok(password);
    }
    if user == "guest" {
        return Ok("guest".to_owned());
    }
    match Terminal::open() {
        Some(mut terminal) => terminal.ask(&format!("Password of {user}: ")),
        None => Err(Failure::Usage(format!("no password for '{user}': set {variable} or {flag}"))),
    }
}

/// Reads the new password of a user.
pub(super) fn new_password(user: &str, file: Option<&Path>) -> Result<String, Failure> {
    if let Some(path) = file {
        return of_file(path);
    }
    if let Some(password) = of_variable(NEW)? {
        return Ok(password);
    }
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let mut line = String::new();
        stdin.lock().read_line(&mut line).map_err(Failure::run)?;
        return password_file::of_text(&line).ok_or_else(|| {
            Failure::Usage(format!(
                "no password for '{user}': give it on standard input, in {NEW}, or in a file"
            ))
        });
    }
    let no_terminal = || Failure::Usage(format!("no password for '{user}': set {NEW}"));
    let mut terminal = Terminal::open().ok_or_else(no_terminal)?;
    let password = terminal.ask(&format!("New password of {user}: "))?;
    if password.is_empty() {
        return Err(Failure::Usage("an empty password is not accepted".to_owned()));
    }
    if terminal.ask("Repeat the password: ")? != password {
        return Err(Failure::Usage("the passwords do not match".to_owned()));
    }
    Ok(password)
}

fn of_variable(name: &str) -> Result<Option<String>, Failure> {
    let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    value.into_string().map(Some).map_err(|_| Failure::Usage(format!("{name}: is not valid UTF-8")))
}

fn of_file(path: &Path) -> Result<String, Failure> {
    let fault = |what: &str| Failure::Usage(format!("{}: {what}", path.display()));
    password_file::of_file(path).map_err(|error| fault(&error.to_string()))
}

/// The controlling terminal of this process, independent of its standard streams.
struct Terminal(File);

impl Terminal {
    fn open() -> Option<Self> {
        OpenOptions::new().read(true).write(true).open("/dev/tty").ok().map(Self)
    }

    /// Prompts for a line without echo. Ctrl-C is read here like any other key: a signal would end the process
    /// and leave the terminal without echo.
    fn ask(&mut self, prompt: &str) -> Result<String, Failure> {
        let view = termios::tcgetattr(&self.0).map_err(Failure::run)?;
        let mut hidden = view.clone();
        hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
        // In line mode, Ctrl-C would be seen only at the end of the line.
        hidden.local_modes.remove(LocalModes::ICANON);
        (hidden.special_codes[SpecialCodeIndex::VMIN], hidden.special_codes[SpecialCodeIndex::VTIME]) =
            (1, 0);
        termios::tcsetattr(&self.0, OptionalActions::Flush, &hidden).map_err(Failure::run)?;
        let asked = write!(self.0, "{prompt}").and_then(|()| self.0.flush());
        let read = asked.and_then(|()| typed(BufReader::new(&self.0)));
        let restored = termios::tcsetattr(&self.0, OptionalActions::Flush, &view);
        let _ = writeln!(self.0);
        let line = read.map_err(Failure::run)?;
        restored.map_err(Failure::run)?;
        line
    }
}

/// Reads a line key by key.
fn typed(terminal: impl BufRead) -> io::Result<Result<String, Failure>> {
    let mut line = Vec::new();
    for byte in terminal.bytes() {
        match byte? {
            b'\n' | b'\r' | END => break,
            INTERRUPT | QUIT => return Ok(Err(Failure::Run("given up".to_owned()))),
            ERASE | BACKSPACE => erase(&mut line),
            KILL => line.clear(),
            byte => line.push(byte),
        }
    }
    Ok(String::from_utf8(line).map_err(|_| Failure::Usage("the password is not valid UTF-8".to_owned())))
}

/// Removes the last character, which may be several bytes.
fn erase(line: &mut Vec<u8>) {
    while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
}

// The default control characters (stty(1)): Ctrl-C, Ctrl-D, Backspace (two kinds), Ctrl-U, Ctrl-\.
const INTERRUPT: u8 = 3;
const END: u8 = 4;
const BACKSPACE: u8 = 8;
const KILL: u8 = 21;
const QUIT: u8 = 28;
const ERASE: u8 = 127;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn keys_that_erase_and_give_up_are_understood() {
        let typed = |keys: &str| typed(keys.as_bytes()).unwrap();
        assert!(matches!(typed("s3kü\u{7f}\u{8}cret\nmore"), Ok(line) if line == "s3cret"));
        assert!(matches!(typed("\u{7f}wrong\u{15}right\r"), Ok(line) if line == "right"));
        assert!(matches!(typed("\u{4}"), Ok(line) if line.is_empty()));
        assert!(matches!(typed("s3\u{3}cret\n"), Err(Failure::Run(_))));
    }

    #[test]
    fn a_file_gives_its_first_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        fs::write(&path, "s3cret \nmore\n").unwrap();
        assert!(matches!(of_file(&path), Ok(password) if password == "s3cret "));
        fs::write(&path, "\n").unwrap();
        assert!(
            matches!(of_file(&path), Err(Failure::Usage(line)) if line.ends_with("its first line is empty"))
        );
        assert!(of_file(&directory.path().join("missing")).is_err());
    }
}
