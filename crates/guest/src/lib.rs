//! The guest's side of the switch: what plays the part of a VM or of a namespace's NIC.
//!
//! **Problem.** A switch is only as good as what it is driven with. Here is our own driver side of
//! vhost-user virtio-net (we play the VM), a load generator that keeps rings full from one core,
//! and endpoints that put the real kernel stack of a network namespace behind a vhost-user port.
//! `penstock endpoint` and `penstock calibrate` are made of it, and the lab's experiments.
//!
//! | Module | What it is |
//! |---|---|
//! | [`driver`] | guest memory, rings, vhost-user session: one virtio-net device driven |
//! | [`load`] | many VMs in one polling loop: rates, sizes, flows, verification |
//! | [`endpoint`] | a namespace's TAP joined to a virtio driver, offloads kept |
//! | [`bed`] | where something is measured: cores, pages, daemons, and a guard over all |
//! | [`mac`], [`clock`] | Ethernet addresses as text; the one clock read |
//!
//! **Unsafe code** lives in `driver::memory` (the mapping), `driver::session` (file descriptors
//! handed to the protocol crate), and `endpoint::tap` (ioctls); nowhere else.
#![deny(unsafe_code)]

pub mod bed;
pub mod clock;
pub mod driver;
pub mod endpoint;
mod keys;
pub mod load;
pub mod mac;
