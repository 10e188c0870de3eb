//! Limits the rate of an agent's messages.
//!
//! A session may send [`BURST`] reports at once, and two reports in each interval after that. A
//! delayed agent needs no higher rate, because it sends one report for the whole delay. An agent
//! may answer each plan once.

use std::time::Duration;

use tokio::time::Instant;

/// Number of reports that may arrive at once.
pub(super) const BURST: u32 = 8;

/// Limits of one session.
#[derive(Debug)]
pub(super) struct Turn {
    /// Time that each report consumes.
    each: Duration,
    /// Time at which all reports so far would have arrived at the permitted rate.
    paced: Instant,
    /// Number of plans that the agent has not answered.
    owed: u32,
}

impl Turn {
    pub(super) fn new(report_millis: u64, now: Instant) -> Self {
        Self { each: Duration::from_millis(report_millis) / 2, paced: now, owed: 0 }
    }

    /// Fails if the agent sends reports too fast.
    pub(super) fn report(&mut self, now: Instant) -> Result<(), String> {
        self.paced = self.paced.max(now) + self.each;
        if self.paced - now > self.each * BURST {
            let problem = format!("more than {BURST} reports at once, or one in {:?}", self.each);
            return Err(problem);
        }
        Ok(())
    }

    /// Permits one more answer, because a plan was sent.
    pub(super) fn tell(&mut self) {
        self.owed += 1;
    }

    /// Fails if the agent has answered all plans.
    pub(super) fn answer(&mut self) -> Result<(), String> {
        self.owed = self.owed.checked_sub(1).ok_or("an answer without a plan")?;
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
        assert!(turn.answer().unwrap_err().contains("without a plan"));
    }
}
