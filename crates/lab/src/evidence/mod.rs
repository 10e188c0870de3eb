//! Experiments and the results of their runs: claims, series, records and pictures.
//!
//! Figures and live runs use the module `evidence`. The module `evidence` does not depend on
//! figures or live runs.
//!
//! | Module | Content |
//! |---|---|
//! | [`experiment`] | a figure, and the settings of its runs |
//! | [`outcome`], [`claim`], [`series`] | results of a run, claims and their bands, curves |
//! | [`calibrated`] | numbers that were fitted to an outcome |
//! | [`picture`], [`stats`] | pictures as SVG; percentiles, distributions and line fits |

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
