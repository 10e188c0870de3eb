//! Chooses the batches of which a worker times the stages.
//!
//! The distance between two chosen batches varies at random. With a fixed distance of 64 batches,
//! two ports that take turns would share no chosen batch: one port would have them all.

use super::SAMPLE_EVERY;

/// State of the choice. The same batches are chosen in every run, so that a simulation replays.
#[derive(Debug)]
pub(super) struct Sampler {
    /// Number of batches until the next chosen batch.
    until: u32,
    random: u32,
}

impl Sampler {
    pub const fn new() -> Self {
        Self { until: SAMPLE_EVERY, random: SAMPLE_EVERY }
    }

    /// Counts a batch. Returns true if the batch is chosen. The caller then calls [`Self::undo`] if
    /// the batch had no frame, and [`Self::renew`] if it was chosen and had frames.
    #[inline(always)]
    pub const fn count(&mut self) -> bool {
        self.until -= 1;
        self.until == 0
    }

    /// Takes back the last call of [`Self::count`].
    #[inline(always)]
    pub const fn undo(&mut self) {
        self.until += 1;
    }

    /// Draws the distance to the next chosen batch if a batch was `chosen`.
    #[inline(always)]
    pub const fn renew_if(&mut self, chosen: bool) {
        if chosen {
            self.renew();
        }
    }

    /// Draws the distance to the next chosen batch: at least half of [`SAMPLE_EVERY`], and less
    /// than one and a half.
    pub const fn renew(&mut self) {
        // A linear congruential generator with the constants of Numerical Recipes in C (second
        // edition, 7.1). The upper bits of the state are the most random ones.
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.until = SAMPLE_EVERY / 2 + ((self.random >> 16) % SAMPLE_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many batches of each of `ports` ports are chosen, if the ports take turns.
    fn chosen(ports: usize, batches: usize) -> Vec<u32> {
        let (mut sampler, mut chosen) = (Sampler::new(), vec![0; ports]);
        for batch in 0..batches {
            if sampler.count() {
                chosen[batch % ports] += 1;
                sampler.renew();
            }
        }
        chosen
    }

    #[test]
    fn ports_that_take_turns_all_have_their_batches_chosen() {
        for ports in [1, 2, 3, 5, 16, 61, 64, 96] {
            let batches = 64 * 200 * ports;
            let chosen = chosen(ports, batches);
            let (least, most) = (chosen.iter().min().unwrap(), chosen.iter().max().unwrap());
            assert!(*least >= 140 && *most <= 260, "{ports} ports: {least} to {most}, not 200");
        }
    }

    #[test]
    fn a_batch_without_frames_is_not_counted() {
        let mut sampler = Sampler::new();
        for _ in 1..SAMPLE_EVERY {
            assert!(!sampler.count());
        }
        assert!(sampler.count());
        sampler.undo();
        assert!(sampler.count(), "the next batch is chosen instead");
    }
}
