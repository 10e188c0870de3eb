//! Reads a file or a text as a checked configuration.

use std::path::Path;

use penstock_toml::{ConfigError, ConfigErrors};
use penstock_toml::{read_file, save};

use super::check;
use super::draft::read_draft;
use super::machine::Machine;
use super::model::HostConfig;
use super::upgrade::{current, outdated, upgrade};

/// Reads and checks the text of a configuration for any machine. `file` is the name of the file in
/// errors.
///
/// # Errors
/// All mistakes at once, in the order of the text.
pub fn parse(text: &str, file: &str) -> Result<HostConfig, ConfigErrors> {
    read(text, file, &Machine::default())
}

/// Like [`parse`]. In addition, the CPUs of the configuration must exist on `machine`.
///
/// # Errors
/// All mistakes at once, in the order of the text.
pub fn parse_on(text: &str, file: &str, machine: &Machine) -> Result<HostConfig, ConfigErrors> {
    read(text, file, machine)
}

/// Reads and checks a configuration file on this machine.
///
/// # Errors
/// All mistakes at once. A file that cannot be read is a mistake too.
pub fn load(path: &Path) -> Result<HostConfig, ConfigErrors> {
    read(&read_file(path)?, &path.display().to_string(), &Machine::here())
}

/// Rewrites a configuration file with current keys. Its comments and order stay. Returns one
/// sentence for each old key. Without old keys it writes nothing.
///
/// # Errors
/// All mistakes at once. The file stays unchanged. A file that cannot be read or written is a
/// mistake.
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
            unreachable!("an object without a value has reported why")
        };
        check::check_tables(&config, &draft, report);
        Some(config)
    })
}
