//! Tests the controller with stores, switches and hosts through its public interface.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

mod agent;
mod common;
mod controller_file;
mod fabric_files;
mod fabric_state;
mod file_schemas;
mod leader;
mod leader_changes;
mod leader_etcd;
mod leader_plans;
mod leader_store;
mod linux_tc;
mod penstock_switch;
mod sonic;
mod store_contract;
mod store_etcd;
mod store_model;
mod store_tls;
mod world;
