//! Agents and controllers over gRPC on loopback: who is let in, what ends a session, and what a
//! host does without a controller.

mod bed;
mod certificates;
mod hostile;
mod restored;
mod sessions;
