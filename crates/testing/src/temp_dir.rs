//! Makes directories for the files of tests.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Directory of a test. Dropping the value removes the directory and its contents, also if the test
/// fails.
#[derive(Debug)]
pub struct TempDir(PathBuf);

/// Makes an empty directory for the files of the calling test. Other users cannot enter it.
///
/// # Panics
/// Panics if the directory cannot be made.
#[must_use]
pub fn temp_dir() -> TempDir {
    below(&std::env::temp_dir())
}

/// Makes a directory like [`temp_dir()`] on a tmpfs.
///
/// # Panics
/// Panics if the directory cannot be made.
#[must_use]
pub fn memory_dir() -> TempDir {
    below(Path::new("/dev/shm"))
}

fn below(folder: &Path) -> TempDir {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("penstock-test-{}-{number}", std::process::id()));
    // An earlier process with this number may have been killed.
    let _ = fs::remove_dir_all(&path);
    fs::DirBuilder::new().mode(0o700).create(&path).expect("a directory for temporary files");
    TempDir(path)
}

impl Deref for TempDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for TempDir {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_the_files_of_one_test_until_its_end() {
        let (one, other) = (temp_dir(), temp_dir());
        let file = one.join("file");
        fs::write(&file, "").unwrap();
        assert!(file.exists() && !other.join("file").exists());
        drop(one);
        assert!(!file.exists() && other.exists());
    }
}
