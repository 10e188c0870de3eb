//! Checks the words of documentation, help, output and doc comments. The check finds phrases that
//! readers stumble over, and long sentences in help and errors. The check of words also finds doc
//! comments that only repeat an item's name.
//!
//! # Approach
//! Each rule is chosen so that all findings of the rule are mistakes. Reviewers find the mistakes
//! in wording that no rule can find. The file `words-exempt.txt` lists paths whose words are not
//! checked.

use std::path::Path;

use crate::lexer;
use crate::links::outside_fences;
use crate::{Finding, Source};

/// Largest number of words of a sentence in help and errors.
const SENTENCE: usize = 30;
/// Phrases that the check reports, each with its plain replacement. A phrase is found at word
/// boundaries, in upper or lower case.
const PHRASES: [(&str, &str); 21] = [
    ("is told", "use the plain verb: receives, learns, is configured"),
    ("are told", "use the plain verb: receive, learn, are configured"),
    ("was told", "use the plain verb: received, learned, was configured"),
    ("were told", "use the plain verb: received, learned, were configured"),
    ("be told", "use the plain verb: receive, learn, be configured"),
    ("goes by", "name what decides: uses, depends on, follows"),
    ("anew", "write again, or from the start"),
    ("asked for", "write requested, or name who requested it"),
    ("what is left", "name it: the remaining cycles"),
    ("is had", "use the plain verb: has, gets"),
    ("are had", "use the plain verb: have, get"),
    ("is sure of", "write guaranteed"),
    ("are sure of", "write guaranteed"),
    ("see the module's text", "say it here, or write nothing"),
    ("as the case may be", "name the cases"),
    ("let alone", "write not even, or two sentences"),
    ("lest", "write so that ... not"),
    ("whereof", "write of which"),
    ("thereof", "write of it, or name it"),
    ("wherein", "write in which"),
    ("hitherto", "write so far"),
];
/// Nouns that must not be followed by `who`, because they are not people.
const THINGS: [&str; 22] = [
    "port",
    "vm",
    "vcpu",
    "worker",
    "frame",
    "packet",
    "switch",
    "daemon",
    "controller",
    "host",
    "thread",
    "queue",
    "agent",
    "guest",
    "session",
    "driver",
    "program",
    "process",
    "scheduler",
    "sender",
    "receiver",
    "socket",
];

/// Returns the findings of the word check in one Markdown file.
pub fn check_page(source: &Source) -> Vec<Finding> {
    let lines = outside_fences(&source.text).map(|(n, line)| (n, without_code(line)));
    let mut found = Vec::new();
    let mut before = String::new();
    for (n, line) in lines {
        // A phrase may continue on the next line. It is found in the line where it ends.
        found.extend(phrases(&before, &line).map(|what| Finding::new(&source.path, n, what)));
        before = line;
    }
    found
}

/// Returns the findings of the word check in one Rust file, up to its test module. The word check
/// covers doc comments and string literals.
pub fn check_code(source: &Source) -> Vec<Finding> {
    if is_test(&source.path) {
        return Vec::new();
    }
    let text = source.text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = lexer::split(text);
    let mut found = Vec::new();
    let mut say = |line: usize, what: String| {
        found.push(Finding::new(&source.path, line, what));
    };
    let help =
        text.contains("use clap::") || text.contains("clap::Args") || text.contains("clap::Parser");
    for (line, doc) in docs(&lines) {
        let plain = without_code(&doc);
        phrases("", &plain).for_each(|what| say(line, what));
        if is_filler(&doc) {
            say(line, format!("doc comment `{doc}` repeats the name: say more or delete it"));
        }
        if help {
            long(&doc).for_each(|what| say(line, what));
        }
    }
    for (line, literal) in lexer::literals(&lines) {
        phrases("", &literal).for_each(|what| say(line, what));
        // A literal with keys and values is the text of a file, not a sentence.
        if !literal.contains(" = ") {
            long(&literal).for_each(|what| say(line, what));
        }
    }
    found
}

/// Returns the beginnings of paths that are not checked, from a list with `PATH => REASON` lines.
pub fn exempt(list: &str) -> Vec<&str> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.split_once(" => ")?.0.trim())).collect()
}

fn is_test(path: &str) -> bool {
    let name = Path::new(path).file_stem().map_or_else(String::new, |n| n.to_string_lossy().into());
    name == "tests"
        || name.ends_with("_tests")
        || !path.contains("/src/")
        || path.contains("/tests/")
}

/// Returns doc comments with the line where each begins. Each paragraph of a comment is a separate
/// result.
fn docs(lines: &[lexer::Line]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open = false;
    let mut fenced = false;
    for (n, line) in lines.iter().enumerate() {
        let text = line.comment.strip_prefix(['/', '!']).filter(|_| line.is_comment());
        let Some(text) = text.map(str::trim) else {
            open = false;
            fenced = false;
            continue;
        };
        let fence = text.starts_with("```");
        fenced ^= fence;
        let table = text.starts_with('|') || text.starts_with('#');
        if text.is_empty() || fence || fenced || table {
            open = false;
            continue;
        }
        match found.last_mut() {
            Some((_, paragraph)) if open && !text.starts_with("- ") => {
                let paragraph: &mut String = paragraph;
                paragraph.push(' ');
                paragraph.push_str(text);
            }
            _ => found.push((n + 1, text.to_owned())),
        }
        open = true;
    }
    found
}

/// Returns true if a doc comment is one word, or an article and a word. A comment with a word in
/// capitals does not count, because the word is a symbol from a paper.
fn is_filler(doc: &str) -> bool {
    let Some(text) = doc.strip_suffix('.') else { return false };
    let words: Vec<&str> = text.split_whitespace().collect();
    let plain = |word: &str| word.chars().all(char::is_alphabetic);
    match words[..] {
        [word] => plain(word) && !word.chars().all(char::is_uppercase),
        ["The" | "Its" | "A" | "An", word] => plain(word),
        _ => false,
    }
}

/// Returns a finding for each sentence that is too long.
fn long(text: &str) -> impl Iterator<Item = String> {
    let mut sentences = Vec::new();
    let mut words = 0;
    for word in text.split_whitespace() {
        words += 1;
        if word.ends_with(['.', ':', ';', '!', '?']) {
            sentences.push(std::mem::take(&mut words));
        }
    }
    sentences.push(words);
    let long = sentences.into_iter().filter(|words| *words > SENTENCE);
    long.map(|words| format!("a sentence of {words} words: at most {SENTENCE} in help and errors"))
}

/// Returns a finding for each listed phrase whose last word is in `text`. The first words of a
/// phrase may be in `before`, which is the text in front of `text`.
fn phrases(before: &str, text: &str) -> impl Iterator<Item = String> {
    let mut words = folded(before);
    let old = words.len();
    words.extend(folded(text));
    let ends_here = move |words: &[String], phrase: &[&str]| {
        let windows = words.windows(phrase.len()).enumerate();
        windows.filter(|(at, w)| at + phrase.len() > old && *w == phrase).count() > 0
    };
    let mut found = Vec::new();
    for (phrase, instead) in PHRASES {
        let parts: Vec<&str> = phrase.split(' ').collect();
        if ends_here(&words, &parts) {
            found.push(format!("\"{phrase}\": {instead}"));
        }
    }
    for thing in THINGS {
        for noun in [thing.to_owned(), format!("{thing}s"), format!("{thing}es")] {
            if ends_here(&words, &[&noun, "who"]) {
                found.push(format!("\"{noun} who\": software is \"it\"; write that"));
            }
        }
    }
    found.into_iter()
}

/// Returns the words of `text` in lower case. Punctuation ends a phrase, so an empty word replaces
/// punctuation.
fn folded(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let bare = word.trim_start_matches(['(', '"', '*', '_', '[']).to_lowercase();
        let core = bare.trim_end_matches(|c: char| !c.is_alphanumeric());
        if !core.is_empty() {
            words.push(core.to_owned());
        }
        if core.len() < bare.len() {
            words.push(String::new());
        }
    }
    words
}

/// Returns a line in which each span between back quotes is replaced by one word.
fn without_code(line: &str) -> String {
    let parts = line.split('`').enumerate();
    parts.map(|(n, part)| if n % 2 == 0 { part } else { "CODE" }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    fn page(text: &str) -> Vec<String> {
        check_page(&source("docs/a.md", text)).into_iter().map(|f| f.what).collect()
    }

    fn code(text: &str) -> Vec<String> {
        check_code(&source("crates/x/src/a.rs", text)).into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn phrases_are_found_over_line_ends_and_not_in_code() {
        assert_eq!(page("The port is\ntold twice. It begins Anew.\n").len(), 2);
        assert!(page("`is told` retold, is. Told lies\n```\nanew\n```\n").is_empty());
        assert_eq!(page("a port who sends, a user who reads").len(), 1);
    }

    #[test]
    fn comments_that_say_nothing_are_found() {
        assert_eq!(code("/// Name.\nstruct A;\n/// The port.\nstruct B;\n").len(), 2);
        assert!(code("/// Unit: bytes.\nstruct A;\n/// In MiB.\nstruct B;\n// Name.\n").is_empty());
        assert!(code("#[cfg(test)]\nmod x;\n").is_empty());
    }

    #[test]
    fn long_sentences_are_found_in_help_and_literals() {
        let words = "word ".repeat(31);
        assert_eq!(code(&format!("fn f() {{ bail!(\"{words}\") }}\n")).len(), 1);
        assert_eq!(code(&format!("use clap::Args;\n/// {words}\nstruct A;\n")).len(), 1);
        assert!(code(&format!("/// {words}\nstruct A;\n")).is_empty());
        let halves = format!("{}. {}", "word ".repeat(20), "word ".repeat(20));
        assert!(code(&format!("fn f() {{ bail!(\"{halves}\") }}\n")).is_empty());
    }

    #[test]
    fn literals_may_go_over_lines() {
        assert_eq!(code("const A: &str = \"it is \\\n    told\";\n").len(), 1);
        assert!(code("#[cfg(test)]\nmod tests {}\n").is_empty());
    }

    #[test]
    fn the_list_of_exemptions_has_reasons() {
        assert_eq!(exempt("# text => x\ncrates/a/ => later\nno reason\n"), ["crates/a/"]);
    }
}
