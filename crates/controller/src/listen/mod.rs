//! A port for clients with certificates: admission and limits.
//!
//! A client that shows no valid certificate within [`Limits::handshake`] is disconnected and
//! counted. A certificate has a bounded number of connections ([`Limits::per_certificate`]), so
//! that a stolen one cannot use all places. The first connections beyond that get an error from the
//! service and end within [`TOLD_FOR`]; further ones are dropped. Every admitted connection has
//! limits on streams, message sizes and signs of life. A client that exceeds a limit loses only its
//! own connection.

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

/// Accepted connections that wait to be served.
const BACKLOG: usize = 64;
/// Time in which a connection beyond the limit may read its error.
pub const TOLD_FOR: Duration = Duration::from_secs(2);

/// Limits of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. Others wait to be accepted.
    pub connections: usize,
    /// Number of the process's descriptors per connection.
    pub descriptors: usize,
    /// Connections with the same certificate. An agent has one, and two while it reconnects.
    pub per_certificate: usize,
    /// Time limit of a TLS handshake.
    pub handshake: Duration,
    /// Streams of a connection. An agent has one.
    pub streams: u32,
    /// Time without traffic after which a client is pinged.
    pub ping_every: Duration,
    /// Time limit for its answer. A vanished client is noticed within the sum of both.
    pub ping_limit: Duration,
}

impl Default for Limits {
    /// 20,000 connections and half of the descriptors, 4 connections per certificate, 5 s for a
    /// handshake, 4 streams, and 8 s until a vanished client is noticed.
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

/// Counts clients that are not admitted.
pub trait Door: Send + Sync + fmt::Debug + 'static {
    /// A client showed no certificate or an invalid one.
    fn refused(&self);

    /// A client has too many connections already.
    fn crowded(&self);
}

/// A stream of admitted connections.
pub type Incoming = ReceiverStream<io::Result<Connection>>;

/// Admits connections, with concurrent handshakes, until the stream is dropped. Without `tls`,
/// clients are not authenticated.
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

/// Admits connections of a socket that only its owner can open: at most `connections`, and one for
/// each `descriptors` that the process may have.
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

/// State common to all connections of a port.
#[derive(Debug)]
struct Hall {
    tls: Option<ServerTls>,
    limits: Limits,
    door: Arc<dyn Door>,
    by_certificate: Places,
}

impl Hall {
    /// Authenticates a connection and finds a place for it. The error says why it is not admitted.
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
            Err(_) => return Err(refused("the handshake took too long".to_owned())),
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(|shown| shown.first());
        let Some(certificate) = shown else {
            return Err(refused("it has shown no certificate".to_owned()));
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
                    tracing::warn!(?whose, "connection ended: its certificate is revoked");
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
