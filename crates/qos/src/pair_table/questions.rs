//! Decides how often questions about pairs are asked.

use core::sync::atomic::Ordering;

use penstock_units::Nanos;

use super::slots::SendSlot;
use super::{GUARANTEE_PERIOD, PERIOD, PairLimits, PairRef, PairTable};

impl PairTable {
    /// Sets the time between two questions about a pair in a table for guarantees, at least
    /// [`GUARANTEE_PERIOD`]. If it becomes shorter, so does the time until the next question.
    pub fn ask_every(&self, pair: PairRef, every: Nanos) {
        if let Some(slot) = self.send.get(pair.slot).filter(|slot| slot.epoch() == pair.epoch) {
            slot.ask_every(every.max(GUARANTEE_PERIOD));
        }
    }

    /// Returns the time between two questions about a pair.
    pub(super) fn asks_every(&self, slot: &SendSlot) -> Nanos {
        match self.limits {
            PairLimits::Guarantees if !slot.is_new() => slot.asks_every(),
            PairLimits::Guarantees | PairLimits::Rates => PERIOD,
        }
    }
}

impl SendSlot {
    fn ask_every(&self, every: Nanos) {
        let before = self.every.swap(every.0, Ordering::Relaxed);
        let earlier = before.saturating_sub(every.0);
        if earlier > 0 {
            let sooner = |next: u64| Some(next.saturating_sub(earlier));
            let _ = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sooner);
        }
    }

    fn asks_every(&self) -> Nanos {
        Nanos(self.every.load(Ordering::Relaxed))
    }
}
