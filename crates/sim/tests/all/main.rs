//! Tests of workers, vCPU schedulers and fabrics in virtual time.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod c2qos;
mod fabric_flows;
mod fabric_packets;
mod fabric_peers;
mod fair_poll;
mod four_ports;
mod inbound_shares;
mod network_use;
mod pressure;
mod prop_fabric_plain;
mod prop_fabric_rates;
mod prop_vcpu;
mod queues;
mod receiving;
mod snapshots;
mod testbed;
mod vcpu;
mod vm_flows;
mod waiting;
mod wfq;
