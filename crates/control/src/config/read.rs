//! From a file or a text to a checked configuration.

use std::path::Path;

use toml_edit::Document;

use super::check;
use super::draft::{Report, read_draft};
use super::error::{ConfigError, ConfigErrors};
use super::file::{read_file, save};
use super::limits::FILE_BYTES_MAX;
use super::machine::Machine;
use super::model::HostConfig;
use super::source::Source;
use super::upgrade::{current, outdated, upgrade};

/// Reads and checks the text of a configuration on no particular machine; `file` is what errors
/// call it.
///
/// # Errors
/// All mistakes at once, in the order of the text.
pub fn parse(text: &str, file: &str) -> Result<HostConfig, ConfigErrors> {
    read(text, file, &Machine::default())
}

/// As [`parse`], and what the configuration asks of the machine must be there.
///
/// # Errors
/// All mistakes at once, in the order of the text.
pub fn parse_on(text: &str, file: &str, machine: &Machine) -> Result<HostConfig, ConfigErrors> {
    read(text, file, machine)
}

/// Reads and checks a configuration file on this machine.
///
/// # Errors
/// All mistakes at once; a file that cannot be read is one.
pub fn load(path: &Path) -> Result<HostConfig, ConfigErrors> {
    read(&read_file(path)?, &path.display().to_string(), &Machine::here())
}

/// Rewrites a configuration file with today's keys; its comments and order stay. Returns what was
/// old, and writes nothing if nothing was.
///
/// # Errors
/// All mistakes at once; the file is left as it was. A file that cannot be read or written is one.
pub fn migrate(path: &Path) -> Result<Vec<String>, ConfigErrors> {
    let text = read_file(path)?;
    let file = path.display().to_string();
    parse(&text, &file)?;
    let old = outdated(&text);
    if !old.is_empty() {
        save(path, &current(&text)).map_err(|error| {
            let (object, problem) = ("file".to_owned(), format!("it cannot be written: {error}"));
            let remedy = "check its rights and those of its directory".to_owned();
            ConfigErrors(vec![ConfigError { file, line: 0, column: 0, object, problem, remedy }])
        })?;
    }
    Ok(old)
}

/// See [`parse_on`].
fn read(text: &str, file: &str, machine: &Machine) -> Result<HostConfig, ConfigErrors> {
    let source = Source::new(text, file);
    if text.len() > FILE_BYTES_MAX {
        let problem = format!("{} bytes are too many, the limit is {FILE_BYTES_MAX}", text.len());
        let error = source.error(None, "file", problem, "split the host or shorten the file");
        return Err(ConfigErrors(vec![error]));
    }
    let document = Document::parse(text).map_err(|error| {
        let problem = error.message().replace('\n', ", ");
        let remedy = "correct the TOML syntax; nothing else was checked";
        ConfigErrors(vec![source.error(error.span(), "syntax", problem, remedy)])
    })?;
    let mut root = document.as_table().clone();
    upgrade(&mut root);
    let mut report = Report::new(source);
    let draft = read_draft(&root, &mut report);
    check::check(&draft, machine, &mut report);
    if report.is_empty() {
        let Some(config) = draft.finish() else {
            unreachable!("an object without a value has reported why")
        };
        check::check_tables(&config, &draft, &mut report);
        if report.is_empty() {
            return Ok(config);
        }
    }
    Err(report.into_errors())
}
