//! The lab: everything that plays the part of a guest, a host's tenant or an experimenter.
//!
//! **Problem.** A switch is only as good as what it is driven with. The lab holds its own driver
//! side of vhost-user virtio-net (we play the VM), a load generator that keeps rings full from one
//! core, and endpoints that put the real kernel stack of a network namespace behind a vhost-user
//! port.
//!
//! | Module | What it is |
//! |---|---|
//! | [`driver`] | guest memory, split rings, vhost-user session: one virtio-net device driven |
//! | [`load`] | many VMs in one polling loop: rates, sizes, flows, verification |
//! | [`endpoint`] | a namespace's TAP joined to a virtio driver, offloads kept |
//! | `live` | live runs of the figures: switches by a plan, VMs in one loop, real programs |
//! | [`microguest`] | virtual processors in ring 3 that note when they run |
//! | [`mod@bench`] | benchmarks of our switch and of others, side by side |
//! | [`figures`] | published figures, replayed: simulated and live; their report |
//! | [`cli`] | the `penstock lab` subcommands |
//!
//! **Unsafe code** lives in `driver::memory` (the mapping), `driver::session` (file descriptors
//! handed to the protocol crate), and `endpoint::tap` (ioctls); nowhere else.
#![deny(unsafe_code)]

pub mod bench;
pub mod cli;
mod clock;
pub mod driver;
pub mod endpoint;
pub mod figures;
mod keys;
mod live;
pub mod load;
pub mod mac;
pub mod microguest;
