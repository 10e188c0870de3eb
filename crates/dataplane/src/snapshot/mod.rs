//! The control plane compiles the configuration into a snapshot for the data path. A snapshot is
//! immutable and is shared by all workers. The control plane gives workers a new snapshot between
//! two batches. The control plane also determines what a new snapshot changes
//! ([`Snapshot::following`]), so that a worker handles only the changes.

pub mod binding;
mod changes;
pub mod matching;
mod policy;
mod port_qos;
mod receivers;
pub mod rules;
pub(crate) mod signature;
pub(crate) mod tables;

pub use binding::Binding;
pub(crate) use changes::Changes;
pub use matching::{Actions, IpMatch, Match, MatchError, Rule, Then};
pub(crate) use policy::Patch;
pub use policy::{
    AGEING_DEFAULT_S, Domain, DomainMap, Mirror, NO_DOMAIN, OutputSet, PortPolicy, SlowPathLimit,
    Snapshot, VidSet, VlanPolicy,
};
pub use port_qos::{IngressPolicy, PortQos};
pub use rules::{RuleTable, RuleTableError, SUBTABLES_DEFAULT};
pub use tables::RuleTables;
