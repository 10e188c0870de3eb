//! Finds the published YANG models with which tests validate what drivers write to switches.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable with the folder of the published models. `.ci/run` sets it where the folder
/// exists.
const YANG: &str = "PENSTOCK_YANG";

/// Returns the folder with the models of `publisher`, which is a subfolder of the folder that
/// `PENSTOCK_YANG` names. Returns `None` and records a skip if the models or `yanglint` are
/// missing.
#[must_use]
#[track_caller]
pub fn models(publisher: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os(YANG) else {
        crate::skip(format!("no YANG models: {YANG} names no folder"));
        return None;
    };
    if Command::new("yanglint").arg("--version").output().is_err() {
        crate::skip("yanglint is not installed (scripts/setup.sh test)");
        return None;
    }
    Some(Path::new(&folder).join(publisher))
}
