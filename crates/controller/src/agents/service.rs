//! Implements the controller's gRPC service for agents.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use penstock_units::NODE_BYTES_MAX;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status, Streaming};

use super::registry::{QUEUE, Registry, Violation};
use super::turn::Turn;
use crate::Stamp;
use crate::listen::Peer;
use crate::wire::v1::agent_message::Message as FromAgent;
use crate::wire::v1::agent_service_server::AgentService;
use crate::wire::v1::controller_message::Message as ToAgent;
use crate::wire::v1::{self, AgentMessage, ControllerMessage};

/// Time limit for an agent's first message.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// Leadership: whether this controller or another controller leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leading {
    /// This controller leads, and its decisions have the stamp (term and number) in the variant or
    /// a later stamp.
    Here(Stamp),
    /// Another controller leads. The variant has the address of the leading controller, or an empty
    /// text if the address is unknown.
    Elsewhere(String),
}

/// Method by which the controller authenticates agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The certificate of an agent must contain the host's name.
    Certificate,
    /// Agents are not authenticated, which is only for tests and for a single machine.
    Trusted,
}

#[derive(Clone, Debug)]
pub struct AgentServer {
    registry: Arc<Registry>,
    leading: watch::Receiver<Leading>,
    identity: Identity,
    report_millis: u64,
}

type Out = Pin<Box<dyn Stream<Item = Result<ControllerMessage, Status>> + Send>>;

impl AgentServer {
    /// Creates a service that adds sessions to `registry` only while `leading` is
    /// [`Leading::Here`].
    #[must_use]
    pub fn new(
        registry: Arc<Registry>,
        leading: watch::Receiver<Leading>,
        identity: Identity,
        report_millis: u64,
    ) -> Self {
        Self { registry, leading, identity, report_millis }
    }

    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Checks that one of the names in the client's certificate is the host's name.
    fn check(&self, host: &str, names: Option<&BTreeSet<String>>) -> Result<(), Violation> {
        if self.identity == Identity::Trusted {
            return Ok(());
        }
        let known = names.is_some_and(|names| names.contains(host));
        let shown =
            || names.map_or_else(String::new, |n| n.iter().cloned().collect::<Vec<_>>().join(", "));
        let host = || host.chars().take(NODE_BYTES_MAX).collect();
        known
            .then_some(())
            .ok_or_else(|| Violation::WrongCertificate { host: host(), names: shown() })
    }

    fn refuse(&self, violation: &Violation) -> Status {
        tracing::warn!("agent refused: {violation}");
        let text = violation.to_string();
        match violation {
            Violation::UnknownHost(_) => Status::not_found(text),
            Violation::WrongCertificate { .. } => Status::permission_denied(text),
            Violation::Later { .. } => Status::failed_precondition(text),
            Violation::Protocol { .. } => Status::invalid_argument(text),
        }
    }

    async fn begin(
        &self,
        names: Option<BTreeSet<String>>,
        mut from: Streaming<AgentMessage>,
    ) -> Result<Out, Status> {
        let Ok(first) = timeout(HELLO_LIMIT, from.message()).await else {
            self.registry.refused();
            return Err(Status::deadline_exceeded("no `hello` in time"));
        };
        let first = first.inspect_err(|status| self.count_malformed(status))?;
        let first = first.and_then(|message| message.message);
        let Some(FromAgent::Hello(hello)) = first else {
            self.registry.refused();
            return Err(Status::invalid_argument("the first message must be `hello`"));
        };
        if let Err(violation) = self.check(&hello.host, names.as_ref()) {
            self.registry.refused();
            return Err(self.refuse(&violation));
        }
        let ours = match self.leading.borrow().clone() {
            Leading::Here(stamp) => stamp,
            Leading::Elsewhere(leader) => {
                let message = Some(ToAgent::Elsewhere(v1::Elsewhere { leader }));
                let only = tokio_stream::once(Ok(ControllerMessage { message }));
                return Ok(Box::pin(only));
            }
        };
        let (host, has) = (hello.host, Stamp::from(hello.has.unwrap_or_default()));
        if has.epoch > ours.epoch {
            self.registry.is_later(&host, has);
            return Err(self.refuse(&Violation::Later { host, has, ours }));
        }
        let (number, messages) = self.registry.begin(&host, has).map_err(|v| self.refuse(&v))?;
        tracing::info!(host, version = hello.version, %has, "agent connected");
        let (out, to_agent) = mpsc::channel(QUEUE);
        let server = self.clone();
        tokio::spawn(async move { server.session(&host, number, from, messages, out).await });
        let welcome = v1::Welcome { epoch: ours.epoch, report_millis: self.report_millis };
        let welcome = ControllerMessage { message: Some(ToAgent::Welcome(welcome)) };
        let rest = ReceiverStream::new(to_agent);
        Ok(Box::pin(tokio_stream::once(Ok(welcome)).chain(rest)))
    }

    /// Runs a session until either side ends it, the agent violates a rule, or this controller no
    /// longer leads.
    async fn session(
        &self,
        host: &str,
        number: u64,
        mut from: Streaming<AgentMessage>,
        mut messages: mpsc::Receiver<ControllerMessage>,
        out: mpsc::Sender<Result<ControllerMessage, Status>>,
    ) {
        let mut leading = self.leading.clone();
        let mut turn = Turn::new(self.report_millis, Instant::now());
        let end = loop {
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => {
                        turn.tell();
                        if out.send(Ok(message)).await.is_err() {
                            break None;
                        }
                    }
                    None => {
                        let why = "the host began another session, or read no messages";
                        break Some(Status::aborted(why));
                    }
                },
                heard = from.message() => match heard {
                    Ok(Some(message)) => {
                        if let Err(violation) = self.hear(host, number, message, &mut turn) {
                            break Some(self.refuse(&violation));
                        }
                    }
                    Ok(None) => break None,
                    Err(status) => {
                        self.count_malformed(&status);
                        break Some(status);
                    }
                },
                leader = elsewhere(&mut leading) => {
                    let message = Some(ToAgent::Elsewhere(v1::Elsewhere { leader }));
                    let _ = out.try_send(Ok(ControllerMessage { message }));
                    break None;
                }
            }
        };
        self.registry.end(host, number);
        tracing::info!(host, "agent disconnected");
        if let Some(status) = end {
            let _ = out.try_send(Err(status));
        }
    }

    fn hear(
        &self,
        host: &str,
        number: u64,
        message: AgentMessage,
        turn: &mut Turn,
    ) -> Result<(), Violation> {
        let allowed = match &message.message {
            Some(FromAgent::Report(_)) => turn.report(Instant::now()),
            Some(FromAgent::Applied(_)) => turn.answer(),
            Some(FromAgent::Hello(_)) => Err("a second `hello`".to_owned()),
            None => {
                let problem = "the agent's message has an unknown kind; use the same version of \
                               Penstock on both sides";
                Err(problem.to_owned())
            }
        };
        if let Err(problem) = allowed {
            self.registry.refused();
            return Err(Violation::Protocol { host: host.to_owned(), problem });
        }
        match message.message {
            Some(FromAgent::Report(report)) => self.registry.report(host, number, report),
            Some(FromAgent::Applied(done)) => self.registry.applied(host, number, done),
            Some(FromAgent::Hello(_)) | None => Ok(()),
        }
    }

    /// Counts a message as refused if it is too large or invalid. A broken connection does not
    /// count as a refused message.
    fn count_malformed(&self, status: &Status) {
        let code = status.code();
        if matches!(code, Code::OutOfRange | Code::Internal | Code::InvalidArgument) {
            self.registry.refused();
        }
    }
}

/// Waits until this controller no longer leads. Returns the leader's address, or an empty text if
/// the address is unknown.
async fn elsewhere(leading: &mut watch::Receiver<Leading>) -> String {
    let not_here = leading.wait_for(|leading| matches!(leading, Leading::Elsewhere(_))).await;
    match not_here.as_deref() {
        Ok(Leading::Elsewhere(leader)) => leader.clone(),
        // The controller is stopping.
        _ => String::new(),
    }
}

#[tonic::async_trait]
impl AgentService for AgentServer {
    type SessionStream = Out;

    async fn session(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Out>, Status> {
        let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
        peer.admitted()?;
        let names = peer.names.as_deref().cloned();
        self.begin(names, request.into_inner()).await.map(Response::new)
    }
}
