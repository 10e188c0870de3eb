//! Serves the controller's views as JSON, and the page `/metrics`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use penstock_controller::service::Controller;
use serde_json::{Value, json};

use super::views::{Missing, View, Views, WHOLE};
use crate::exposition;
use crate::fabric::metrics::{self, Reading};

type Shared = Arc<Views>;

/// Routes below `/api`, and `/metrics`.
pub fn router(controller: Arc<Controller>) -> Router {
    Router::new()
        .route("/api/{what}", get(whole))
        .route("/api/{what}/{tenant}", get(of_tenant))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(Views::new(controller)))
}

async fn whole(State(views): State<Shared>, Path(what): Path<String>) -> Response {
    if !WHOLE.contains(&what.as_str()) {
        let why = format!("the view does not exist; request one of {}", WHOLE.join(", "));
        return refused(StatusCode::NOT_FOUND, &why);
    }
    answer(views.whole(&what).await)
}

async fn of_tenant(
    State(views): State<Shared>,
    Path((what, tenant)): Path<(String, String)>,
) -> Response {
    if !["explain", "history"].contains(&what.as_str()) {
        return refused(StatusCode::NOT_FOUND, "request explain/TENANT or history/TENANT");
    }
    answer(views.of_tenant(&what, &tenant).await)
}

fn answer(view: Result<View, Missing>) -> Response {
    match view {
        Ok(view) => {
            let mut response = as_json(StatusCode::OK, &view.value);
            let age = HeaderValue::from(view.age.as_secs());
            response.headers_mut().insert(header::AGE, age);
            response
        }
        Err(Missing::Unknown) => refused(StatusCode::NOT_FOUND, "the tenant does not exist"),
        Err(Missing::NotLeading) => refused(
            StatusCode::SERVICE_UNAVAILABLE,
            "this controller does not lead; /api/status names the leader",
        ),
        Err(Missing::Busy) => refused(
            StatusCode::SERVICE_UNAVAILABLE,
            "the controller is updating hosts and switches; try again in a moment",
        ),
    }
}

fn refused(status: StatusCode, why: &str) -> Response {
    as_json(status, &json!({ "error": why }))
}

fn as_json(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

async fn metrics(State(views): State<Shared>, request: HeaderMap) -> Response {
    let views = &views;
    let view = |what| async move {
        let view = views.whole(what).await.ok()?;
        Some((view.age, Value::clone(&view.value)))
    };
    // This reads the views in sequence, because all views wait for the same controller. If the
    // first view fails, this does not try the others.
    let Some((age, status)) = view("status").await else {
        let why = "the controller is updating hosts and switches\n";
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let mut parts = Vec::new();
    for what in ["tenants", "bindings", "topology"] {
        parts.push(view(what).await.map(|(_, value)| value).unwrap_or_default());
    }
    let made = Reading::new(age, status, parts).and_then(metrics::page);
    match made {
        Ok(page) => exposition::answer(&request, page),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
