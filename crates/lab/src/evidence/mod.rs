//! Figures and the results of their runs, simulated or live: claims, series, records, pictures.
//!
//! Figures and live runs both build on this module. It does not depend on them.
//!
//! | Module | Content |
//! |---|---|
//! | [`experiment`] | a figure, and the settings that its runs receive |
//! | [`outcome`], [`claim`], [`series`] | results of a run, claims and their bands, curves |
//! | [`calibrated`] | numbers that were fitted to an outcome |
//! | [`picture`], [`stats`] | SVG; percentiles, distributions, fits |

pub mod calibrated;
pub mod claim;
pub mod experiment;
pub mod outcome;
pub mod picture;
pub mod series;
pub mod stats;

pub use claim::Claim;
pub use experiment::{Context, Experiment, LiveArgs, Mode, Run};
pub use outcome::{OVS_DPDK, Outcome, Record};
pub use picture::{Axis, Panel, Picture, points};
pub use series::Series;
pub(crate) use stats::percentile;
