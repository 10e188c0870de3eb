//! The host's configuration: a TOML file, which is accepted or refused as a whole.
//!
//! # Problem
//! A wrong file must never half apply, and its author must learn of all mistakes at once, each with
//! its place and remedy.
//!
//! # Approach
//! [`parse`] reads text in three steps: syntax, each object's own values, and references between
//! objects. The first syntax error ends the reading. The result is valid as a whole. Each section
//! of the file has a module with the section's keys, checks and terms for the data path. These
//! modules do not import each other's objects. Checks across objects are in `check`. Keys, units,
//! ranges and defaults are in `docs/reference/configuration.md`.

mod attachment;
mod check;
mod cost_model;
mod draft;
mod edit;
mod egress_policer;
mod fabric;
mod host;
mod ingress_policer;
pub(crate) mod limits;
mod machine;
pub(crate) mod matching;
pub(crate) mod model;
mod network;
mod queue;
mod read;
mod release;
mod rtp;
pub(crate) mod rule;
mod schema;
mod shape;
mod share;
mod switch;
mod terms;
mod upgrade;
mod values;
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
pub use egress_policer::{EgressPolicer, Sharing};
pub use fabric::{AgentTerms, FabricSection, FabricTls};
pub use host::{ForwardingSection, HostSection, Seccomp, WorkerSection};
pub use ingress_policer::IngressPolicer;
pub use limits::{
    BINDINGS_MAX, DOMAINS_MAX, FDB_MAX, PORTS_MAX, RULE_MASKS_MAX, RULES_MAX, TENANTS_MAX,
};
pub use machine::Machine;
pub(crate) use machine::account;
pub use matching::{
    Dscp, EtherType, IpPrefix, IpProto, MacMatch, PORT_MASKS_MAX, PortMatch, StationMac,
};
pub use model::{FdbStatic, HostConfig, Port, SlowPath, Tenant};
pub(crate) use network::{Network, Networks, port_vlans};
pub use queue::{Excess, Queue};
pub use read::{load, migrate, parse, parse_on};
pub use release::{Egress, IngressPolicy, Readiness, Schedule};
pub use rtp::RtpStream;
pub use rule::{Action, Match, Rule};
pub use schema::{SCHEMAS, schema};
pub use shape::{Shape, Shaper};
pub use share::{Contract, ContractRate, Flows, ModelSection, Priority, Sizes, Weight};
pub use switch::{ListenTls, SwitchSection, SwitchTerms};
pub use upgrade::{current_port, outdated};
pub use vlan::{FileMode, Vlan, VlanList, VlanRange};
pub use wfq::{CodePoint, Wfq};
