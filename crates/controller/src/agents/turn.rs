//! Limits the rate of an agent's messages.
//!
//! A session may send [`BURST`] reports at once. After the first [`BURST`] reports, the session may
//! send two reports in each report interval. An agent that was delayed needs no higher rate,
//! because its next report covers the whole delay. An agent may answer each plan once.

use std::time::Duration;

use tokio::time::Instant;

/// Number of reports that an agent may send at once.
pub(super) const BURST: u32 = 8;

/// Limits of the rate of reports and answers in one session.
#[derive(Debug)]
pub(super) struct Turn {
    /// Shortest permitted mean time between two reports, which is half of the report interval.
    each: Duration,
    /// Theoretical arrival time of the next report, as in the generic cell rate algorithm (GCRA).
    paced: Instant,
    /// Number of plans that the agent has not answered.
    owed: u32,
}

impl Turn {
    pub(super) fn new(report_millis: u64, now: Instant) -> Self {
        Self { each: Duration::from_millis(report_millis) / 2, paced: now, owed: 0 }
    }

    /// Counts a report of the agent. Returns an error if the agent sends reports too fast.
    pub(super) fn report(&mut self, now: Instant) -> Result<(), String> {
        self.paced = self.paced.max(now) + self.each;
        if self.paced - now > self.each * BURST {
            let problem = format!(
                "the agent sent more than {BURST} reports at once, or more than one per {:?}",
                self.each
            );
            return Err(problem);
        }
        Ok(())
    }

    /// Records that the controller sent a plan, so the agent may send one more answer.
    pub(super) fn tell(&mut self) {
        self.owed += 1;
    }

    /// Counts an answer of the agent. Returns an error if the agent has already answered all plans.
    pub(super) fn answer(&mut self) -> Result<(), String> {
        self.owed =
            self.owed.checked_sub(1).ok_or("the agent sent more answers than it received plans")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_may_be_late_and_twice_as_frequent_but_no_more() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut turn = Turn::new(1_000, begin);
        assert!((0..BURST).all(|_| turn.report(at(0)).is_ok()));
        assert!(turn.report(at(0)).unwrap_err().contains("more than 8 reports"));
        let mut turn = Turn::new(1_000, begin);
        assert!((0..10_000).all(|n| turn.report(at(n * 500)).is_ok()));
        let mut turn = Turn::new(1_000, begin);
        assert!((0..100).any(|n| turn.report(at(n * 400)).is_err()));
    }

    #[test]
    fn an_agent_with_two_plans_answers_twice() {
        let mut turn = Turn::new(1_000, Instant::now());
        assert!(turn.answer().is_err());
        turn.tell();
        turn.tell();
        assert_eq!((turn.answer(), turn.answer()), (Ok(()), Ok(())));
        assert!(turn.answer().unwrap_err().contains("more answers than"));
    }
}
