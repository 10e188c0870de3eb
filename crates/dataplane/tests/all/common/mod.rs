//! Parts that several test files use.

use penstock_dataplane::tsc::{CycleCounter, Stage, VirtualCounter, Work};
use penstock_units::Cycles;

/// A core on which each stage of a batch takes `FRAME` cycles a frame, and an idle turn 200 cycles.
#[derive(Clone, Debug, Default)]
pub struct Core<const FRAME: u64>(pub VirtualCounter);

impl<const FRAME: u64> CycleCounter for Core<FRAME> {
    fn now(&self) -> Cycles {
        self.0.now()
    }

    fn spent(&self, stage: Stage, work: &Work) {
        let frames = work.frames as u64;
        self.0.advance(Cycles(if stage == Stage::Idle { 200 } else { FRAME * frames.max(1) }));
    }
}
