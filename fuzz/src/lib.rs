//! Fuzz targets: what a guest, a configuration's author or an API client may say, and what must
//! hold whatever it is.
//!
//! **Problem.** Tests try what somebody thought of. **Rule.** A target is a function of bytes that
//! panics when a property does not hold; it keeps nothing from one input to the next, so an input
//! that fails once fails always. libFuzzer drives it with coverage (`fuzz_targets/`,
//! `scripts/fuzz.sh`); [`bounded`] drives it in every test run, with any compiler, on the kept
//! corpus and mutations of it. Totals and findings: `docs/internals/fuzz.md`.
//!
//! | Target | Input | Must hold |
//! |---|---|---|
//! | [`split_ring`] | calls of both sides of a ring, any order | what a slow model of virtio says |
//! | [`packed_ring`] | the same of a packed ring | the same |
//! | [`headers`] | a virtio-net header and a frame | what `etherparse` and slow sums say |
//! | [`rules`] | a set of rules and keys | the answer of a list searched from the top |
//! | [`config`] | a TOML file | refused with reasons, or right, also written and read again |
//! | [`api`] | requests to a running host | a refusal changes nothing, else it is right again |
//! | [`vhost_session`] | messages with descriptors, and memory taken away | nobody else notices |
//! | [`inflight`] | an inflight region's bytes and a ring's state | what the specification says |
//! | [`dirty_log`] | a log's place and what is written | just the pages written are marked |
//! | [`xdp_rings`] | what a kernel writes into AF_XDP's rings | a chunk has one owner |
//! | [`agents`] | an agent's messages, a controller's plans | others' sessions stay; as for `api` |
//! | [`switches`] | a gNMI target's answer, SONiC's tables | a plan leads to what was asked |
//! | [`saved`] | plans, lease tables, stores | whole, or an error that names the file |
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

/// A target: its name, which is its directory in `corpus/`, and its function.
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
