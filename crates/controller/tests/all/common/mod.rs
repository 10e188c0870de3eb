//! What several tests use.

pub mod authority;
pub mod dir;
pub mod etcd;
