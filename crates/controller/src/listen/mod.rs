//! A port that is served to whoever shows a certificate: limits, and who is not let in.
//!
//! **Rule.** Who has not shown a certificate of the authority within [`Limits::handshake`] is sent
//! away and counted. A certificate has a bounded number of connections
//! ([`Limits::per_certificate`]), so that one that was stolen cannot take all places: the first
//! ones too many are told so, by the service, and end within [`TOLD_FOR`]; more are dropped. Of all
//! others each has a bounded number of streams, of bytes in a message and of time to show that it
//! lives; whoever breaks a bound loses its connection and nobody else's.

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
pub use gate::{Gate, Place, open_many};
pub use peer::Peer;
use peer::host_of_certificate;
use places::{Admission, Places};
pub use tls::{PemFiles, ServerTls};

/// Connections that have been accepted and wait to be served.
const BACKLOG: usize = 64;
/// How long who is one too many has to hear it.
pub const TOLD_FOR: Duration = Duration::from_secs(2);

/// What one port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; more wait to be accepted.
    pub connections: usize,
    /// Of each so many descriptors that the process may have, one at most is for a connection.
    pub descriptors: usize,
    /// Of these, with the same certificate. An agent has one, and two while it connects again.
    pub per_certificate: usize,
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
    /// 20,000 connections and half of the descriptors, 4 with the same certificate, 5 s for a
    /// handshake, 4 streams, and 8 s until a dead agent is noticed.
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

/// Who counts those that are not let in.
pub trait Door: Send + Sync + fmt::Debug + 'static {
    /// Who has shown nothing, or what is not believed.
    fn refused(&self);

    /// Who has too many connections already.
    fn crowded(&self);
}

/// Connections that are let in, as they come.
pub type Incoming = ReceiverStream<io::Result<Connection>>;

/// Takes connections in, each with a handshake of its own, until nobody takes them any more.
/// Without `tls` nobody shows anything.
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

/// Takes in the connections of a socket that is its owner's alone: at most `connections`, and one
/// for each `descriptors` that the process may have.
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

/// What all connections of a port have in common.
#[derive(Debug)]
struct Hall {
    tls: Option<ServerTls>,
    limits: Limits,
    door: Arc<dyn Door>,
    by_certificate: Places,
}

impl Hall {
    /// Who it is, and whether there is a place; why not, otherwise.
    async fn admit(&self, tcp: TcpStream, place: Place) -> Result<Connection, String> {
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
