//! Checks the length of files and functions. `ratchet.txt` lists the files and functions that are
//! too long, with their sizes. A size in `ratchet.txt` may decrease but not increase, and no entry
//! may be added.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, ensure};

use crate::lexer;
use crate::{Finding, Source};

/// Maximum length of a file in lines.
const FILE: usize = 800;
/// Maximum length of a function in lines, from `fn` to its closing brace.
const FUNCTION: usize = 70;
/// The page that a new reader reads as a whole.
const OVERVIEW: &str = "ARCHITECTURE.md";
/// Maximum length of [`OVERVIEW`] in lines.
const OVERVIEW_MAX: usize = 250;

/// Lengths in lines. In the map, the key of a file is `path`, and the key of a function is `path fn
/// name`.
pub type Sizes = BTreeMap<String, usize>;

/// Returns all files and functions in `sources` that exceed their limit.
pub fn measure(sources: &[Source]) -> Sizes {
    let mut sizes = Sizes::new();
    for source in sources {
        let lines = source.text.lines().count();
        if lines > FILE {
            sizes.insert(source.path.clone(), lines);
        }
        for (name, lines) in functions(&source.text) {
            if lines > FUNCTION {
                // Two functions with the same name in a file share an entry, and the longer
                // function counts.
                let entry = sizes.entry(format!("{} fn {name}", source.path)).or_default();
                *entry = lines.max(*entry);
            }
        }
    }
    sizes
}

/// Returns the name and length of every function that has a body.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines = lexer::split(text);
    let mut found = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let Some(name) = function_name(&line.code) else { continue };
        let mut depth = 0_usize;
        'body: for (length, line) in lines[n..].iter().enumerate() {
            for c in line.code.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 1 => {
                        found.push((name.to_owned(), length + 1));
                        break 'body;
                    }
                    '}' => depth = depth.saturating_sub(1),
                    // A declaration has no body.
                    ';' if depth == 0 => break 'body,
                    _ => {}
                }
            }
        }
    }
    found
}

/// Returns a finding if the page is [`OVERVIEW`] and too long to read at once.
pub fn check_overview(page: &Source) -> Option<Finding> {
    let lines = page.text.lines().count();
    (page.path == OVERVIEW && lines > OVERVIEW_MAX).then(|| {
        let what = format!("{lines} lines, limit {OVERVIEW_MAX}; move details to docs/internals");
        Finding::new(&page.path, 0, what)
    })
}

fn function_name(code: &str) -> Option<&str> {
    let code = code.trim_start();
    let at = if code.starts_with("fn ") { 0 } else { code.find(" fn ")? + 1 };
    let name = &code[at + 3..];
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (end > 0).then(|| &name[..end])
}

/// The list of files and functions that are too long.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ratchet(Sizes);

impl Ratchet {
    /// Parses the text of `ratchet.txt`, in which each line has a length and a name (`SIZE NAME`).
    /// A line that begins with `#` is a comment.
    pub fn parse(text: &str) -> Result<Self> {
        let mut sizes = Sizes::new();
        for line in text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
            let (size, name) = line.split_once(' ').context("ratchet.txt: SIZE NAME expected")?;
            let size = size.parse().with_context(|| format!("ratchet.txt: {line}"))?;
            ensure!(sizes.insert(name.to_owned(), size).is_none(), "ratchet.txt: {name} twice");
        }
        Ok(Self(sizes))
    }

    /// Reports each file or function that is not in the list, or whose length differs from the
    /// listed length.
    pub fn check(&self, now: &Sizes) -> Vec<Finding> {
        let mut found = Vec::new();
        for (name, size) in now {
            let limit = if name.contains(" fn ") { FUNCTION } else { FILE };
            match self.0.get(name) {
                None => found.push(Finding::new(name, 0, format!("{size} lines, limit {limit}"))),
                Some(old) if size > old => found.push(Finding::new(
                    name,
                    0,
                    format!("{size} lines, was {old} and may only shrink"),
                )),
                _ => {}
            }
        }
        for (name, old) in &self.0 {
            if now.get(name).is_none_or(|size| size < old) {
                let what = "shorter than crates/tidy/ratchet.txt says: run tidy with --shrink";
                found.push(Finding::new(name, 0, what));
            }
        }
        found
    }

    /// Returns the list that `--shrink` writes. For a file or function that became shorter, the
    /// list has the new length. The list that `--shrink` writes omits files and functions that are
    /// within the limit or no longer exist.
    pub fn shrunk(&self, now: &Sizes) -> Self {
        let keep = |(name, old): (&String, &usize)| {
            now.get(name).map(|size| (name.clone(), (*size).min(*old)))
        };
        Self(self.0.iter().filter_map(keep).collect())
    }
}

impl fmt::Display for Ratchet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Files over {FILE} lines and functions over {FUNCTION}, as SIZE NAME.")?;
        writeln!(f, "# `--shrink` lowers or removes entries. No entry may grow or be added.")?;
        for (name, size) in &self.0 {
            writeln!(f, "{size} {name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(entries: &[(&str, usize)]) -> Sizes {
        entries.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect()
    }

    #[test]
    fn a_function_ends_at_its_own_brace() {
        let text = "impl A {\n    pub fn long(\n        a: u8,\n    ) -> u8 {\n        { 1 }\n\
                    \x20   }\n\
                    }\ntrait B {\n    fn none(&self);\n    fn short() {}\n}\n";
        let found = functions(text);
        assert_eq!(found, [("long".to_owned(), 5), ("short".to_owned(), 1)]);
    }

    #[test]
    fn a_brace_in_a_string_does_not_count() {
        assert_eq!(functions("fn f() {\n    g(\"{\");\n}\n"), [("f".to_owned(), 3)]);
    }

    #[test]
    fn only_the_overview_has_a_limit_of_its_own() {
        let page = |path: &str, lines: usize| {
            check_overview(&Source { path: path.to_owned(), text: "x\n".repeat(lines) })
        };
        assert!(page(OVERVIEW, 251).is_some_and(|found| found.what.starts_with("251 lines")));
        assert_eq!((page(OVERVIEW, 250), page("docs/README.md", 900)), (None, None));
    }

    #[test]
    fn long_things_are_measured_and_short_ones_not() {
        let body = "    x();\n".repeat(69);
        let text = format!("fn f() {{\n{body}}}\nfn g() {{\n    x();\n}}\n");
        let source = Source { path: "a.rs".to_owned(), text };
        assert_eq!(measure(&[source]), sizes(&[("a.rs fn f", 71)]));
    }

    #[test]
    fn the_list_may_only_shrink() {
        let ratchet = Ratchet::parse("# x\n900 a.rs\n80 b.rs fn f\n").expect("well formed");
        assert!(ratchet.check(&sizes(&[("a.rs", 900), ("b.rs fn f", 80)])).is_empty());
        assert_eq!(ratchet.check(&sizes(&[("a.rs", 901), ("b.rs fn f", 80)])).len(), 1);
        assert_eq!(ratchet.check(&sizes(&[("a.rs", 900), ("b.rs fn f", 79)])).len(), 1);
        let joined = sizes(&[("a.rs", 900), ("b.rs fn f", 80), ("c.rs", 801)]);
        assert_eq!(ratchet.check(&joined).len(), 1);
        let shrunk = ratchet.shrunk(&sizes(&[("a.rs", 850), ("c.rs", 900)]));
        assert_eq!(shrunk, Ratchet::parse("850 a.rs\n").expect("well formed"));
        assert_eq!(Ratchet::parse(&shrunk.to_string()).expect("well formed"), shrunk);
    }
}
