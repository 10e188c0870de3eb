//! The controller's views, shared by all readers.
//!
//! # Problem
//!
//! A leader is busy while switches apply a plan, for seconds if a switch is slow. While the leader
//! is busy, any number of pages and scrapers may request views.
//!
//! # Approach
//!
//! The server sends a stored view again while the view is younger than [`FRESH`]. If the controller
//! does not answer within [`PATIENCE`], the server sends the last view with its age, and the reader
//! shows the age.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use penstock_controller::service::Controller;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// If a stored view is younger than this age, the server sends the stored view again.
pub const FRESH: Duration = Duration::from_millis(500);
/// Longest wait for an answer from the controller.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Limit on concurrent requests for views of single tenants, which readers do not share.
const OF_TENANTS_MAX: usize = 4;

#[derive(Clone, Debug)]
pub struct View {
    pub value: Arc<Value>,
    pub age: Duration,
}

/// Reason why the controller has no view to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// This controller does not lead, so it has no views.
    NotLeading,
    /// The controller has no tenant of this name.
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
    /// Time of the controller's last missed answer. After a missed answer, no other reader waits
    /// for the controller until [`FRESH`] has passed.
    busy: std::sync::Mutex<Option<Instant>>,
}

/// Names of the views that show the whole fabric.
pub const WHOLE: [&str; 6] = ["status", "topology", "tenants", "bindings", "events", "history"];

impl Views {
    pub fn new(controller: Arc<Controller>) -> Self {
        let kept = WHOLE.iter().map(|name| (*name, Kept::default())).collect();
        let of_tenants = tokio::sync::Semaphore::new(OF_TENANTS_MAX);
        Self { controller, kept, of_tenants, busy: std::sync::Mutex::default() }
    }

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

    /// Returns the view `explain` or `history` of a tenant.
    pub async fn of_tenant(&self, what: &str, tenant: &str) -> Result<View, Missing> {
        let _turn = self.of_tenants.acquire().await;
        if let Some(value) = self.ask(what, tenant).await? {
            return Ok(View { value: Arc::new(value), age: Duration::ZERO });
        }
        let leads = self.whole("status").await.is_ok_and(|status| status.value["leads"] == true);
        Err(if leads { Missing::Unknown } else { Missing::NotLeading })
    }
}
