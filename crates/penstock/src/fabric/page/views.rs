//! The controller's views, made once for all readers.
//!
//! # Problem
//!
//! A leader is busy while switches apply a plan, for seconds if one of them is slow. Meanwhile any
//! number of pages and scrapers request views.
//!
//! # Approach
//!
//! A view younger than [`FRESH`] is served again. If the controller does not answer within
//! [`PATIENCE`], the last view is served with its age, and the reader shows that age.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use penstock_controller::service::Controller;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Age up to which a view is served again.
pub const FRESH: Duration = Duration::from_millis(500);
/// Longest wait for an answer from the controller.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Limit of concurrent views of one tenant. These are made for each reader.
const OF_TENANTS_MAX: usize = 4;

#[derive(Clone, Debug)]
pub struct View {
    pub value: Arc<Value>,
    pub age: Duration,
}

/// Why there is no view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// This controller does not lead, so it has no views.
    NotLeading,
    /// The controller has no such tenant.
    Unknown,
    /// The controller did not answer within [`PATIENCE`].
    Busy,
}

type Kept = Arc<Mutex<Option<(Instant, Arc<Value>)>>>;

#[derive(Debug)]
pub struct Views {
    controller: Arc<Controller>,
    kept: BTreeMap<&'static str, Kept>,
    of_tenants: tokio::sync::Semaphore,
    /// Time of the controller's last missed answer. Until [`FRESH`] has passed, no other reader
    /// waits for the controller.
    busy: std::sync::Mutex<Option<Instant>>,
}

/// The views of the whole fabric.
pub const WHOLE: [&str; 6] = ["status", "topology", "tenants", "bindings", "events", "history"];

impl Views {
    pub fn new(controller: Arc<Controller>) -> Self {
        let kept = WHOLE.iter().map(|name| (*name, Kept::default())).collect();
        let of_tenants = tokio::sync::Semaphore::new(OF_TENANTS_MAX);
        Self { controller, kept, of_tenants, busy: std::sync::Mutex::default() }
    }

    /// Requests a view from the controller within [`PATIENCE`].
    async fn ask(&self, what: &str, name: &str) -> Result<Option<Value>, Missing> {
        let busy = || self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy().is_some_and(|at| at.elapsed() < FRESH) {
            return Err(Missing::Busy);
        }
        let asked = tokio::time::timeout(PATIENCE, self.controller.view(what, name)).await;
        *busy() = asked.is_err().then(Instant::now);
        asked.map_err(|_| Missing::Busy)
    }

    /// Returns one of the views in [`WHOLE`].
    pub async fn whole(&self, what: &str) -> Result<View, Missing> {
        let kept = self.kept.get(what).ok_or(Missing::Unknown)?;
        // Concurrent readers wait here and receive the same view.
        let mut kept = kept.lock().await;
        if let Some((at, value)) = &*kept
            && at.elapsed() < FRESH
        {
            return Ok(View { value: Arc::clone(value), age: at.elapsed() });
        }
        match self.ask(what, "").await {
            Ok(Some(value)) => {
                let value = Arc::new(value);
                *kept = Some((Instant::now(), Arc::clone(&value)));
                Ok(View { value, age: Duration::ZERO })
            }
            Ok(None) => {
                *kept = None;
                Err(Missing::NotLeading)
            }
            Err(_) => match &*kept {
                Some((at, value)) => Ok(View { value: Arc::clone(value), age: at.elapsed() }),
                None => Err(Missing::Busy),
            },
        }
    }

    /// Returns `explain` or `history` of a tenant.
    pub async fn of_tenant(&self, what: &str, tenant: &str) -> Result<View, Missing> {
        let _turn = self.of_tenants.acquire().await;
        if let Some(value) = self.ask(what, tenant).await? {
            return Ok(View { value: Arc::new(value), age: Duration::ZERO });
        }
        let leads = self.whole("status").await.is_ok_and(|status| status.value["leads"] == true);
        Err(if leads { Missing::Unknown } else { Missing::NotLeading })
    }
}
