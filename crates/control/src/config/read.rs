//! Reads a file or a text, and returns a checked configuration.

use std::path::Path;

use penstock_toml::{ConfigError, ConfigErrors};
use penstock_toml::{read_file, save};
use serde::de::DeserializeOwned;

use super::check;
use super::draft::{read_draft, read_object};
use super::machine::Machine;
use super::model::HostConfig;
use super::upgrade::{current, outdated, upgrade};

/// Reads and checks the text of a configuration, without checks against a machine's CPUs and
/// accounts. The argument `file` is the file's name in error messages.
///
/// # Errors
/// Returns all mistakes of the text at once, in the order of the text.
pub fn parse(text: &str, file: &str) -> Result<HostConfig, ConfigErrors> {
    read(text, file, &Machine::default())
}

/// Reads and checks the text like [`parse`]. The CPUs that the configuration names must exist on
/// `machine`.
///
/// # Errors
/// Returns all mistakes of the text at once, in the order of the text.
pub fn parse_on(text: &str, file: &str, machine: &Machine) -> Result<HostConfig, ConfigErrors> {
    read(text, file, machine)
}

/// Reads and checks a configuration file on this machine.
///
/// # Errors
/// Returns all mistakes of the file, not only the first mistake. A file that cannot be read counts
/// as a mistake.
pub fn load(path: &Path) -> Result<HostConfig, ConfigErrors> {
    read(&read_file(path)?, &path.display().to_string(), &Machine::here())
}

/// Reads the object of a request, such as a `[[port]]`, from a text with only the object's keys.
/// `kind` is the object's kind, such as `port`. The references to other objects are not checked.
///
/// # Errors
/// Returns all mistakes of the text at once, in the order of the text.
pub fn parse_object<T: DeserializeOwned>(kind: &str, text: &str) -> Result<T, ConfigErrors> {
    penstock_toml::read(text, "", |root, report| read_object(root, kind, report))
}

/// Rewrites a configuration file with current keys, and keeps the file's comments and order.
/// Returns one sentence for each outdated key. A file without outdated keys stays unchanged.
///
/// # Errors
/// Returns all mistakes of the file at once, and leaves the file unchanged. A file that cannot be
/// read or written counts as a mistake.
pub fn migrate(path: &Path) -> Result<Vec<String>, ConfigErrors> {
    let text = read_file(path)?;
    let file = path.display().to_string();
    parse(&text, &file)?;
    let old = outdated(&text);
    if !old.is_empty() {
        save(path, &current(&text)).map_err(|error| {
            let (object, problem) = ("file".to_owned(), format!("cannot be written: {error}"));
            let remedy = "check the permissions of the file and its directory".to_owned();
            ConfigErrors(vec![ConfigError { file, line: 0, column: 0, object, problem, remedy }])
        })?;
    }
    Ok(old)
}

fn read(text: &str, file: &str, machine: &Machine) -> Result<HostConfig, ConfigErrors> {
    penstock_toml::read(text, file, |root, report| {
        let mut root = root.clone();
        upgrade(&mut root);
        let draft = read_draft(&root, report);
        check::check(&draft, machine, report);
        if !report.is_empty() {
            return None;
        }
        let Some(config) = draft.finish() else {
            unreachable!("an object is missing, but no mistake was reported")
        };
        check::check_tables(&config, &draft, report);
        Some(config)
    })
}
