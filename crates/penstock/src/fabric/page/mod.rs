//! The controller's page for operators at `/`, what it shows as JSON below `/api`, and `/metrics`.
//!
//! **Problem.** It has no login, and browsers carry other people's scripts to it. **Rule.** It only
//! reads: GET and HEAD, no request body. A page may load what this server sent and nothing else
//! (Content-Security-Policy), all text reaches it as JSON and is shown as text. On a loopback
//! address only requests for a loopback name are answered, or a foreign name that is made to point
//! here could read along (DNS rebinding); on any other address whoever reaches it may read, so that
//! address belongs behind a proxy that asks who they are. **Cost.** However many look, a view is
//! made at most twice a second ([`views`]); [`CONNECTIONS_MAX`] connections of 16 KiB each.

mod api;
mod files;
#[cfg(test)]
mod tests;
mod views;

use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use penstock_controller::service::Controller;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Connections at once; more wait to be accepted.
pub const CONNECTIONS_MAX: usize = 64;
/// Bytes of a request's line and headers.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// For a request's headers to arrive, and between two requests.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// No connection lives longer; browsers open another one.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(300);
/// For what is under way when the controller ends.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);
/// After a failed accept, for lack of descriptors for instance.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What a page may do: run and show what came from here, and ask here.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// Serves until `stopping` turns true.
///
/// # Errors
/// The listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    controller: Arc<Controller>,
    mut stopping: watch::Receiver<bool>,
) -> Result<()> {
    let what = "the controller's page";
    let only_local = listener.local_addr().context(what)?.ip().is_loopback();
    listener.set_nonblocking(true).context(what)?;
    let listener = tokio::net::TcpListener::from_std(listener).context(what)?;
    let router = router(controller, only_local);
    let turns = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accept = async {
            let turn = Arc::clone(&turns).acquire_owned().await;
            (turn, listener.accept().await)
        };
        let stream = tokio::select! {
            (turn, accepted) = accept => match accepted {
                Ok((stream, _)) => (turn, stream),
                Err(error) => {
                    tracing::debug!("{what}: accept: {error}");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
            () = stopped(&mut stopping) => break,
        };
        let router = router.clone();
        connections.spawn(async move {
            let (turn, stream) = stream;
            let _ = tokio::time::timeout(CONNECTION_TIME_MAX, connection(stream, router)).await;
            drop(turn);
        });
    }
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN_LIMIT, ended).await;
    Ok(())
}

/// Returns nothing that holds the channel's lock.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

async fn connection(stream: TcpStream, router: Router) {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = served.await {
        tracing::trace!("the controller's page: {error}");
    }
}

/// All of it. `only_local`: who asks must ask for a loopback name.
fn router(controller: Arc<Controller>, only_local: bool) -> Router {
    let guard = move |request: Request, next: Next| guarded(request, next, only_local);
    files::router().merge(api::router(controller)).layer(middleware::from_fn(guard))
}

/// What holds for every request and every answer.
async fn guarded(request: Request, next: Next, only_local: bool) -> Response {
    let mut response = match refusal(request.headers(), only_local) {
        Some((status, why)) => (status, format!("{why}\n")).into_response(),
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}

fn refusal(headers: &HeaderMap, only_local: bool) -> Option<(StatusCode, &'static str)> {
    let empty = headers.get(header::CONTENT_LENGTH).is_none_or(|length| length == "0");
    if !empty || headers.contains_key(header::TRANSFER_ENCODING) {
        return Some((StatusCode::PAYLOAD_TOO_LARGE, "nothing here takes a request body"));
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if only_local && !host.is_some_and(is_loopback_name) {
        let why = "ask for localhost, 127.0.0.1 or [::1]: this address is for this machine only; \
                   a proxy in front of it sets the Host header so";
        return Some((StatusCode::MISDIRECTED_REQUEST, why));
    }
    None
}

/// Whether a `Host` header, with or without port, names this machine to itself.
fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
