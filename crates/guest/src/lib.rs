//! The guest's side of the switch: it plays the part of a VM or of a namespace's NIC.
//!
//! # Purpose
//! The crate has its own driver of vhost-user virtio-net and a load generator that keeps rings full
//! from one core. Its endpoints put the real kernel stack of a network namespace behind a
//! vhost-user port. `penstock endpoint`, `penstock calibrate` and the lab's experiments use it.
//!
//! | Module | Content |
//! |---|---|
//! | [`driver`] | one virtio-net device: guest memory, rings, vhost-user session |
//! | [`load`] | many VMs in one polling loop: rates, sizes, flows, verification |
//! | [`endpoint`] | a namespace's TAP joined to a virtio driver, with offloads |
//! | [`bed`] | the environment of a measurement: cores, pages, daemons, and a guard over all |
//! | [`mac`], [`clock`] | Ethernet addresses as text; reading the clock |
//!
//! # Unsafe code
//! Unsafe code is in `driver::memory` (the mapping), `driver::session` (descriptors passed to the
//! protocol crate) and `endpoint::tap` (ioctls), and nowhere else.
#![allow(missing_docs, reason = "a crate of this workspace only; comments say what names do not")]
#![deny(unsafe_code)]

pub mod bed;
pub mod clock;
pub mod driver;
pub mod endpoint;
mod keys;
pub mod load;
pub mod mac;
