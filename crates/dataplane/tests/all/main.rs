//! This test program tests the data path from outside the crate. The test `loom` is a separate
//! program because it compiles the crate's sources against another `crate::sync`. The tests
//! `double_fetch` and `sigbus` are separate programs because they handle signals of their process.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod capture;
mod code_points;
mod common;
mod egress_cuts;
mod egress_vlan;
mod idle_core;
mod inbound;
mod kicks;
mod mirror;
mod packed_ring;
mod pairs;
mod pressure;
mod prop_classify;
mod prop_classify_parse;
mod prop_classify_rules;
mod ring_bed;
mod ring_race;
mod ring_records;
mod segments_shaped;
mod shared_entitlement;
mod split_ring;
mod split_ring_differential;
mod vcpu_bell;
mod workers;
mod xdp;
