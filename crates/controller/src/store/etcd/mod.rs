//! Implements a store in an etcd cluster, for several controllers of which one leads.
//!
//! # Problem
//!
//! If a controller's machine fails, another controller must continue with the tenants and
//! guarantees of the failed controller.
//!
//! # Approach
//!
//! A write succeeds only if a majority of etcd's members has stored it. If a member fails, the
//! client calls the next member. The client never returns stale data, because reads are
//! linearizable. A call fails after [`EtcdConfig::limit`].
//!
//! # Failures
//!
//! If one of three members fails, the current call may fail, but the next call succeeds. If two
//! members fail, all calls end with [`StoreError::Unavailable`] within the time limit. Calls
//! succeed again when one of the failed members is back. After a failed member is back, a watch
//! resumes without a new call.
//!
//! # Departures
//!
//! The store has its own client of etcd, for two reasons. The crate etcd-client needs `protoc` at
//! build time. The crate etcd-client also spreads calls over all members. If one of three members
//! is stopped, every third call fails after a wait.
//!
//! # Limits
//!
//! The client requires etcd 3.4 or later. The client authenticates by certificate, and does not
//! support passwords.

mod config;
mod link;
mod watch;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use self::link::{Failed, Link, Repeat, request};
use self::wire::pb;
use self::wire::pb::kv_client::KvClient;
use self::wire::pb::lease_client::LeaseClient;
use super::contract::{
    Change, Compare, Entry, Leadership, LeaseId, Listing, Revision, Store, StoreError, Transaction,
    Write,
};
use super::{campaign, limits};

pub use config::{EtcdConfig, EtcdTls};

/// Number of keys per page of a listing. Even a page with values of the maximum length is smaller
/// than [`MESSAGE_BYTES_MAX`].
const PAGE: i64 = 256;
/// Maximum size of a message from a member, in bytes.
const MESSAGE_BYTES_MAX: usize = 512 << 20;
/// Maximum number of attempts to list keys. An attempt fails if etcd compacts the listed revision.
const LISTINGS_MAX: usize = 5;
/// Number of changes that may wait in the channel of a watch's receiver.
const WATCH_CHANGES: usize = 64;
/// Maximum duration of a lease in seconds, as in etcd.
const LEASE_SECONDS_MAX: i64 = 9_000_000_000;

/// Handle of a store in an etcd cluster. Clones of a handle share connections.
#[derive(Clone, Debug)]
pub struct Etcd {
    link: Arc<Link>,
}

impl Etcd {
    /// Creates a client of an etcd cluster, and prepares its connections to the cluster's members.
    /// The client connects to the cluster at the first request. The caller must run in a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`StoreError::Invalid`]: an endpoint or certificate is invalid.
    pub fn new(config: &EtcdConfig) -> Result<Self, StoreError> {
        let name = format!("etcd {}", config.endpoints.join(","));
        let link = Link::new(name, config.limit, config.channels()?);
        Ok(Self { link: Arc::new(link) })
    }

    /// Uses the members and certificates of `config` for new requests. Watches continue on their
    /// connections until these break.
    ///
    /// # Errors
    /// [`StoreError::Invalid`]: an endpoint or certificate is invalid. The client then keeps its
    /// present members and certificates.
    pub fn renew(&self, config: &EtcdConfig) -> Result<(), StoreError> {
        self.link.renew(config.channels()?);
        Ok(())
    }

    async fn range(&self, asked: pb::RangeRequest) -> Result<pb::RangeResponse, Failed> {
        self.link
            .call(Repeat::Freely, |channel| {
                let asked = request(asked.clone());
                let mut client =
                    KvClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
                async move { Ok(client.range(asked).await?.into_inner()) }
            })
            .await
    }

    fn entry(&self, kv: pb::KeyValue) -> Result<Entry, StoreError> {
        let store = || self.link.name.clone();
        wire::entry(kv).map_err(|problem| StoreError::Damaged { store: store(), problem })
    }

    /// Lists keys page by page at the revision of the first page. Returns `None` if etcd has
    /// compacted the revision of the first page.
    async fn pages(&self, prefix: &str) -> Result<Option<Listing>, StoreError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut at = 0;
        loop {
            let key = match entries.last() {
                // This is the smallest key above the last key.
                Some(last) => [last.key.as_bytes(), &[0]].concat(),
                None => wire::range_start(prefix),
            };
            let range_end = wire::range_end(prefix);
            let asked = pb::RangeRequest {
                key,
                range_end,
                limit: PAGE,
                revision: at,
                ..pb::RangeRequest::default()
            };
            let page = match self.range(asked).await {
                Ok(page) => page,
                Err(Failed::Refused(status)) if status.code() == Code::OutOfRange => {
                    return Ok(None);
                }
                Err(failed) => return Err(self.link.refused(failed)),
            };
            if at == 0 {
                at = page.header.map_or(0, |header| header.revision);
            }
            let more = page.more && !page.kvs.is_empty();
            for kv in page.kvs {
                entries.push(self.entry(kv)?);
            }
            if !more {
                return Ok(Some(Listing { revision: wire::revision(at), entries }));
            }
        }
    }

    /// Converts etcd's error of a failed transaction.
    fn not_committed(&self, failed: Failed, writes: &[Write]) -> StoreError {
        let lease = writes.iter().find_map(|write| match write {
            Write::Put { lease, .. } => *lease,
            Write::Delete(_) => None,
        });
        match (&failed, lease) {
            (Failed::Refused(status), Some(lease)) if no_lease(status) => {
                StoreError::LeaseEnded(lease)
            }
            _ => self.link.refused(failed),
        }
    }

    /// Returns a conflict error with the key of the first condition that does not hold. `responses`
    /// contains the entries of the compared keys, as etcd returns them after a failed condition.
    fn conflict(compare: &[Compare], responses: Vec<pb::ResponseOp>) -> StoreError {
        let found = responses.into_iter().map(|response| match response.response {
            Some(pb::response_op::Response::ResponseRange(range)) => range.kvs.into_iter().next(),
            _ => None,
        });
        let mut pairs = compare.iter().zip(found);
        let broken = pairs.find(|(compare, found)| !wire::holds(compare, found.as_ref()));
        let key = broken.map(|(compare, _)| key_of(compare)).unwrap_or_default();
        StoreError::Conflict(key.to_owned())
    }
}

fn key_of(compare: &Compare) -> &str {
    match compare {
        Compare::Absent(key) | Compare::Created(key, _) | Compare::Modified(key, _) => key,
    }
}

fn no_lease(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease not found")
}

fn has_been_compacted(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("has been compacted")
}

fn get_request(key: &str, keys_only: bool) -> pb::RangeRequest {
    pb::RangeRequest { key: key.as_bytes().to_vec(), keys_only, ..pb::RangeRequest::default() }
}

#[async_trait]
impl Store for Etcd {
    fn name(&self) -> &str {
        &self.link.name
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let found = self.range(get_request(key, false)).await;
        let found = found.map_err(|failed| self.link.refused(failed))?;
        found.kvs.into_iter().next().map(|kv| self.entry(kv)).transpose()
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        for _ in 0..LISTINGS_MAX {
            if let Some(listing) = self.pages(prefix).await? {
                return Ok(listing);
            }
        }
        let problem = format!(
            "etcd compacted its history {LISTINGS_MAX} times during one listing; keep more history"
        );
        Err(self.link.unavailable(&problem))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        limits::check(&transaction)?;
        let Transaction { compare, writes } = transaction;
        let read = |compare| pb::RequestOp {
            request: Some(pb::request_op::Request::RequestRange(get_request(
                key_of(compare),
                true,
            ))),
        };
        let asked = pb::TxnRequest {
            compare: compare.iter().map(wire::compare).collect(),
            success: writes.iter().cloned().map(wire::write).collect(),
            failure: compare.iter().map(read).collect(),
        };
        let call = self.link.call(Repeat::Never, |channel| {
            let asked = request(asked.clone());
            async move { Ok(KvClient::new(channel).txn(asked).await?.into_inner()) }
        });
        let done = call.await.map_err(|failed| self.not_committed(failed, &writes))?;
        if !done.succeeded {
            return Err(Self::conflict(&compare, done.responses));
        }
        Ok(wire::revision(done.header.map_or(0, |header| header.revision)))
    }

    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<mpsc::Receiver<Result<Change, StoreError>>, StoreError> {
        let (changes, receiver) = mpsc::channel(WATCH_CHANGES);
        let follow = watch::Follow::new(Arc::clone(&self.link), prefix, from);
        tokio::spawn(follow.run(changes));
        Ok(receiver)
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let asked = pb::CompactionRequest { revision: wire::signed(revision), physical: false };
        let call = self.link.call(Repeat::Freely, |channel| async move {
            KvClient::new(channel).compact(request(asked)).await.map(|_| ())
        });
        match call.await {
            // Another client compacted first.
            Err(Failed::Refused(status)) if has_been_compacted(&status) => Ok(()),
            done => done.map_err(|failed| self.link.refused(failed)),
        }
    }

    /// Makes a lease in etcd. etcd counts whole seconds, and its shortest lease is longer than its
    /// election time.
    async fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let whole = i64::try_from(ttl.as_secs()).unwrap_or(LEASE_SECONDS_MAX);
        let seconds = whole.saturating_add(i64::from(ttl.subsec_nanos() > 0));
        let asked = pb::LeaseGrantRequest { ttl: seconds.clamp(1, LEASE_SECONDS_MAX), id: 0 };
        // If the lease is granted twice, the unused lease expires.
        let call = self.link.call(Repeat::Freely, |channel| async move {
            Ok(LeaseClient::new(channel).lease_grant(request(asked)).await?.into_inner())
        });
        let granted = call.await.map_err(|failed| self.link.refused(failed))?;
        Ok(LeaseId(granted.id))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        let asked = pb::LeaseKeepAliveRequest { id: lease.0 };
        let call = self.link.call(Repeat::Freely, |channel| async move {
            let once = request(tokio_stream::once(asked));
            let mut answers = LeaseClient::new(channel).lease_keep_alive(once).await?.into_inner();
            let answer = answers.message().await?;
            answer.ok_or_else(|| Status::unavailable("the etcd member closed the stream"))
        });
        let kept = call.await.map_err(|failed| self.link.refused(failed))?;
        // etcd answers with TTL 0 for an unknown lease.
        if kept.ttl > 0 { Ok(()) } else { Err(StoreError::LeaseEnded(lease)) }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        let asked = pb::LeaseRevokeRequest { id: lease.0 };
        let call = self.link.call(Repeat::Freely, |channel| async move {
            LeaseClient::new(channel).lease_revoke(request(asked)).await.map(|_| ())
        });
        match call.await {
            Err(Failed::Refused(status)) if no_lease(&status) => Ok(()),
            done => done.map_err(|failed| self.link.refused(failed)),
        }
    }

    async fn campaign(
        &self,
        key: &str,
        who: &str,
        lease: LeaseId,
    ) -> Result<Leadership, StoreError> {
        campaign::run(self.clone(), key, who, lease).await
    }
}
