//! The gRPC service. Each request is one call of [`Host`] on a thread that may block.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use penstock_control::host::{ApiError, ErrorKind, FdbFilter, Host, selected};
use penstock_control::{api, config};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{Parts, capture};
use crate::wire::host_service_server::HostService;
use crate::wire::{WATCH_MS_MAX, WATCH_MS_MIN};

#[derive(Debug)]
pub struct Service {
    host: Arc<Host>,
    parts: Parts,
    /// The value becomes true when the daemon shuts down, so that clients' watches end.
    stopping: watch::Receiver<bool>,
}

type Reply<T> = Result<Response<T>, Status>;

impl Service {
    #[must_use]
    pub const fn new(host: Arc<Host>, parts: Parts, stopping: watch::Receiver<bool>) -> Self {
        Self { host, parts, stopping }
    }

    /// Runs a call of the host on a thread that may block.
    async fn call<T, F>(&self, call: F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: FnOnce(&Host) -> T + Send + 'static,
    {
        let host = Arc::clone(&self.host);
        tokio::task::spawn_blocking(move || call(&host)).await.map_err(|error| {
            Status::internal(format!("daemon: internal error: {error}; see its log"))
        })
    }

    /// Runs a change of the configuration and logs the change.
    async fn change<F>(&self, call: F) -> Reply<api::ChangeReport>
    where
        F: FnOnce(&Host) -> Result<api::ChangeReport, ApiError> + Send + 'static,
    {
        let report = self.call(call).await?.map_err(|error| status(&error))?;
        super::log_change(&report);
        Ok(Response::new(report))
    }
}

/// Converts an error of the host to a gRPC status.
pub(super) fn status(error: &ApiError) -> Status {
    let text = error.to_string();
    match error.kind {
        ErrorKind::NotFound => Status::not_found(text),
        ErrorKind::Invalid => Status::invalid_argument(text),
        ErrorKind::Conflict => Status::already_exists(text),
        ErrorKind::Failed => Status::failed_precondition(text),
    }
}

/// Reads the TOML table of an object, such as a port. `what` names the object's kind in errors.
fn object<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, Status> {
    config::parse_object(what, text).map_err(|errors| status(&errors.into()))
}

fn text<T: Serialize>(object: &T) -> Result<String, Status> {
    toml::to_string(object).map_err(|error| Status::internal(format!("daemon: {error}")))
}

fn pairs(changes: Vec<api::KeyValue>) -> Vec<(String, String)> {
    changes.into_iter().map(|change| (change.key, change.value)).collect()
}

fn vlan(vlan: Option<u32>) -> Result<Option<u16>, Status> {
    vlan.map(|vlan| {
        u16::try_from(vlan).ok().filter(|vlan| *vlan <= 4094).ok_or_else(|| {
            Status::invalid_argument(format!("VLAN {vlan}: out of range; 0 (untagged) to 4094"))
        })
    })
    .transpose()
}

#[tonic::async_trait]
impl HostService for Service {
    async fn get_status(&self, _: Request<api::GetStatusRequest>) -> Reply<api::HostStatus> {
        let mut status = self.call(Host::status).await?;
        self.parts.enter(&mut status);
        Ok(Response::new(status))
    }

    async fn get_config(&self, _: Request<api::GetConfigRequest>) -> Reply<api::ConfigText> {
        Ok(Response::new(api::ConfigText { toml: self.call(Host::config_toml).await? }))
    }

    async fn check_config(
        &self,
        request: Request<api::ConfigText>,
    ) -> Reply<api::CheckConfigReply> {
        let text = request.into_inner().toml;
        let errors = match self.call(move |_| config::parse(&text, "")).await? {
            Ok(_) => Vec::new(),
            Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
        };
        Ok(Response::new(api::CheckConfigReply { errors }))
    }

    async fn reload(&self, _: Request<api::ReloadRequest>) -> Reply<api::ChangeReport> {
        let report = self.call(Host::reload).await?.map_err(|errors| {
            tracing::error!(mistakes = errors.0.len(), %errors, "configuration refused");
            Status::invalid_argument(errors.to_string())
        })?;
        super::log_change(&report);
        Ok(Response::new(report))
    }

    async fn list_ports(
        &self,
        request: Request<api::ListPortsRequest>,
    ) -> Reply<api::ListPortsReply> {
        let selectors = request.into_inner().selectors;
        let mut ports = self.call(Host::ports).await?;
        ports.retain(|port| selected(&selectors, &port.labels));
        Ok(Response::new(api::ListPortsReply { ports }))
    }

    async fn get_port(&self, request: Request<api::GetPortRequest>) -> Reply<api::GetPortReply> {
        let name = request.into_inner().name;
        let text_of_name = name.clone();
        let found = self
            .call(move |host| {
                let wanted = host.port_named(&text_of_name)?;
                let port = host.ports().into_iter().find(|port| port.name == wanted);
                let configured = host.port_configs().into_iter().find(|port| port.name == wanted);
                Ok((port, configured))
            })
            .await?;
        let (port, configured) = found.map_err(|error| status(&error))?;
        let (Some(port), Some(configured)) = (port, configured) else {
            return Err(Status::not_found(format!(
                "port \"{name}\": there is no such port; see `penstock port list`"
            )));
        };
        Ok(Response::new(api::GetPortReply { port: Some(port), toml: text(&configured)? }))
    }

    async fn add_port(&self, request: Request<api::AddObjectRequest>) -> Reply<api::ChangeReport> {
        let api::AddObjectRequest { toml, save } = request.into_inner();
        let port: config::Port = object("port", &config::current_port(&toml))?;
        self.change(move |host| host.add_port(port, save)).await
    }

    async fn set_port(&self, request: Request<api::SetObjectRequest>) -> Reply<api::ChangeReport> {
        let api::SetObjectRequest { name, changes, save } = request.into_inner();
        self.change(move |host| host.set_port(&host.port_named(&name)?, &pairs(changes), save))
            .await
    }

    async fn delete_port(
        &self,
        request: Request<api::DeleteObjectRequest>,
    ) -> Reply<api::ChangeReport> {
        let api::DeleteObjectRequest { name, save } = request.into_inner();
        self.change(move |host| host.del_port(&host.port_named(&name)?, save)).await
    }

    async fn list_tenants(
        &self,
        request: Request<api::ListTenantsRequest>,
    ) -> Reply<api::ListTenantsReply> {
        let selectors = request.into_inner().selectors;
        let (tenants, ports) = self.call(|host| (host.tenants(), host.port_configs())).await?;
        let listed = |tenant: config::Tenant| -> Result<api::Tenant, Status> {
            let own = ports.iter().filter(|port| port.tenant.as_ref() == Some(&tenant.name));
            let ports = own.map(|port| port.name.clone()).collect();
            let labels = tenant.labels.as_map().clone();
            Ok(api::Tenant { toml: text(&tenant)?, name: tenant.name, ports, labels })
        };
        let tenants = tenants
            .into_iter()
            .filter(|of| selected(&selectors, of.labels.as_map()))
            .map(listed)
            .collect::<Result<_, _>>()?;
        Ok(Response::new(api::ListTenantsReply { tenants }))
    }

    async fn add_tenant(
        &self,
        request: Request<api::AddObjectRequest>,
    ) -> Reply<api::ChangeReport> {
        let api::AddObjectRequest { toml, save } = request.into_inner();
        let tenant: config::Tenant = object("tenant", &toml)?;
        self.change(move |host| host.add_tenant(tenant, save)).await
    }

    async fn set_tenant(
        &self,
        request: Request<api::SetObjectRequest>,
    ) -> Reply<api::ChangeReport> {
        let api::SetObjectRequest { name, changes, save } = request.into_inner();
        self.change(move |host| host.set_tenant(&host.tenant_named(&name)?, &pairs(changes), save))
            .await
    }

    async fn delete_tenant(
        &self,
        request: Request<api::DeleteObjectRequest>,
    ) -> Reply<api::ChangeReport> {
        let api::DeleteObjectRequest { name, save } = request.into_inner();
        self.change(move |host| host.del_tenant(&host.tenant_named(&name)?, save)).await
    }

    async fn list_flows(&self, _: Request<api::ListFlowsRequest>) -> Reply<api::ListFlowsReply> {
        Ok(Response::new(api::ListFlowsReply { flows: self.call(Host::flows).await? }))
    }

    async fn add_flow(&self, request: Request<api::AddObjectRequest>) -> Reply<api::ChangeReport> {
        let api::AddObjectRequest { toml, save } = request.into_inner();
        let rule: config::Rule = object("rule", &toml)?;
        self.change(move |host| host.add_rule(rule, save)).await
    }

    async fn delete_flow(
        &self,
        request: Request<api::DeleteObjectRequest>,
    ) -> Reply<api::ChangeReport> {
        let api::DeleteObjectRequest { name, save } = request.into_inner();
        self.change(move |host| host.del_rule(&name, save)).await
    }

    async fn list_fdb(&self, _: Request<api::ListFdbRequest>) -> Reply<api::ListFdbReply> {
        let entries = self.call(|host| host.fdb(&FdbFilter::default())).await?;
        let entries = entries.map_err(|error| status(&error))?;
        Ok(Response::new(api::ListFdbReply { entries }))
    }

    async fn flush_fdb(&self, request: Request<api::FlushFdbRequest>) -> Reply<api::FlushFdbReply> {
        let request = request.into_inner();
        let vlan = vlan(request.vlan)?;
        let filter = FdbFilter { tenant: request.tenant, vlan, port: request.port };
        let flushed = self.call(move |host| host.fdb_flush(&filter)).await?;
        let flushed = flushed.map_err(|error| status(&error))?;
        tracing::info!(flushed, "learned addresses deleted");
        Ok(Response::new(api::FlushFdbReply {
            flushed: u64::try_from(flushed).unwrap_or(u64::MAX),
        }))
    }

    async fn get_stats(&self, request: Request<api::GetStatsRequest>) -> Reply<api::Stats> {
        let exact = request.into_inner().exact;
        let stats = self.call(move |host| host.stats(exact)).await?;
        Ok(Response::new(stats.map_err(|error| status(&error))?))
    }

    async fn explain(&self, request: Request<api::ExplainRequest>) -> Reply<api::Explanation> {
        let api::ExplainRequest { port, seconds } = request.into_inner();
        let seconds = if seconds == 0 { 3 } else { u64::from(seconds.min(10)) };
        let answer = self.call(move |host| host.explain(&host.port_named(&port)?, seconds)).await?;
        Ok(Response::new(answer.map_err(|error| status(&error))?))
    }

    type WatchStatsStream = Pin<Box<dyn Stream<Item = Result<api::Stats, Status>> + Send>>;

    async fn watch_stats(
        &self,
        request: Request<api::WatchStatsRequest>,
    ) -> Reply<Self::WatchStatsStream> {
        let interval_ms = request.into_inner().interval_ms;
        if !(WATCH_MS_MIN..=WATCH_MS_MAX).contains(&interval_ms) {
            return Err(Status::invalid_argument(format!(
                "watch: interval {interval_ms} ms is out of range; write {WATCH_MS_MIN} to \
                 {WATCH_MS_MAX}"
            )));
        }
        let (sender, receiver) = mpsc::channel(2);
        let feed = feed(
            Self::new(Arc::clone(&self.host), self.parts.clone(), self.stopping.clone()),
            Duration::from_millis(interval_ms.into()),
            sender,
        );
        tokio::spawn(feed);
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type CaptureStream = Pin<Box<dyn Stream<Item = Result<api::CapturedFrames, Status>> + Send>>;

    async fn capture(&self, request: Request<api::CaptureRequest>) -> Reply<Self::CaptureStream> {
        let request = request.into_inner();
        let host = Arc::clone(&self.host);
        // If the client leaves meanwhile, the value is dropped, and the capture ends.
        let start = move || capture::Running::start(host, &request);
        let running = tokio::task::spawn_blocking(start).await.map_err(|error| {
            Status::internal(format!("daemon: internal error: {error}; see its log"))
        })?;
        let running = running.map_err(|error| status(&error))?;
        let (sender, receiver) = mpsc::channel(capture::MESSAGES);
        tokio::spawn(capture::feed(running, self.stopping.clone(), sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// Sends readings until the client disconnects, an error occurs or the daemon stops. The daemon
/// buffers at most two readings for a client, so a slow client misses readings.
async fn feed(
    mut service: Service,
    interval: Duration,
    sender: mpsc::Sender<Result<api::Stats, Status>>,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = sender.closed() => return,
            _ = service.stopping.wait_for(|stopping| *stopping) => return,
        }
        let reading = match service.call(|host| host.stats(false)).await {
            Ok(Ok(stats)) => Ok(stats),
            Ok(Err(error)) => Err(status(&error)),
            Err(status) => Err(status),
        };
        let failed = reading.is_err();
        let sent = tokio::select! {
            sent = sender.send(reading) => sent,
            _ = service.stopping.wait_for(|stopping| *stopping) => return,
        };
        if failed || sent.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn each_kind_of_refusal_has_its_code_and_keeps_its_words() {
        let error = |kind| ApiError {
            kind,
            object: "port \"vm3\"".into(),
            problem: "there is no such port".into(),
            remedy: "see penstock port list".into(),
        };
        for (kind, code) in [
            (ErrorKind::NotFound, Code::NotFound),
            (ErrorKind::Invalid, Code::InvalidArgument),
            (ErrorKind::Conflict, Code::AlreadyExists),
            (ErrorKind::Failed, Code::FailedPrecondition),
        ] {
            let status = status(&error(kind));
            assert_eq!(status.code(), code);
            assert_eq!(
                status.message(),
                "port \"vm3\": there is no such port; see penstock port list"
            );
        }
    }

    #[test]
    fn an_object_that_does_not_read_is_named() {
        let error = object::<config::Tenant>("tenant", "name = \"red\"\ncolour = 1").unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().starts_with("tenant \"red\": unknown key `colour`;"), "{error}");
        assert!(object::<config::Tenant>("tenant", "name = ").is_err());
    }

    #[test]
    fn each_mistake_in_a_new_object_has_its_key_and_remedy() {
        let rule = "name = \"f\"\npriority = 99999999\nactions = [\"drop\"]";
        let error = object::<config::Rule>("rule", rule).unwrap_err();
        assert_eq!(
            error.message(),
            "rule \"f\": `priority`: 99999999 is out of range; write a whole number from 0 to 65535"
        );
        let port = "name = \"p\"\nvlan = 5000\ntap.interface = \"t\"\ntap.mode = 1\n";
        let error = object::<config::Port>("port", port).unwrap_err();
        let told: Vec<&str> = error.message().lines().collect();
        let [first, second] = told[..] else { panic!("{error}") };
        assert!(first.starts_with("port \"p\": `vlan`: VLAN 5000 is out of range;"), "{error}");
        assert!(second.starts_with("also: port \"p\": unknown key `mode`; known"), "{error}");
        let error = object::<config::Rule>("rule", "name = \"f\"").unwrap_err();
        assert_eq!(error.message(), "rule \"f\": `actions` is missing; add `actions = ...`");
    }

    #[test]
    fn a_vlan_out_of_range_is_refused() {
        assert_eq!(vlan(Some(4094)).unwrap(), Some(4094));
        assert_eq!(vlan(Some(4095)).unwrap_err().code(), Code::InvalidArgument);
    }
}
