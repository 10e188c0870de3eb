//! The controller's files: a controller, a datacenter and its tenants as TOML. A file with any
//! mistake is refused as a whole.
//!
//! [`penstock_toml`] checks the syntax and each object's own values. This module checks references
//! between objects. All mistakes of a step are reported at once, each with line, object, limit and
//! remedy. Keys are in `docs/reference/controller.md` and `docs/reference/fabric.md`.

use std::path::Path;

use penstock_fabric::topology::Topology;
use penstock_toml::schema::FileSchema;
use penstock_toml::{ConfigErrors, read, read_file, unknown_sections};

mod controller;
mod switch;
mod tenants;
mod topology;

pub use controller::{ControllerFile, StoreFile, TlsFiles};
pub use switch::{DriverFile, LoginFile, PenstockFile, SonicFile, SwitchFile, SwitchTls};
pub use tenants::{Layer, TenantWish};
pub use topology::FabricFile;

/// The kinds of files that this crate reads. The committed copy of a schema is
/// `docs/NAME.schema.json`.
pub const SCHEMAS: [FileSchema; 3] = [
    ("controller", controller::schema),
    ("fabric", topology::schema),
    ("tenants", tenants::schema),
];

/// Reads the text of a datacenter. `file` is the name of the file in errors.
///
/// # Errors
/// The text has mistakes. The error has all mistakes of the first step that finds any, in the order
/// of the text.
pub fn parse_topology(text: &str, file: &str) -> Result<FabricFile, ConfigErrors> {
    read(text, file, |root, report| {
        unknown_sections(root, &topology::SECTIONS, report);
        topology::read(root, report)
    })
}

/// Reads the text of a datacenter's tenants in their order. A tenant may be near to, or apart from,
/// earlier tenants of the file and tenants that are `known` already.
///
/// # Errors
/// The same as those of [`parse_topology`].
pub fn parse_tenants(
    text: &str,
    file: &str,
    topology: &Topology,
    known: &[String],
) -> Result<Vec<TenantWish>, ConfigErrors> {
    read(text, file, |root, report| {
        unknown_sections(root, &tenants::SECTIONS, report);
        tenants::read(root, topology, known, report)
    })
}

/// Reads a datacenter's file.
///
/// # Errors
/// The same as those of [`parse_topology`]. A file that cannot be read is a mistake.
pub fn load_topology(path: &Path) -> Result<FabricFile, ConfigErrors> {
    parse_topology(&read_file(path)?, &path.display().to_string())
}

/// Reads a file of tenants.
///
/// # Errors
/// The same as those of [`parse_tenants`]. A file that cannot be read is a mistake.
pub fn load_tenants(path: &Path, topology: &Topology) -> Result<Vec<TenantWish>, ConfigErrors> {
    parse_tenants(&read_file(path)?, &path.display().to_string(), topology, &[])
}

/// Reads a controller's file and the topology that it names. Relative paths begin at the file's
/// folder.
///
/// # Errors
/// The same as those of [`parse_topology`]. Mistakes of the topology's file are included.
pub fn load_controller(path: &Path) -> Result<ControllerFile, ConfigErrors> {
    let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
    read(&read_file(path)?, &path.display().to_string(), |root, report| {
        unknown_sections(root, &controller::SECTIONS, report);
        controller::read(root, &folder, report, load_topology)
    })
}
