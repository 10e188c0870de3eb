//! Property tests of the schedulers, limiters and learners in the crate `penstock-qos`.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod prop_bottleneck;
mod prop_burst;
mod prop_c2tb;
mod prop_claims;
mod prop_egress_policer;
mod prop_fair_share;
mod prop_flow_queues;
mod prop_hbs;
mod prop_inbound_shares;
mod prop_joins;
mod prop_latency_bound;
mod prop_learner;
mod prop_policer;
mod prop_shaper;
mod prop_share;
mod prop_vtrr;
mod prop_wfq;
mod prop_wheel;
