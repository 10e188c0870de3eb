//! Implements the controller's gRPC service for agents.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use penstock_units::NODE_BYTES_MAX;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
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
/// Longest time for which an agent may wait at a controller that does not lead.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Longest text of a first message that the controller keeps while an agent waits, in bytes. The
/// address of a controller is shorter.
const TEXT_BYTES_MAX: usize = 512;

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

/// Sender of the messages of a session to the agent.
type ToCaller = mpsc::Sender<Result<ControllerMessage, Status>>;

/// An agent that called this controller, by its first message.
#[derive(Debug)]
struct Caller {
    host: String,
    has: Stamp,
    version: String,
    /// Time for which the agent waits for a leader.
    wait: Duration,
    /// Leader that the agent could not reach, as a controller named it. Empty if there is none.
    unreachable: String,
}

impl Caller {
    fn new(hello: v1::Hello) -> Self {
        let v1::Hello { host, has, version, wait_millis, unreachable } = hello;
        let wait = Duration::from_millis(wait_millis).min(WAIT_MAX);
        // A message may have a megabyte, and many agents may wait at the same time.
        let short = |text: String| if text.len() > TEXT_BYTES_MAX { String::new() } else { text };
        let (version, unreachable) = (short(version), short(unreachable));
        Self { host, has: has.unwrap_or_default().into(), version, wait, unreachable }
    }

    /// Returns true if the agent waits for a later answer than `leading`. An agent does not wait if
    /// this controller leads, or names a leader that the agent can call.
    fn waits(&self, leading: &Leading) -> bool {
        let Leading::Elsewhere(leader) = leading else { return false };
        !self.wait.is_zero() && (leader.is_empty() || *leader == self.unreachable)
    }

    /// Waits for an answer for which the agent does not wait longer ([`Self::waits`]), or until the
    /// agent's time has passed. Returns the last answer.
    async fn leader(&self, mut leading: watch::Receiver<Leading>) -> Leading {
        // The wait fails if the controller stops.
        let _ = timeout(self.wait, leading.wait_for(|leading| !self.waits(leading))).await;
        leading.borrow().clone()
    }
}

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
        let caller = Caller::new(hello);
        let (out, to_agent) = mpsc::channel(QUEUE);
        let answer = self.leading.borrow().clone();
        if caller.waits(&answer) {
            let server = self.clone();
            tokio::spawn(async move { server.hold(caller, from, out).await });
        } else {
            self.answer(caller, answer, from, out)?;
        }
        Ok(Box::pin(ReceiverStream::new(to_agent)))
    }

    /// Lets an agent wait for a leader, and then answers it.
    async fn hold(&self, caller: Caller, mut from: Streaming<AgentMessage>, out: ToCaller) {
        let answer = tokio::select! {
            answer = caller.leader(self.leading.clone()) => answer,
            () = out.closed() => return,
            // The agent gave up, or broke the protocol, because it waits for the first answer.
            _ = from.message() => return,
        };
        if let Err(status) = self.answer(caller, answer, from, out.clone()) {
            let _ = out.try_send(Err(status));
        }
    }

    /// Starts a session if this controller leads. Otherwise names the leader.
    fn answer(
        &self,
        caller: Caller,
        answer: Leading,
        from: Streaming<AgentMessage>,
        out: ToCaller,
    ) -> Result<(), Status> {
        let Caller { host, has, version, .. } = caller;
        let ours = match answer {
            Leading::Here(stamp) => stamp,
            Leading::Elsewhere(leader) => {
                let message = Some(ToAgent::Elsewhere(v1::Elsewhere { leader }));
                let _ = out.try_send(Ok(ControllerMessage { message }));
                return Ok(());
            }
        };
        if has.epoch > ours.epoch {
            self.registry.is_later(&host, has);
            return Err(self.refuse(&Violation::Later { host, has, ours }));
        }
        let (number, messages) = self.registry.begin(&host, has).map_err(|v| self.refuse(&v))?;
        tracing::info!(host, version, %has, "agent connected");
        let scatter = self.registry.scatter().as_millis();
        let welcome = v1::Welcome {
            epoch: ours.epoch,
            report_millis: self.report_millis,
            scatter_millis: u64::try_from(scatter).unwrap_or(u64::MAX),
        };
        let _ = out.try_send(Ok(ControllerMessage { message: Some(ToAgent::Welcome(welcome)) }));
        let server = self.clone();
        tokio::spawn(async move { server.session(&host, number, from, messages, out).await });
        Ok(())
    }

    /// Runs a session until either side ends it, the agent violates a rule, or this controller no
    /// longer leads.
    async fn session(
        &self,
        host: &str,
        number: u64,
        mut from: Streaming<AgentMessage>,
        mut messages: mpsc::Receiver<ControllerMessage>,
        out: ToCaller,
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
                        break Some(Status::aborted(format!(
                            "host {host} began another session, or read no messages; if two \
                             hosts have this name, rename one"
                        )));
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

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(4);

    fn caller(wait: Duration, unreachable: &str) -> Caller {
        let wait_millis = u64::try_from(wait.as_millis()).unwrap();
        Caller::new(v1::Hello {
            wait_millis,
            unreachable: unreachable.to_owned(),
            ..v1::Hello::default()
        })
    }

    fn elsewhere(leader: &str) -> Leading {
        Leading::Elsewhere(leader.to_owned())
    }

    /// Lets an agent wait while the leadership is first `first` and becomes `then` after a second.
    /// Returns the answer and its time.
    async fn answer(caller: Caller, first: Leading, then: Leading) -> (Leading, Duration) {
        let (leading, leads) = watch::channel(first);
        let change = async {
            tokio::time::sleep(WAIT / 4).await;
            leading.send_replace(then);
            std::future::pending::<Leading>().await
        };
        let began = Instant::now();
        let answer = tokio::select! {
            answer = caller.leader(leads) => answer,
            never = change => never,
        };
        (answer, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_waits_until_a_leader_is_known_that_it_can_call() {
        let here = Leading::Here(Stamp { epoch: 7, generation: 0 });
        for (unreachable, first) in [("", ""), ("a", "a"), ("a", "")] {
            let first = elsewhere(first);
            let waits = || caller(WAIT, unreachable);
            assert!(waits().waits(&first) && !waits().waits(&here));
            for then in [here.clone(), elsewhere("b")] {
                let (told, after) = answer(waits(), first.clone(), then.clone()).await;
                assert_eq!((told, after), (then, WAIT / 4), "{unreachable}, {first:?}");
            }
            // Such an answer says nothing new.
            for then in [elsewhere(""), elsewhere(unreachable)] {
                let (told, after) = answer(waits(), first.clone(), then.clone()).await;
                assert_eq!((told, after), (then, WAIT), "{unreachable}, {first:?}");
            }
        }
    }

    #[test]
    fn an_agent_that_does_not_wait_is_answered_at_once() {
        assert!(!caller(Duration::ZERO, "").waits(&elsewhere("")));
        assert!(!caller(WAIT, "").waits(&elsewhere("a")), "it can call this leader");
        assert!(!caller(WAIT, "b").waits(&elsewhere("a")));
        assert_eq!(caller(Duration::from_secs(3_600), "").wait, WAIT_MAX);
    }

    #[test]
    fn a_waiting_agent_has_no_long_texts_in_memory() {
        let keeps = |bytes: usize| {
            let (version, unreachable) = ("1".repeat(bytes), "a".repeat(bytes));
            let hello = v1::Hello { version, unreachable, ..v1::Hello::default() };
            let Caller { version, unreachable, .. } = Caller::new(hello);
            [version.len(), unreachable.len()]
        };
        assert_eq!(keeps(TEXT_BYTES_MAX), [TEXT_BYTES_MAX; 2]);
        assert_eq!(keeps(TEXT_BYTES_MAX + 1), [0, 0]);
    }
}
