//! Evidence about contracts: what each port bought and got in each minute, and why it got less.
//!
//! The daemon adds a [`Minute`] of each port with a contract once a minute, and keeps the minutes
//! of [`KEPT_DAYS`] days in files of its state directory ([`Store`]). `penstock report` reads the
//! files, also while no daemon runs, and adds the minutes up ([`Summary`]).

mod minute;
mod store;
mod summary;

pub use minute::{Cause, Minute, PortLabels, Unit};
pub use store::{KEPT_BYTES, KEPT_DAYS, Store, Written};
pub use summary::Summary;
