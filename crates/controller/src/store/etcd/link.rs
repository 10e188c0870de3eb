//! Calls etcd members one after the other, within a time limit.
//!
//! # Problem
//!
//! A member may be gone. It may also be stopped with its connections open, or be cut off from the
//! other members.
//!
//! # Approach
//!
//! All calls go to one member until it fails, and then to the next. The client repeats an
//! idempotent request at another member within the same call. It repeats a transaction only if the
//! transaction certainly did not start. Otherwise, a second attempt could meet the result of the
//! first.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, ConnectError, Request, Status};

use super::super::contract::StoreError;

/// Pause after a round in which no member could be called.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of members in one call. Each member has an equal share of the time.
const SHARES_MAX: u32 = 3;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) limit: Duration,
    members: Vec<Channel>,
    current: AtomicUsize,
}

/// Whether a call with unknown outcome may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The call may be repeated, because it is idempotent.
    Freely,
    /// The call may not be repeated.
    Never,
}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// etcd refused the call.
    Refused(Status),
    /// There was no usable answer within the time limit.
    Unavailable(StoreError),
}

/// Reaction of the client to a status.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Refused,
    /// The request was not started, so the client may call another member.
    NotBegun,
    Unknown,
}

impl Link {
    pub(super) fn new(name: String, limit: Duration, members: Vec<Channel>) -> Self {
        Self { name, limit, members, current: AtomicUsize::new(0) }
    }

    /// The current member and its number.
    pub(super) fn member(&self) -> (usize, Channel) {
        let number = self.current.load(Ordering::Relaxed) % self.members.len();
        (number, self.members[number].clone())
    }

    /// Moves to the next member, unless the failed one is no longer current.
    pub(super) fn leave(&self, number: usize) {
        let next = (number + 1) % self.members.len();
        let _ = self.current.compare_exchange(number, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Calls members until there is an answer or the time is over.
    pub(super) async fn call<T, F>(
        &self,
        repeat: Repeat,
        ask: impl Fn(Channel) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let end = Instant::now() + self.limit;
        let shares = u32::try_from(self.members.len()).unwrap_or(SHARES_MAX).min(SHARES_MAX);
        let mut problem = String::new();
        for attempt in 1_usize.. {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let most = if repeat == Repeat::Freely { left.min(self.limit / shares) } else { left };
            let (number, channel) = self.member();
            let fate = match timeout(most, ask(channel)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => {
                    problem = describe(&status);
                    match fate(&status) {
                        Fate::Refused => return Err(Failed::Refused(status)),
                        fate => fate,
                    }
                }
                Err(_) => {
                    // The end of the call cuts the last attempt short. Its silence says less than
                    // what another member answered.
                    if problem.is_empty() || most >= self.limit / shares {
                        problem = format!("no answer within {most:?}");
                    }
                    Fate::Unknown
                }
            };
            self.leave(number);
            if fate == Fate::Unknown && repeat == Repeat::Never {
                problem += "; it is unknown whether it was written, read again";
                break;
            }
            if attempt % self.members.len() == 0 {
                sleep(PAUSE.min(end.saturating_duration_since(Instant::now()))).await;
            }
        }
        Err(Failed::Unavailable(self.unavailable(&problem)))
    }

    pub(super) fn unavailable(&self, problem: &str) -> StoreError {
        StoreError::Unavailable { store: self.name.clone(), problem: problem.to_owned() }
    }

    /// Converts an error of etcd without a more specific meaning.
    pub(super) fn refused(&self, failed: Failed) -> StoreError {
        let status = match failed {
            Failed::Unavailable(error) => return error,
            Failed::Refused(status) => status,
        };
        let remedy = match status.code() {
            Code::ResourceExhausted if status.message().contains("database space") => {
                "; compact and defragment it or raise its quota, then disarm its alarm"
            }
            Code::ResourceExhausted => "; it is overloaded, repeat the request later",
            Code::Unauthenticated | Code::PermissionDenied => {
                "; give this client's certificate a role that reads and writes these keys"
            }
            _ => "",
        };
        self.unavailable(&format!("{}{remedy}", describe(&status)))
    }
}

/// Returns a request that only a member with a known leader accepts. Without this requirement, a
/// member that knows no leader would let the request wait.
pub(super) fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
    request
}

fn fate(status: &Status) -> Fate {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return Fate::NotBegun;
        }
        source = error.source();
    }
    match status.code() {
        // etcd checks `hasleader` before it proposes anything.
        Code::Unavailable if status.message() == "etcdserver: no leader" => Fate::NotBegun,
        Code::Unavailable
        | Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Internal
        | Code::Unknown => Fate::Unknown,
        _ => Fate::Refused,
    }
}

fn describe(status: &Status) -> String {
    match status.source() {
        Some(source) => crate::wire::describe(source),
        None => status.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_begun_or_said_no_is_known() {
        let unavailable = |message: &str| fate(&Status::unavailable(message));
        assert_eq!(unavailable("etcdserver: no leader"), Fate::NotBegun);
        assert_eq!(unavailable("etcdserver: request timed out"), Fate::Unknown);
        assert_eq!(fate(&Status::unknown("transport error")), Fate::Unknown);
        assert_eq!(fate(&Status::not_found("lease")), Fate::Refused);
        let refused =
            ConnectError(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
        assert_eq!(fate(&Status::from_error(refused.into())), Fate::NotBegun);
    }
}
