//! Lets controllers configure the queues of the daemon's ports, so that the daemon is a switch of a
//! fabric.
//!
//! # Approach
//!
//! [`FabricSwitch`] receives a controller's decisions, refuses outdated decisions, and saves the
//! last decision. This module connects the [`FabricSwitch`] to the running [`Host`]. Controllers
//! connect to the API's socket, which only its owner may open, or to `listen`, which requires
//! mutual TLS. After a restart, the switch applies the saved decision before the first request.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use penstock_control::api::{NamedCount, QueueStatus, SwitchStatus};
use penstock_control::config::HostConfig;
use penstock_control::host::{ApiError, Host, PortQueues, SwitchPort};
use penstock_controller::agent::SideError;
use penstock_controller::agents::{PemFiles, ServerTls};
use penstock_controller::southbound::{PortState, QueueCounters};
use penstock_controller::switch::wire::SWITCH_BYTES_MAX;
use penstock_controller::switch::wire::v1::switch_service_server::SwitchServiceServer;
use penstock_controller::switch::{self, FabricSwitch, PortReading, SwitchServer, SwitchSide, Who};
use tokio::sync::watch;

/// Interval between two checks of the certificate files.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A switch of a fabric that does not serve controllers yet.
#[derive(Debug)]
pub struct Switch {
    inner: Arc<FabricSwitch>,
    door: Option<Door>,
}

/// Listener for controllers from the network.
#[derive(Debug)]
struct Door {
    listener: TcpListener,
    tls: ServerTls,
    who: Who,
}

#[derive(Clone, Debug)]
pub struct Switched(Arc<FabricSwitch>);

/// Returns the queues that a controller set on this host before its restart, if this host is a
/// switch. The host starts with these queues.
pub fn queues_before(config: &HostConfig, directory: &Path) -> BTreeMap<String, PortQueues> {
    let Some(terms) = config.switch_terms(directory) else { return BTreeMap::new() };
    queues_of(&switch::saved_ports(&terms.name, &terms.plan))
}

/// Converts the states of ports to queues of the host's ports.
fn queues_of(ports: &BTreeMap<String, PortState>) -> BTreeMap<String, PortQueues> {
    let queues = |(name, state): (&String, &PortState)| {
        let queues = PortQueues { weights: state.weights.clone(), map: state.map.clone() };
        (name.clone(), queues)
    };
    ports.iter().map(queues).collect()
}

/// Creates the switch of this host; `None` if the configuration has no `[switch]`.
///
/// # Errors
/// Returns an error if the folder of the decision cannot be created, the certificates cannot be
/// read, or the address is taken.
pub fn become_one(host: &Arc<Host>, directory: &Path) -> Result<Option<Switch>> {
    let Some(terms) = host.config().switch_terms(directory) else { return Ok(None) };
    if let Some(folder) = terms.plan.parent() {
        std::fs::create_dir_all(folder).with_context(|| {
            format!("[switch] plan: folder {} cannot be created; change `plan`", folder.display())
        })?;
    }
    let side = Arc::new(Side { host: Arc::clone(host) });
    let inner = Arc::new(FabricSwitch::new(&terms.name, &terms.plan, side));
    let door = terms.listen.map(|(address, tls)| {
        let listener = TcpListener::bind(address).with_context(|| {
            format!(
                "[switch] listen {address}: cannot listen; stop the process that listens, or \
                 change the address"
            )
        })?;
        listener.set_nonblocking(true).with_context(|| format!("[switch] listen {address}"))?;
        let files = PemFiles { ca: tls.ca, certificate: tls.cert, key: tls.key, crl: tls.crl };
        let who = Who::Named(tls.controllers.into_iter().collect());
        let tls = ServerTls::open(files).context("[switch] tls")?;
        anyhow::Ok(Door { listener, tls, who })
    });
    Ok(Some(Switch { inner, door: door.transpose()? }))
}

impl Switch {
    /// Returns a handle to this switch for the status and the API.
    #[must_use]
    pub fn seen(&self) -> Switched {
        Switched(Arc::clone(&self.inner))
    }

    /// Applies the saved decision after a restart. If the switch cannot apply a part of a decision,
    /// a controller repairs the switch later.
    pub async fn take_up(&self) {
        let name = self.inner.name();
        match self.inner.take_up().await {
            Ok(Some(stamp)) => {
                tracing::info!(switch = name, %stamp, "the stored decision is in force again")
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(
                    switch = name,
                    "the decision from before the restart cannot be restored: {error}"
                );
            }
        }
    }

    /// Serves controllers from the network until `stopping` is true. If a decision was not saved,
    /// the function also repeats the attempt to save the decision.
    ///
    /// # Errors
    /// Returns an error if the listener for controllers failed.
    pub async fn serve(self, mut stopping: watch::Receiver<bool>) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let mut stopped = stopping.clone();
        let stop = async move {
            let _ = stopped.wait_for(|stopping| *stopping).await;
        };
        let network = async {
            let Some(Door { listener, tls, who }) = self.door else {
                let _ = stopping.wait_for(|stopping| *stopping).await;
                return Ok(());
            };
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let server = SwitchServer::new(Arc::clone(&inner), who);
            tokio::select! {
                served = switch::serve(listener, server, tls.clone(), stop) => Ok(served?),
                () = tls.watch(LOOK_EVERY) => Ok(()),
            }
        };
        tokio::select! {
            served = network => served,
            () = inner.make_up() => Ok(()),
        }
    }
}

impl Switched {
    #[must_use]
    pub fn service(&self) -> SwitchServiceServer<SwitchServer> {
        SwitchServiceServer::new(SwitchServer::new(Arc::clone(&self.0), Who::Connected))
            .max_decoding_message_size(SWITCH_BYTES_MAX)
            .max_encoding_message_size(SWITCH_BYTES_MAX)
    }

    #[must_use]
    pub fn status(&self) -> SwitchStatus {
        let status = self.0.status().borrow().clone();
        SwitchStatus {
            name: self.0.name().to_owned(),
            told: status.stamp.to_string(),
            unkept: status.unkept,
            last_error: status.last_error.unwrap_or_default(),
            counters: [
                ("applied", status.applied),
                ("late", status.late),
                ("failed", status.failed),
            ]
            .map(|(name, value)| NamedCount::new(name, value))
            .into(),
        }
    }
}

#[derive(Debug)]
struct Side {
    host: Arc<Host>,
}

impl Side {
    /// Runs a call of the host on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Host) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, SideError> {
        let host = Arc::clone(&self.host);
        let done = tokio::task::spawn_blocking(move || call(&host)).await;
        let done = done.map_err(|error| SideError(format!("internal error: {error}")))?;
        done.map_err(|error| SideError(error.to_string()))
    }
}

#[tonic::async_trait]
impl SwitchSide for Side {
    async fn read(&self) -> Result<BTreeMap<String, PortReading>, SideError> {
        Ok(self.blocking(Host::switch_ports).await?.into_iter().map(reading).collect())
    }

    async fn apply(&self, ports: &BTreeMap<String, PortState>) -> Result<(), SideError> {
        let ports = queues_of(ports);
        let changes = self.blocking(move |host| host.set_switch(&ports)).await?;
        if !changes.is_empty() {
            tracing::info!(?changes, "a controller set the queues of ports");
        }
        Ok(())
    }
}

/// Converts a port to the reading that controllers receive.
fn reading(port: SwitchPort) -> (String, PortReading) {
    // The API has wider integers for the numbers of queues and code points.
    let narrow = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    let counters = |queue: &QueueStatus| QueueCounters {
        port: port.name.clone(),
        queue: narrow(queue.queue),
        packets: queue.frames,
        bytes: queue.bytes,
        dropped: queue.drops,
        waiting: Some(queue.backlog_frames),
    };
    let own = port.queues.iter().filter(|queue| queue.queue != 0);
    let state = PortState {
        weights: port.queues.iter().map(|queue| queue.weight).collect(),
        map: own
            .flat_map(|q| q.dscps.iter().map(|dscp| (narrow(*dscp), narrow(q.queue))))
            .collect(),
    };
    let reading = PortReading {
        queues: u8::try_from(port.queues.len()).unwrap_or(u8::MAX),
        state,
        counters: port.queues.iter().map(counters).collect(),
    };
    (port.name, reading)
}
