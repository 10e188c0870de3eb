//! Streams the frames of a capture to its client.

use std::sync::Arc;
use std::time::Duration;

use penstock_control::api::{CaptureRequest, CapturedFrames};
use penstock_control::host::{ApiError, Capture, Host};
use tokio::sync::{mpsc, watch};
use tonic::Status;

use super::rpc::status;
use crate::unix_time::unix_ns;

/// Interval between two looks for captured frames.
const LOOK: Duration = Duration::from_millis(50);
/// Number of messages that wait for a slow client. If more wait, the capture loses frames.
pub(super) const MESSAGES: usize = 8;

/// A running capture, which ends when the value is dropped.
pub(super) struct Running {
    host: Arc<Host>,
    capture: Capture,
}

impl Running {
    /// Starts a capture.
    ///
    /// # Errors
    /// Returns an error if the host refuses the capture.
    pub(super) fn start(host: Arc<Host>, request: &CaptureRequest) -> Result<Self, ApiError> {
        let capture = host.capture(request)?;
        tracing::info!(port = capture.port(), "capture started");
        Ok(Self { host, capture })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.host.capture_end(&self.capture);
        tracing::info!(port = self.capture.port(), "capture ended");
    }
}

/// Sends frames until the client disconnects, the port is removed or the daemon stops.
pub(super) async fn feed(
    mut running: Running,
    mut stopping: watch::Receiver<bool>,
    sender: mpsc::Sender<Result<CapturedFrames, Status>>,
) {
    let port = running.capture.port().to_owned();
    let begun = CapturedFrames { port, ..CapturedFrames::default() };
    if sender.send(Ok(begun)).await.is_err() {
        end(running).await;
        return;
    }
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = sender.closed() => break,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        }
        let look = tokio::task::spawn_blocking(move || {
            let Running { host, capture } = &mut running;
            let taken = host.capture_next(capture, unix_ns());
            (running, taken)
        });
        let Ok((same, taken)) = look.await else { return };
        running = same;
        let (messages, last) = match taken {
            Ok(messages) => (messages, None),
            Err(error) => (Vec::new(), Some(status(&error))),
        };
        for message in messages.into_iter().map(Ok).chain(last.clone().map(Err)) {
            let sent = tokio::select! {
                sent = sender.send(message) => sent.is_ok(),
                _ = stopping.wait_for(|stopping| *stopping) => false,
            };
            if !sent {
                end(running).await;
                return;
            }
        }
        if last.is_some() {
            break;
        }
    }
    end(running).await;
}

/// Ends a capture on a thread that may block.
async fn end(running: Running) {
    let _ = tokio::task::spawn_blocking(move || drop(running)).await;
}
