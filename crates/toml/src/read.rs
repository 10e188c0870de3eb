//! This module converts a configuration text to a checked value.

use toml_edit::{Document, Table};

use crate::error::ConfigErrors;
use crate::report::Report;
use crate::source::Source;

/// Maximum size of a configuration file in bytes.
pub const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Checks the syntax of `text`, and then calls `check`. `check` may return `None` only if it has
/// reported a mistake. `file` is the file's name in error messages.
///
/// # Errors
/// Returns the syntax error if `text` is not valid TOML. If the syntax is correct, returns the
/// mistakes that `check` reported, in the order of the text.
pub fn read<T>(
    text: &str,
    file: &str,
    check: impl FnOnce(&Table, &mut Report<'_>) -> Option<T>,
) -> Result<T, ConfigErrors> {
    let source = Source::new(text, file);
    if text.len() > FILE_BYTES_MAX {
        let problem = format!("{} bytes are too many, the limit is {FILE_BYTES_MAX}", text.len());
        return Err(ConfigErrors(vec![source.error(None, "file", problem, "shorten the file")]));
    }
    let document = Document::parse(text).map_err(|error| {
        let problem = error.message().replace('\n', ", ");
        let remedy = "correct the TOML syntax; nothing else was checked";
        ConfigErrors(vec![source.error(error.span(), "syntax", problem, remedy)])
    })?;
    let mut report = Report::new(source);
    let value = check(document.as_table(), &mut report);
    match value {
        Some(value) if report.is_empty() => Ok(value),
        _ => Err(report.into_errors()),
    }
}
