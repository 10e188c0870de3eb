//! Helpers that the tests of all crates share. Only tests may depend on this crate, which
//! `penstock-tidy` checks.
//!
//! # Skips
//! A test that cannot run on this machine returns early, and libtest counts it as passed. Such a
//! test calls [`skip`] first, which appends a line to the file that `PENSTOCK_SKIPS` names.
//! `scripts/checks.sh` prints and counts these lines. In CI it fails on every line that
//! `scripts/skips-allowed.txt` does not allow.
//!
//! # Committed files
//! [`committed`] compares a page, list or schema with the program's output, or writes it. [`help`]
//! makes the page of a program's options.
//!
//! # Patience
//! A test waits for an event with a deadline, so that a defect ends the test instead of hanging it.
//! [`patience`] is this deadline. [`scaled`] is for a deadline that a claim or a peer sets. Both
//! grow with `PENSTOCK_PATIENCE`, because a busy machine needs longer. `wait_until` in
//! `scripts/lib.sh` does the same. A test that passes does not wait for its deadline, so patience
//! costs it nothing.
//!
//! # Repetitions
//! Some tests repeat an attack or a fault at different moments. [`repetitions`] is a fifth of their
//! number, or all of it with `PENSTOCK_THOROUGH`, which `make nightly` sets.
#![forbid(unsafe_code)]

pub mod committed;
pub mod help;
pub mod json_schema;

use std::fmt::Display;
use std::io::{self, Write as _};
use std::panic::Location;
use std::path::Path;
use std::time::Duration;

/// Variable with the file to which [`skip`] appends. Without it, [`skip`] writes to standard error.
pub const SKIPS: &str = "PENSTOCK_SKIPS";
/// Variable with the factor of all deadlines, a whole number from 1.
pub const PATIENCE: &str = "PENSTOCK_PATIENCE";
/// Factor if [`PATIENCE`] is not set. `scripts/lib.sh` has the same number.
pub const PATIENCE_DEFAULT: u32 = 3;

/// Variable that makes [`repetitions`] return all, if it has any value.
pub const THOROUGH: &str = "PENSTOCK_THOROUGH";

/// Returns how often a test repeats what it does `all` times in the nightly run.
pub fn repetitions(all: u64) -> u64 {
    if std::env::var_os(THOROUGH).is_some() { all } else { all.div_ceil(5) }
}

/// Records that the calling test, or a part of it, does not run here, and why.
///
/// # Panics
/// The file of [`SKIPS`] cannot be written. A skip must not be lost.
#[track_caller]
pub fn skip(reason: impl Display) {
    let thread = std::thread::current();
    // libtest names its threads after the tests. In a helper's own thread, the line has the place
    // in the source.
    let place = match thread.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => Location::caller().to_string(),
    };
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let line = line(&package, &place, &reason.to_string());
    let written = match std::env::var_os(SKIPS) {
        Some(path) => append(Path::new(&path), &line),
        // libtest hides the output of `eprintln!` if the test passes.
        None => io::stderr().write_all(line.as_bytes()),
    };
    if let Err(error) = written {
        panic!("{SKIPS}: cannot record {line:?}: {error}");
    }
}

/// Returns a single line, even if the reason contains line ends.
fn line(package: &str, place: &str, reason: &str) -> String {
    let package = package.strip_prefix("penstock-").unwrap_or(package);
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("SKIP {package} {place}: {reason}\n")
}

/// Appends with one `write`, so that lines of parallel processes stay whole.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = std::fs::File::options().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())
}

/// Longest time that a test waits for an event. A busy machine may need long, but a broken program
/// waits in vain.
pub fn patience() -> Duration {
    scaled(Duration::from_secs(20))
}

/// Returns `deadline`, multiplied for this machine.
///
/// # Panics
/// `PENSTOCK_PATIENCE` is not a whole number from 1.
pub fn scaled(deadline: Duration) -> Duration {
    let factor = match std::env::var(PATIENCE) {
        Ok(text) => factor(&text).unwrap_or_else(|error| panic!("{PATIENCE}: {error}")),
        Err(_) => PATIENCE_DEFAULT,
    };
    deadline * factor
}

fn factor(text: &str) -> Result<u32, String> {
    let factor = text.parse().ok().filter(|factor| *factor > 0);
    factor.ok_or_else(|| format!("{text:?} is no whole number from 1; unset it for the default"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_one_line_with_crate_test_and_reason() {
        let line = line("penstock-qos", "a::test", "no\n  root:\tnot here ");
        assert_eq!(line, "SKIP qos a::test: no root: not here\n");
    }

    #[test]
    fn skips_are_appended() {
        let path = std::env::temp_dir().join(format!("penstock-skips-{}", std::process::id()));
        append(&path, "one\n").unwrap();
        append(&path, "two\n").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "one\ntwo\n");
        assert!(append(Path::new("/nowhere/at/all"), "lost\n").is_err());
    }

    #[test]
    fn patience_is_a_factor_from_one() {
        assert_eq!(factor("4"), Ok(4));
        assert!(["0", "-1", "1.5", ""].iter().all(|text| factor(text).is_err()));
        assert!(patience() >= Duration::from_secs(20));
        assert_eq!(patience(), 4 * scaled(Duration::from_secs(5)));
    }
}
