//! HTTP pages of a daemon, with limits on connections, bytes and time.
//!
//! # Problem
//!
//! A client that reaches the address may open connections and leave them idle, or send only half a
//! request.
//!
//! # Approach
//!
//! At most [`CONNECTIONS_MAX`] connections are open at once, and at most one for each
//! [`DESCRIPTORS`] descriptors that the process may have. Further connections wait in the socket's
//! backlog. The size of a request's headers, the time to receive them, and the life of a connection
//! have limits.

use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use penstock_controller::listen::Gate;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Largest number of connections at once. Further connections wait in the socket's backlog.
pub const CONNECTIONS_MAX: usize = 64;
/// Number of the process's descriptors for each connection that the server accepts.
const DESCRIPTORS: usize = 16;
/// Largest size of a request's line and headers in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Time limit for a request's headers, and for the pause between two requests.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest life of a connection. When a connection ends, browsers open a new connection.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(300);
/// Time limit for requests in progress when the daemon ends.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);

/// Serves HTTP requests until `stopping` is true.
///
/// # Errors
/// Returns an error if the listener cannot be used.
pub async fn serve(
    what: &'static str,
    listener: TcpListener,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) -> Result<()> {
    listener.set_nonblocking(true).context(what)?;
    let listener = tokio::net::TcpListener::from_std(listener).context(what)?;
    let mut gate = Gate::new(what, listener, CONNECTIONS_MAX, DESCRIPTORS);
    let mut connections = JoinSet::new();
    loop {
        let (stream, place) = tokio::select! {
            next = gate.next() => next,
            Some(_) = connections.join_next() => continue,
            () = stopped(&mut stopping) => break,
        };
        let router = router.clone();
        connections.spawn(async move {
            let served = connection(what, stream, router);
            let _ = tokio::time::timeout(CONNECTION_TIME_MAX, served).await;
            drop(place);
        });
    }
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN_LIMIT, ended).await;
    Ok(())
}

/// Waits until `stopping` is true, and then releases the channel's lock.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

async fn connection(what: &'static str, stream: TcpStream, router: Router) {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = served.await {
        tracing::trace!("{what}: {error}");
    }
}
