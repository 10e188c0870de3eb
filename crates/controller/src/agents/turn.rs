//! What an agent may say, and how often.
//!
//! **Rule.** A session has room for [`BURST`] reports at once and two an interval after that: an
//! agent that was held up has one to send, not hundreds. It may answer as often as it was told
//! something.

use std::time::Duration;

use tokio::time::Instant;

/// Reports that may come at once.
pub(super) const BURST: u32 = 8;

/// Of one session.
#[derive(Debug)]
pub(super) struct Turn {
    /// Each report takes that much of the time in which they may come.
    each: Duration,
    /// When all reports so far would have come at that pace.
    paced: Instant,
    /// Plans that were told and not answered.
    owed: u32,
}

impl Turn {
    /// A session begins.
    pub(super) fn new(report_millis: u64, now: Instant) -> Self {
        Self { each: Duration::from_millis(report_millis) / 2, paced: now, owed: 0 }
    }

    /// A report came.
    pub(super) fn report(&mut self, now: Instant) -> Result<(), String> {
        self.paced = self.paced.max(now) + self.each;
        if self.paced - now > self.each * BURST {
            let problem = format!("more than {BURST} reports at once, or one in {:?}", self.each);
            return Err(problem);
        }
        Ok(())
    }

    /// A plan was told.
    pub(super) fn tell(&mut self) {
        self.owed += 1;
    }

    /// An answer came.
    pub(super) fn answer(&mut self) -> Result<(), String> {
        self.owed = self.owed.checked_sub(1).ok_or("an answer to a plan that it was not told")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_may_come_late_together_and_twice_as_often_but_not_more() {
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
    fn who_was_told_twice_answers_twice() {
        let mut turn = Turn::new(1_000, Instant::now());
        assert!(turn.answer().is_err());
        turn.tell();
        turn.tell();
        assert_eq!((turn.answer(), turn.answer()), (Ok(()), Ok(())));
        assert!(turn.answer().unwrap_err().contains("not told"));
    }
}
