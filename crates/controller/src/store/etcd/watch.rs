//! Implements a watch that continues after its connection breaks.
//!
//! # Problem
//!
//! The stream of a watch may break. If the member that serves a stream is stopped, the stream stays
//! silent. After a stream breaks or stays silent, the watch must not miss a change or report a
//! change twice.
//!
//! # Approach
//!
//! The watch tracks delivered changes by revision. If a stream breaks, a new stream starts one
//! revision *before* the next undelivered revision. The watch drops changes that it has delivered
//! already.
//!
//! If a new stream started at the next revision itself, a compaction at this revision could hide
//! changes. A compaction at revision N removes the deletions of revision N. etcd reports
//! `compacted` only to streams that start before revision N.
//!
//! If a stream is silent, the client sends etcd's progress request. If etcd does not answer the
//! progress request, the client abandons the stream.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::super::contract::{Change, Revision, StoreError};
use super::MESSAGE_BYTES_MAX;
use super::link::{Link, request};
use super::wire::pb::watch_client::WatchClient;
use super::wire::pb::watch_request::RequestUnion;
use super::wire::{self, pb};

/// Shortest pause before a watch starts a new stream to etcd. The pause doubles after each stream
/// that could not start, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(super) type Changes = mpsc::Sender<Result<Change, StoreError>>;

/// State of a watch on keys with a prefix.
pub(super) struct Follow {
    link: Arc<Link>,
    prefix: String,
    /// Revision of the next change that the watch delivers. The watch has delivered all changes
    /// before this revision.
    next: u64,
    /// Number of delivered changes of revision `next`. etcd may split the changes of a large
    /// revision into several messages.
    delivered: usize,
}

/// Reason why the watch abandoned a stream.
enum Left {
    /// The receiver of the watch is gone.
    Unheard,
    /// The watch cannot continue with another stream.
    Ended(StoreError),
    /// The watch must continue with another stream. `begun` is true if the stream had started.
    Broken { begun: bool },
}

impl Follow {
    pub(super) fn new(link: Arc<Link>, prefix: &str, from: Revision) -> Self {
        Self { link, prefix: prefix.to_owned(), next: from.0.max(1), delivered: 0 }
    }

    /// Runs the watch until the receiver is gone or etcd has compacted the next changes.
    pub(super) async fn run(mut self, changes: Changes) {
        let mut pause = PAUSE_MIN;
        loop {
            let (number, channel) = self.link.member();
            match self.stream(channel, &changes).await {
                Left::Unheard => return,
                Left::Ended(error) => {
                    // If the receiver is gone, nothing needs this error.
                    let _ = changes.send(Err(error)).await;
                    return;
                }
                Left::Broken { begun } => {
                    self.link.leave(number);
                    pause = if begun { PAUSE_MIN } else { PAUSE_MAX.min(pause * 2) };
                    tracing::debug!(store = %self.link.name, next = self.next, "watch resumes");
                }
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = changes.closed() => return,
            }
        }
    }

    async fn stream(&mut self, channel: Channel, changes: &Changes) -> Left {
        let (requests, outgoing) = mpsc::channel(2);
        let create = pb::WatchCreateRequest {
            key: wire::range_start(&self.prefix),
            range_end: wire::range_end(&self.prefix),
            start_revision: wire::signed(Revision(self.next - 1)).max(1),
            fragment: true,
        };
        // The channel has room for two requests, so sending does not wait.
        let _ = requests.send(ask(RequestUnion::CreateRequest(create))).await;
        let mut client = WatchClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let opened = client.watch(request(ReceiverStream::new(outgoing)));
        let mut answers = match timeout(self.link.limit, opened).await {
            Ok(Ok(answers)) => answers.into_inner(),
            Ok(Err(_)) | Err(_) => return Left::Broken { begun: false },
        };
        self.read(&mut answers, &requests, changes).await
    }

    async fn read(
        &mut self,
        answers: &mut Streaming<pb::WatchResponse>,
        requests: &mpsc::Sender<pb::WatchRequest>,
        changes: &Changes,
    ) -> Left {
        let mut asked = false;
        // Revision of the last change on this stream, and the number of changes seen at this
        // revision.
        let mut seen = (0, 0);
        loop {
            let answer = tokio::select! {
                answer = timeout(self.link.limit, answers.message()) => answer,
                () = changes.closed() => return Left::Unheard,
            };
            match answer {
                Ok(Ok(Some(answer))) => {
                    asked = false;
                    if let Err(left) = self.take(answer, &mut seen, changes).await {
                        return left;
                    }
                }
                Ok(Ok(None) | Err(_)) => return Left::Broken { begun: true },
                Err(_) if asked => return Left::Broken { begun: true },
                Err(_) => {
                    asked = true;
                    let progress = RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
                    // If the channel is full, the previous request was never sent.
                    let _ = requests.try_send(ask(progress));
                }
            }
        }
    }

    async fn take(
        &mut self,
        answer: pb::WatchResponse,
        seen: &mut (u64, usize),
        changes: &Changes,
    ) -> Result<(), Left> {
        if answer.compact_revision > 0 {
            let kept = wire::revision(answer.compact_revision);
            return Err(Left::Ended(StoreError::Compacted(kept)));
        }
        if answer.canceled && answer.created {
            return Err(Left::Ended(self.link.unavailable(&answer.cancel_reason)));
        }
        if answer.canceled {
            return Err(Left::Broken { begun: true });
        }
        let any = !answer.events.is_empty();
        for event in answer.events {
            let change = wire::change(event).map_err(|problem| {
                let store = self.link.name.clone();
                Left::Ended(StoreError::Damaged { store, problem })
            })?;
            let at = match &change {
                Change::Put(entry) => entry.modified.0,
                Change::Deleted { revision, .. } => revision.0,
            };
            *seen = if seen.0 == at { (at, seen.1 + 1) } else { (at, 1) };
            if at < self.next || (at == self.next && seen.1 <= self.delivered) {
                continue;
            }
            changes.send(Ok(change)).await.map_err(|_| Left::Unheard)?;
            (self.next, self.delivered) = *seen;
        }
        // Only a complete message ends with the last change of a revision.
        if any && !answer.fragment && seen.0 >= self.next {
            (self.next, self.delivered) = (seen.0 + 1, 0);
        }
        Ok(())
    }
}

fn ask(union: RequestUnion) -> pb::WatchRequest {
    pb::WatchRequest { request_union: Some(union) }
}
