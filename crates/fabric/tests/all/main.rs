//! Property tests of placement, queue binding and rate allocation.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;
mod prop_binding;
mod prop_dilution;
mod prop_hose_pairs;
mod prop_host_rates;
mod prop_placement;
mod prop_placement_oracle;
mod prop_rate_alloc;
mod prop_score;
