//! Where the output of a capture goes: standard output, or a file.
//!
//! # Approach
//!
//! The file is opened before the command sends its request, so that a path that cannot be written
//! is an error before the capture begins. The file keeps its content until the daemon has accepted
//! the capture. If the daemon refuses, a file that the command made is removed. Only the user may
//! read such a file, because it has the frames of guests. Frames never go to a terminal, which
//! would obey the bytes that a guest chose.

use std::fs::{self, File};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// Permission bits of a new file.
const MODE: u32 = 0o600;

/// Open output of a capture that has not begun.
#[derive(Debug)]
pub(super) struct Target {
    /// `None` for standard output.
    file: Option<File>,
    /// Path of a file that the command has made.
    made: Option<PathBuf>,
}

impl Target {
    /// Opens the output for the bytes of frames. The path `-` is standard output. Without a path,
    /// the output is standard output for lines of text.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, or if the output is a terminal.
    pub(super) fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self { file: None, made: None }) };
        if path == Path::new("-") {
            no_terminal(&io::stdout(), path)?;
            return Ok(Self { file: None, made: None });
        }
        let new = File::options().write(true).create_new(true).mode(MODE).open(path);
        let (file, made) = match new {
            Ok(file) => (Ok(file), Some(path.to_owned())),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let mut old = File::options();
                (old.write(true).create(true).truncate(false).mode(MODE).open(path), None)
            }
            Err(error) => (Err(error), None),
        };
        let file = file.with_context(|| {
            format!("file {}: cannot be written; choose another file", path.display())
        })?;
        no_terminal(&file, path)?;
        Ok(Self { file: Some(file), made })
    }

    /// Empties the file and returns the output, because the capture has begun.
    ///
    /// # Errors
    /// Returns an error if the file cannot be emptied.
    pub(super) fn begin(mut self) -> io::Result<Box<dyn Write + Send>> {
        let Some(file) = self.file.take() else { return Ok(Box::new(io::stdout())) };
        // A device or a pipe has no length.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        self.made = None;
        Ok(Box::new(file))
    }
}

fn no_terminal(out: &impl IsTerminal, path: &Path) -> Result<()> {
    ensure!(
        !out.is_terminal(),
        "file {}: it is a terminal, which would obey the bytes of frames; write to a file or a \
         pipe, or leave out -w",
        path.display()
    );
    Ok(())
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_keeps_its_content_until_the_capture_begins() {
        let path = std::env::temp_dir().join(format!("penstock-target-{}", std::process::id()));
        fs::write(&path, "precious and long").unwrap();
        drop(Target::open(Some(&path)).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious and long");
        let mut out = Target::open(Some(&path)).unwrap().begin().unwrap();
        out.write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        fs::remove_file(&path).unwrap();
        drop(Target::open(Some(&path)).unwrap());
        assert!(!path.exists(), "no empty file remains");
        Target::open(Some(&path)).unwrap().begin().unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        fs::remove_file(&path).unwrap();
        let refused = Target::open(Some(Path::new("/nonexistent/file"))).unwrap_err();
        assert!(refused.to_string().contains("choose another file"), "{refused}");
        Target::open(Some(Path::new("/dev/null"))).unwrap().begin().unwrap();
        // The master of a terminal is a terminal, too.
        let refused = Target::open(Some(Path::new("/dev/ptmx"))).unwrap_err();
        assert!(refused.to_string().contains("it is a terminal"), "{refused}");
    }
}
