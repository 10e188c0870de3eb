//! The controller's page for operators at `/`, its data as JSON below `/api`, and `/metrics`.
//!
//! # Problem
//!
//! The controller's page has no login, and scripts of other sites can make browsers send requests
//! to it.
//!
//! # Approach
//!
//! The server only reads: it accepts GET and HEAD without a request body. A page may load only
//! resources of this server (Content-Security-Policy). All text reaches the page as JSON, and the
//! page inserts it as text and not as markup.
//!
//! On a loopback address, the server answers only requests for a loopback name. If the server
//! answered requests for any name, a foreign name that resolves to this machine could read the page
//! (DNS rebinding). On an address that is not a loopback address, everybody who reaches the page
//! may read it. Put a proxy that authenticates its users before an address that other machines
//! reach.
//!
//! # Cost
//!
//! The number of readers does not matter, because the controller makes a view at most twice a
//! second ([`views`]). [`crate::pages`] limits the connections.

mod api;
mod files;
#[cfg(test)]
mod tests;
mod views;

use std::net::{IpAddr, TcpListener};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use penstock_controller::service::Controller;
use tokio::sync::watch;

use crate::pages;

const WHAT: &str = "the controller's page";

/// Content-Security-Policy of the page: it may run, show and request only resources of this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// Serves the page until `stopping` becomes true.
///
/// # Errors
/// Returns an error if the listener fails.
pub async fn serve(
    listener: TcpListener,
    controller: Arc<Controller>,
    stopping: watch::Receiver<bool>,
) -> Result<()> {
    let only_local = listener.local_addr().context(WHAT)?.ip().is_loopback();
    pages::serve(WHAT, listener, router(controller, only_local), stopping).await
}

/// All routes. If `only_local` is true, requests must name a loopback host.
fn router(controller: Arc<Controller>, only_local: bool) -> Router {
    let guard = move |request: Request, next: Next| guarded(request, next, only_local);
    files::router().merge(api::router(controller)).layer(middleware::from_fn(guard))
}

/// Checks every request and adds the common headers to every answer.
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
        return Some((StatusCode::PAYLOAD_TOO_LARGE, "this server accepts no request body"));
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if only_local && !host.is_some_and(is_loopback_name) {
        let why = "request localhost, 127.0.0.1 or [::1], because this page is for this machine \
                   only; a proxy must set the Host header to one of them";
        return Some((StatusCode::MISDIRECTED_REQUEST, why));
    }
    None
}

/// Whether a `Host` header, with or without port, is a loopback name.
fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
