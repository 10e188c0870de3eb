//! Software on the guest's side of the switch, which acts as a VM or as a network namespace's NIC.
//!
//! # Purpose
//! The crate contains a driver for vhost-user virtio-net, and a load generator that keeps rings
//! full from one core. The crate's endpoints put the real kernel network stack of a namespace
//! behind a vhost-user port. `penstock endpoint`, `penstock calibrate` and the lab's experiments
//! use this crate.
//!
//! | Module | Content |
//! |---|---|
//! | [`driver`] | a virtio-net device with its guest memory, rings and vhost-user session |
//! | [`load`] | a load generator with many VMs in one polling loop |
//! | [`endpoint`] | a connection between a namespace's TAP and a virtio driver, with offloads |
//! | [`bed`] | the environment of a measurement: CPU cores, hugepages, daemons and cleanup |
//! | [`mac`], [`clock`] | Ethernet addresses as text, and access to clocks |
//! | [`manual`] | manual pages of the programs |
//!
//! # Unsafe code
//! Only three modules contain unsafe code: `driver::memory` maps memory, `driver::session` converts
//! file descriptors for the crate `vhost`, and `endpoint::tap` makes ioctls.
#![allow(missing_docs, reason = "this crate is not published")]
#![deny(unsafe_code)]

pub mod bed;
pub mod clock;
pub mod driver;
pub mod endpoint;
mod keys;
pub mod load;
pub mod mac;
pub mod manual;
