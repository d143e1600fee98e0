//! Passwords in files: the first line, without its end.

use std::fs;
use std::io;
use std::path::Path;

/// The first line of a file.
///
/// # Errors
///
/// The file cannot be read, or that line is empty.
pub(crate) fn of_file(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    of_text(&text).ok_or_else(|| io::Error::other("its first line is empty"))
}

/// The first line, unless it is empty.
pub(crate) fn of_text(text: &str) -> Option<String> {
    text.lines().next().filter(|line| !line.is_empty()).map(str::to_owned)
}
