//! Contains helpers that several tests share.

pub mod authority;
pub mod etcd;
