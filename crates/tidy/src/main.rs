//! Checks the source tree for mistakes that neither the compiler nor clippy finds.
//!
//! ```text
//! cargo run -q -p penstock-tidy             prints all findings, exit status 1 if there are any
//! cargo run -q -p penstock-tidy -- --words  also checks the paths of crates/tidy/words-exempt.txt
//! cargo run -q -p penstock-tidy -- --shrink lowers the entries of crates/tidy/ratchet.txt
//! ```
//!
//! | Module | Checks |
//! |---|---|
//! | [`edges`] | crates depend only on crates in lower layers |
//! | [`circles`] | few files of a crate import each other in a circle |
//! | [`rooms`] | modules of the crate `dataplane` import only modules of lower rank |
//! | [`lines`] | source lines have no excess width, unfinished work, or `unsafe` without a reason |
//! | [`sizes`] | files, functions and `ARCHITECTURE.md` have at most their maximum length |
//! | [`links`] | relative links in Markdown files lead to existing files and headings |
//! | [`commands`] | commands and options in Markdown files exist |
//! | [`words`] | texts have no obscure phrases, long sentences or empty doc comments |
#![allow(missing_docs, reason = "a program; comments say what names do not")]
#![forbid(unsafe_code)]

mod circles;
mod commands;
mod edges;
mod lexer;
mod lines;
mod links;
mod rooms;
mod sizes;
mod words;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

/// A violation of a rule, with its location and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path relative to the root of the tree.
    pub path: String,
    /// Line number from 1. 0 means the file as a whole.
    pub line: usize,
    /// Text that describes a violation of a rule, and the remedy.
    pub what: String,
}

impl Finding {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            n => write!(f, "{}:{n}: {}", self.path, self.what),
        }
    }
}

/// A file of the source tree, which is read once for all checks.
#[derive(Debug)]
pub struct Source {
    /// Path relative to the root of the tree, with `/`.
    pub path: String,
    pub text: String,
}

fn main() -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let shrink = std::env::args().any(|a| a == "--shrink");
    let rust = read_all(&root, "rs")?;
    let ratchet_path = root.join("crates/tidy/ratchet.txt");
    let ratchet = sizes::Ratchet::parse(&fs::read_to_string(&ratchet_path).unwrap_or_default())?;
    let measured = sizes::measure(&rust);
    if shrink {
        fs::write(&ratchet_path, ratchet.shrunk(&measured).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }

    let graph = edges::Graph::read(&root)?;
    let mut findings = edges::check(&graph);
    findings.extend(lines::check_crate_roots(&root, &graph.roots)?);
    for source in &rust {
        findings.extend(lines::check(source));
    }
    findings.extend(circles::check(&rust));
    findings.extend(rooms::check(&rust));
    findings.extend(ratchet.check(&measured));
    findings.extend(check_words(&root, &rust)?);
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", rust.len(), findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks the text that people read, which is in Markdown files and in the comments and literals of
/// Rust files.
fn check_words(root: &Path, rust: &[Source]) -> Result<Vec<Finding>> {
    let pages = read_all(root, "md")?;
    let commands = commands::Commands::read(&pages);
    let mut findings = links::check(root, &pages);
    findings.extend(pages.iter().flat_map(|page| commands.check(page)));
    findings.extend(pages.iter().filter_map(sizes::check_overview));
    let exempt_path = root.join("crates/tidy/words-exempt.txt");
    let list = fs::read_to_string(&exempt_path).unwrap_or_default();
    let exempt = words::exempt(&list);
    let mut words: Vec<Finding> = pages.iter().flat_map(words::check_page).collect();
    words.extend(rust.iter().flat_map(words::check_code));
    // `--words` also shows the findings in exempt paths.
    if !std::env::args().any(|a| a == "--words") {
        words.retain(|f| !exempt.iter().any(|path| f.path.starts_with(path)));
    }
    findings.extend(words);
    Ok(findings)
}

/// Reads every file of the tree that ends in `.ext`, in path order, without build output.
fn read_all(root: &Path, ext: &str) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    walk(root, ext, &mut paths)?;
    paths.sort();
    let read = |path: PathBuf| -> Result<Source> {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let path = path.strip_prefix(root)?.to_string_lossy().into_owned();
        Ok(Source { path, text })
    };
    paths.into_iter().map(read).collect()
}

fn walk(dir: &Path, ext: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.starts_with('.') {
                walk(&path, ext, found)?;
            }
        } else if path.extension().is_some_and(|e| e == ext) {
            found.push(path);
        }
    }
    Ok(())
}
