//! Session of an agent with one controller.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::calls::Call;
use super::meter::UsageMeter;
use super::{Agent, Carried, apply, endpoint, stopped};
use crate::Stamp;
use crate::hosts::HostPlan;
use crate::wire::v1::agent_message::Message as FromAgent;
use crate::wire::v1::agent_service_client::AgentServiceClient;
use crate::wire::v1::controller_message::Message as ToAgent;
use crate::wire::v1::{self, AgentMessage, ControllerMessage};
use crate::wire::{AGENT_BYTES_MAX, describe};

/// Number of messages to the controller that may wait in the session's channel.
const QUEUE: usize = 16;
/// Shortest and longest report interval that a controller may request, in milliseconds.
const REPORT_MILLIS: std::ops::RangeInclusive<u64> = 10..=600_000;

/// Longest time over which a controller may let agents spread their calls.
const SCATTER_MAX: Duration = Duration::from_secs(60);

/// Reason why a session ended.
#[derive(Debug)]
pub(super) enum End {
    Stopped,
    /// Another controller leads. The variant has the address of the leading controller, or an empty
    /// text if the address is unknown.
    Elsewhere(String),
    /// The session failed, and the text of the variant is the reason.
    Problem(String),
}

/// End of an agent's session with a controller: the reason, and whether the session exchanged a
/// report or a plan.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) how: End,
    /// True if the agent sent a report or received a plan in the session.
    pub(super) served: bool,
}

/// Result of a plan: `None` if the switch has applied the plan and the plan is stored, and the
/// reason if the plan is applied but not stored.
type Applied = Result<Option<String>, String>;

/// A future that applies and stores a plan, and returns the plan's stamp with the result.
type Work = Pin<Box<dyn Future<Output = (Stamp, Applied)> + Send>>;

/// An accepted session.
struct Open {
    out: mpsc::Sender<AgentMessage>,
    from: Streaming<ControllerMessage>,
    epoch: u64,
    /// Time over which all agents spread their calls after the end of their sessions.
    scatter: Duration,
    meter: Option<UsageMeter>,
    measured: Instant,
    served: bool,
}

impl Agent {
    /// Runs a session with the controller of `call` until the agent or the controller ends the
    /// session.
    pub(super) async fn session(&mut self, call: &Call, stop: &mut watch::Receiver<bool>) -> Ended {
        let opened = tokio::select! {
            opened = self.open(call) => opened,
            () = stopped(stop) => Err(End::Stopped),
        };
        let (mut open, period) = match opened {
            Ok(open) => open,
            Err(how) => return Ended { how, served: false },
        };
        self.calls.set_scatter(open.scatter);
        let address = &call.address;
        tracing::info!(host = self.settings.host, controller = address, "session begins");
        self.state.send_modify(|state| {
            state.hear();
            state.connected = Some(address.clone());
            state.interval = period;
            state.counts.sessions += 1;
        });
        if let Some(now) = self.usage().await {
            (open.meter, open.measured) = (Some(UsageMeter::new(now)), Instant::now());
        }
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let how = self.talk(&mut open, ticks, stop).await;
        Ended { how, served: open.served }
    }

    /// Opens a session. Returns the session and the time between two traffic reports.
    async fn open(&self, call: &Call) -> Result<(Open, Duration), End> {
        let settings = &self.settings;
        let limit = settings.connect_limit;
        let channel = endpoint::connect(settings, &call.address).await.map_err(End::Problem)?;
        let mut client = AgentServiceClient::new(channel)
            .max_decoding_message_size(AGENT_BYTES_MAX)
            .max_encoding_message_size(AGENT_BYTES_MAX);
        let (out, messages) = mpsc::channel(QUEUE);
        let _ = out.try_send(AgentMessage { message: Some(self.hello(call)) });
        let begun = timeout(limit, client.session(ReceiverStream::new(messages))).await;
        let response = begun.map_err(|_| silent(limit))?.map_err(|status| refused(&status))?;
        let mut from = response.into_inner();
        // A controller that does not lead lets the agent wait.
        let limit = limit + call.wait;
        let first = timeout(limit, from.message()).await.map_err(|_| silent(limit))?;
        let first = first.map_err(|status| refused(&status))?;
        let welcome = match first.and_then(|message| message.message) {
            Some(ToAgent::Welcome(welcome)) => welcome,
            Some(ToAgent::Elsewhere(elsewhere)) => return Err(End::Elsewhere(elsewhere.leader)),
            Some(ToAgent::Plan(_)) => {
                return Err(End::Problem(
                    "the controller sent a plan before its welcome message".into(),
                ));
            }
            None => {
                return Err(End::Problem(
                    "the controller ended the session before the welcome message".to_owned(),
                ));
            }
        };
        let (epoch, millis) = (welcome.epoch, welcome.report_millis);
        if epoch < self.has.epoch {
            let problem =
                format!("the leader's term {epoch} is over; this host has seen stamp {}", self.has);
            return Err(End::Problem(problem));
        }
        if !REPORT_MILLIS.contains(&millis) {
            let (least, most) = (REPORT_MILLIS.start(), REPORT_MILLIS.end());
            let problem = format!(
                "the controller requests a report every {millis} ms; the range is {least} to \
                 {most} ms"
            );
            return Err(End::Problem(problem));
        }
        let scatter = Duration::from_millis(welcome.scatter_millis).min(SCATTER_MAX);
        let (meter, measured) = (None, Instant::now());
        let open = Open { out, from, epoch, scatter, meter, measured, served: false };
        Ok((open, Duration::from_millis(millis)))
    }

    fn hello(&self, call: &Call) -> FromAgent {
        FromAgent::Hello(v1::Hello {
            host: self.settings.host.clone(),
            has: Some(self.has.into()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            wait_millis: u64::try_from(call.wait.as_millis()).unwrap_or(u64::MAX),
            unreachable: call.unreachable.clone(),
        })
    }

    async fn talk(
        &mut self,
        open: &mut Open,
        mut ticks: Interval,
        stop: &mut watch::Receiver<bool>,
    ) -> End {
        let mut work: Option<Work> = None;
        loop {
            let idle = work.is_none();
            tokio::select! {
                // The agent completes a plan that it has started to apply.
                (stamp, done) = async { work.as_mut().expect("not idle").await }, if !idle => {
                    work = None;
                    let answer = self.done(stamp, done);
                    let _ = open.out.send(answer).await;
                }
                () = stopped(stop), if idle => return End::Stopped,
                message = open.from.message(), if idle => {
                    let message = match message {
                        Ok(Some(message)) => message.message,
                        Ok(None) => {
                            return End::Problem("the controller ended the session".to_owned());
                        }
                        Err(status) => return refused(&status),
                    };
                    match message {
                        Some(ToAgent::Plan(plan)) => {
                            open.served = true;
                            match self.told(plan, open.epoch) {
                                Ok(begun) => work = Some(begun),
                                Err(answer) => {
                                    let _ = open.out.send(*answer).await;
                                }
                            }
                        }
                        Some(ToAgent::Elsewhere(other)) => return End::Elsewhere(other.leader),
                        Some(ToAgent::Welcome(_)) | None => {
                            let problem = "the controller sent an unexpected message";
                            return End::Problem(problem.to_owned());
                        }
                    }
                }
                _ = ticks.tick() => self.report(open).await,
            }
        }
    }

    /// Starts to apply a received plan. If the agent refuses the plan, returns the refusal for the
    /// controller as `Err`.
    fn told(&mut self, plan: v1::HostPlan, epoch: u64) -> Result<Work, Box<AgentMessage>> {
        let stamp: Stamp = plan.stamp.unwrap_or_default().into();
        let plan = match HostPlan::try_from(plan) {
            Ok(plan) => plan,
            Err(error) => {
                self.state.send_modify(|state| state.counts.failed += 1);
                self.problem(format!("plan {stamp}: {error}"));
                return Err(Box::new(answer(stamp, &error.to_string(), None)));
            }
        };
        if stamp < self.has || stamp.epoch < epoch {
            let has = self.has;
            self.state.send_modify(|state| state.counts.refused += 1);
            self.problem(format!(
                "plan {stamp} is refused, because this host has seen the later stamp {has}"
            ));
            return Err(Box::new(answer(
                stamp,
                "the plan is older than the last plan that this host accepted",
                Some(has),
            )));
        }
        self.has = stamp;
        self.pending = None;
        self.state.send_modify(|state| state.told = stamp);
        let (side, limit) = (Arc::clone(&self.side), self.settings.side_limit);
        let saved = self.saved.clone();
        Ok(Box::pin(async move {
            let done = saved.keep_if(plan.clone(), apply(&*side, &plan, limit)).await;
            (stamp, done.and_then(|kept| kept))
        }))
    }

    /// Applies a plan without a session, as if a controller of epoch `epoch` had sent the plan.
    /// Returns the agent's answer to the plan.
    #[doc(hidden)]
    pub async fn hear(&mut self, plan: v1::HostPlan, epoch: u64) -> AgentMessage {
        match self.told(plan, epoch) {
            Ok(work) => {
                let (stamp, done) = work.await;
                self.done(stamp, done)
            }
            Err(answer) => *answer,
        }
    }

    /// Notes the result of a plan. Returns the answer to the plan, for the controller.
    fn done(&self, stamp: Stamp, done: Applied) -> AgentMessage {
        match done {
            Ok(not_kept) => {
                if let Some(problem) = not_kept {
                    self.problem(problem);
                }
                let unkept = self.saved.owed();
                self.state.send_modify(|state| {
                    (state.applied, state.unkept) = (Some(stamp), unkept);
                    state.counts.applied += 1;
                });
                answer(stamp, "", None)
            }
            Err(problem) => {
                let unkept = self.saved.owed();
                self.state.send_modify(|state| {
                    (state.applied, state.unkept) = (None, unkept);
                    state.counts.failed += 1;
                });
                self.problem(format!("plan {stamp}: {problem}"));
                answer(stamp, &problem, None)
            }
        }
    }

    async fn report(&self, open: &mut Open) {
        let missed = || self.state.send_modify(|state| state.counts.missed += 1);
        // If no report can be sent now, the next report includes this traffic.
        let Ok(place) = open.out.clone().try_reserve_owned() else { return missed() };
        let Some(now) = self.usage().await else { return missed() };
        let at = Instant::now();
        let after = at - open.measured;
        open.measured = at;
        let Some(meter) = &mut open.meter else {
            open.meter = Some(UsageMeter::new(now));
            return missed();
        };
        let Some(report) = meter.report(after, now) else { return missed() };
        place.send(AgentMessage { message: Some(FromAgent::Report(report)) });
        open.served = true;
        self.state.send_modify(|state| {
            state.hear();
            state.counts.reports += 1;
        });
    }

    async fn usage(&self) -> Option<std::collections::BTreeMap<String, Carried>> {
        let problem = match timeout(self.settings.side_limit, self.side.usage()).await {
            Ok(Ok(usage)) => return Some(usage),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the switch did not answer within {:?}", self.settings.side_limit),
        };
        self.problem(format!("usage: {problem}"));
        None
    }
}

fn answer(stamp: Stamp, problem: &str, has: Option<Stamp>) -> AgentMessage {
    let (stamp, has) = (Some(stamp.into()), has.map(Into::into));
    let problem = problem.chars().take(500).collect();
    let applied = v1::Applied { stamp, problem, has };
    AgentMessage { message: Some(FromAgent::Applied(applied)) }
}

fn silent(limit: Duration) -> End {
    End::Problem(format!("no answer within {limit:?}"))
}

/// Returns the end of a session with the controller's error message or the transport error.
fn refused(status: &Status) -> End {
    End::Problem(match std::error::Error::source(status) {
        Some(source) => describe(source),
        None => format!("{} ({:?})", status.message(), status.code()),
    })
}
