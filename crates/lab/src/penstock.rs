//! Finds the `penstock` program that the lab starts. The search for the program takes place once
//! per process.

use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Environment variable with the path of the `penstock` program. If `PENSTOCK_BIN` is set and not
/// empty, the lab searches no other place.
const VARIABLE: &str = "PENSTOCK_BIN";

/// Reason for which no `penstock` program was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    /// `PENSTOCK_BIN` does not name an executable file. The error contains the value of
    /// `PENSTOCK_BIN`.
    #[error("PENSTOCK_BIN: {0} is not an executable file; set it to one, or unset it")]
    Named(PathBuf),
    /// The `penstock` program is neither in the lab's directory nor in `PATH`. The error contains
    /// the path of the directory with the lab's program.
    #[error(
        "penstock: not in {0} and not in PATH; build it (cargo build -p penstock), or set \
         PENSTOCK_BIN to its path"
    )]
    Nowhere(PathBuf),
}

/// Returns a command, without arguments, that runs the `penstock` program.
///
/// # Errors
///
/// Returns an error if the `penstock` program is not found.
pub fn penstock() -> Result<Command, NotFound> {
    static FOUND: OnceLock<Result<PathBuf, NotFound>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let own = env::current_exe().unwrap_or_default();
        let path = env::var_os("PATH").unwrap_or_default();
        find(env::var_os(VARIABLE).as_deref(), &own, &path)
    });
    found.clone().map(Command::new)
}

/// Searches for the `penstock` program. `named` is the value of `PENSTOCK_BIN`, `own` is the path
/// of the lab's program, and `path` is the value of `PATH`.
fn find(named: Option<&OsStr>, own: &Path, path: &OsStr) -> Result<PathBuf, NotFound> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        return if is_program(&named) { Ok(named) } else { Err(NotFound::Named(named)) };
    }
    let beside = own.parent().unwrap_or(Path::new(""));
    // Test binaries are in the subdirectory `deps`.
    let beside = if beside.ends_with("deps") { beside.parent().unwrap_or(beside) } else { beside };
    let dirs = std::iter::once(beside.to_owned()).chain(env::split_paths(path));
    let mut places = dirs.map(|dir| dir.join("penstock"));
    places.find(|file| is_program(file)).ok_or_else(|| NotFound::Nowhere(beside.to_owned()))
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn it_is_looked_for_by_name_beside_and_in_path() {
        let root = penstock_testing::temp_dir();
        let [named, beside, last] = ["named", "target", "bin"].map(|dir| root.join(dir));
        let path = env::join_paths([&root.join("absent"), &last]).unwrap();
        let find =
            |named: Option<&Path>, own: &Path| super::find(named.map(Path::as_os_str), own, &path);
        let make = |dir: &Path| {
            fs::create_dir_all(dir).unwrap();
            let file = dir.join("penstock");
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
            file
        };
        let lab = beside.join("penstock-lab");
        let error = find(None, &lab).unwrap_err();
        assert_eq!(error, NotFound::Nowhere(beside.clone()));
        assert!(error.to_string().contains("cargo build -p penstock"), "{error}");
        let in_path = make(&last);
        assert_eq!(find(None, &lab).unwrap(), in_path);
        let by_its_side = make(&beside);
        assert_eq!(find(None, &lab).unwrap(), by_its_side);
        assert_eq!(find(None, &beside.join("deps/bench-0123")).unwrap(), by_its_side);
        let wrong = named.join("penstock");
        assert_eq!(find(Some(&wrong), &lab), Err(NotFound::Named(wrong.clone())));
        assert_eq!(find(Some(&make(&named)), &lab).unwrap(), wrong);
        // A file that cannot be executed does not count.
        fs::set_permissions(&by_its_side, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find(None, &lab).unwrap(), in_path);
    }
}
