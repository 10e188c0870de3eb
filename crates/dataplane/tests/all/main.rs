//! Tests of the data path from outside the crate. `loom` is separate because it compiles sources of
//! the crate against another `crate::sync`; `double_fetch` and `sigbus` are separate because they
//! handle signals of their process.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;
mod egress_cuts;
mod egress_vlan;
mod idle_core;
mod kicks;
mod packed_ring;
mod pressure;
mod prop_classify;
mod prop_classify_parse;
mod prop_classify_rules;
mod ring_race;
mod ring_records;
mod shared_entitlement;
mod split_ring;
mod split_ring_differential;
mod vcpu_bell;
mod workers;
mod xdp;
