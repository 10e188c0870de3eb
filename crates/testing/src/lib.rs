//! Helpers that the tests of all crates share. Only tests may depend on this crate, and
//! `penstock-tidy` checks that no other code depends on it.
//!
//! # Skips
//! A test that cannot run on this machine returns early, and libtest counts the test as passed. A
//! test that cannot run calls [`skip`], which appends a line to the file that `PENSTOCK_SKIPS`
//! names. `scripts/checks.sh` prints and counts the lines of skipped tests. In CI,
//! `scripts/checks.sh` fails on every skipped test that `scripts/skips-allowed.txt` does not allow.
//!
//! # Committed files
//! The module [`committed`] compares a page, list or schema with the program's output, or writes
//! the output to the file. The module [`help`] makes the page of a program's options.
//!
//! # Files
//! A test puts its files into a directory that [`temp_dir()`] makes. The directory is removed when
//! the test ends.
//!
//! # Patience
//! A test waits for an event with a deadline, so that a defect ends the test and does not hang it.
//! The usual deadline of a test, also in [`wait_until`], is [`patience`]. If a test needs another
//! deadline, the test uses [`scaled`]. For example, a test may check the deadline itself, or a
//! peer's time limit may determine the test's deadline. The deadlines of [`patience`] and
//! [`scaled`] are multiplied by `PENSTOCK_PATIENCE`, because a busy machine needs longer. The
//! function `wait_until` in `scripts/lib.sh` also multiplies its deadline by `PENSTOCK_PATIENCE`. A
//! test that passes does not wait for its deadline, so a long deadline costs the test nothing.
//!
//! # Repetitions
//! Some tests repeat an attack or a fault at different moments. The function [`repetitions`]
//! reduces the number of repetitions of a test to a fifth. If the variable `PENSTOCK_THOROUGH` is
//! set, [`repetitions`] returns the full number of repetitions. The command `make nightly` sets
//! `PENSTOCK_THOROUGH`.
#![forbid(unsafe_code)]

pub mod committed;
pub mod help;
pub mod json_schema;
mod segment;
mod temp_dir;
pub mod yang;

pub use segment::segment;
pub use temp_dir::{TempDir, memory_dir, temp_dir};

use std::fmt::Display;
use std::io::{self, Write as _};
use std::panic::Location;
use std::path::Path;
use std::time::{Duration, Instant};

/// Environment variable with the path of the file to which [`skip`] appends. If `PENSTOCK_SKIPS` is
/// not set, [`skip`] writes to standard error.
pub const SKIPS: &str = "PENSTOCK_SKIPS";
/// Environment variable with the factor for the deadlines of all tests, a whole number from 1.
pub const PATIENCE: &str = "PENSTOCK_PATIENCE";
/// Factor for the deadlines of tests if [`PATIENCE`] is not set. The script `scripts/lib.sh` has
/// the same default factor for deadlines.
pub const PATIENCE_DEFAULT: u32 = 3;

/// Environment variable. If the environment variable is set, [`repetitions`] returns the full
/// number of repetitions.
pub const THOROUGH: &str = "PENSTOCK_THOROUGH";

/// Returns the number of repetitions for a test with `all` repetitions in the nightly run. Without
/// [`THOROUGH`], the result is a fifth of `all`, rounded up.
pub fn repetitions(all: u64) -> u64 {
    if std::env::var_os(THOROUGH).is_some() { all } else { all.div_ceil(5) }
}

/// Records that the calling test, or a part of the test, cannot run on this machine. `reason` says
/// why.
///
/// # Panics
/// Panics if the file of [`SKIPS`] cannot be written, because a skip must not be lost.
#[track_caller]
pub fn skip(reason: impl Display) {
    let thread = std::thread::current();
    // libtest names its threads after the tests. In other threads, the line has the source location
    // of the call.
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

/// Returns the line that records a skipped test. The returned text is a single line, even if
/// `reason` contains line ends.
fn line(package: &str, place: &str, reason: &str) -> String {
    let package = package.strip_prefix("penstock-").unwrap_or(package);
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("SKIP {package} {place}: {reason}\n")
}

/// Appends `line` to the file at `path` with one `write`, so that lines of parallel processes stay
/// whole.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = std::fs::File::options().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())
}

/// Longest time that a test waits for an event: 20 s, multiplied by the factor of [`PATIENCE`].
pub fn patience() -> Duration {
    scaled(Duration::from_secs(20))
}

/// Calls `done` until it returns true.
///
/// # Panics
/// Panics with the text `what` if `done` does not return true within [`patience`].
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "the bound of a test's wait is real time")]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < patience(), "not within {:?}: {what}", patience());
        std::thread::yield_now();
    }
}

/// Returns `deadline`, multiplied by the factor of [`PATIENCE`].
///
/// # Panics
/// Panics if `PENSTOCK_PATIENCE` is not a whole number from 1.
pub fn scaled(deadline: Duration) -> Duration {
    let factor = match std::env::var(PATIENCE) {
        Ok(text) => factor(&text).unwrap_or_else(|error| panic!("{PATIENCE}: {error}")),
        Err(_) => PATIENCE_DEFAULT,
    };
    deadline * factor
}

fn factor(text: &str) -> Result<u32, String> {
    let factor = text.parse().ok().filter(|factor| *factor > 0);
    factor.ok_or_else(|| format!("{text:?} is not a whole number from 1; unset the variable"))
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
        let dir = temp_dir();
        let path = dir.join("skips");
        append(&path, "one\n").unwrap();
        append(&path, "two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
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
