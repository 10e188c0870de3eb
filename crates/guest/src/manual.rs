//! Manual pages of the programs, made from their command lines.

use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result};

/// Length in bytes from which a word may not fit in a line of a narrow page.
const WORD_LONG: usize = 40;

/// Writes the manual pages of a program and of its commands to the directory `dir`, which must
/// exist.
///
/// # Errors
/// Returns an error if a page cannot be written.
pub fn write(program: clap::Command, dir: &Path) -> Result<()> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    pages(&program, dir, &date())
        .with_context(|| format!("manual pages: cannot write to the directory {}", dir.display()))
}

/// Writes the pages of a command and of its commands.
fn pages(command: &clap::Command, dir: &Path, date: &str) -> std::io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        pages(inner, dir, date)?;
    }
    let man = clap_mangen::Man::new(command.clone()).date(date);
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = breakable(&String::from_utf8_lossy(&page));
    std::fs::write(dir.join(man.get_filename()), page)
}

/// Returns the page with the escape `\:` before each `[` inside a long word, such as
/// `socket=PATH[,mac=MAC][,ip=ADDR/LEN]`. Lines may break there, and the escape prints nothing.
fn breakable(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    for line in page.split_inclusive('\n') {
        let is_request = line.starts_with('.');
        for word in line.split_inclusive(' ') {
            // A quote before the first `[` stays with it.
            let at = word.find(|c: char| c != '`' && c != '[').unwrap_or(word.len());
            let (start, rest) = word.split_at(at);
            text.push_str(start);
            if is_request || word.len() < WORD_LONG {
                text.push_str(rest);
            } else {
                text.push_str(&rest.replace('[', "\\:["));
            }
        }
    }
    text
}

/// Returns the date of the pages, as in 2026-11-30. The date is that of `SOURCE_DATE_EPOCH`, or
/// else of this program's file, so that equal programs write equal pages.
fn date() -> String {
    let set = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse::<u64>().ok());
    let of_file = || {
        let changed = std::env::current_exe().and_then(std::fs::metadata).ok()?.modified().ok()?;
        Some(changed.duration_since(UNIX_EPOCH).ok()?.as_secs())
    };
    text_of(set.or_else(of_file).unwrap_or(0))
}

fn text_of(unix_s: u64) -> String {
    let (year, month, day) = penstock_units::utc_date(unix_s);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_word_may_break_before_its_optional_parts() {
        let long = "`[,ring=256][,mrg=off][,packed=on][,delay\\-us=0]`";
        let page = format!(".TH a \"{long}\"\nAdd {long}\n[\\fB\\-h\\fR] a[,b]\n");
        let broken = "`[,ring=256]\\:[,mrg=off]\\:[,packed=on]\\:[,delay\\-us=0]`";
        let expected = page.replace(&format!("Add {long}"), &format!("Add {broken}"));
        assert_eq!(breakable(&page), expected);
    }

    #[test]
    fn a_page_has_its_date_and_a_hidden_command_has_no_page() {
        assert_eq!(text_of(951_782_400), "2000-02-29");
        let hidden = clap::Command::new("hidden").hide(true);
        let mut program =
            clap::Command::new("prog").subcommand(clap::Command::new("do")).subcommand(hidden);
        program.build();
        let dir = penstock_testing::temp_dir();
        pages(&program, &dir, "2000-02-29").unwrap();
        let page = std::fs::read_to_string(dir.join("prog.1")).unwrap();
        let inner = dir.join("prog-do.1").exists();
        let hidden = dir.join("prog-hidden.1").exists();
        assert!(page.contains("2000-02-29"), "{page}");
        assert!(inner && !hidden);
    }
}
