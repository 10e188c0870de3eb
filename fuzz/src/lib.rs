//! Fuzz targets for all input from guests, configuration files, API clients, controllers and
//! switches, with the properties that must hold for any input.
//!
//! **Problem.** Ordinary tests cover only cases that their authors thought of. **Rule.** A target
//! is a function of bytes that panics if a property does not hold. A target keeps no state between
//! inputs, so a failing input always fails. libFuzzer runs the targets with coverage
//! (`fuzz_targets/`, `scripts/fuzz.sh`). The driver [`bounded`] runs the targets in every test run,
//! with any compiler, on the corpus and on mutations of the corpus. `docs/internals/fuzz.md` lists
//! totals and findings.
//!
//! | Target | Input | Must hold |
//! |---|---|---|
//! | [`split_ring`] | calls of driver and switch | result equals a simple virtio model |
//! | [`packed_ring`] | calls of driver and switch | result equals a simple virtio model |
//! | [`headers`] | a virtio-net header and a frame | result equals `etherparse` |
//! | [`rules`] | a set of rules and keys | result equals a linear search of the rules |
//! | [`config`] | a TOML file | refused with reasons, or survives rewriting |
//! | [`api`] | requests to a running host | a refused request changes nothing |
//! | [`vhost_session`] | vhost-user messages, memory changes | other ports are unaffected |
//! | [`inflight`] | an inflight region's bytes | recovery follows the specification |
//! | [`dirty_log`] | a dirty log, and written pages | exactly the written pages are marked |
//! | [`xdp_rings`] | the kernel's entries in AF_XDP rings | each chunk of memory has one owner |
//! | [`agents`] | an agent's messages, a controller's plans | other hosts' sessions stay |
//! | [`switches`] | a gNMI target's answer, SONiC's tables | a plan leads to the requested state |
//! | [`saved`] | stored plans, lease tables | read whole, or an error that names the file |
#![forbid(unsafe_code)]

pub mod agents;
pub mod api;
pub mod bounded;
pub mod config;
pub mod dirty_log;
mod guest;
pub mod headers;
pub mod inflight;
mod input;
mod model;
pub mod packed_ring;
pub mod rules;
pub mod saved;
mod session_driver;
pub mod split_ring;
pub mod switches;
pub mod vhost_session;
pub mod xdp_rings;

/// A fuzz target: its function, and its name, which is also the name of its directory in `corpus/`.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 14] = [
    ("split_ring", split_ring::run),
    ("packed_ring", packed_ring::run),
    ("headers", headers::run),
    ("rules", rules::run),
    ("config", config::run),
    ("api", api::run),
    ("vhost_session", vhost_session::run),
    ("inflight", inflight::run),
    ("dirty_log", dirty_log::run),
    ("xdp_rings", xdp_rings::run),
    ("agents", agents::run),
    ("gnmi", switches::run_gnmi),
    ("sonic", switches::run_sonic),
    ("saved", saved::run),
];
