//! Chooses the controller that an agent calls next, and the pause before the call.
//!
//! # Problem
//!
//! When a leader dies, its lease lasts for some seconds, and meanwhile no controller leads. An
//! agent that calls the controllers again and again would load them. An agent that waits long
//! between its calls would find the new leader late.
//!
//! # Approach
//!
//! - The agent calls its configured controllers one after the other, and follows redirections to
//!   the leader.
//! - The agent spends the pause between two rounds of calls at a controller that does not lead. The
//!   controller answers when it becomes the leader, when it knows another leader, or when the time
//!   of the pause has passed.
//! - If the agent cannot reach the leader that a controller named, it asks the same controller
//!   again. The controller then does not name this leader before the end of the pause.
//!
//! # Cost
//!
//! A waiting agent has a connection to a controller. The agent calls no more often than an agent
//! that pauses without a connection, except for the second call of a controller that named a dead
//! leader.

use std::time::Duration;

use super::retry::Retry;

/// Number of redirections that the agent follows before it calls its known controllers again.
const HOPS_MAX: u32 = 3;

/// A call of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) address: String,
    /// Leader that the agent could not reach, as a controller named it. Empty if there is none.
    pub(super) unreachable: String,
    /// Time for which the agent waits at a controller that does not lead.
    pub(super) wait: Duration,
    /// True if another controller named this one as the leader.
    is_named: bool,
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The controller does not lead, and named the leader.
    Leader(String),
    /// The controller does not lead, and named no leader that the agent may follow.
    NoLeader,
    /// The call or the session failed.
    Failed,
}

/// Calls of an agent to its controllers.
#[derive(Debug)]
pub(super) struct Calls {
    endpoints: Vec<String>,
    /// Index of the present controller in `endpoints`.
    at: usize,
    /// Number of redirections since the last call of a configured controller.
    hops: u32,
    /// Leader that a controller named, and that the agent calls next.
    named: Option<String>,
    /// Named leader that the agent could not reach. Empty if there is none.
    unreachable: String,
    retry: Retry,
}

impl Calls {
    /// Creates the calls to the controllers `endpoints`, of which there must be at least one.
    pub(super) fn new(endpoints: Vec<String>, retry: Retry) -> Self {
        Self { endpoints, at: 0, hops: 0, named: None, unreachable: String::new(), retry }
    }

    /// Returns the next call.
    pub(super) fn next(&mut self) -> Call {
        let (is_named, wait) = (self.named.is_some(), self.retry.pause());
        let address = self.named.take().unwrap_or_else(|| self.endpoints[self.at].clone());
        Call { address, unreachable: self.unreachable.clone(), wait, is_named }
    }

    /// Returns true if the next call is to a leader that a controller named.
    pub(super) fn follows(&self) -> bool {
        self.named.is_some()
    }

    /// Sets the time over which all agents spread their calls after the end of a session.
    pub(super) fn set_scatter(&mut self, time: Duration) {
        self.retry.set_scatter(time);
    }

    /// Handles the end of a call that took the time `took`. `served` is true if the agent had a
    /// session and exchanged a report or plan. Returns the pause before the next call.
    pub(super) fn end(
        &mut self,
        call: Call,
        answer: Answer,
        served: bool,
        took: Duration,
    ) -> Duration {
        let pause = if served {
            self.retry.reset();
            self.hops = 0;
            self.unreachable.clear();
            self.retry.scatter()
        } else {
            self.retry.spread()
        };
        match answer {
            Answer::Leader(leader) if self.hops < HOPS_MAX && leader != self.unreachable => {
                self.hops += 1;
                self.named = Some(leader);
                pause
            }
            Answer::Leader(_) | Answer::NoLeader => {
                self.unreachable.clear();
                self.go_on();
                if served {
                    return pause;
                }
                self.retry.grow();
                // A controller of release 0.1 answers at once, so the agent waits by itself.
                pause.max(call.wait.saturating_sub(took))
            }
            Answer::Failed if call.is_named && !served => {
                self.unreachable = call.address;
                pause
            }
            Answer::Failed => {
                self.go_on();
                if served || self.at != 0 {
                    return pause;
                }
                // No controller of this round accepted a session.
                self.retry.grow();
                call.wait
            }
        }
    }

    /// Continues with the next configured controller.
    fn go_on(&mut self) {
        (self.at, self.hops) = ((self.at + 1) % self.endpoints.len(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: Duration = Duration::from_millis(500);
    const LONGEST: Duration = Duration::from_secs(10);
    /// Time of a call that is answered at once.
    const CALL: Duration = Duration::from_millis(5);

    fn calls(endpoints: &[&str], seed: u64) -> Calls {
        let endpoints = endpoints.iter().map(|name| (*name).to_owned()).collect();
        Calls::new(endpoints, Retry::new((SHORTEST, LONGEST), seed))
    }

    /// A fabric whose leader `old` died at time 0. `new` leads from the time `leads` on. The
    /// controllers give agents their addresses if `names` is true, and let agents wait if `waits`
    /// is true.
    struct Election {
        leads: Duration,
        names: bool,
        waits: bool,
    }

    impl Election {
        /// Returns the result of a call at the time `at`, and its duration. `None` if the
        /// controller accepts the session.
        fn answer(&self, call: &Call, at: Duration) -> (Option<Answer>, Duration) {
            if call.address != "new" {
                return (Some(Answer::Failed), CALL);
            }
            let Some(left) = self.leads.checked_sub(at).filter(|left| !left.is_zero()) else {
                return (None, CALL);
            };
            let leader = if self.names { "old" } else { "" };
            let holds = self.waits && (leader.is_empty() || call.unreachable == leader);
            let took = if holds { left.min(call.wait) } else { Duration::ZERO };
            if took == left {
                return (None, took + CALL);
            }
            let answer =
                if self.names { Answer::Leader(leader.to_owned()) } else { Answer::NoLeader };
            (Some(answer), took + CALL)
        }

        /// Returns the time from the begin of the new leadership until an agent has a session, and
        /// the number of calls of the agent since the old leader died.
        fn run(&self, seed: u64) -> (Duration, u32) {
            let mut calls = calls(&["old", "new"], seed);
            let call = calls.next();
            let (mut now, mut count) = (Duration::ZERO, 0);
            now += calls.end(call, Answer::Failed, true, LONGEST);
            loop {
                let call = calls.next();
                count += 1;
                let (answer, took) = self.answer(&call, now);
                now += took;
                let Some(answer) = answer else { return (now.saturating_sub(self.leads), count) };
                now += calls.end(call, answer, false, took);
            }
        }
    }

    #[test]
    fn an_agent_has_a_session_soon_after_a_successor_leads() {
        for names in [true, false] {
            let (mut late, mut most) = (Duration::ZERO, 0);
            for seed in 0..1_000_u64 {
                let leads = Duration::from_millis(2_000 + 13 * seed);
                let (took, calls) = Election { leads, names, waits: true }.run(seed);
                (late, most) = (late.max(took), most.max(calls));
            }
            // While an agent does not wait at the successor, it makes at most three calls.
            assert!(late <= 3 * SHORTEST + 4 * CALL, "names {names}: {late:?}");
            assert!(most <= 30, "names {names}: {most} calls in 15 s");
        }
    }

    #[test]
    fn controllers_that_answer_at_once_are_called_ever_less_often() {
        for names in [true, false] {
            let (mut calls, mut late) = (0, Duration::ZERO);
            for seed in 0..100 {
                let leads = Duration::from_secs(60);
                let (took, count) = Election { leads, names, waits: false }.run(seed);
                (calls, late) = (calls.max(count), late.max(took));
            }
            assert!(calls <= 50, "names {names}: {calls} calls in 60 s");
            assert!(late <= LONGEST + 4 * SHORTEST, "names {names}: {late:?}");
        }
    }

    #[test]
    fn a_leader_that_cannot_be_reached_is_called_again_after_a_wait() {
        let mut calls = calls(&["a", "b"], 1);
        let end = |calls: &mut Calls, answer: Answer| {
            let call = calls.next();
            let (address, unreachable) = (call.address.clone(), call.unreachable.clone());
            let took = call.wait;
            calls.end(call, answer, false, took);
            (address, unreachable)
        };
        let leader = || Answer::Leader("c".to_owned());
        let mut all = Vec::new();
        for answer in [leader(), Answer::Failed, leader(), leader(), Answer::Failed, leader()] {
            all.push(end(&mut calls, answer));
        }
        let all: Vec<_> = all.iter().map(|(a, u)| (a.as_str(), u.as_str())).collect();
        assert_eq!(all, [("a", ""), ("c", ""), ("a", "c"), ("b", ""), ("c", ""), ("b", "c")]);
    }

    #[test]
    fn redirections_in_a_circle_end_after_three() {
        let mut calls = calls(&["a", "b"], 1);
        let (mut all, mut pauses) = (Vec::new(), Vec::new());
        for leader in ["x", "y", "x", "y", "x"] {
            let call = calls.next();
            let address = call.address.clone();
            let answer = Answer::Leader(leader.to_owned());
            pauses.push(calls.end(call, answer, false, Duration::ZERO));
            all.push((address, calls.follows()));
        }
        let all: Vec<_> = all.iter().map(|(address, follows)| (&**address, *follows)).collect();
        assert_eq!(all, [("a", true), ("x", true), ("y", true), ("x", false), ("b", true)]);
        assert!(pauses[3] >= SHORTEST / 2, "{pauses:?}");
    }
}
