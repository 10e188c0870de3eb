//! Compares files in the repository with a program's output: pages of options, lists of metrics,
//! and schemas.

use std::path::Path;

/// Environment variable. If the environment variable is set, [`compare`] writes the text to the
/// file instead of comparing.
pub const BLESS: &str = "PENSTOCK_BLESS";

/// Compares the committed file at `path` with `text`. If the variable [`BLESS`] is set, the
/// function writes `text` to the file instead of comparing. The argument `test` contains the
/// arguments of `cargo test` that run the calling test.
///
/// # Panics
/// Panics if the file differs from `text`. The panic message contains the command that writes the
/// file.
pub fn compare(path: &Path, text: &str, test: &str) {
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(path, text).expect("the committed file is writable");
        return;
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let remedy = format!("run {BLESS}=1 cargo test {test}");
    assert!(committed == text, "{} is stale: {remedy}", path.display());
}

/// Compares the part of a Markdown page between two markers with `part`, as [`compare`] does for a
/// whole file.
///
/// # Panics
/// Panics if the part of the page between the markers differs from `part`, or if the page lacks a
/// marker.
pub fn compare_part(path: &Path, (begin, end): (&str, &str), part: &str, test: &str) {
    let page = std::fs::read_to_string(path).expect("the documentation page is readable");
    let (head, rest) = page.split_once(begin).expect("the page has the begin marker");
    let (_, tail) = rest.split_once(end).expect("the page has the end marker");
    compare(path, &format!("{head}{begin}{part}{end}{tail}"), test);
}
