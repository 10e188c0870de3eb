//! A watch that survives its connections.
//!
//! # Problem
//!
//! A stream may break. The member that serves a stream may also be stopped, and the stream then
//! stays silent. In both cases the watch must not miss a change or report one twice.
//!
//! # Approach
//!
//! The watch tracks delivered changes by revision. A new stream starts one revision *before* the
//! next one due, and the watch drops older changes. The reason is that etcd reports `compacted`
//! only for revisions below the revision of a compaction, but also forgets deletions at this
//! revision. If a stream starts one revision earlier, etcd reports the compaction. On a silent
//! stream the client requests the progress. If no answer comes, it abandons the stream.

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

/// Pause after a stream without changes. It doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(super) type Changes = mpsc::Sender<Result<Change, StoreError>>;

/// State of a watch.
pub(super) struct Follow {
    link: Arc<Link>,
    prefix: String,
    /// Revision of the next change. All changes before this revision were delivered.
    next: u64,
    /// Number of delivered changes of revision `next`. etcd may split a large revision into several
    /// messages.
    delivered: usize,
}

/// Why a stream was abandoned.
enum Left {
    /// The receiver is gone.
    Unheard,
    /// The watch cannot be resumed.
    Ended(StoreError),
    /// The watch must be resumed. `begun` says whether the stream had started.
    Broken { begun: bool },
}

impl Follow {
    pub(super) fn new(link: Arc<Link>, prefix: &str, from: Revision) -> Self {
        Self { link, prefix: prefix.to_owned(), next: from.0.max(1), delivered: 0 }
    }

    /// Runs until the receiver is gone or the next changes are compacted.
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
        // The current revision on this stream, and its number of changes.
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
