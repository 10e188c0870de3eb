//! How long a batch of a lower class may hold the core.
//!
//! **Problem.** A batch that has begun is not interrupted. So whoever comes first in the order of
//! classes waits for what is left of the batch under way, however low its class: on the C2QoS
//! paper's platform 32 frames of 1024 B take 24 us, which is most of what a top class ever waits.
//! **Source.** C2QoS §IV-B.2: a class's worst latency is a multiple of `c`, the time of one batch;
//! the paper takes `c` as given. **Rule.** With `hbs`, a port that is not of the first class among
//! those here gets batches of so many frames as take [`LOWER_CLASS`] at what its frames cost last;
//! at least one. Ports of the first class, and all where there is one class, have whole batches.
//! **Example.** 32 frames cost 24 us: the next batch has 6; those cost 4.5 us: then 6 again.
//! **Departures.** The paper's batches are all of 32. **Cost.** A comparison a batch, and a
//! division where a whole batch takes longer than the bound.

use penstock_qos::latency_bound::{self, LOWER_CLASS};
use penstock_units::{Cycles, PortId, Priority, TscRate};

use crate::batch::BATCH_FRAMES;

// What is promised of latency counts on it.
const _: () = assert!(BATCH_FRAMES == latency_bound::BATCH_FRAMES as usize);

/// See the module's text.
#[derive(Debug)]
pub(super) struct BatchBound {
    cycles: u64,
    /// The first class among the ports here.
    first: Priority,
    /// Frames of the next batch, by port.
    frames: Box<[u8]>,
}

/// A whole batch.
const WHOLE: u8 = {
    assert!(BATCH_FRAMES <= u8::MAX as usize);
    #[expect(clippy::cast_possible_truncation, reason = "asserted")]
    let whole = BATCH_FRAMES as u8;
    whole
};

impl BatchBound {
    pub(super) fn new(ports: usize, tsc: TscRate) -> Self {
        Self {
            cycles: tsc.to_cycles(LOWER_CLASS).0.max(1),
            first: Priority::LAST,
            frames: vec![WHOLE; ports].into_boxed_slice(),
        }
    }

    /// The first class among the ports here; the last, where classes are not looked at.
    pub(super) fn set_first(&mut self, first: Priority) {
        self.first = first;
    }

    /// Frames that the next batch of a port may have.
    #[inline]
    pub(super) fn frames(&self, port: PortId, class: Priority) -> usize {
        if class <= self.first {
            return BATCH_FRAMES;
        }
        self.frames.get(port.index()).map_or(BATCH_FRAMES, |frames| usize::from(*frames))
    }

    /// A batch of `frames` cost so much.
    #[inline]
    pub(super) fn note(&mut self, port: PortId, class: Priority, frames: usize, cost: Cycles) {
        if class <= self.first {
            return;
        }
        let Some(next) = self.frames.get_mut(port.index()) else { return };
        if cost.0 > self.cycles || *next < WHOLE {
            let fit = (frames as u64).saturating_mul(self.cycles) / cost.0.max(1);
            *next = u8::try_from(fit.max(1)).unwrap_or(WHOLE).min(WHOLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: PortId = PortId(1);

    fn bound() -> BatchBound {
        // 5 us are 5,000 cycles.
        BatchBound::new(2, TscRate::from_hz(1_000_000_000))
    }

    #[test]
    fn the_first_class_has_whole_batches_and_so_has_whoever_is_alone() {
        let mut bound = bound();
        bound.note(ME, Priority::LAST, 32, Cycles(24_000));
        assert_eq!(bound.frames(ME, Priority::LAST), 32, "there is but one class");
        bound.set_first(Priority::FIRST);
        bound.note(ME, Priority::FIRST, 32, Cycles(24_000));
        assert_eq!(bound.frames(ME, Priority::FIRST), 32);
        assert_eq!(bound.frames(ME, Priority::LAST), 32);
    }

    #[test]
    fn a_lower_class_s_batch_fits_the_bound_and_grows_back() {
        let mut bound = bound();
        bound.set_first(Priority::FIRST);
        let next = |bound: &mut BatchBound, frames, cost| {
            bound.note(ME, Priority::LAST, frames, Cycles(cost));
            bound.frames(ME, Priority::LAST)
        };
        assert_eq!(next(&mut bound, 32, 24_000), 6);
        assert_eq!(next(&mut bound, 6, 4_500), 6);
        assert_eq!(next(&mut bound, 6, 900), 32, "frames became cheap");
        assert_eq!(next(&mut bound, 32, 4_999), 32);
        assert_eq!(next(&mut bound, 1, 90_000), 1, "never none");
        assert_eq!(next(&mut bound, 1, 0), 32);
    }
}
