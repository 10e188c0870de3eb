//! Tests that run the program `penstock` as a process. `pages_flood` is a separate binary because
//! it needs the descriptors of a whole process.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

#[path = "../../../controller/tests/all/common/authority.rs"]
mod authority;
mod c2qos;
mod capture;
mod cli;
mod controller;
mod controllers;
#[allow(dead_code, reason = "shared with the controller's tests")]
#[path = "../../../controller/tests/all/common/etcd.rs"]
mod etcd;
mod fabric_agent;
mod fabric_faults;
mod gnmi_switch;
#[allow(dead_code, reason = "shared with the controller's tests")]
#[path = "../../../controller/tests/all/common/gnmi_target.rs"]
mod gnmi_target;
mod kill;
mod many_ports;
mod options;
mod penstock_switch;
mod police;
mod printed;
mod queues;
mod releases;
mod restart;
mod sessions;
mod standard_services;
mod stopped;
mod support;
mod vcpu;
mod vcpu_events;
mod wfq;
