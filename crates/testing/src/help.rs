//! Makes the documentation page of a program's options from the program's help.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns a Markdown section for each command that the program's help names. The section contains
/// the whole help text of its command.
///
/// # Panics
/// Panics if the program prints no help.
#[must_use]
pub fn sections(program: &Path, name: &str) -> String {
    let mut page = String::new();
    section(program, &[name.to_owned()], &mut page);
    page
}

fn section(program: &Path, words: &[String], page: &mut String) {
    let mut command = Command::new(program);
    command.args(&words[1..]).arg("--help").env_remove("COLUMNS").env_remove("PENSTOCK_SOCKET");
    let output = command.stdin(Stdio::null()).output().expect("the program runs");
    let help = String::from_utf8(output.stdout).expect("help is text");
    assert!(output.status.success() && !help.is_empty(), "{words:?}: no help");
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(page, "\n## `{}`\n\n```text\n{}\n```\n", words.join(" "), lines.join("\n"));
    for verb in verbs(&help) {
        section(program, &[words, &[verb]].concat(), page);
    }
}

/// Returns the names of the commands below `Commands:` in a help text.
fn verbs(help: &str) -> Vec<String> {
    let list = help.split("\nCommands:\n").nth(1).unwrap_or_default();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let named = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let words = named.filter_map(|line| line.split_whitespace().next());
    words.filter(|word| *word != "help").map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_those_of_the_list() {
        let help = "What it does\n\nUsage: a\n\nCommands:\n  run   Run it in\n          the end\n  \
                    stop  Stop\n  help  Print\n\nOptions:\n  -h  Help\n";
        assert_eq!(verbs(help), ["run", "stop"]);
        assert!(verbs("Usage: a\n").is_empty());
    }
}
