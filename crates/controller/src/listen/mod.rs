//! Accepts connections from clients with certificates, within limits.
//!
//! - If a client shows no valid certificate within [`Limits::handshake`], the listener disconnects
//!   and counts the client.
//! - A certificate may have [`Limits::per_certificate`] connections, so a stolen certificate cannot
//!   use up all connections. If a certificate exceeds this limit, up to [`Limits::per_certificate`]
//!   further connections get an error from the service and end within [`TOLD_FOR`]. The listener
//!   drops all other connections with the same certificate.
//! - Every accepted connection has limits on the number of streams, on message sizes and on the
//!   time without traffic. A client that exceeds a limit loses only its own connection.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;

mod connection;
mod error;
mod gate;
mod peer;
mod places;
pub(crate) mod tls;

pub use connection::Connection;
pub use error::ServeError;
pub use gate::{ConnectionPermit, Gate, open_many};
pub use peer::Peer;
use peer::host_of_certificate;
use places::{Admission, Places};
pub use tls::{PemFiles, ServerTls};

/// Number of admitted connections that may wait for the service.
const BACKLOG: usize = 64;
/// Lifetime of a connection that exceeds its certificate's limit, so that the client can read the
/// error.
pub const TOLD_FOR: Duration = Duration::from_secs(2);

/// Limits of a listener on its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections at a time. Further connections wait until a slot is free.
    pub connections: usize,
    /// With the value N, connections use at most 1/N of the file descriptors that the process may
    /// have.
    pub descriptors: usize,
    /// Maximum number of connections with the same certificate. An agent has one connection, or two
    /// connections while the agent reconnects.
    pub per_certificate: usize,
    /// Time limit of a client's TLS handshake.
    pub handshake: Duration,
    /// Maximum number of streams of a connection. The connection of an agent has one stream.
    pub streams: u32,
    /// Time without traffic after which the server pings a client.
    pub ping_every: Duration,
    /// Time limit for a client's answer to a ping. The server notices a vanished client within the
    /// sum of `ping_every` and `ping_limit`.
    pub ping_limit: Duration,
}

impl Default for Limits {
    /// By default, the limits are 20,000 connections, half of the process's file descriptors, and 4
    /// connections for each certificate. By default, a handshake may take 5 s, a connection has 4
    /// streams, and the server notices a vanished client after 8 s.
    fn default() -> Self {
        let four = Duration::from_secs(4);
        Self {
            connections: 20_000,
            descriptors: 2,
            per_certificate: 4,
            handshake: Duration::from_secs(5),
            streams: 4,
            ping_every: four,
            ping_limit: four,
        }
    }
}

/// Counts the clients that a listener refuses.
pub trait Door: Send + Sync + fmt::Debug + 'static {
    /// Counts a client that showed no certificate or an invalid certificate.
    fn refused(&self);

    /// Counts a client whose certificate already has too many connections.
    fn crowded(&self);
}

/// Stream of the connections that a listener has accepted.
pub type Incoming = ReceiverStream<io::Result<Connection>>;

/// Admits connections until the caller drops the stream. TLS handshakes of several clients run
/// concurrently. If `tls` is `None`, the listener does not authenticate clients.
#[must_use]
pub fn incoming(
    listener: TcpListener,
    tls: Option<ServerTls>,
    limits: Limits,
    door: Arc<dyn Door>,
) -> Incoming {
    let (out, incoming) = mpsc::channel(BACKLOG);
    let mut gate = Gate::new("TLS port", listener, limits.connections, limits.descriptors);
    let hall = Arc::new(Hall { tls, limits, door, by_certificate: Places::default() });
    tokio::spawn(async move {
        loop {
            let (tcp, place) = tokio::select! {
                next = gate.next() => next,
                () = out.closed() => return,
            };
            let (out, hall) = (out.clone(), Arc::clone(&hall));
            let from = tcp.peer_addr().ok();
            tokio::spawn(async move {
                match hall.admit(tcp, place).await {
                    Ok(connection) => drop(out.send(Ok(connection)).await),
                    Err(problem) => tracing::warn!(?from, "connection refused: {problem}"),
                }
            });
        }
    });
    ReceiverStream::new(incoming)
}

/// Accepts connections on a Unix socket that only its owner can open. At most `connections`
/// connections are open at a time. If the process may open D file descriptors, at most D /
/// `descriptors` connections are open.
#[must_use]
pub fn local(listener: UnixListener, connections: usize, descriptors: usize) -> Incoming {
    let (out, incoming) = mpsc::channel(1);
    let mut gate = Gate::new("API socket", listener, connections, descriptors);
    tokio::spawn(async move {
        loop {
            let (stream, place) = tokio::select! {
                next = gate.next() => next,
                () = out.closed() => return,
            };
            let connection = Connection::new(stream, Peer::default(), place);
            if out.send(Ok(connection)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(incoming)
}

/// State that all connections of a listener share.
#[derive(Debug)]
struct Hall {
    tls: Option<ServerTls>,
    limits: Limits,
    door: Arc<dyn Door>,
    by_certificate: Places,
}

impl Hall {
    /// Authenticates a connection and takes a slot of its certificate. If the listener refuses the
    /// connection, the error has the reason.
    async fn admit(&self, tcp: TcpStream, place: ConnectionPermit) -> Result<Connection, String> {
        let Some(tls) = &self.tls else {
            return Ok(Connection::new(tcp, Peer::default(), place));
        };
        let shaken = TlsAcceptor::from(tls.current()).accept(tcp);
        let refused = |problem: String| {
            self.door.refused();
            problem
        };
        let stream = match tokio::time::timeout(self.limits.handshake, shaken).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(refused(error.to_string())),
            Err(_) => return Err(refused("the TLS handshake took too long".to_owned())),
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(|shown| shown.first());
        let Some(certificate) = shown else {
            return Err(refused("the client has shown no certificate".to_owned()));
        };
        let names = Some(Arc::new(host_of_certificate(certificate)));
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let chain: Vec<_> = chain.iter().map(|one| one.clone().into_owned()).collect();
        let limit = self.limits.per_certificate;
        match self.by_certificate.take(tls::fingerprint(certificate), limit) {
            Admission::Fits(held) => {
                let (tls, whose) = (tls.clone(), names.clone());
                let end = async move {
                    tls.revoked(chain).await;
                    tracing::warn!(?whose, "connection ended: the peer's certificate is revoked");
                };
                let peer = Peer { names, crowded: None };
                Ok(Connection::new(stream, peer, (place, held)).ending_with(end))
            }
            Admission::Crowded(held) => {
                self.door.crowded();
                tracing::warn!(?names, limit, "too many connections with this certificate");
                let peer = Peer { names, crowded: Some(limit) };
                Ok(Connection::new(stream, peer, (place, held)).ending_with(sleep(TOLD_FOR)))
            }
            Admission::Full => {
                self.door.crowded();
                Err(format!(
                    "more than twice {limit} connections with the certificate of {names:?}"
                ))
            }
        }
    }
}
