//! The running host. [`Host`] is the only interface of this module.

mod apply;
mod bounding;
mod capturing;
pub(crate) mod data_path;
mod error;
mod evidence;
mod explaining;
mod fabric;
mod fabric_switch;
mod handing_over;
mod labels;
mod ledger;
mod links;
mod live;
mod offer;
mod overlay;
mod pair_plan;
mod pair_rates;
mod pricing;
mod readings;
mod running;
mod state;
mod vcpus;

pub use capturing::Capture;
pub use error::{ApiError, ErrorKind, HostError};
pub use fabric::FabricChange;
pub use fabric_switch::SwitchPort;
pub use labels::{ObjectLabel, selected};
pub use ledger::NetworkUse;
pub use offer::observed;
pub use overlay::{FabricTerms, Held, PortQueues};
pub use penstock_qos::learner::PortLearning;
pub use readings::FdbFilter;
pub use running::Host;
