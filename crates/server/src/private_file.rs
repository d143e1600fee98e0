//! Small files in the data directory that only this process's user may read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Readable and writable by the process's user only.
pub(crate) const MODE: u32 = 0o600;

/// Replaces or creates a file. After a crash it is the old one or the new one; on return it is the new one.
///
/// # Errors
/// File system errors. The file is then the old one, or a new one that may not be on disk yet.
pub fn replace_private_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    // An existing file could have another owner and mode.
    remove_private_file(&new)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync_dir(path)
}

/// Removes a file, if there is one. On return it is gone from the disk.
pub(crate) fn remove_private_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_dir(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creating, renaming or removing a file is durable only once its directory is synced.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_private_despite_a_draft_left_by_a_crash() {
        let directory = tempfile::tempdir().unwrap();
        let (path, draft) = (directory.path().join("a.json"), directory.path().join("a.new"));
        for text in ["one", "2"] {
            fs::write(&draft, "left by a crash").unwrap();
            fs::set_permissions(&draft, fs::Permissions::from_mode(0o644)).unwrap();
            replace_private_file(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
            assert!(!draft.exists());
        }
        remove_private_file(&path).unwrap();
        remove_private_file(&path).unwrap();
        assert!(!path.exists());
    }
}
