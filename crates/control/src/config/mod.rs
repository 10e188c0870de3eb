//! The host's configuration: a TOML file, read whole or refused whole.
//!
//! **Problem.** A wrong file must never half apply, and its author must learn of all mistakes at
//! once, each with its place and remedy. **Rule.** [`parse`] reads text in three steps: syntax
//! (the first mistake ends it), each object's own values, and what objects say of each other. The
//! result is right as a whole. Keys, units, ranges and defaults: `docs/configuration.md`.

mod attachment;
mod error;
mod matching;
mod model;
mod release;
mod rule;
mod schema;
mod text;
mod vlan;

pub use attachment::Attachment;
pub use error::{ConfigError, ConfigErrors};
pub use matching::{
    Dscp, EtherType, IpPrefix, IpProto, MacMatch, PORT_MASKS_MAX, PortMatch, StationMac,
};
pub use model::{
    FdbStatic, ForwardingSection, HostConfig, HostSection, Offloads, Port, PortKind, SlowPath,
    SocketMode, Tenant, WorkerSection,
};
pub use release::{Egress, IngressPolicy, Schedule};
pub use rule::{Action, Match, Rule};
pub use schema::schema;
pub use vlan::{FileMode, Vlan, VlanList, VlanRange};

/// Most `[[port]]` tables.
pub const PORTS_MAX: usize = 1_024;
/// Most `[[tenant]]` tables.
pub const TENANTS_MAX: usize = 1_024;
/// Most networks: (tenant, VLAN) pairs.
pub const DOMAINS_MAX: usize = 4_096;
/// Most `[[rule]]` tables.
pub const RULES_MAX: usize = 16_384;
/// Most `[[fdb]]` tables.
pub const FDB_MAX: usize = 16_384;
/// Longest file, in bytes.
pub const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Reads and checks the text of a configuration; `file` is what errors call it.
///
/// # Errors
/// All mistakes at once, in the order of the text.
#[expect(unused_variables, reason = "signatures first")]
pub fn parse(text: &str, file: &str) -> Result<HostConfig, ConfigErrors> {
    unimplemented!()
}

/// Reads and checks a configuration file.
///
/// # Errors
/// All mistakes at once; a file that cannot be read is one.
#[expect(unused_variables, reason = "signatures first")]
pub fn load(path: &std::path::Path) -> Result<HostConfig, ConfigErrors> {
    unimplemented!()
}
