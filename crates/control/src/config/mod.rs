//! The host's configuration: a TOML file, read whole or refused whole.
//!
//! **Problem.** A wrong file must never half apply, and its author must learn of all mistakes at
//! once, each with its place and remedy. **Rule.** [`parse`] reads text in three steps: syntax
//! (the first mistake ends it), each object's own values, and what objects say of each other. The
//! result is right as a whole. Keys, units, ranges and defaults: `docs/configuration.md`.

mod attachment;
mod check;
mod cost_model;
mod draft;
mod edit;
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
mod share;
mod switching;
mod terms;
mod upgrade;
pub(crate) mod vlan;
mod wfq;

pub use penstock_toml::schema::FileSchema;
pub use penstock_toml::{
    BitsPerSecond, ConfigError, ConfigErrors, CyclesPerSecond, PacketsPerSecond,
};
pub(crate) use penstock_toml::{read_file, save};

pub use attachment::{
    Attachment, Offloads, Packet, Queues, SocketMode, Tap, VhostUser, Xdp, ZeroCopy,
};
pub use cost_model::{load_model, model_text, parse_model};
pub(crate) use edit::{Edit, EditError, Kind, text_of};
pub use joining::{FabricSection, FabricTls};
pub use limits::{
    BINDINGS_MAX, DOMAINS_MAX, FDB_MAX, PORTS_MAX, RULE_MASKS_MAX, RULES_MAX, TENANTS_MAX,
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
pub use schema::{SCHEMAS, schema};
pub use share::{Contract, ContractRate, Flows, ModelSection, Police, Priority, Sizes, Weight};
pub use switching::{ListenTls, SwitchSection};
pub use terms::{Joining, Switching};
pub use upgrade::{current_port, outdated};
pub use vlan::{FileMode, Vlan, VlanList, VlanRange};
pub use wfq::{CodePoint, Wfq};
