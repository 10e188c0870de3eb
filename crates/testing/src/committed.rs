//! Committed files that a program makes: pages of options, lists of metrics, schemas.

use std::path::Path;

/// If this variable is set, [`compare`] writes the file.
pub const BLESS: &str = "PENSTOCK_BLESS";

/// Compares a committed file with `text`, or writes `text` to it if [`BLESS`] is set. `test` has
/// the arguments of `cargo test` that run the calling test.
///
/// # Panics
/// The file differs from `text`. The message has the command that writes the file.
pub fn compare(path: &Path, text: &str, test: &str) {
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(path, text).expect("the file can be written");
        return;
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let remedy = format!("run {BLESS}=1 cargo test {test}");
    assert!(committed == text, "{} is stale: {remedy}", path.display());
}

/// Like [`compare`], for the part of a page between two markers.
///
/// # Panics
/// The page's part differs from `part`, or the page has no such part.
pub fn compare_part(path: &Path, (begin, end): (&str, &str), part: &str, test: &str) {
    let page = std::fs::read_to_string(path).expect("the page can be read");
    let (head, rest) = page.split_once(begin).expect("the page has the first marker");
    let (_, tail) = rest.split_once(end).expect("the page has the second marker");
    compare(path, &format!("{head}{begin}{part}{end}{tail}"), test);
}
