//! Tests agents and controllers over gRPC on loopback: admission, ends of sessions, and hosts
//! without a controller.

mod bed;
mod certificates;
mod hostile;
mod restored;
mod sessions;
