//! Implements the switch's gRPC service and its access control.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::wire::SWITCH_BYTES_MAX;
use super::wire::v1::switch_service_server::{SwitchService, SwitchServiceServer};
use super::wire::v1::{self, Applied, Counters, State};
use super::{FabricSwitch, Refusal};
use crate::Stamp;
use crate::listen::{Door, Limits, Peer, ServeError, ServerTls, incoming};
use crate::southbound::Change;
use crate::wire::describe;

/// Clients that a switch accepts as controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// All clients that can connect to the Unix socket. Only the socket's owner can connect.
    Connected,
    /// Clients with a certificate that contains one of the listed names.
    Named(BTreeSet<String>),
}

#[derive(Clone, Debug)]
pub struct SwitchServer {
    switch: Arc<FabricSwitch>,
    who: Who,
}

impl SwitchServer {
    /// Creates a service through which the clients `who` control the switch.
    #[must_use]
    pub const fn new(switch: Arc<FabricSwitch>, who: Who) -> Self {
        Self { switch, who }
    }

    fn check<T>(&self, request: &Request<T>, meant: &str) -> Result<(), Status> {
        if let Who::Named(allowed) = &self.who {
            let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
            peer.admitted()?;
            let names = peer.names.as_deref().cloned().unwrap_or_default();
            if names.is_disjoint(allowed) {
                let list =
                    |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
                let text = format!(
                    "switch {}: the certificate is for {}; controllers of this switch are {}",
                    self.switch.name(),
                    list(&names),
                    list(allowed)
                );
                tracing::warn!("controller refused: {text}");
                return Err(Status::permission_denied(text));
            }
        }
        if meant != self.switch.name() {
            let own = self.switch.name();
            let text = format!(
                "this is switch {own}, not {meant}; correct the address of {meant}, or `name` in \
                 [switch]"
            );
            return Err(Status::not_found(text));
        }
        Ok(())
    }
}

fn failed(error: &dyn ToString) -> Status {
    Status::failed_precondition(error.to_string())
}

#[tonic::async_trait]
impl SwitchService for SwitchServer {
    async fn get_state(
        &self,
        request: Request<v1::GetStateRequest>,
    ) -> Result<Response<State>, Status> {
        self.check(&request, &request.get_ref().switch)?;
        if request.get_ref().run_only {
            let run = self.switch.run().to_owned();
            return Ok(Response::new(State { run, ..State::default() }));
        }
        let (can, state) = self.switch.state().await.map_err(|error| failed(&error))?;
        Ok(Response::new(State {
            stamp: Some(state.stamp.into()),
            ports: state.ports.iter().map(|(name, state)| v1::Port::of(name, state)).collect(),
            queues: can.queues.into(),
            weight_min: can.weights.0,
            weight_max: can.weights.1,
            run: self.switch.run().to_owned(),
        }))
    }

    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Result<Response<Applied>, Status> {
        self.check(&request, &request.get_ref().switch)?;
        let v1::ApplyRequest { stamp, changes, dry_run, .. } = request.into_inner();
        let stamp = Stamp::from(stamp.ok_or_else(|| Status::invalid_argument("no stamp"))?);
        let changes: Result<Vec<Change>, String> =
            changes.into_iter().map(Change::try_from).collect();
        let changes = changes.map_err(Status::invalid_argument)?;
        // The task completes the change even if the controller disconnects.
        let switch = Arc::clone(&self.switch);
        let done = tokio::spawn(async move { switch.apply(stamp, &changes, dry_run).await });
        match done.await.map_err(|error| Status::internal(error.to_string()))? {
            Ok(words) => Ok(Response::new(Applied { words, has: None })),
            Err(Refusal::Late(has)) => {
                Ok(Response::new(Applied { words: Vec::new(), has: Some(has.into()) }))
            }
            Err(Refusal::Beyond(text)) => Err(Status::invalid_argument(text)),
            Err(Refusal::Failed(text)) => Err(Status::failed_precondition(text)),
        }
    }

    async fn get_counters(
        &self,
        request: Request<v1::GetCountersRequest>,
    ) -> Result<Response<Counters>, Status> {
        self.check(&request, &request.get_ref().switch)?;
        let queues = self.switch.counters().await.map_err(|error| failed(&error))?;
        Ok(Response::new(Counters { queues: queues.into_iter().map(v1::Queue::from).collect() }))
    }
}

/// Implementation of [`Door`] that does not count refused clients, because the log contains each
/// refusal.
#[derive(Debug)]
struct Uncounted;

impl Door for Uncounted {
    fn refused(&self) {}

    fn crowded(&self) {}
}

/// Serves a switch to controllers with certificates until the future `stop` resolves.
///
/// # Errors
/// Returns an error if the listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    server: SwitchServer,
    tls: ServerTls,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    // A controller keeps one connection, and opens more if it sends several requests at once.
    let limits =
        Limits { connections: 256, descriptors: 8, per_certificate: 64, ..Limits::default() };
    let service = SwitchServiceServer::new(server)
        .max_decoding_message_size(SWITCH_BYTES_MAX)
        .max_encoding_message_size(SWITCH_BYTES_MAX);
    Server::builder()
        .max_concurrent_streams(limits.streams)
        .http2_keepalive_interval(Some(limits.ping_every))
        .http2_keepalive_timeout(Some(limits.ping_limit))
        .http2_max_header_list_size(16 << 10)
        .add_service(service)
        .serve_with_incoming_shutdown(
            incoming(listener, Some(tls), limits, Arc::new(Uncounted)),
            stop,
        )
        .await
        .map_err(|error| ServeError::Transport(describe(&error)))
}
