//! The fabric's agent in the daemon. The agent applies the controller's plans as code points and
//! queues of this host, and reports the frames and bytes that tenants sent and received.
//!
//! # Approach
//!
//! [`Host::set_fabric`] applies a plan in one change. The agent stores the plan together with its
//! number (`EPOCH.GENERATION`, the stamp). In two situations, the agent continues without an error:
//! - The plan has a tenant that this host does not have. VMs of a tenant in the plan may start on
//!   this host later. If the plan failed, the host would roll back the queues of all other tenants.
//!   The agent only logs that this host does not have the tenant.
//! - The host loses its connection to the controller. The data path keeps its plan, and the status
//!   shows the time since the host lost the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use penstock_control::api::{FabricStatus, NamedCount, PairStatus};
use penstock_control::host::{FabricTerms, Held, Host};
use penstock_controller::agent::{
    Agent, AgentSettings, AgentState, AgentTls, Carried, HostSide, SideError,
};
use penstock_controller::hosts::{HostPlan, HostTenant};
use penstock_controller::southbound::PortState;
use tokio::sync::watch;

/// Handle to the agent of a host in a fabric.
#[derive(Clone, Debug)]
pub struct Fabric {
    name: String,
    host: Arc<Host>,
    state: watch::Receiver<AgentState>,
    absent: Absent,
}

/// Tenants of the plan that this host does not have.
type Absent = Arc<Mutex<BTreeSet<String>>>;

/// Creates the agent of a host in a fabric, without starting the agent; `None` if the host is not
/// in a fabric.
///
/// # Errors
/// Returns an error if the settings are invalid, or the folder of the plan cannot be created.
pub fn join(host: &Arc<Host>, directory: &Path) -> Result<Option<(Agent, Fabric)>> {
    let Some(terms) = host.config().agent_terms(directory) else { return Ok(None) };
    if let Some(folder) = terms.plan.parent() {
        std::fs::create_dir_all(folder).with_context(|| {
            format!("[fabric] plan: folder {} cannot be created; change `plan`", folder.display())
        })?;
    }
    let tls = terms.tls.map(|tls| AgentTls {
        ca: tls.ca,
        certificate: tls.cert,
        key: tls.key,
        crl: tls.crl,
        server_name: tls.server_name,
    });
    let settings = AgentSettings::new(&terms.name, terms.controllers, tls, &terms.plan);
    let absent = Absent::default();
    let side = Side { host: Arc::clone(host), absent: Arc::clone(&absent) };
    let agent = Agent::new(settings, Arc::new(side)).context("[fabric]")?;
    let (name, host) = (terms.name, Arc::clone(host));
    let fabric = Fabric { name, host, state: agent.state(), absent };
    Ok(Some((agent, fabric)))
}

impl Fabric {
    #[must_use]
    pub fn status(&self) -> FabricStatus {
        let state = self.state.borrow().clone();
        let counts = state.counts;
        let counters = [
            ("sessions", counts.sessions),
            ("reports", counts.reports),
            ("missed", counts.missed),
            ("applied", counts.applied),
            ("failed", counts.failed),
            ("refused", counts.refused),
            ("resumed", counts.resumed),
            ("problems", counts.problems),
        ];
        let stale = state.stale_since.map(|since| since.elapsed().as_millis());
        FabricStatus {
            name: self.name.clone(),
            controller: state.connected.unwrap_or_default(),
            told: state.told.to_string(),
            applied: state.applied.map(|stamp| stamp.to_string()).unwrap_or_default(),
            unkept: state.unkept.map(|stamp| stamp.to_string()).unwrap_or_default(),
            stale_ms: stale.map(|millis| u64::try_from(millis).unwrap_or(u64::MAX)),
            absent: lock(&self.absent).iter().cloned().collect(),
            last_error: state.last_error.unwrap_or_default(),
            counters: counters.map(|(name, value)| NamedCount::new(name, value)).into(),
            pairs: self.host.limits_pairs().then(|| self.pairs()),
        }
    }

    fn pairs(&self) -> PairStatus {
        let used = self.host.pair_use();
        let number = |pairs: usize| u64::try_from(pairs).unwrap_or(u64::MAX);
        PairStatus {
            sending: number(used.sending),
            receiving: number(used.receiving),
            guaranteed_bps: used.guaranteed,
            rate_bps: used.rate,
        }
    }
}

fn lock(absent: &Absent) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
    absent.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Side {
    host: Arc<Host>,
    absent: Absent,
}

/// Runs a call of the host on a thread that may block.
async fn blocking<T: Send + 'static>(
    host: &Arc<Host>,
    call: impl FnOnce(&Host) -> T + Send + 'static,
) -> Result<T, SideError> {
    let host = Arc::clone(host);
    let done = tokio::task::spawn_blocking(move || call(&host)).await;
    done.map_err(|error| SideError(format!("internal error: {error}")))
}

#[tonic::async_trait]
impl HostSide for Side {
    async fn usage(&self) -> Result<BTreeMap<String, Carried>, SideError> {
        let used = blocking(&self.host, Host::network_use).await?;
        let one = |(name, used): (String, penstock_control::host::NetworkUse)| {
            (name, Carried { sent: used.sent_bytes, received: used.received_bytes })
        };
        Ok(used.into_iter().map(one).collect())
    }

    async fn apply(&self, plan: &HostPlan) -> Result<(), SideError> {
        let terms = terms(plan)?;
        let change = blocking(&self.host, move |host| host.set_fabric(&terms)).await?;
        let change = change.map_err(|error| SideError(error.to_string()))?;
        let stamp = plan.stamp;
        if !change.changes.is_empty() {
            tracing::info!(%stamp, changes = ?change.changes, "the fabric's new plan is in force");
        }
        let absent: BTreeSet<String> = change.absent.into_iter().collect();
        let before = std::mem::replace(&mut *lock(&self.absent), absent.clone());
        if !absent.is_empty() && absent != before {
            tracing::warn!(
                %stamp, tenants = ?absent,
                "the plan has tenants that this host does not have; add them before their VMs"
            );
        }
        Ok(())
    }
}

/// Converts the controller's plan for this host to the terms that [`Host::set_fabric`] applies.
fn terms(plan: &HostPlan) -> Result<FabricTerms, SideError> {
    let mut uplinks = plan.uplinks.values();
    let PortState { weights, map } = uplinks.next().cloned().unwrap_or_default();
    if uplinks.next().is_some() {
        let switches: Vec<&str> = plan.uplinks.keys().map(String::as_str).collect();
        return Err(SideError(format!(
            "the topology has uplinks of this host to {}, but [fabric] has one; bond the links, \
             and write one link into the topology",
            switches.join(" and ")
        )));
    }
    let code_points = plan.tenants.iter().map(|tenant| (tenant.name.clone(), tenant.dscp));
    // The hosts limit the rates of tenants in the shared queue. While queues change hands, they
    // also limit tenants that have a queue.
    let (held, others): (Vec<_>, Vec<_>) =
        plan.tenants.iter().partition(|tenant| tenant.dscp == 0 || tenant.limited);
    let held = held.into_iter().map(|tenant| guarantees(tenant, tenant.headroom_permille));
    // When a tenant loses its queue, the controller first limits it without headroom.
    let measured = others.into_iter().map(|tenant| guarantees(tenant, 1_000));
    let (held, measured) = (held.collect(), measured.collect());
    Ok(FabricTerms { code_points: code_points.collect(), held, measured, weights, map })
}

/// Returns the name and the guarantees of a tenant.
fn guarantees(tenant: &HostTenant, headroom_permille: u32) -> (String, Held) {
    let &HostTenant { send, recv: receive, .. } = tenant;
    (tenant.name.clone(), Held { send, receive, headroom_permille })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_all_that_the_host_is_told() {
        let red = HostTenant {
            name: "red".into(),
            dscp: 8,
            send: 5,
            recv: 7,
            headroom_permille: 1_063,
            ..HostTenant::default()
        };
        let state = PortState { weights: vec![1, 9], map: [(8, 1)].into() };
        let mut plan = HostPlan { tenants: vec![red], ..HostPlan::default() };
        assert_eq!(terms(&plan).unwrap().map, BTreeMap::new());
        plan.uplinks.insert("rack-0".to_owned(), state.clone());
        let told = terms(&plan).unwrap();
        assert_eq!(told.code_points, [("red".to_owned(), 8)].into());
        assert_eq!((told.weights, told.map), (vec![1, 9], [(8, 1)].into()));
        assert!(told.held.is_empty(), "a tenant with a queue has no limit");
        let held = |headroom_permille| {
            BTreeMap::from([("red".to_owned(), Held { send: 5, receive: 7, headroom_permille })])
        };
        assert_eq!(told.measured, held(1_000), "its pairs are measured without headroom");
        plan.tenants[0].limited = true;
        let told = terms(&plan).unwrap();
        assert_eq!((told.held, told.measured), (held(1_063), BTreeMap::new()));
        plan.tenants[0].limited = false;
        plan.uplinks.insert("rack-1".to_owned(), state);
        let error = terms(&plan).unwrap_err().to_string();
        assert!(error.contains("rack-0 and rack-1"), "{error}");
    }
}
