//! A datacenter and its tenants as TOML: each file is read whole or refused whole.
//!
//! **Rule.** As for the host's configuration: syntax, then each object's own values, then what
//! objects say of each other; all mistakes of a step at once, each with its line, object, limit and
//! remedy. Keys: `docs/reference/fabric.md`.

use std::path::Path;

use toml_edit::{Document, Table};

use super::draft::{Report, unknown_sections};
use super::error::ConfigErrors;
use super::file::read_file;
use super::limits::FILE_BYTES_MAX;
use super::source::Source;

mod controller;
mod switch;
mod tenants;
mod topology;

pub use controller::{ControllerFile, StoreFile, TlsFiles};
pub use switch::{DriverFile, LoginFile, PenstockFile, SonicFile, SwitchFile, SwitchTls};
pub use tenants::{Layer, TenantWish};
pub use topology::FabricFile;

use penstock_fabric::topology::Topology;

/// The schema of a controller's file.
pub(super) fn controller_schema() -> String {
    controller::schema()
}

/// The schema of a datacenter's file.
pub(super) fn topology_schema() -> String {
    topology::schema()
}

/// The schema of a file of tenants.
pub(super) fn tenants_schema() -> String {
    tenants::schema()
}

/// Reads the text of a datacenter; `file` is what errors call it.
///
/// # Errors
/// All mistakes of the first step that has any, in the order of the text.
pub fn parse_topology(text: &str, file: &str) -> Result<FabricFile, ConfigErrors> {
    parse(text, file, |root, report| {
        unknown_sections(root, &topology::SECTIONS, report);
        topology::read(root, report)
    })
}

/// Reads the text of tenants of a datacenter, in the order in which they come. They may be near or
/// apart from each other, and from those that are `known` already.
///
/// # Errors
/// As [`parse_topology`].
pub fn parse_tenants(
    text: &str,
    file: &str,
    topology: &Topology,
    known: &[String],
) -> Result<Vec<TenantWish>, ConfigErrors> {
    parse(text, file, |root, report| {
        unknown_sections(root, &tenants::SECTIONS, report);
        tenants::read(root, topology, known, report)
    })
}

/// As [`parse_topology`], of a file.
///
/// # Errors
/// As [`parse_topology`]; a file that cannot be read is a mistake.
pub fn load_topology(path: &Path) -> Result<FabricFile, ConfigErrors> {
    parse_topology(&read_file(path)?, &path.display().to_string())
}

/// As [`parse_tenants`], of a file.
///
/// # Errors
/// As [`parse_tenants`]; a file that cannot be read is a mistake.
pub fn load_tenants(path: &Path, topology: &Topology) -> Result<Vec<TenantWish>, ConfigErrors> {
    parse_tenants(&read_file(path)?, &path.display().to_string(), topology, &[])
}

/// Reads a controller's file, and the topology that it names. Paths in it are as seen from its
/// folder.
///
/// # Errors
/// As [`parse_topology`]; a mistake in the topology's file is one of `topology`.
pub fn load_controller(path: &Path) -> Result<ControllerFile, ConfigErrors> {
    let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
    parse(&read_file(path)?, &path.display().to_string(), |root, report| {
        unknown_sections(root, &controller::SECTIONS, report);
        controller::read(root, &folder, report, load_topology)
    })
}

/// Syntax, then `read`, which yields nothing only if it has reported why.
fn parse<T>(
    text: &str,
    file: &str,
    read: impl FnOnce(&Table, &mut Report<'_>) -> Option<T>,
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
    let value = read(document.as_table(), &mut report);
    let errors = report.into_errors();
    match value {
        Some(value) if errors.0.is_empty() => Ok(value),
        _ => Err(errors),
    }
}
