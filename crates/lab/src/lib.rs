//! The lab: everything that plays the part of a host's tenant or an experimenter; the guests
//! themselves are `penstock_guest`'s.
//!
//! | Module | What it is |
//! |---|---|
//! | [`evidence`] | claims, records and pictures: below figures and live runs |
//! | `jitter`, `qshare` | what simulated and live figures of two papers share |
//! | `rig` | a switch under test with its load: for benchmarks and live runs |
//! | `live` | live runs of the figures: switches by a plan, VMs in one loop, real programs |
//! | [`microguest`] | virtual processors in ring 3 that note when they run |
//! | [`mod@bench`] | benchmarks of our switch and of others, side by side |
//! | [`figures`] | published figures, replayed: simulated and live; their report |
//! | [`cli`] | the command line of `penstock-lab` |
//! | [`mod@penstock`] | the program that is driven |
//!
//! **Unsafe code** lives in `microguest::machine` (KVM's memory) and `microguest::program` (its
//! text); nowhere else.
#![deny(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod evidence;
pub mod figures;
mod jitter;
mod live;
pub mod microguest;
pub mod penstock;
mod qshare;
mod rig;
