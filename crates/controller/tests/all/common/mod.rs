//! Helpers shared by several tests.

pub mod authority;
pub mod dir;
pub mod etcd;
