//! Agents and controllers over gRPC on loopback: who is let in, what ends a session, and what a
//! host does without a controller.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

#[path = "../common/authority.rs"]
mod authority;
mod bed;
mod certificates;
#[path = "../common/dir.rs"]
mod dir;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../common/etcd.rs"]
mod etcd;
mod hostile;
mod restored;
mod sessions;
