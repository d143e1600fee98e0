//! Small files of this process in its data directory, which nobody but its user may read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Only the user of the process may read and write them.
pub(crate) const MODE: u32 = 0o600;

/// Replaces a file, or creates it. After a crash it is the old one or the new one; on return it is the new one.
///
/// # Errors
/// Those of the file system. The file is the old one, or the new one that may not be on disk yet.
pub fn replace_private_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    // A file that is there already would have an owner and a mode of its own.
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

/// A file that was created, renamed or removed is so on disk once its directory is.
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
