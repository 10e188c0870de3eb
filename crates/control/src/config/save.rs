//! Writing a configuration file so that a crash leaves the old or the new one, never half.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Replaces the file's text: a temporary file beside it, synced, then renamed over it. The file's
/// mode stays; a symbolic link is followed.
pub(crate) fn save(path: &Path, text: &str) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let mode = fs::metadata(&path)?.permissions().mode() & 0o7777;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.penstock-{}", std::process::id()));
    let written = write_new(&temporary, text, mode).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        // The first error is the one to tell; what is left over is harmless.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

fn write_new(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
