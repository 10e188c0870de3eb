//! Finds import cycles: circles of files that import each other. Up to three files may form a
//! circle, for example a module and two of its parts. In a larger circle of imports, no file can be
//! understood, tested or moved without all the others.
//!
//! # Approach
//!
//! The check for import cycles treats each file as a module. A file's imports are the paths in its
//! `use` trees, and the paths in its code that begin with `crate` or `super`. The check for import
//! cycles follows these rules:
//!
//! - If a path in code begins with the name of a submodule, the path is not an import. A `mod.rs`
//!   may call functions of its submodules without an import cycle.
//! - A path can contain names of items after the names of modules. A path in code counts as an
//!   import of the last module in the path that is a file. The use of a re-exported name counts as
//!   an import of the `mod.rs` that re-exports the name.
//! - Test modules and imports of `lib.rs` do not count.
//! - A module within a file counts as a part of that file.

use std::collections::{BTreeMap, BTreeSet};

use crate::lexer;
use crate::{Finding, Source};

/// Crates that must not contain large import cycles.
const CRATES: &[&str] = &["control", "lab", "controller"];
/// Largest permitted number of files in a circle of imports.
const MOST: usize = 3;

/// Path of a module from the crate's root. The path of the crate's root is empty.
pub type Module = Vec<String>;
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// Returns a finding for each circle that is too large.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    CRATES.iter().flat_map(|krate| check_crate(krate, sources)).collect()
}

fn check_crate(krate: &str, sources: &[Source]) -> Vec<Finding> {
    let src = format!("crates/{krate}/src/");
    let files = files_of(&src, sources);
    let found = circles(&imports(&files));
    let finding = |circle: Vec<Module>| {
        let names: Vec<_> = circle.iter().map(|m| &files[m].path[src.len()..]).collect();
        let what = format!(
            "{krate}: {} files import each other in a circle, limit {MOST}: {}; move what they \
             share into a file that imports none of them",
            names.len(),
            names.join(", "),
        );
        Finding::new(&files[&circle[0]].path, 0, what)
    };
    found.into_iter().filter(|circle| circle.len() > MOST).map(finding).collect()
}

/// Returns the imports of each module of a crate within the crate.
pub fn imports_of(krate: &str, sources: &[Source]) -> BTreeMap<Module, BTreeSet<Module>> {
    imports(&files_of(&format!("crates/{krate}/src/"), sources))
}

fn files_of<'a>(src: &str, sources: &'a [Source]) -> BTreeMap<Module, &'a Source> {
    sources.iter().filter_map(|s| Some((module(s.path.strip_prefix(src)?), s))).collect()
}

/// Returns the module that the file at `path`, relative to `src`, defines.
fn module(path: &str) -> Module {
    let mut parts: Module =
        path.trim_end_matches(".rs").split('/').map(ToOwned::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

/// Returns the imports of each file. Test modules neither import nor are imported.
fn imports(files: &BTreeMap<Module, &Source>) -> Imports {
    let read: BTreeMap<_, _> = files.iter().map(|(m, s)| (m, Uses::read(&s.text))).collect();
    let tests: BTreeSet<Module> = read
        .iter()
        .flat_map(|(m, uses)| {
            uses.tests.iter().map(|name| [&m[..], std::slice::from_ref(name)].concat())
        })
        .collect();
    let is_test = |m: &[String]| (0..=m.len()).any(|n| tests.contains(&m[..n]));
    let mut imports = Imports::new();
    for (m, uses) in read.into_iter().filter(|(m, _)| !is_test(m)) {
        let found = uses.paths.iter().filter_map(|path| resolve(files, m, path));
        let found = found.filter(|to| to != m && !to.is_empty() && !is_test(to));
        imports.insert(m.clone(), found.collect());
    }
    imports
}

/// Returns the file that the import `path` in module `at` refers to. `None` if the import is from
/// another crate.
fn resolve(files: &BTreeMap<Module, &Source>, at: &Module, path: &[String]) -> Option<Module> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    let (base, rest) = match path.first()?.as_str() {
        "crate" => (&[][..], &path[1..]),
        "self" => (&at[..], &path[1..]),
        "super" => (&at[..at.len().saturating_sub(supers)], &path[supers..]),
        child if files.contains_key(&[&at[..], &[child.to_owned()]].concat()) => (&at[..], path),
        _ => return None,
    };
    let whole = [base, rest].concat();
    (0..=whole.len()).rev().map(|n| whole[..n].to_vec()).find(|m| files.contains_key(m))
}

/// Returns import circles: the largest sets of modules in which each module imports all others,
/// directly or indirectly.
fn circles(imports: &Imports) -> Vec<Vec<Module>> {
    let reach: BTreeMap<_, _> = imports.keys().map(|m| (m, reached(imports, m))).collect();
    let mut found = BTreeSet::new();
    for (m, to) in &reach {
        let back = |other: &&&Module| reach.get(**other).is_some_and(|r| r.contains(m));
        let circle: Vec<Module> = to.iter().filter(back).map(|other| (*other).clone()).collect();
        if !circle.is_empty() {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

fn reached<'a>(imports: &'a Imports, from: &'a Module) -> BTreeSet<&'a Module> {
    let mut seen = BTreeSet::new();
    let mut todo = vec![from];
    while let Some(at) = todo.pop() {
        todo.extend(imports.get(at).into_iter().flatten().filter(|to| seen.insert(*to)));
    }
    seen
}

/// Imports and test modules found in one source file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Uses {
    /// Imported paths: one for each branch of a `use` tree, and one for each path in code.
    paths: BTreeSet<Vec<String>>,
    /// Modules of the file that exist only in tests.
    tests: BTreeSet<String>,
}

const TEST: &[&str] = &["#", "[", "cfg", "(", "test", ")", "]"];

impl Uses {
    fn read(text: &str) -> Self {
        let code: Vec<String> = lexer::split(text).into_iter().map(|line| line.code).collect();
        let code = code.join("\n");
        let tokens = tokens(&code);
        let mut uses = Self::default();
        let mut at = 0;
        while at < tokens.len() {
            at += match &tokens[at..] {
                rest if rest.starts_with(TEST) => uses.test_item(rest),
                ["use", rest @ ..] if rest.first() != Some(&"<") => 1 + uses.tree(&[], rest),
                // `pub(in path)` imports nothing, but `for x in path` does.
                ["crate" | "super", "::", ..]
                    if !tokens[..at].ends_with(&["::"])
                        && !tokens[..at].ends_with(&["(", "in"]) =>
                {
                    uses.paths.insert(path(&tokens[at..]));
                    1
                }
                _ => 1,
            };
        }
        uses
    }

    /// Reads one branch of a `use` tree below `prefix`, up to `,`, `}` or `;`. Returns how many
    /// tokens of code belong to the branch.
    fn tree(&mut self, prefix: &[String], tokens: &[&str]) -> usize {
        let mut path = prefix.to_vec();
        let mut at = 0;
        while at < tokens.len() {
            match tokens[at] {
                "," | "}" | ";" => break,
                "{" => {
                    while !matches!(tokens.get(at), None | Some(&("}" | ";"))) {
                        at += 1;
                        at += self.tree(&path, &tokens[at..]);
                    }
                    return at + 1;
                }
                // `as` gives another name to the preceding path.
                "as" => at += 1,
                "::" => {}
                name => path.push(name.to_owned()),
            }
            at += 1;
        }
        if path.len() > prefix.len() {
            self.paths.insert(path);
        }
        at
    }

    /// Skips `#[cfg(test)]` and the item after it. Returns how many tokens of code were skipped.
    fn test_item(&mut self, tokens: &[&str]) -> usize {
        let mut depth = 0_usize;
        for (n, token) in tokens.iter().enumerate().skip(TEST.len()) {
            match *token {
                "mod" if depth == 0 => self.tests.extend(tokens.get(n + 1).map(|t| (*t).into())),
                "{" | "(" | "[" => depth += 1,
                "}" if depth <= 1 => return n + 1,
                "}" | ")" | "]" => depth = depth.saturating_sub(1),
                ";" | "," if depth == 0 => return n + 1,
                _ => {}
            }
        }
        tokens.len()
    }
}

/// Returns the path of names and `::` at the start of `tokens`.
fn path(tokens: &[&str]) -> Vec<String> {
    let is_name = |token: &str| token.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let joined = tokens[1..].chunks_exact(2).take_while(|pair| pair[0] == "::");
    let more = joined.map(|pair| pair[1]).take_while(|name| is_name(name));
    [tokens[0]].into_iter().chain(more).map(ToOwned::to_owned).collect()
}

/// Splits code into words, `::` and single punctuation characters.
fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let sign = if rest.starts_with("::") { 2 } else { first.len_utf8() };
        let (token, after) = rest.split_at(if word > 0 { word } else { sign });
        found.push(token);
        rest = after.trim_start();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source((path, text): &(&str, &str)) -> Source {
        Source { path: format!("crates/{path}"), text: (*text).to_owned() }
    }

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files.iter().map(source).collect();
        check(&sources).iter().map(ToString::to_string).collect()
    }

    /// Returns source files with the given names and texts.
    fn ring<'a>(names: &[&'a str], texts: &[&'a str]) -> Vec<(String, &'a str)> {
        names.iter().map(|n| format!("control/src/{n}")).zip(texts.iter().copied()).collect()
    }

    fn found_in(files: &[(String, &str)]) -> Vec<String> {
        found(&files.iter().map(|(path, text)| (path.as_str(), *text)).collect::<Vec<_>>())
    }

    #[test]
    fn a_circle_of_four_is_named_with_its_files() {
        let names = ["a.rs", "b.rs", "c/mod.rs", "c/d.rs", "lib.rs", "other.rs"];
        let texts = [
            "use crate::b::B;",
            "fn f() { crate::c::g(); }",
            "mod d; pub use d::D;",
            "use super::super::a::A;",
            "mod a; mod b; mod c; mod other; pub use a::A;",
            "use crate::{a::A, b::B};",
        ];
        assert_eq!(
            found_in(&ring(&names, &texts)),
            ["crates/control/src/a.rs: control: 4 files import each other in a circle, limit 3: \
              a.rs, b.rs, c/mod.rs, c/d.rs; move what they share into a file that imports none \
              of them"]
        );
    }

    #[test]
    fn a_circle_of_three_may_be() {
        let names = ["a.rs", "b.rs", "c.rs", "d.rs"];
        let texts = ["use crate::b::B;", "use crate::c::C;", "use crate::a::A;", "use crate::a;"];
        assert_eq!(found_in(&ring(&names, &texts)), [""; 0]);
        let wider = ["use crate::b::B;", "use crate::c::C;", "use crate::d::D;", "use crate::a;"];
        assert_eq!(found_in(&ring(&names, &wider)).len(), 1);
    }

    #[test]
    fn only_a_circle_counts_and_only_in_the_crates_that_are_checked() {
        let names = ["a.rs", "b.rs", "c.rs", "d.rs"];
        let down = ["use crate::b::B;", "use crate::c::C;", "use crate::d::D;", "use std::fmt;"];
        assert_eq!(found_in(&ring(&names, &down)), [""; 0]);
        let ring = ["use crate::b::B;", "use crate::c::C;", "use crate::d::D;", "use crate::a;"];
        let of = |krate: &str| {
            let paths: Vec<_> = names.iter().map(|n| format!("{krate}/src/{n}")).collect();
            let files: Vec<_> = paths.iter().map(String::as_str).zip(ring).collect();
            found(&files).len()
        };
        assert_eq!(["control", "lab", "controller", "sim"].map(of), [1, 1, 1, 0]);
    }

    #[test]
    fn test_modules_are_left_out() {
        let names = ["a.rs", "b.rs", "c.rs", "d.rs", "tests.rs", "tests/deep.rs", "lib.rs"];
        let inner = "use crate::d::D;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n";
        let texts = [
            "use crate::b::B;",
            "use crate::c::C;",
            inner,
            "use crate::tests::deep::T;",
            "use crate::a::A; mod deep;",
            "use crate::a::A;",
            "#[cfg(test)]\npub(crate) mod tests;",
        ];
        assert_eq!(found_in(&ring(&names, &texts)), [""; 0]);
        // Text after a test module, or after one item of a test, is code again.
        let later = [inner, "fn f() { crate::a::f(); }"].concat();
        let one = "#[cfg(test)]\nuse crate::e::E;\nuse crate::a::A;";
        for text in [&*later, one] {
            let texts = ["use crate::b::B;", "use crate::c::C;", "use crate::d::D;", text];
            assert_eq!(found_in(&ring(&names, &texts)).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_use_tree_is_read_whole() {
        let text = "pub(in crate::x) use super::{super::far::Far as F, near::{self, A, b::*}};\n\
                    use std::fmt;\n// use crate::comment;\nfn f() -> impl Sized + use<'_> {\n    \
                    crate::y::z::<u8>(\"crate::string\") + super::super::w::v() + part::f();\n    \
                    for (a, b) in crate::e() {}\n}\n";
        let paths: Vec<String> = Uses::read(text).paths.iter().map(|p| p.join("::")).collect();
        assert_eq!(
            paths,
            [
                "crate::e",
                "crate::y::z",
                "std::fmt",
                "super::near::A",
                "super::near::b::*",
                "super::near::self",
                "super::super::far::Far",
                "super::super::w::v",
            ]
        );
    }

    #[test]
    fn a_path_means_the_longest_part_that_is_a_file() {
        let sources = ["lab/src/lib.rs", "lab/src/a/mod.rs", "lab/src/a/b/mod.rs", "lab/src/c.rs"]
            .map(|path| source(&(path, "")));
        let modules = ["", "a", "a/b", "c"].map(|m| {
            m.split('/').filter(|n| !n.is_empty()).map(ToOwned::to_owned).collect::<Module>()
        });
        let files: BTreeMap<Module, &Source> = modules.iter().cloned().zip(&sources).collect();
        assert_eq!(files.keys().cloned().collect::<Vec<_>>(), {
            let paths = sources.iter().map(|s| module(&s.path["crates/lab/src/".len()..]));
            paths.collect::<Vec<_>>()
        });
        let [root, a, b, c] = &modules;
        let means = |at: &Module, path: &str| {
            let path: Vec<_> = path.split("::").map(ToOwned::to_owned).collect();
            resolve(&files, at, &path)
        };
        assert_eq!(means(c, "crate::a::b::Thing").as_ref(), Some(b));
        assert_eq!(means(c, "crate::a::Thing").as_ref(), Some(a));
        assert_eq!(means(b, "super::Thing").as_ref(), Some(a));
        assert_eq!(means(b, "super::super::c::f").as_ref(), Some(c));
        assert_eq!(means(a, "b::Thing").as_ref(), Some(b));
        assert_eq!(means(a, "self::b").as_ref(), Some(b));
        assert_eq!(means(c, "super::Thing").as_ref(), Some(root));
        assert_eq!(means(c, "b::Thing"), None);
        assert_eq!(means(c, "std::fmt"), None);
    }
}
