//! The `penstock` program that the lab drives. It is searched for once per process.

use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The variable that names the program. It takes precedence over all other places.
const VARIABLE: &str = "PENSTOCK_BIN";

/// Why there is no program to drive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    /// The variable does not name a program.
    #[error("PENSTOCK_BIN: {0} is no program; name one, or unset the variable")]
    Named(PathBuf),
    /// The program is in none of the places.
    #[error(
        "penstock: not in {0} and not in PATH; build it (cargo build -p penstock), or name it by \
         PENSTOCK_BIN"
    )]
    Nowhere(PathBuf),
}

/// A command that runs the `penstock` program, without arguments yet.
///
/// # Errors
///
/// Fails if there is no such program.
pub fn penstock() -> Result<Command, NotFound> {
    static FOUND: OnceLock<Result<PathBuf, NotFound>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let own = env::current_exe().unwrap_or_default();
        let path = env::var_os("PATH").unwrap_or_default();
        find(env::var_os(VARIABLE).as_deref(), &own, &path)
    });
    found.clone().map(Command::new)
}

/// Searches the variable, the directory of `own`, and the directories of `path`.
fn find(named: Option<&OsStr>, own: &Path, path: &OsStr) -> Result<PathBuf, NotFound> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        return if is_program(&named) { Ok(named) } else { Err(NotFound::Named(named)) };
    }
    let beside = own.parent().unwrap_or(Path::new(""));
    // A test binary is one directory further down.
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
        let root = env::temp_dir().join(format!("penstock-find-{}", std::process::id()));
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
        fs::remove_dir_all(&root).unwrap();
    }
}
