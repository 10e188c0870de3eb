//! This module contains helpers that several test files use.

use penstock_dataplane::tsc::{CycleCounter, Stage, VirtualCounter, Work};
use penstock_units::Cycles;

/// Lets only one test at a time race two threads that never sleep. On a machine with two cores, the
/// threads of several such tests would wait for each other, and a race would make no progress.
pub fn one_race() -> std::sync::MutexGuard<'static, ()> {
    static RACE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    RACE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

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
