//! Checks each line for width, unfinished work, and `unsafe` without a reason. The check also finds
//! tests that skip without a record of the skip. The check also finds uses of clocks, files and
//! networks in pure crates, which get the time as an argument.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::lexer::{self, Line};
use crate::{Finding, Source};

/// Maximum length of a line in characters.
const WIDTH: usize = 100;
/// Crates that get the time as an argument, and use no files and no network.
const PURE: [&str; 4] = ["units", "qos", "vcpu", "fabric"];
/// Names that a pure crate must not contain.
const OUTSIDE: [&str; 7] =
    ["Instant::now", "SystemTime::now", "rdtsc", "_rdtsc", "thread::sleep", "std::net", "std::fs"];
/// Crates that call the operating system or use rings in shared memory. The following crates deny
/// `unsafe`, but single modules may allow it.
const MAY_LIFT: [&str; 4] = ["dataplane", "vcpu-host", "guest", "lab"];
/// Words that mark unfinished work. Each word is built from two literals, so that the check does
/// not report this list of words.
const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
/// Beginnings of messages that say that a test was skipped, in lower case. A test must call
/// `penstock_testing::skip` instead, so that the skip is counted.
const SKIPS: [&str; 3] =
    [concat!("(\"sk", "ip"), concat!("(\"left ", "out"), concat!("(\"needs ", "root")];
const CALLS: [&str; 3] = [concat!("to", "do!"), concat!("unimple", "mented!"), concat!("db", "g!")];

/// Returns the findings of the line check in one Rust file.
pub fn check(source: &Source) -> Vec<Finding> {
    let lines = lexer::split(&source.text);
    let mut found = Vec::new();
    for (n, raw) in source.text.lines().enumerate() {
        if raw.chars().count() > WIDTH {
            found.push(Finding::new(&source.path, n + 1, format!("longer than {WIDTH} columns")));
        }
    }
    for (n, line) in lines.iter().enumerate().filter(|(_, line)| line.code.contains("println!(")) {
        let raw: String = source.text.lines().skip(n).take(2).map(str::trim).collect();
        if !line.is_comment() && SKIPS.iter().any(|word| raw.to_lowercase().contains(word)) {
            let what = "an unrecorded skip: call penstock_testing::skip";
            found.push(Finding::new(&source.path, n + 1, what));
        }
    }
    let pure = PURE.iter().any(|c| source.path.starts_with(&format!("crates/{c}/src/")));
    for (n, line) in lines.iter().enumerate() {
        let mut say = |what: String| found.push(Finding::new(&source.path, n + 1, what));
        for mark in MARKS.iter().filter(|m| has_word(&line.comment, m)) {
            say(format!("{mark}: do it now or write an issue"));
        }
        for call in CALLS.iter().filter(|c| has_word(&line.code, c)) {
            say(format!("{call} is unfinished work"));
        }
        if pure {
            for name in OUTSIDE.iter().filter(|o| has_word(&line.code, o)) {
                say(format!("{name} in a pure crate: take it as an argument"));
            }
        }
        if opens_unsafe(&line.code) && !is_justified(&lines, n) {
            say("unsafe without a `// SAFETY:` comment above".to_owned());
        }
    }
    found
}

/// Checks that every crate root forbids `unsafe`, or denies it if modules may allow it.
pub fn check_crate_roots(
    root: &Path,
    roots: &BTreeMap<String, Vec<String>>,
) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    for (krate, paths) in roots {
        for path in paths {
            let text = fs::read_to_string(root.join(path)).with_context(|| path.clone())?;
            found.extend(check_crate_root(krate, path, &text));
        }
    }
    Ok(found)
}

fn check_crate_root(krate: &str, path: &str, text: &str) -> Option<Finding> {
    let has = |level: &str| text.lines().any(|l| l.trim() == format!("#![{level}(unsafe_code)]"));
    if has("forbid") || (MAY_LIFT.contains(&krate) && has("deny")) {
        return None;
    }
    let level = if MAY_LIFT.contains(&krate) { "deny" } else { "forbid" };
    Some(Finding::new(path, 0, format!("crate root without #![{level}(unsafe_code)]")))
}

/// Returns true if `text` contains `word`, and not only within longer words.
fn has_word(text: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        let after = text[at + word.len()..].chars().next();
        !part(text[..at].chars().next_back()) && (word.ends_with('!') || !part(after))
    })
}

/// Returns true if an unsafe block or implementation begins in this line. An unsafe function states
/// its reason in its documentation.
fn opens_unsafe(code: &str) -> bool {
    code.match_indices("unsafe").any(|(at, word)| {
        let after = code[at + word.len()..].trim_start();
        has_word(&code[at..], word) && (after.starts_with('{') || after.starts_with("impl"))
    })
}

/// Returns true if the `unsafe` statement in line `n` has a reason in a comment on its lines or
/// above.
fn is_justified(lines: &[Line], n: usize) -> bool {
    if lines[n].comment.contains("SAFETY:") {
        return true;
    }
    let mut above = lines[..n].iter().rev().peekable();
    // Goes up to the first line of the statement.
    while let Some(line) = above.peek() {
        let code = line.code.trim();
        let starts_here = code.ends_with([';', '{', '}']) || code.is_empty();
        if starts_here && !code.starts_with("#[") {
            break;
        }
        above.next();
    }
    above.take_while(|l| l.is_comment()).any(|l| l.comment.contains("SAFETY:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let source = Source { path: path.to_owned(), text: text.to_owned() };
        check(&source).into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn width_counts_characters() {
        assert!(findings("a.rs", &"ü".repeat(100)).is_empty());
        assert_eq!(findings("a.rs", &"x".repeat(101)).len(), 1);
    }

    #[test]
    fn unfinished_work_is_found_where_it_counts() {
        assert_eq!(findings("a.rs", &format!("// {}: later\n", MARKS[0])).len(), 1);
        assert_eq!(findings("a.rs", &format!("    {}(\"x\")\n", CALLS[0])).len(), 1);
        assert!(findings("a.rs", &format!("let x = \"{}\";\n", MARKS[2])).is_empty());
        assert!(findings("a.rs", "// XXXXXX in a template\n").is_empty());
    }

    #[test]
    fn a_skip_is_recorded_not_printed() {
        let word = "SKIPPED: run as root";
        assert_eq!(findings("a.rs", &format!("eprintln!(\"{word}\");\n")).len(), 1);
        assert_eq!(findings("a.rs", &format!("println!(\n    \"{word}\"\n);\n")).len(), 1);
        assert!(findings("a.rs", &format!("penstock_testing::skip(\"{word}\");\n")).is_empty());
        assert!(findings("a.rs", &format!("// println!(\"{word}\");\n")).is_empty());
    }

    #[test]
    fn only_pure_crates_are_kept_from_clocks() {
        let text = "let t = Instant::now();\n";
        assert_eq!(findings("crates/qos/src/c2tb.rs", text).len(), 1);
        assert!(findings("crates/guest/src/clock.rs", text).is_empty());
        assert!(findings("crates/qos/src/c2tb.rs", "// not Instant::now\n").is_empty());
    }

    #[test]
    fn unsafe_wants_its_reason_above_the_statement() {
        let bad = "fn f() {\n    let x = unsafe { g() };\n}\n";
        assert_eq!(findings("a.rs", bad).len(), 1);
        let good = "// SAFETY: g has no preconditions.\nlet x =\n    unsafe { g() };\n";
        assert!(findings("a.rs", good).is_empty());
        let two_lines = "// SAFETY: long\n// reason.\n#[allow(x)]\nunsafe impl Send for A {}\n";
        assert!(findings("a.rs", two_lines).is_empty());
        let other = "// SAFETY: of another.\nlet a = 1;\nlet x = unsafe { g() };\n";
        assert_eq!(findings("a.rs", other).len(), 1);
        assert!(findings("a.rs", "unsafe fn f() {}\n").is_empty());
    }

    #[test]
    fn a_crate_root_states_its_unsafe_policy() {
        let forbid = "//! Doc.\n#![forbid(unsafe_code)]\n";
        let deny = "#![deny(unsafe_code)]\n";
        assert_eq!(check_crate_root("qos", "a", forbid), None);
        assert_eq!(check_crate_root("lab", "a", deny), None);
        assert!(check_crate_root("qos", "a", deny).is_some());
        assert!(check_crate_root("dataplane", "a", "").is_some());
    }
}
