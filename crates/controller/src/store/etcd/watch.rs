//! A watch that outlives its connection.
//!
//! **Problem.** A stream breaks, or its member is stopped and the stream just stays quiet. After
//! either, nothing may be missed or told twice. **Rule.** What was delivered is known by its
//! revision; the next stream begins one revision *before* the one that is due, and what is older
//! is dropped. etcd answers `compacted` only for revisions below that of a compaction, but forgets
//! deletions at the very one; asked for the one before, it says so. A quiet stream is asked for
//! its progress, and left when it does not answer.

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

/// After a stream that brought nothing; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(super) type Changes = mpsc::Sender<Result<Change, StoreError>>;

/// One watch.
pub(super) struct Follow {
    link: Arc<Link>,
    prefix: String,
    /// All changes before this one were delivered.
    next: u64,
    /// And so many of this one: etcd may cut a large one into several messages.
    delivered: usize,
}

/// Why a stream was left.
enum Left {
    /// Nobody listens.
    Unheard,
    /// Not to be resumed.
    Ended(StoreError),
    /// To be resumed; whether it had begun.
    Broken { begun: bool },
}

impl Follow {
    pub(super) fn new(link: Arc<Link>, prefix: &str, from: Revision) -> Self {
        Self { link, prefix: prefix.to_owned(), next: from.0.max(1), delivered: 0 }
    }

    /// Until nobody listens, or the changes that are due are gone.
    pub(super) async fn run(mut self, changes: Changes) {
        let mut pause = PAUSE_MIN;
        loop {
            let (number, channel) = self.link.member();
            match self.stream(channel, &changes).await {
                Left::Unheard => return,
                Left::Ended(error) => {
                    // Nobody there to be told is no fault.
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
        // Two places: it does not wait.
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
        // How many changes of which revision came on this stream.
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
                    // Full only if the question before was never sent.
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
        // Only a message that is not cut ends with a revision's last change.
        if any && !answer.fragment && seen.0 >= self.next {
            (self.next, self.delivered) = (seen.0 + 1, 0);
        }
        Ok(())
    }
}

fn ask(union: RequestUnion) -> pb::WatchRequest {
    pb::WatchRequest { request_union: Some(union) }
}
