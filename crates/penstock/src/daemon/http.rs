//! `/metrics` for Prometheus and `/healthz` for load balancers and operators.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use penstock_control::host::Host;
use tokio::sync::Mutex;

use super::Parts;
use super::metrics::{Reading, page};
use crate::exposition;
use crate::verbs::vcpu;

/// The host behind a lock, so that only one scrape at a time reads it.
type Shared = Arc<Mutex<(Arc<Host>, Parts)>>;

pub fn router(host: Arc<Host>, parts: Parts) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .with_state(Arc::new(Mutex::new((host, parts))))
}

async fn metrics(State(shared): State<Shared>, request: HeaderMap) -> Response {
    let turn = shared.lock().await;
    let (host, parts) = turn.clone();
    let made = tokio::task::spawn_blocking(move || {
        let stats = host.stats(false).map_err(|error| error.to_string())?;
        let (mut status, ports, learning) = (host.status(), host.ports(), host.learning());
        parts.enter(&mut status);
        let vcpus = vcpu::of_host(&status.vcpu_dir);
        let contracts = host.contract_seconds();
        let labels = host.labels();
        let reading = Reading { status, ports, labels, stats, learning, contracts, vcpus };
        page(reading).map_err(|error| error.to_string())
    });
    match made.await.map_err(|error| error.to_string()).flatten() {
        Ok(page) => exposition::answer(&request, page),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn healthz(State(shared): State<Shared>) -> Response {
    let host = Arc::clone(&shared.lock().await.0);
    match tokio::task::spawn_blocking(move || host.status()).await {
        Ok(status) => match status.workers.iter().find(|worker| worker.stalled) {
            None => (StatusCode::OK, "ok\n".to_owned()).into_response(),
            Some(worker) => {
                let text = format!(
                    "worker {} on core {}: no heartbeat for {} ms\n",
                    worker.id, worker.core, worker.heartbeat_age_ms
                );
                (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
            }
        },
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}
