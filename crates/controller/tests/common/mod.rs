//! What several tests use.
#![allow(dead_code, reason = "each test uses a part")]

pub mod dir;
pub mod etcd;
