//! The host's configuration: a TOML file, which the daemon accepts or refuses as a whole.
//!
//! # Problem
//! A configuration file with a mistake must have no effect. The file's author must learn of all
//! mistakes at once, with the place and the remedy of each.
//!
//! # Approach
//! [`parse`] reads text in three steps:
//! 1. [`parse`] parses the TOML syntax. [`parse`] reports only the first syntax error of a text.
//! 2. [`parse`] checks the values of each object.
//! 3. [`parse`] checks the references between objects (module `check`).
//!
//! Each section of the configuration file has a module in the source code. A section's module
//! contains the section's keys and checks, and converts the section to values for the data path.
//! The module of one section imports no objects from the module of another section.
//! `docs/reference/configuration.md` lists all keys with units, ranges and defaults.

mod attachment;
mod check;
mod contract;
mod cost_model;
mod draft;
mod edit;
mod egress_policer;
mod fabric;
mod host;
mod inbound;
mod ingress_policer;
pub(crate) mod limits;
mod machine;
pub(crate) mod matching;
mod mirror;
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
pub use contract::{Contract, ContractRate, Flows, Ring, Sizes};
pub use cost_model::{load_model, model_text, parse_model};
pub(crate) use edit::{Edit, EditError, Kind, text_of};
pub use egress_policer::{EgressPolicer, Sharing};
pub use fabric::{AgentTerms, FabricSection, FabricTls};
pub use host::{ForwardingSection, HostSection, Seccomp, WorkerSection};
pub use inbound::Inbound;
pub use ingress_policer::IngressPolicer;
pub use limits::{
    BINDINGS_MAX, DOMAINS_MAX, FDB_MAX, PORTS_MAX, RULE_MASKS_MAX, RULES_MAX, TENANTS_MAX,
};
pub use machine::Machine;
pub(crate) use machine::{account, numa_nodes};
pub use matching::{
    Dscp, EtherType, IpPrefix, IpProto, MacMatch, PORT_MASKS_MAX, PortMatch, StationMac,
};
pub use mirror::{Direction as MirrorDirection, Mirror};
pub use model::{FdbStatic, HostConfig, PlannedLimits, Port, SlowPath, Tenant};
pub(crate) use network::{Network, Networks, port_vlans};
pub use queue::{Excess, Queue};
pub use read::{load, migrate, parse, parse_object, parse_on};
pub use release::{Egress, IngressPolicy, RateAllocation, Readiness, Schedule, SpareCycles};
pub use rtp::RtpStream;
pub use rule::{Action, Match, Rule};
pub use schema::{SCHEMAS, schema};
pub use shape::{Shape, Shaper};
pub use share::{ModelSection, Priority, Weight};
pub use switch::{ListenTls, SwitchSection, SwitchTerms};
pub use upgrade::{current_port, outdated};
pub use vlan::{FileMode, Vlan, VlanList, VlanRange};
pub use wfq::{CodePoint, Wfq};
