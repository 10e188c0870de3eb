//! In the place of a queue pair that another worker owns: the numbers of a port's queue pairs are
//! the same on all workers.

use penstock_units::Cycles;

use crate::batch::Batch;
use crate::offload::OffloadCaps;
use crate::port::{Pending, PortQueue, TxOutcome};

/// See the module's text. Boxing it allocates nothing.
#[derive(Debug)]
pub(super) struct Absent;

impl PortQueue for Absent {
    fn pending(&mut self, _now: Cycles) -> Pending {
        Pending::No
    }

    fn rx_burst(&mut self, _batch: &mut Batch) {}

    fn rx_done(&mut self) {}

    fn tx_ready(&self) -> bool {
        false
    }

    fn caps(&self) -> OffloadCaps {
        OffloadCaps::default()
    }

    fn tx_burst(&mut self, _batch: &Batch, frames: &[u8]) -> TxOutcome {
        TxOutcome { down: u32::try_from(frames.len()).unwrap_or(0), ..TxOutcome::default() }
    }

    fn publish(&mut self) {}

    fn notify(&mut self) -> u32 {
        0
    }
}
