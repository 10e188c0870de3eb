//! Calls the members of an etcd cluster one after the other, within a time limit.
//!
//! # Problem
//!
//! A member of an etcd cluster may be gone, stopped with open connections, or cut off from the
//! other members.
//!
//! # Approach
//!
//! All calls go to one member until that member fails, and then to the next member. Within a call,
//! the client repeats an idempotent request at another member. The client repeats a transaction
//! only if the transaction certainly did not start. If a transaction that did start were repeated,
//! the second attempt could see the result of the first attempt.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, ConnectError, Request, Status};

use super::super::contract::StoreError;

/// Pause after the client has called all members once without an answer.
const PAUSE: Duration = Duration::from_millis(100);
/// Largest number of members among which the client divides a call's time limit. With N members,
/// the client waits for each member's answer for 1/N of the call's time limit, but at least for
/// 1/[`SHARES_MAX`]. If a call must not be repeated, the client waits for the whole time limit.
const SHARES_MAX: u32 = 3;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) limit: Duration,
    /// Connections to the members. Their number is never 0.
    members: RwLock<Vec<Channel>>,
    current: AtomicUsize,
}

/// Rule that says whether the client may repeat a call whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The client may repeat the call, because the call is idempotent.
    Freely,
    /// The client must not repeat the call.
    Never,
}

/// Reason why a call to etcd failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// etcd refused the call.
    Refused(Status),
    /// No member gave a usable answer within the time limit.
    Unavailable(StoreError),
}

/// Whether a member of the etcd cluster executed a request that failed.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Refused,
    /// The member did not start the request, so the client may call another member.
    NotBegun,
    Unknown,
}

impl Link {
    pub(super) fn new(name: String, limit: Duration, members: Vec<Channel>) -> Self {
        Self { name, limit, members: RwLock::new(members), current: AtomicUsize::new(0) }
    }

    /// Replaces the connections, for example with connections that have other certificates.
    pub(super) fn renew(&self, members: Vec<Channel>) {
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = members;
    }

    fn count(&self) -> usize {
        self.members.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the member that the client uses now, and its number.
    pub(super) fn member(&self) -> (usize, Channel) {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let number = self.current.load(Ordering::Relaxed) % members.len();
        (number, members[number].clone())
    }

    /// Switches from member `number` to the next member, if the client still uses member `number`.
    pub(super) fn leave(&self, number: usize) {
        let next = (number + 1) % self.count();
        let _ = self.current.compare_exchange(number, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Calls members of the cluster until a member answers or the time limit has passed.
    pub(super) async fn call<T, F>(
        &self,
        repeat: Repeat,
        ask: impl Fn(Channel) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let end = Instant::now() + self.limit;
        let shares = u32::try_from(self.count()).unwrap_or(SHARES_MAX).min(SHARES_MAX);
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
                    // The call's time limit may cut the last attempt short. The error of an earlier
                    // member then says more than this silence.
                    if problem.is_empty() || most >= self.limit / shares {
                        problem = format!("no answer within {most:?}");
                    }
                    Fate::Unknown
                }
            };
            self.leave(number);
            if fate == Fate::Unknown && repeat == Repeat::Never {
                problem += "; the write may have succeeded, so read the keys again";
                break;
            }
            if attempt % self.count() == 0 {
                sleep(PAUSE.min(end.saturating_duration_since(Instant::now()))).await;
            }
        }
        Err(Failed::Unavailable(self.unavailable(&problem)))
    }

    pub(super) fn unavailable(&self, problem: &str) -> StoreError {
        StoreError::Unavailable { store: self.name.clone(), problem: problem.to_owned() }
    }

    /// Converts an error of etcd to [`StoreError::Full`] or [`StoreError::Unavailable`], with a
    /// remedy if one is known.
    pub(super) fn refused(&self, failed: Failed) -> StoreError {
        let status = match failed {
            Failed::Unavailable(error) => return error,
            Failed::Refused(status) => status,
        };
        let remedy = match status.code() {
            Code::ResourceExhausted if status.message().contains("database space") => {
                let problem = format!(
                    "{}; run `etcdctl defrag --cluster` and then `etcdctl alarm disarm`, or raise \
                     etcd's --quota-backend-bytes first",
                    describe(&status)
                );
                return StoreError::Full { store: self.name.clone(), problem };
            }
            Code::ResourceExhausted => "; etcd is overloaded, so repeat the request later",
            Code::Unauthenticated | Code::PermissionDenied => {
                "; give this client's certificate an etcd role that may read and write the \
                 controller's keys"
            }
            _ => "",
        };
        self.unavailable(&format!("{}{remedy}", describe(&status)))
    }
}

/// Returns a request that only a member with a known leader accepts. If a member knows no leader,
/// the member refuses the request at once instead of delaying the request.
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
    fn a_full_etcd_is_told_apart_and_the_error_names_the_commands() {
        let link = Link::new("etcd x".to_owned(), PAUSE, Vec::new());
        let full = Status::resource_exhausted("etcdserver: mvcc: database space exceeded");
        let error = link.refused(Failed::Refused(full));
        assert!(matches!(error, StoreError::Full { .. }), "{error}");
        assert!(error.to_string().contains("etcdctl alarm disarm"), "{error}");
        let busy = Status::resource_exhausted("etcdserver: too many requests");
        let error = link.refused(Failed::Refused(busy));
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    }

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
