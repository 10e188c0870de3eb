//! The host's configuration: a TOML file, read whole or refused whole.
//!
//! **Problem.** A wrong file must never half apply, and its author must learn of all mistakes at
//! once, each with its place and remedy. **Rule.** [`parse`] reads text in three steps: syntax
//! (the first mistake ends it), each object's own values, and what objects say of each other. The
//! result is right as a whole. Keys, units, ranges and defaults: `docs/configuration.md`.

use std::io::Read;
use std::path::Path;

mod attachment;
mod check;
mod cost_model;
mod decode;
mod edit;
mod error;
pub mod fabric;
mod joining;
mod machine;
mod matching;
mod model;
mod network;
mod police;
mod queueing;
mod receiving;
mod release;
mod rtp;
mod rule;
mod save;
mod schema;
mod share;
mod source;
mod switching;
mod text;
mod upgrade;
mod vlan;
mod wfq;

pub use attachment::{
    Attachment, Offloads, Packet, Queues, SocketMode, Tap, VhostUser, Xdp, ZeroCopy,
};
pub use cost_model::{load_model, model_text, parse_model};
pub(crate) use edit::{Edit, EditError, Kind, text_of};
pub use error::{ConfigError, ConfigErrors};
pub use joining::{FabricSection, FabricTls, Joining};
pub use machine::Machine;
pub(crate) use machine::account;
pub use matching::{
    Dscp, EtherType, IpPrefix, IpProto, MacMatch, PORT_MASKS_MAX, PortMatch, StationMac,
};
pub use model::{
    FdbStatic, ForwardingSection, HostConfig, HostSection, Port, Seccomp, SlowPath, Tenant,
    WorkerSection,
};
pub(crate) use network::{Network, Networks, port_vlans};
pub use queueing::{Excess, Queue, Shape, Shaper};
pub use receiving::{Receive, Sharing};
pub use release::{Egress, IngressPolicy, Readiness, Schedule};
pub use rtp::RtpStream;
pub use rule::{Action, Match, Rule};
pub(crate) use save::save;
pub use schema::{FileSchema, SCHEMAS, schema};
pub use share::{
    BitsPerSecond, Contract, ContractRate, CyclesPerSecond, Flows, ModelSection, PacketsPerSecond,
    Police, Priority, Sizes, Weight,
};
pub use switching::{ListenTls, SwitchSection, Switching};
pub use upgrade::{current_port, migrate, outdated};
pub use vlan::{FileMode, Vlan, VlanList, VlanRange};
pub use wfq::{CodePoint, Wfq};

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
/// Most pairs of value and mask that one rule's port ranges may become.
pub const RULE_MASKS_MAX: usize = 64;
/// Most MAC addresses, and most IP addresses, bound to a port.
pub const BINDINGS_MAX: usize = 64;

/// Reads and checks the text of a configuration on no particular machine; `file` is what errors
/// call it.
///
/// # Errors
/// All mistakes at once, in the order of the text.
pub fn parse(text: &str, file: &str) -> Result<HostConfig, ConfigErrors> {
    decode::parse(text, file, &Machine::default())
}

/// As [`parse`], and what the configuration asks of the machine must be there.
///
/// # Errors
/// All mistakes at once, in the order of the text.
pub fn parse_on(text: &str, file: &str, machine: &Machine) -> Result<HostConfig, ConfigErrors> {
    decode::parse(text, file, machine)
}

/// Reads and checks a configuration file on this machine.
///
/// # Errors
/// All mistakes at once; a file that cannot be read is one.
pub fn load(path: &Path) -> Result<HostConfig, ConfigErrors> {
    decode::parse(&read_file(path)?, &path.display().to_string(), &Machine::here())
}

/// The text of a configuration file.
pub(crate) fn read_file(path: &Path) -> Result<String, ConfigErrors> {
    let failed = |problem: String, remedy: &str| {
        let file = path.display().to_string();
        let (object, remedy) = ("file".to_owned(), remedy.to_owned());
        ConfigErrors(vec![ConfigError { file, line: 0, column: 0, object, problem, remedy }])
    };
    let file = std::fs::File::open(path).map_err(|error| {
        failed(format!("it cannot be opened: {error}"), "check path and rights")
    })?;
    let mut text = String::new();
    let mut bounded = file.take(FILE_BYTES_MAX as u64 + 1);
    match bounded.read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(failed(format!("it cannot be read: {error}"), "write it in UTF-8")),
    }
}
