//! Registers the sessions of all agents, and counts events of sessions.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use penstock_units::{BitsPerSecond, NAME_BYTES_MAX, NODE_BYTES_MAX};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::Stamp;
use crate::fabric_state::Used;
use crate::hosts::{HostError, HostPlan, Hosts};
use crate::wire::{MILLIS_MAX, TENANTS_MAX, v1};

/// Number of messages that may wait in the channel to an agent.
pub const QUEUE: usize = 16;
/// Mean number of agents that call the next controller in a second after all of them have lost the
/// leader. Agents spread their calls accordingly. The number is an estimate of the TLS handshakes
/// that two busy cores can do.
const CALLS_PER_SECOND: u64 = 2_000;

/// Rule that an agent broke. The controller ends the session of an agent that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The topology has no server with the agent's name.
    #[error("host {0} is not a server of the topology; correct the agent's name or the topology")]
    UnknownHost(String),
    /// The agent's certificate belongs to another host.
    #[error("host {host}: the certificate is for {names}; use the host's own certificate")]
    WrongCertificate {
        /// Host name that the agent claims.
        host: String,
        /// DNS names in the agent's certificate.
        names: String,
    },
    /// The host has already seen the stamp (term and number) of a later leading controller.
    #[error(
        "host {host} has decision {has}, later than this controller's {ours}; if no other \
         controller leads, the store is an older copy; run `penstock controller epoch \
         --at-least {}`",
        .has.next_epoch()
    )]
    Later {
        host: String,
        /// Highest stamp (term and number of a decision) that the host has seen.
        has: Stamp,
        /// Stamp (term and number) of this controller, which is lower than the host's stamp.
        ours: Stamp,
    },
    /// The agent sent a message that violates the protocol between agent and controller.
    #[error("host {host}: {problem}")]
    Protocol { host: String, problem: String },
}

#[derive(Debug)]
struct Session {
    number: u64,
    out: mpsc::Sender<v1::ControllerMessage>,
    has: Stamp,
    reports: u64,
    millis: u64,
    used: BTreeMap<String, (u64, u64)>,
    waiting: Vec<(Stamp, oneshot::Sender<Result<(), HostError>>)>,
}

/// Counters of agents' sessions since the controller started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounts {
    /// Sessions that started.
    pub sessions: u64,
    pub ended: u64,
    /// Number of sessions and messages that the controller refused.
    pub refused: u64,
    /// Number of connections that the controller refused because the certificate already had its
    /// maximum number of connections.
    pub crowded: u64,
    /// Number of reports that the controller accepted.
    pub reports: u64,
    /// Number of plans that hosts applied.
    pub applied: u64,
    /// Number of plans that hosts refused or could not apply.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct Inner {
    sessions: HashMap<String, Session>,
    next: u64,
    came: Vec<String>,
    /// Hosts that have seen a later stamp (term and number of a decision) than this controller's
    /// stamp, with the later stamp. The controller removes a host from this map when the host's
    /// next session starts.
    later: BTreeMap<String, Stamp>,
}

#[derive(Debug)]
pub struct Registry {
    known: Box<dyn Known>,
    inner: Mutex<Inner>,
    counts: watch::Sender<AgentCounts>,
    /// The registry notifies its waiters when an agent connects.
    arrived: tokio::sync::Notify,
}

/// The hosts that may have a session.
pub trait Known: Send + Sync + std::fmt::Debug {
    /// Returns true if a host with the name `name` may have a session.
    fn is_host(&self, name: &str) -> bool;

    /// Returns the number of hosts that may have a session.
    fn count(&self) -> usize;
}

impl Known for penstock_fabric::topology::Topology {
    fn is_host(&self, name: &str) -> bool {
        self.find(name).is_some_and(|node| self.is_server(node))
    }

    fn count(&self) -> usize {
        self.servers()
    }
}

impl Registry {
    /// Creates a registry without sessions.
    #[must_use]
    pub fn new(known: Box<dyn Known>) -> Self {
        let (inner, counts) = (Mutex::default(), watch::Sender::default());
        Self { known, inner, counts, arrived: tokio::sync::Notify::new() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // The contents stay consistent even if a thread panics while it has the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, one: impl FnOnce(&mut AgentCounts)) {
        self.counts.send_modify(one);
    }

    /// Returns the time over which all agents should spread their next calls when their sessions
    /// end.
    #[must_use]
    pub fn scatter(&self) -> Duration {
        let hosts = u64::try_from(self.known.count()).unwrap_or(u64::MAX);
        Duration::from_millis(hosts.saturating_mul(1_000) / CALLS_PER_SECOND)
    }

    /// Starts a session of an agent. Returns the session's number, and the receiver of the channel
    /// for messages to the agent.
    ///
    /// # Errors
    /// Returns an error if the topology has no server with the agent's name.
    pub fn begin(
        &self,
        host: &str,
        has: Stamp,
    ) -> Result<(u64, mpsc::Receiver<v1::ControllerMessage>), Violation> {
        let mut inner = self.inner();
        if !self.known.is_host(host) {
            self.refused();
            let host = host.chars().take(NODE_BYTES_MAX).collect();
            return Err(Violation::UnknownHost(host));
        }
        inner.next += 1;
        self.count(|counts| counts.sessions += 1);
        let number = inner.next;
        let (out, messages) = mpsc::channel(QUEUE);
        let used = BTreeMap::new();
        inner.later.remove(host);
        let session =
            Session { number, out, has, reports: 0, millis: 0, used, waiting: Vec::new() };
        // The insertion drops the channel of the host's earlier session, which ends that session.
        inner.sessions.insert(host.to_owned(), session);
        inner.came.push(host.to_owned());
        drop(inner);
        self.arrived.notify_one();
        Ok((number, messages))
    }

    pub fn end(&self, host: &str, number: u64) {
        let mut inner = self.inner();
        if inner.sessions.get(host).is_some_and(|session| session.number == number) {
            inner.sessions.remove(host);
        }
        drop(inner);
        self.count(|counts| counts.ended += 1);
    }

    /// Ends the sessions of all agents. The agents reconnect to this controller or to the leader.
    pub fn end_all(&self) {
        self.inner().sessions.clear();
    }

    /// Records that the controller refused a host because the host has seen a later controller's
    /// stamp.
    pub(super) fn is_later(&self, host: &str, has: Stamp) {
        self.refused();
        if self.known.is_host(host) {
            self.inner().later.insert(host.to_owned(), has);
        }
    }

    /// Returns each host that has seen a later stamp than the stamp of this controller, with the
    /// later stamp.
    #[must_use]
    pub fn later(&self) -> BTreeMap<String, Stamp> {
        self.inner().later.clone()
    }

    /// Counts a session or message that was refused.
    pub fn refused(&self) {
        self.count(|counts| counts.refused += 1);
    }

    /// Counts a connection that was refused because the certificate already had its maximum number
    /// of connections.
    pub fn crowded(&self) {
        self.count(|counts| counts.crowded += 1);
    }

    /// Handles a traffic report that an agent sent in a session.
    ///
    /// # Errors
    /// Returns an error if the report violates a rule ([`Violation`]). The caller must end the
    /// session after an error.
    pub fn report(&self, host: &str, number: u64, report: v1::Report) -> Result<(), Violation> {
        let result = self.inner().report(host, number, report);
        self.count(|counts| match result {
            Ok(taken) => counts.reports += u64::from(taken),
            Err(_) => counts.refused += 1,
        });
        result.map(|_| ())
    }

    /// Handles a host's answer to a plan.
    ///
    /// # Errors
    /// Returns an error if the host's answer violates a rule ([`Violation`]). The caller must end
    /// the session after an error.
    pub fn applied(&self, host: &str, number: u64, done: v1::Applied) -> Result<(), Violation> {
        let mut inner = self.inner();
        let Some(session) = inner.sessions.get_mut(host).filter(|s| s.number == number) else {
            return Ok(());
        };
        let stamp: Stamp = done.stamp.unwrap_or_default().into();
        let has = done.has.map(Stamp::from);
        let answer = || match (has, done.problem.as_str()) {
            (Some(has), _) => Err(HostError::Fenced { host: host.to_owned(), has, told: stamp }),
            (None, "") => Ok(()),
            (None, problem) => {
                let problem = problem.chars().take(500).collect();
                Err(HostError::Failed { host: host.to_owned(), problem })
            }
        };
        if answer().is_ok() {
            session.has = session.has.max(stamp);
        }
        let later = has.filter(|has| *has > stamp);
        // A plan replaces all earlier plans, so this answer also counts for the earlier plans.
        for (_, waiter) in session.waiting.extract_if(.., |(waits_for, _)| *waits_for <= stamp) {
            let _ = waiter.send(answer());
        }
        if let Some(has) = later {
            inner.later.insert(host.to_owned(), has);
        }
        drop(inner);
        self.count(|counts| match answer() {
            Ok(()) => counts.applied += 1,
            Err(_) => counts.failed += 1,
        });
        Ok(())
    }

    /// Returns the hosts whose agents have connected since the last call of this function.
    #[must_use]
    pub fn take_arrivals(&self) -> Vec<String> {
        std::mem::take(&mut self.inner().came)
    }

    /// Waits until an agent connects.
    pub async fn somebody_came(&self) {
        self.arrived.notified().await;
    }

    /// Returns each host's usage since the last call of this function. The returned map omits hosts
    /// that sent no report since the last call.
    #[must_use]
    pub fn take_usage(&self) -> BTreeMap<String, Vec<Used>> {
        let mut inner = self.inner();
        let mut usage = BTreeMap::new();
        for (host, session) in &mut inner.sessions {
            let millis = std::mem::take(&mut session.millis);
            if millis == 0 {
                continue;
            }
            let rate = |bytes: u64| {
                let bits = u128::from(bytes) * 8_000 / u128::from(millis);
                BitsPerSecond(u64::try_from(bits).unwrap_or(u64::MAX))
            };
            let used = std::mem::take(&mut session.used).into_iter();
            let used = used.map(|(tenant, (sent, received))| Used {
                tenant,
                sent: rate(sent),
                received: rate(received),
            });
            usage.insert(host.clone(), used.collect());
        }
        usage
    }

    /// Returns the stamp (term and number) of the last plan that a host applied. `None` if the
    /// host's agent is not connected.
    #[must_use]
    pub fn has(&self, host: &str) -> Option<Stamp> {
        self.inner().sessions.get(host).map(|session| session.has)
    }

    #[must_use]
    pub fn connected_count(&self) -> usize {
        self.inner().sessions.len()
    }

    #[must_use]
    pub fn counts(&self) -> AgentCounts {
        *self.counts.borrow()
    }

    /// Returns a watch channel that delivers every change of the session counters.
    #[must_use]
    pub fn watch_counts(&self) -> watch::Receiver<AgentCounts> {
        self.counts.subscribe()
    }
}

impl Inner {
    /// Adds a report to the host's measurements. Returns false if a later session has replaced the
    /// report's session.
    fn report(&mut self, host: &str, number: u64, report: v1::Report) -> Result<bool, Violation> {
        let Some(session) = self.sessions.get_mut(host).filter(|s| s.number == number) else {
            return Ok(false);
        };
        let wrong = |problem: String| Violation::Protocol { host: host.to_owned(), problem };
        if report.number != session.reports + 1 {
            let expected = session.reports + 1;
            let problem = format!("report number {} where {expected} was expected", report.number);
            return Err(wrong(problem));
        }
        let (millis, count) = (report.millis, report.tenants.len());
        if millis == 0 || millis > MILLIS_MAX {
            return Err(wrong(format!("a report covers {millis} ms, the limit is {MILLIS_MAX}")));
        }
        if count > TENANTS_MAX {
            return Err(wrong(format!("a report of {count} tenants, the limit is {TENANTS_MAX}")));
        }
        if report.tenants.iter().any(|t| t.name.is_empty() || t.name.len() > NAME_BYTES_MAX) {
            return Err(wrong(format!("a tenant's name is not 1 to {NAME_BYTES_MAX} bytes long")));
        }
        session.reports = report.number;
        session.millis = session.millis.saturating_add(millis);
        for tenant in report.tenants {
            if session.used.len() >= TENANTS_MAX && !session.used.contains_key(&tenant.name) {
                continue;
            }
            let used = session.used.entry(tenant.name).or_default();
            used.0 = used.0.saturating_add(tenant.sent_bytes);
            used.1 = used.1.saturating_add(tenant.received_bytes);
        }
        Ok(true)
    }
}

#[async_trait]
impl Hosts for Registry {
    async fn tell(&self, host: &str, plan: HostPlan) -> Result<(), HostError> {
        let (done, answer) = oneshot::channel();
        {
            let mut inner = self.inner();
            let session = inner.sessions.get_mut(host);
            let session = session.ok_or_else(|| HostError::Away(host.to_owned()))?;
            let stamp = plan.stamp;
            let message = v1::controller_message::Message::Plan(plan.into());
            let message = v1::ControllerMessage { message: Some(message) };
            if session.out.try_send(message).is_err() {
                // The agent no longer receives messages. It gets its plan when it reconnects.
                inner.sessions.remove(host);
                return Err(HostError::Away(host.to_owned()));
            }
            session.waiting.push((stamp, done));
        }
        // If the session ends before the host answers, the sender is dropped.
        answer.await.unwrap_or_else(|_| Err(HostError::Away(host.to_owned())))
    }

    fn connected(&self, host: &str) -> bool {
        self.inner().sessions.contains_key(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Two;

    impl Known for Two {
        fn is_host(&self, name: &str) -> bool {
            ["a", "b"].contains(&name)
        }

        fn count(&self) -> usize {
            2
        }
    }

    #[derive(Debug)]
    struct Many(usize);

    impl Known for Many {
        fn is_host(&self, _: &str) -> bool {
            true
        }

        fn count(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn more_agents_spread_over_a_longer_time() {
        let scatter = |hosts| Registry::new(Box::new(Many(hosts))).scatter().as_millis();
        assert_eq!([0, 10, 2_000, 11_664].map(scatter), [0, 5, 1_000, 5_832]);
    }

    fn report(number: u64, millis: u64, sent: u64) -> v1::Report {
        let tenant =
            v1::TenantUsage { name: "t".into(), sent_bytes: sent, received_bytes: 2 * sent };
        v1::Report { number, millis, tenants: vec![tenant] }
    }

    fn stamp(generation: u64) -> Stamp {
        Stamp { epoch: 1, generation }
    }

    fn plan(generation: u64) -> HostPlan {
        HostPlan { stamp: stamp(generation), ..HostPlan::default() }
    }

    fn applied(generation: u64) -> v1::Applied {
        v1::Applied { stamp: Some(stamp(generation).into()), problem: String::new(), has: None }
    }

    #[test]
    fn reports_add_up_and_are_taken_once() {
        let registry = Registry::new(Box::new(Two));
        let (number, _messages) = registry.begin("a", stamp(0)).unwrap();
        registry.report("a", number, report(1, 500, 1_000)).unwrap();
        registry.report("a", number, report(2, 1_500, 3_000)).unwrap();
        let usage = registry.take_usage();
        let used = &usage["a"][0];
        assert_eq!((used.sent.0, used.received.0), (16_000, 32_000), "4,000 bytes in 2 s");
        assert!(registry.take_usage().is_empty(), "nothing was reported since");
    }

    #[test]
    fn a_violation_is_named() {
        let registry = Registry::new(Box::new(Two));
        let unknown = registry.begin("c", stamp(0)).unwrap_err().to_string();
        assert!(unknown.contains("host c is not a server"), "{unknown}");
        let (number, _messages) = registry.begin("a", stamp(0)).unwrap();
        registry.report("a", number, report(1, 10, 0)).unwrap();
        let tell = |report| registry.report("a", number, report).unwrap_err().to_string();
        assert_eq!(
            tell(report(1, 10, 0)),
            "host a: report number 1 where 2 was expected",
            "a replay"
        );
        assert!(tell(report(2, 0, 0)).contains("0 ms"));
        let many = vec![v1::TenantUsage { name: "t".into(), ..Default::default() }; 4_097];
        let many = v1::Report { number: 2, millis: 10, tenants: many };
        assert!(tell(many).contains("4097 tenants, the limit is 4096"));
        let named = |length| {
            let name = "x".repeat(length);
            v1::Report {
                number: 2,
                millis: 10,
                tenants: vec![v1::TenantUsage { name, ..Default::default() }],
            }
        };
        assert!(tell(named(NAME_BYTES_MAX + 1)).contains("64 bytes"));
        assert_eq!(registry.counts().refused, 5);
        registry.report("a", number, named(NAME_BYTES_MAX)).unwrap();
    }

    #[tokio::test]
    async fn telling_waits_for_the_answer_and_ends_with_the_session() {
        let registry = std::sync::Arc::new(Registry::new(Box::new(Two)));
        assert_eq!(registry.tell("a", plan(1)).await, Err(HostError::Away("a".into())));
        let (number, mut messages) = registry.begin("a", stamp(0)).unwrap();
        let telling = {
            let registry = std::sync::Arc::clone(&registry);
            tokio::spawn(async move { registry.tell("a", plan(2)).await })
        };
        assert!(messages.recv().await.is_some());
        registry.applied("a", number, applied(1)).unwrap();
        assert!(!telling.is_finished(), "an earlier plan's answer is not this one's");
        registry.applied("a", number, applied(2)).unwrap();
        assert_eq!(telling.await.unwrap(), Ok(()));
        assert_eq!(registry.has("a"), Some(stamp(2)));
        let telling = {
            let registry = std::sync::Arc::clone(&registry);
            tokio::spawn(async move { registry.tell("a", plan(3)).await })
        };
        assert!(messages.recv().await.is_some());
        registry.end("a", number);
        assert_eq!(telling.await.unwrap(), Err(HostError::Away("a".into())));
    }

    #[tokio::test]
    async fn a_later_session_replaces_an_earlier_one_and_is_not_ended_by_it() {
        let registry = Registry::new(Box::new(Two));
        let (first, mut messages) = registry.begin("a", stamp(0)).unwrap();
        let (_second, _kept) = registry.begin("a", stamp(0)).unwrap();
        assert_eq!(messages.recv().await, None, "the first one's channel is closed");
        registry.end("a", first);
        assert!(registry.connected("a"));
        assert_eq!(registry.take_arrivals(), ["a", "a"]);
    }

    #[tokio::test]
    async fn an_agent_that_takes_no_messages_counts_as_away() {
        let registry = Registry::new(Box::new(Two));
        let (_number, messages) = registry.begin("a", stamp(0)).unwrap();
        for generation in 0..QUEUE as u64 {
            let told = registry.tell("a", plan(generation));
            assert!(futures_now(told).is_none());
        }
        assert_eq!(registry.tell("a", plan(99)).await, Err(HostError::Away("a".into())));
        assert!(!registry.connected("a"));
        drop(messages);
    }

    /// Polls a future once, and returns its result if it is ready.
    fn futures_now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut future = std::pin::pin!(future);
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }
}
