//! Opens the connections of an agent to its controllers.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, Error as TlsError};
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use super::{AgentSettings, AgentTls};
use crate::listen::tls::{chain, lists, roots};
use crate::wire::describe;

/// Time between two keep-alive pings to the controller. The agent notices a vanished controller
/// within `PING_EVERY` plus `PING_LIMIT`.
const PING_EVERY: Duration = Duration::from_secs(4);
const PING_LIMIT: Duration = Duration::from_secs(4);

pub(super) async fn connect(settings: &AgentSettings, named: &str) -> Result<Channel, String> {
    let uri = settings.uri(named)?;
    // The connector below adds TLS.
    let endpoint = Endpoint::from_shared(uri.replacen("https://", "http://", 1));
    let endpoint = endpoint.map_err(|error| describe(&error))?;
    let endpoint = endpoint
        .connect_timeout(settings.connect_limit)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_LIMIT)
        .keep_alive_while_idle(true);
    let connected = async {
        let Some(tls) = &settings.tls else {
            return endpoint.connect().await.map_err(|error| describe(&error));
        };
        let (connector, name) = client(tls).await?;
        let encrypted = service_fn(move |uri: Uri| {
            let (connector, name) = (connector.clone(), name.clone());
            async move {
                let host = uri.host().unwrap_or_default();
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let tcp = TcpStream::connect((host, uri.port_u16().unwrap_or(443))).await?;
                tcp.set_nodelay(true)?;
                Ok::<_, io::Error>(TokioIo::new(connector.connect(name, tcp).await?))
            }
        });
        endpoint.connect_with_connector(encrypted).await.map_err(|error| describe(&error))
    };
    // `connect_timeout` does not cover the TLS handshake.
    match tokio::time::timeout(settings.connect_limit, connected).await {
        Ok(channel) => channel,
        Err(_) => Err(format!("no connection within {:?}", settings.connect_limit)),
    }
}

/// Returns the TLS connector, and the DNS name that the controller's certificate must contain.
async fn client(tls: &AgentTls) -> Result<(TlsConnector, ServerName<'static>), String> {
    let (ca, crl) = (read(&tls.ca).await?, tls.crl.as_deref());
    let (certificate, key) = (read(&tls.certificate).await?, read(&tls.key).await?);
    let of = |path: &Path, problem: String| {
        format!("{}: {problem}; use PEM files for certificates and keys", path.display())
    };
    let of_tls = |path: &Path, error: TlsError| of(path, describe(&error));
    let revoked = match crl {
        Some(path) => lists(crl, &read(path).await?).map_err(|error| error.to_string())?,
        None => Vec::new(),
    };
    let provider = Arc::new(ring::default_provider());
    let roots = Arc::new(roots(&ca).map_err(|error| of_tls(&tls.ca, error))?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
        .with_crls(revoked)
        .build()
        .map_err(|error| of(crl.unwrap_or(&tls.ca), describe(&error)))?;
    let chain = chain(&certificate).map_err(|error| of(&tls.certificate, describe(&error)))?;
    let key =
        PrivateKeyDer::from_pem_slice(&key).map_err(|error| of(&tls.key, describe(&error)))?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| of_tls(&tls.ca, error))?
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(chain, key);
    let mut config = config.map_err(|error| of_tls(&tls.certificate, error))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(tls.server_name.clone())
        .map_err(|error| format!("server_name {}: {error}", tls.server_name))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

async fn read(path: &Path) -> Result<Vec<u8>, String> {
    tokio::fs::read(path).await.map_err(|error| format!("{}: {error}", path.display()))
}
