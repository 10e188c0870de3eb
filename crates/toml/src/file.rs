//! This module reads and writes configuration files. After a crash, a configuration file has either
//! the old or the new text, and never a part of a text.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::error::{ConfigError, ConfigErrors};
use crate::read::FILE_BYTES_MAX;

/// Reads a configuration file of at most [`FILE_BYTES_MAX`] bytes. The function reads at most one
/// byte more than the maximum, so that [`read()`](crate::read()) refuses a longer file.
pub fn read_file(path: &Path) -> Result<String, ConfigErrors> {
    let failed = |problem: String, remedy: &str| {
        let file = path.display().to_string();
        let (object, remedy) = ("file".to_owned(), remedy.to_owned());
        ConfigErrors(vec![ConfigError { file, line: 0, column: 0, object, problem, remedy }])
    };
    if let Some(problem) = other_kind(path) {
        return Err(failed(problem.to_owned(), "name a regular file"));
    }
    let file = File::open(path).map_err(|error| {
        failed(format!("the file cannot be opened: {error}"), "check the path and its permissions")
    })?;
    let mut text = String::new();
    let mut bounded = file.take(FILE_BYTES_MAX as u64 + 1);
    match bounded.read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => {
            let remedy = match error.kind() {
                io::ErrorKind::InvalidData => "write it in UTF-8",
                _ => "check the path and its disk",
            };
            Err(failed(format!("the file cannot be read: {error}"), remedy))
        }
    }
}

/// Returns the problem with a path that names no file. The daemon would wait for the writer of a
/// named pipe, maybe forever. A pipe of the shell, as in `<(command)`, has no name, so its link in
/// `/dev/fd` has no canonical path.
fn other_kind(path: &Path) -> Option<&'static str> {
    let kind = fs::metadata(path).ok()?.file_type();
    if kind.is_dir() {
        Some("the path is a directory")
    } else if kind.is_fifo() && fs::canonicalize(path).is_ok() {
        Some("the path is a named pipe")
    } else {
        None
    }
}

/// Replaces the text of a configuration file. Writes a temporary file beside the file, syncs the
/// temporary file, and renames it over the file. The permissions of the file do not change. If
/// `path` is a symbolic link, replaces the text of the link's target. If a file or link with the
/// temporary file's name exists, it is removed first, because the link may belong to another user.
pub fn save(path: &Path, text: &str) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let mode = fs::metadata(&path)?.permissions().mode() & 0o7777;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.penstock-{}", std::process::id()));
    let written = write_new(&temporary, text, mode).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        // The caller gets the first error. If the temporary file remains, it does no harm.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

fn write_new(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let create = || OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = match create() {
        // Most likely, an earlier process with the same id created this file and died.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            create()?
        }
        created => created?,
    };
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_no_file_is_refused_without_waiting() {
        let directory = std::env::temp_dir().join(format!("penstock-read-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (pipe, latin) = (directory.join("pipe.toml"), directory.join("latin.toml"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        fs::write(&latin, b"name = \"\xfc\"").unwrap();
        for (path, problem) in [
            (&directory, "the path is a directory; name a regular file"),
            (&pipe, "the path is a named pipe; name a regular file"),
            (&latin, "write it in UTF-8"),
            (&directory.join("none.toml"), "check the path and its permissions"),
        ] {
            let error = read_file(path).unwrap_err().to_string();
            assert!(error.contains(problem), "{}: {error}", path.display());
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_link_with_the_temporary_files_name_is_not_followed() {
        let directory = std::env::temp_dir().join(format!("penstock-save-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (config, precious) = (directory.join("host.toml"), directory.join("precious"));
        fs::write(&config, "old").unwrap();
        fs::write(&precious, "precious").unwrap();
        let temporary = directory.join(format!(".host.toml.penstock-{}", std::process::id()));
        std::os::unix::fs::symlink(&precious, &temporary).unwrap();
        save(&config, "new").unwrap();
        assert_eq!(fs::read_to_string(&config).unwrap(), "new");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert!(fs::symlink_metadata(&config).unwrap().is_file());
        fs::remove_dir_all(&directory).unwrap();
    }
}
