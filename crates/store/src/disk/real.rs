//! The disk of the operating system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use super::{Disk, DiskFile};

/// A directory of the file system.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// The data directory `root`, created if it is missing, readable by its owner only: it holds messages and password
    /// hashes.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new(root: impl Into<PathBuf>) -> io::Result<Self> {
        let disk = Self { root: root.into() };
        disk.create_dir("")?;
        Ok(disk)
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

impl Disk for RealDisk {
    fn open(&self, path: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        Ok(Box::new(RealFile(options.open(self.path(path))?)))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.path(directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn create_dir(&self, directory: &str) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(self.path(directory))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        ignore_missing(fs::remove_file(self.path(path)))
    }

    fn remove_dir(&self, directory: &str) -> io::Result<()> {
        ignore_missing(fs::remove_dir_all(self.path(directory)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        File::open(self.path(directory))?.sync_all()
    }

    fn free_space(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(Path::new(&self.root))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < into.len() {
            match self.0.read_at(&mut into[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(bytes) => read += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.0, FallocateFlags::KEEP_SIZE, 0, len)?)
    }
}

fn ignore_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// Only the owner may read messages.
const FILE_MODE: u32 = 0o600;
/// The same for directories.
const DIR_MODE: u32 = 0o700;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_files_are_read_and_listed() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let disk = RealDisk::new(directory.path().join("data"))?;
        disk.create_dir("a/b")?;
        let file = disk.open("a/b/one")?;
        file.reserve(1 << 16)?;
        assert_eq!(file.len()?, 0);
        file.write_at(b"hello", 3)?;
        file.sync()?;
        disk.sync_dir("a/b")?;
        let mut bytes = [1; 10];
        assert_eq!(file.read_at(&mut bytes, 0)?, 8);
        assert_eq!(&bytes[..8], b"\0\0\0hello");
        assert_eq!(disk.list("a/b")?, ["one"]);
        disk.rename("a/b/one", "a/two")?;
        assert_eq!(disk.list("a/b")?, Vec::<String>::new());
        assert!(disk.free_space()? > 0);
        disk.remove("a/two")?;
        disk.remove("a/two")?;
        disk.remove_dir("a")?;
        assert_eq!(disk.list("a")?, Vec::<String>::new());
        Ok(())
    }
}
