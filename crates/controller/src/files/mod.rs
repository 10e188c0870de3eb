//! Reads the controller's TOML files. The three kinds of files describe a controller, a datacenter
//! and its tenants. If a file has any mistake, the controller refuses the whole file.
//!
//! The controller checks a file in three steps:
//!
//! 1. [`penstock_toml`] checks the TOML syntax of the file.
//! 2. [`penstock_toml`] checks the values of each object.
//! 3. The parser of the file's kind checks the references between objects.
//!
//! The error lists all mistakes that a step of the check finds, each with line, object, limit and
//! remedy. If one step of the check finds mistakes, later steps may be skipped.
//! `docs/reference/controller.md` and `docs/reference/fabric.md` describe the keys of the files.

use std::path::Path;

use penstock_fabric::topology::Topology;
use penstock_toml::schema::FileSchema;
use penstock_toml::{ConfigErrors, Object, Report, read, read_file, unknown_sections};

mod controller;
mod switch;
mod tenants;
mod topology;

pub use controller::{ControllerFile, StoreFile, TlsFiles};
pub use switch::{DriverFile, LoginFile, PenstockFile, SonicFile, SwitchFile, SwitchTls};
pub use tenants::{Layer, TenantWish};
pub use topology::FabricFile;

/// Kinds of files that the controller reads, with their JSON Schemas.
/// `docs/reference/NAME.schema.json` is the committed copy of a schema.
pub const SCHEMAS: [FileSchema; 3] = [
    ("controller", controller::schema),
    ("fabric", topology::schema),
    ("tenants", tenants::schema),
];

/// Reads the text of a datacenter's file. `file` is the file name that errors show.
///
/// # Errors
/// Returns an error if the text has mistakes. The error lists mistakes in the order of the text.
/// The error lists only the mistakes of the first step that failed: syntax, values or references.
pub fn parse_topology(text: &str, file: &str) -> Result<FabricFile, ConfigErrors> {
    read(text, file, |root, report| {
        report.set_schema(topology::schema);
        unknown_sections(root, &topology::SECTIONS, report);
        topology::read(root, report)
    })
}

/// Reads the text of a file of tenants, in the order of the file. The table of a tenant may refer
/// to earlier tenants in the file and to the tenants in the argument `known`.
///
/// # Errors
/// Returns an error in the same cases as [`parse_topology`].
pub fn parse_tenants(
    text: &str,
    file: &str,
    topology: &Topology,
    known: &[String],
) -> Result<Vec<TenantWish>, ConfigErrors> {
    read(text, file, |root, report| {
        report.set_schema(tenants::schema);
        unknown_sections(root, &tenants::SECTIONS, report);
        tenants::read(root, topology, known, report)
    })
}

/// Reads the file of a datacenter from disk.
///
/// # Errors
/// Returns an error in the same cases as [`parse_topology`], and if the file cannot be read.
pub fn load_topology(path: &Path) -> Result<FabricFile, ConfigErrors> {
    parse_topology(&read_file(path)?, &path.display().to_string())
}

/// Reads a file of tenants from disk.
///
/// # Errors
/// Returns an error in the same cases as [`parse_tenants`], and if the file cannot be read.
pub fn load_tenants(path: &Path, topology: &Topology) -> Result<Vec<TenantWish>, ConfigErrors> {
    parse_tenants(&read_file(path)?, &path.display().to_string(), topology, &[])
}

/// Reads a controller's file and the topology that it names. Relative paths start at the directory
/// of the controller's file.
///
/// # Errors
/// Returns an error in the same cases as [`parse_topology`], and if the topology's file has
/// mistakes.
pub fn load_controller(path: &Path) -> Result<ControllerFile, ConfigErrors> {
    let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
    read(&read_file(path)?, &path.display().to_string(), |root, report| {
        report.set_schema(controller::schema);
        unknown_sections(root, &controller::SECTIONS, report);
        controller::read(root, &folder, report, load_topology)
    })
}

/// Reports the code points of `reserved_code_points` that have no effect: 0, which no tenant gets
/// anyway, and code points that the list has twice.
fn idle_code_points<T>(object: &Object<'_, T>, reserved: &[u8], report: &mut Report<'_>) {
    for (at, dscp) in reserved.iter().enumerate() {
        let path = format!("reserved_code_points.{at}");
        if *dscp == 0 {
            let problem = "code point 0 is that of the shared queue, and no tenant gets it";
            report.at(object, &path, problem, "write 1 to 63");
        } else if reserved[..at].contains(dscp) {
            let problem = format!("code point {dscp} is listed twice");
            report.at(object, &path, problem, "remove one of the two");
        }
    }
}
