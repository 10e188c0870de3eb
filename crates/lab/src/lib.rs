//! The lab: everything that plays the part of a host's tenant or an experimenter. The guests
//! themselves are in `penstock_guest`.
//!
//! | Module | Content |
//! |---|---|
//! | [`evidence`] | claims, records and pictures, used by figures and live runs |
//! | `jitter`, `qshare` | code that simulated and live figures of two papers share |
//! | `rig` | a switch under test with its load, for benchmarks and live runs |
//! | `live` | live runs of the figures: switches from a plan, VMs in one loop, real programs |
//! | [`microguest`] | virtual processors in ring 3 that record when they run |
//! | [`mod@bench`] | benchmarks that compare our switch with others |
//! | [`figures`] | published figures, replayed: simulated and live; their report |
//! | [`cli`] | the command line of `penstock-lab` |
//! | [`mod@penstock`] | the `penstock` program that the lab drives |
//!
//! # Unsafe code
//!
//! Only `microguest::machine` (KVM's memory) and `microguest::program` (its text) have unsafe code.
#![deny(unsafe_code)]
#![allow(missing_docs, reason = "a program of this workspace; comments say what names do not")]

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
