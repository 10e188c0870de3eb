//! The port that agents connect to: certificates, limits, and who is not let in.
//!
//! **Rule.** Who has not shown a certificate of the authority within [`Limits::handshake`] is sent
//! away and counted. Of all others each has a bounded number of streams, of bytes in a message and
//! of time to show that it lives; whoever breaks a bound loses its connection and nobody else's.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use super::{AgentServer, Identity, Registry};
use crate::wire::v1::agent_service_server::AgentServiceServer;
use crate::wire::{AGENT_BYTES_MAX, describe};

/// Connections that have been accepted and wait to be served.
const BACKLOG: usize = 64;
/// After an error of accepting, as when there are no more descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// How long sessions have to end when the controller does.
const GRACE: Duration = Duration::from_secs(3);

/// What one controller takes from agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; more wait to be accepted.
    pub connections: usize,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// Streams of one connection. An agent has one.
    pub streams: u32,
    /// Without a sign of life for so long an agent is asked for one ...
    pub ping_every: Duration,
    /// ... and has so long to give it: an agent that vanished is noticed within their sum.
    pub ping_limit: Duration,
}

impl Default for Limits {
    /// 20,000 connections, 5 s for a handshake, 4 streams, and 8 s until a dead agent is noticed.
    fn default() -> Self {
        let four = Duration::from_secs(4);
        Self {
            connections: 20_000,
            handshake: Duration::from_secs(5),
            streams: 4,
            ping_every: four,
            ping_limit: four,
        }
    }
}

/// Certificates of a controller.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
}

/// The key stays out of logs.
impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

/// Why agents are not served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Of the certificates or the key.
    #[error("{what}: {problem}; give it as a PEM file")]
    Certificate {
        /// Which.
        what: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Nobody could be let in.
    #[error("agents must show certificates, and there are none to check them by; name the files")]
    NoCertificates,
    /// The port.
    #[error("agents cannot be served: {0}")]
    Transport(String),
}

impl ServerTls {
    /// From the contents of PEM files: the authority that signs agents' certificates, this
    /// controller's certificate with those between it and the authority, and its key.
    ///
    /// # Errors
    /// One of them is not what it should be.
    pub fn new(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Self, ServeError> {
        let wrong = |what, error: &dyn std::error::Error| {
            let problem = describe(error);
            ServeError::Certificate { what, problem }
        };
        let (ca_is, certificate_is) = ("the authority's certificate", "the certificate");
        let read = |what, pem| -> Result<Vec<CertificateDer<'static>>, ServeError> {
            let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            all.map_err(|error| wrong(what, &error))
        };
        let mut roots = RootCertStore::empty();
        for root in read(ca_is, ca)? {
            roots.add(root).map_err(|error| wrong(ca_is, &error))?;
        }
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let verifier = verifier.build().map_err(|error| wrong(ca_is, &error))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong("the key", &error))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(certificate_is, &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(read(certificate_is, certificate)?, key);
        let mut config = config.map_err(|error| wrong(certificate_is, &error))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { config: Arc::new(config) })
    }
}

/// Serves agents until `stop`; then sessions end.
///
/// # Errors
/// Without certificates when agents are to be known by theirs; or when the port is of no use.
pub async fn serve(
    listener: TcpListener,
    server: AgentServer,
    tls: Option<ServerTls>,
    limits: Limits,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let registry = Arc::clone(server.registry());
    match tls {
        Some(tls) => {
            let acceptor = TlsAcceptor::from(tls.config);
            let shake = move |tcp: TcpStream| {
                let acceptor = acceptor.clone();
                async move { acceptor.accept(tcp).await }
            };
            let incoming = accept(listener, limits, Arc::clone(&registry), shake);
            run(incoming, server, limits, stop).await
        }
        None if server.identity() == Identity::Certificate => Err(ServeError::NoCertificates),
        None => {
            let shake = |tcp: TcpStream| async { Ok(tcp) };
            let incoming = accept(listener, limits, Arc::clone(&registry), shake);
            run(incoming, server, limits, stop).await
        }
    }
}

type Incoming<T> = ReceiverStream<io::Result<Held<T>>>;

/// Takes connections in, each with a handshake of its own, until nobody takes them any more.
fn accept<T, F>(
    listener: TcpListener,
    limits: Limits,
    registry: Arc<Registry>,
    shake: impl Fn(TcpStream) -> F + Send + 'static,
) -> Incoming<T>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    let (out, incoming) = mpsc::channel(BACKLOG);
    let places = Arc::new(Semaphore::new(limits.connections));
    tokio::spawn(async move {
        loop {
            let next = async {
                let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
                Ok::<_, io::Error>((listener.accept().await?, place))
            };
            let next = tokio::select! {
                next = next => next,
                () = out.closed() => return,
            };
            let ((tcp, from), place) = match next {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (out, registry) = (out.clone(), Arc::clone(&registry));
            let _ = tcp.set_nodelay(true);
            let shaken = tokio::time::timeout(limits.handshake, shake(tcp));
            tokio::spawn(async move {
                let problem = match shaken.await {
                    Ok(Ok(inner)) => {
                        let _ = out.send(Ok(Held { inner, _place: place })).await;
                        return;
                    }
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "the handshake took too long".to_owned(),
                };
                registry.refused();
                tracing::warn!(%from, "agent refused: {problem}");
            });
        }
    });
    ReceiverStream::new(incoming)
}

async fn run<T>(
    incoming: Incoming<T>,
    server: AgentServer,
    limits: Limits,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError>
where
    T: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let registry = Arc::clone(server.registry());
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
        // Dropped without a word: it does not stop.
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

/// A connection with its place among those that there may be.
struct Held<T> {
    inner: T,
    _place: OwnedSemaphorePermit,
}

impl<T: Connected> Connected for Held<T> {
    type ConnectInfo = T::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.inner.connect_info()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Held<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Held<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}
