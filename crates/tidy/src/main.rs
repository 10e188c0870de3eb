//! Checks of the source tree that neither the compiler nor clippy makes.
//!
//! ```text
//! cargo run -q -p penstock-tidy             prints what is wrong, exit status 1 if anything is
//! cargo run -q -p penstock-tidy -- --words  also checks the paths of crates/tidy/words-exempt.txt
//! cargo run -q -p penstock-tidy -- --shrink lowers the entries of crates/tidy/ratchet.txt
//! ```
//!
//! | Module | Checks |
//! |---|---|
//! | [`edges`] | which crate may depend on which |
//! | [`circles`] | files of a crate that import each other |
//! | [`lines`] | width, unfinished work, `unsafe` without a reason, clocks in pure crates, skips |
//! | [`sizes`] | length of files and functions, against a list that may only shrink |
//! | [`links`] | relative links in Markdown files, and the summary of the book |
//! | [`commands`] | commands and options in Markdown files |
//! | [`words`] | phrases, long sentences and empty doc comments |
#![forbid(unsafe_code)]

mod circles;
mod commands;
mod edges;
mod lexer;
mod lines;
mod links;
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
    /// The violation and its remedy.
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

/// A file of the tree, read once.
#[derive(Debug)]
pub struct Source {
    /// Path relative to the root of the tree, with `/`.
    pub path: String,
    /// Content of the file.
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
    findings.extend(ratchet.check(&measured));
    findings.extend(check_words(&root, &rust)?);
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", rust.len(), findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks the text that people read: Markdown files, and the words in Rust files.
fn check_words(root: &Path, rust: &[Source]) -> Result<Vec<Finding>> {
    let pages = read_all(root, "md")?;
    let commands = commands::Commands::read(&pages);
    let mut findings = links::check(root, &pages);
    findings.extend(pages.iter().flat_map(|page| commands.check(page)));
    let exempt_path = root.join("crates/tidy/words-exempt.txt");
    let list = fs::read_to_string(&exempt_path).unwrap_or_default();
    let exempt = words::exempt(&list);
    let mut words: Vec<Finding> = pages.iter().flat_map(words::check_page).collect();
    words.extend(rust.iter().flat_map(words::check_code));
    // `--words` shows what the list of exemptions hides.
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
