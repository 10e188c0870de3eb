//! A datacenter and its tenants as TOML: each file is read whole or refused whole.
//!
//! **Rule.** As for the host's configuration: syntax, then each object's own values, then what
//! objects say of each other; all mistakes of a step at once, each with its line, object, limit and
//! remedy. Keys: `docs/fabric.md`.

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

/// Reads the text of a datacenter; `file` is what errors call it.
///
/// # Errors
/// All mistakes of the first step that has any, in the order of the text.
pub fn parse_topology(text: &str, file: &str) -> Result<FabricFile, ConfigErrors> {
    read(text, file, |root, report| {
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
    read(text, file, |root, report| {
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
    read(&read_file(path)?, &path.display().to_string(), |root, report| {
        unknown_sections(root, &controller::SECTIONS, report);
        controller::read(root, &folder, report, load_topology)
    })
}
