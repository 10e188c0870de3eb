//! The host's configuration: a TOML file, read whole or refused whole.
//!
//! **Problem.** A wrong file must never half apply, and its author must learn of all mistakes at
//! once, each with its place and remedy. **Rule.** [`parse`] reads text in three steps: syntax
//! (the first mistake ends it), each object's own values, and what objects say of each other. The
//! result is right as a whole. Keys, units, ranges and defaults: `docs/reference/configuration.md`.

mod attachment;
mod check;
mod cost_model;
mod draft;
mod edit;
mod error;
pub mod fabric;
mod file;
mod joining;
pub(crate) mod limits;
mod machine;
pub(crate) mod matching;
pub(crate) mod model;
mod network;
mod queueing;
mod read;
mod receiving;
mod release;
mod rtp;
pub(crate) mod rule;
mod schema;
mod schema_parts;
mod share;
mod source;
mod switching;
mod terms;
mod text;
mod upgrade;
pub(crate) mod vlan;
mod wfq;

pub use attachment::{
    Attachment, Offloads, Packet, Queues, SocketMode, Tap, VhostUser, Xdp, ZeroCopy,
};
pub use cost_model::{load_model, model_text, parse_model};
pub(crate) use edit::{Edit, EditError, Kind, text_of};
pub use error::{ConfigError, ConfigErrors};
pub(crate) use file::{read_file, save};
pub use joining::{FabricSection, FabricTls};
pub use limits::{
    BINDINGS_MAX, DOMAINS_MAX, FDB_MAX, FILE_BYTES_MAX, PORTS_MAX, RULE_MASKS_MAX, RULES_MAX,
    TENANTS_MAX,
};
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
pub use read::{load, migrate, parse, parse_on};
pub use receiving::{Receive, Sharing};
pub use release::{Egress, IngressPolicy, Readiness, Schedule};
pub use rtp::RtpStream;
pub use rule::{Action, Match, Rule};
pub use schema::{FileSchema, SCHEMAS, schema};
pub use share::{
    BitsPerSecond, Contract, ContractRate, CyclesPerSecond, Flows, ModelSection, PacketsPerSecond,
    Police, Priority, Sizes, Weight,
};
pub use switching::{ListenTls, SwitchSection};
pub use terms::{Joining, Switching};
pub use upgrade::{current_port, outdated};
pub use vlan::{FileMode, Vlan, VlanList, VlanRange};
pub use wfq::{CodePoint, Wfq};
