//! A connection to a controller.

use std::path::Path;
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::{AgentSettings, AgentTls};
use crate::wire::describe;

/// How often a connection is asked whether it lives, and how long it may take to say so: a
/// controller that vanished is noticed within their sum.
const PING_EVERY: Duration = Duration::from_secs(4);
const PING_LIMIT: Duration = Duration::from_secs(4);

/// Connects; what went wrong, otherwise.
pub(super) async fn connect(settings: &AgentSettings, named: &str) -> Result<Channel, String> {
    let uri = settings.uri(named)?;
    let endpoint = Endpoint::from_shared(uri).map_err(|error| describe(&error))?;
    let mut endpoint = endpoint
        .connect_timeout(settings.connect_limit)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_LIMIT)
        .keep_alive_while_idle(true);
    if let Some(tls) = &settings.tls {
        let config = client(tls).await?;
        endpoint = endpoint.tls_config(config).map_err(|error| {
            format!("{}; certificates and keys are PEM files", describe(&error))
        })?;
    }
    // The limit of a connection does not cover its TLS handshake.
    match tokio::time::timeout(settings.connect_limit, endpoint.connect()).await {
        Ok(channel) => channel.map_err(|error| describe(&error)),
        Err(_) => Err(format!("no connection within {:?}", settings.connect_limit)),
    }
}

async fn client(tls: &AgentTls) -> Result<ClientTlsConfig, String> {
    let ca = Certificate::from_pem(read(&tls.ca).await?);
    let identity = Identity::from_pem(read(&tls.certificate).await?, read(&tls.key).await?);
    let config = ClientTlsConfig::new().ca_certificate(ca).identity(identity);
    Ok(config.domain_name(&tls.server_name))
}

async fn read(path: &Path) -> Result<Vec<u8>, String> {
    tokio::fs::read(path).await.map_err(|error| format!("{}: {error}", path.display()))
}
