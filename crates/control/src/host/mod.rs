//! The running host, which is behind the API: [`Host`] is all that others see of it.

mod apply;
mod bounding;
mod error;
mod explaining;
mod fabric;
mod ledger;
mod links;
mod live;
mod offer;
mod overlay;
mod pricing;
mod readings;
mod running;
mod state;
pub(crate) mod switch;
mod switching;
mod vcpus;

pub use error::{ApiError, ErrorKind, HostError};
pub use fabric::FabricChange;
pub use ledger::NetworkUse;
pub use overlay::{FabricTerms, Held};
pub use penstock_qos::learner::PortLearning;
pub use readings::FdbFilter;
pub use running::Host;
pub use switching::{PortQueues, SwitchPort};
