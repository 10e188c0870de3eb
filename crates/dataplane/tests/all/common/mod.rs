//! This module contains helpers that several test files use.

use penstock_dataplane::tsc::{CycleCounter, Stage, VirtualCounter, Work};
use penstock_units::Cycles;

/// Simulated core: each stage of a batch takes `FRAME` cycles per frame, and a turn without a frame
/// takes 200 cycles.
#[derive(Clone, Debug, Default)]
pub struct Core<const FRAME: u64>(pub VirtualCounter);

impl<const FRAME: u64> CycleCounter for Core<FRAME> {
    fn now(&self) -> Cycles {
        self.0.now()
    }

    fn spent(&self, stage: Stage, work: &Work) {
        let frames = work.frames as u64;
        let cost = match stage {
            Stage::Look | Stage::Refill => 0,
            Stage::Idle => 200,
            _ => FRAME * frames.max(1),
        };
        self.0.advance(Cycles(cost));
    }
}
