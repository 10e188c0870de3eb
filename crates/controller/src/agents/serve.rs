//! Serves agents on the controller's listening port.
//!
//! [`crate::listen`] decides which agents are admitted. When the controller stops, all sessions end
//! within `GRACE`.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::Server;

use super::registry::Registry;
use super::service::{AgentServer, Identity};
use crate::listen::{Door, Limits, ServeError, ServerTls, incoming};
use crate::wire::v1::agent_service_server::AgentServiceServer;
use crate::wire::{AGENT_BYTES_MAX, describe};

/// Time limit for the agents' sessions to end when the controller stops.
const GRACE: Duration = Duration::from_secs(3);

impl Door for Registry {
    fn refused(&self) {
        self.refused();
    }

    fn crowded(&self) {
        self.crowded();
    }
}

/// Serves agents until the future `stop` resolves, and then ends the agents' sessions.
///
/// # Errors
/// Returns an error if certificates are missing although agents must be authenticated, or if the
/// listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    server: AgentServer,
    tls: Option<ServerTls>,
    limits: Limits,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    if tls.is_none() && server.identity() == Identity::Certificate {
        return Err(ServeError::NoCertificates);
    }
    let registry = Arc::clone(server.registry());
    let incoming = incoming(listener, tls, limits, Arc::clone(&registry) as Arc<dyn Door>);
    let service = AgentServiceServer::new(server)
        .max_decoding_message_size(AGENT_BYTES_MAX)
        .max_encoding_message_size(AGENT_BYTES_MAX);
    let (stopped, stops) = oneshot::channel();
    let stop = async move {
        stop.await;
        registry.end_all();
        let _ = stopped.send(());
    };
    let serving = Server::builder()
        .max_concurrent_streams(limits.streams)
        .http2_keepalive_interval(Some(limits.ping_every))
        .http2_keepalive_timeout(Some(limits.ping_limit))
        .http2_max_header_list_size(16 << 10)
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, stop);
    let overdue = async {
        // Open sessions would keep the server running, so the server is dropped after `GRACE`.
        if stops.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        done = serving => done.map_err(|error| ServeError::Transport(describe(&error))),
        () = overdue => Ok(()),
    }
}
