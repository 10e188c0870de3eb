//! The lab: experiments and benchmarks of Penstock. The crate `penstock_guest` has the software
//! that sends and receives frames as a VM does.
//!
//! | Module | Content |
//! |---|---|
//! | [`evidence`] | claims, records and pictures; figures and live runs use them |
//! | `accounts`, `jitter`, `qshare`, `turns` | code that simulated and live figures share |
//! | `rig` | a switch under test and its load, for benchmarks and live runs |
//! | `live` | live runs of the figures, with real switches, VMs and programs |
//! | [`microguest`] | virtual processors in ring 3 that record when they run |
//! | [`mod@bench`] | benchmarks that compare Penstock with other switches |
//! | [`figures`] | replay of published figures, simulated or live; their report |
//! | [`cli`] | the command line of `penstock-lab` |
//! | [`mod@penstock`] | the search for the `penstock` program |
//!
//! # Unsafe code
//!
//! Only the modules `microguest::machine` (guest memory for KVM) and `microguest::program` (the
//! guest's machine code) have unsafe code.
#![deny(unsafe_code)]
#![allow(missing_docs, reason = "a program of this workspace; comments say what names do not")]

mod accounts;
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
mod turns;
