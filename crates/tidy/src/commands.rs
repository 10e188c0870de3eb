//! Checks that the commands in fenced blocks of Markdown files exist, with their options.
//!
//! The reference pages of options are generated from the programs' help, and tests compare the
//! pages with the help. The check of commands reads the existing commands from the reference pages,
//! which have a heading and a help text for each command.

use std::collections::BTreeMap;

use crate::{Finding, Source};

/// Reference pages with the help text of every command.
const PAGES: [&str; 2] = ["docs/reference/cli-options.md", "docs/reference/lab-options.md"];
/// Languages of the fenced blocks in which commands are checked. The empty name is for fenced
/// blocks without a language.
const LANGUAGES: [&str; 4] = ["console", "sh", "text", ""];

/// Help text of each command, with keys such as `penstock port add`.
#[derive(Debug, Default)]
pub struct Commands(BTreeMap<String, String>);

impl Commands {
    /// Reads the commands from the pages of options.
    pub fn read(sources: &[Source]) -> Self {
        let pages = PAGES.iter().filter_map(|path| sources.iter().find(|s| s.path == *path));
        Self(pages.flat_map(|page| sections(&page.text)).collect())
    }

    /// Returns the commands of `source` that do not exist.
    pub fn check(&self, source: &Source) -> Vec<Finding> {
        if self.0.is_empty() || PAGES.contains(&source.path.as_str()) {
            return Vec::new();
        }
        let of_line = |(line, words): (usize, Vec<String>)| {
            let what = self.problem(&words)?;
            Some(Finding::new(&source.path, line, what))
        };
        written(&source.text).into_iter().filter_map(of_line).collect()
    }

    /// Returns the mistake in the words of a command, or `None` if the command exists with its
    /// options.
    fn problem(&self, words: &[String]) -> Option<String> {
        let mut name = words[0].clone();
        let mut given = Vec::new();
        let mut verbs = true;
        let mut rest = words[1..].iter();
        while let Some(word) = rest.next() {
            if word.starts_with("--") {
                given.push(word.split('=').next().unwrap_or_default());
                // The value of `--socket` may look like a verb.
                if word == "--socket" {
                    rest.next();
                }
                continue;
            }
            let longer = format!("{name} {word}");
            if verbs && self.0.contains_key(&longer) {
                name = longer;
            } else if verbs && self.has_verbs(&name) && is_verb(word) {
                return Some(format!("there is no command `{longer}`"));
            } else {
                verbs = false;
            }
        }
        let help = self.0.get(&name)?;
        let known = |option: &str| help.split([' ', ',', '\n', '[']).any(|word| word == option);
        let unknown = given.into_iter().find(|o| *o != "--help" && *o != "--" && !known(o))?;
        Some(format!("`{name}` has no option `{unknown}`"))
    }

    fn has_verbs(&self, name: &str) -> bool {
        let prefix = format!("{name} ");
        self.0.keys().any(|key| key.starts_with(&prefix))
    }
}

/// Returns true if a word has the form of a verb, which `...` and `NAME` do not have.
fn is_verb(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
}

/// Returns each command in the headings of a page, such as `penstock port add`, with the text below
/// the heading.
fn sections(text: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let name = line.strip_prefix("## `").and_then(|rest| rest.strip_suffix('`'));
        match (name, found.last_mut()) {
            (Some(name), _) => found.push((name.to_owned(), String::new())),
            (None, Some((_, help))) => {
                help.push_str(line);
                help.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

/// Returns the commands of a page with their lines. A command ends at a pipe or redirection.
fn written(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let mut language = None;
    let mut lines = text.lines().enumerate();
    while let Some((n, line)) = lines.next() {
        if let Some(rest) = line.trim_start().strip_prefix("```") {
            language = if language.is_some() { None } else { Some(rest) };
            continue;
        }
        if !language.is_some_and(|l| LANGUAGES.contains(&l)) {
            continue;
        }
        let mut command = line.trim().to_owned();
        while command.ends_with('\\') {
            command.pop();
            command.push_str(lines.next().map_or("", |(_, more)| more));
        }
        let words: Vec<&str> = command.split_whitespace().collect();
        let start = words.iter().position(|word| program(word).is_some());
        // In a line of output, the program's name may follow other words.
        let first = start.filter(|at| words[..*at].iter().all(|w| BEFORE.contains(w)));
        if let Some(at) = first {
            let mut all = vec![program(words[at]).unwrap_or_default().to_owned()];
            let more = words[at + 1..].iter().take_while(|word| !ends(word));
            all.extend(more.map(|word| (*word).to_owned()));
            found.push((n + 1, all));
        }
    }
    found
}

/// Words that may precede a command.
const BEFORE: [&str; 4] = ["$", "#", "sudo", "exec"];

fn program(word: &str) -> Option<&str> {
    let name = word.rsplit('/').next().unwrap_or_default();
    ["penstock", "penstock-lab"].into_iter().find(|program| *program == name)
}

/// Returns true if a word ends the arguments of a command.
fn ends(word: &str) -> bool {
    matches!(word, "|" | "&&" | "||" | "&" | "#" | ";")
        || word.starts_with(['>', '<'])
        || word.starts_with("2>")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: &str = "# All\n\n## `penstock`\n```text\n      --socket <PATH>\n```\n\
        ## `penstock port`\n## `penstock port add`\n```text\n  -j, --json\n\
        \x20     --socket <PATH>\n```\n## `penstock stats`\n```text\n      --watch [<SECS>]\n```\n";

    fn findings(block: &str) -> Vec<String> {
        let source =
            |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let commands = Commands::read(&[source(PAGES[0], OPTIONS)]);
        let page = source("README.md", &format!("```console\n{block}\n```\npenstock nothing\n"));
        commands.check(&page).into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn commands_that_exist_pass() {
        let block = "$ penstock port add vm1 mac= --json\n# penstock stats --watch 1 | head --x\n\
            $ target/debug/penstock --socket port port add vm1 \\\n    --json\n\
            penstock: an error\n$ echo penstock none";
        assert_eq!(findings(block), [""; 0]);
    }

    #[test]
    fn unknown_verbs_and_options_are_found() {
        assert_eq!(findings("$ penstock port make"), ["there is no command `penstock port make`"]);
        assert_eq!(findings("$ penstock show"), ["there is no command `penstock show`"]);
        assert_eq!(
            findings("$ penstock stats --json"),
            ["`penstock stats` has no option `--json`"]
        );
    }
}
