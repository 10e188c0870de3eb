//! A worker has a placeholder for each queue pair of its ports that another worker owns. The
//! placeholders ensure that each queue pair of a port has the same number on all workers.

use penstock_units::Cycles;

use crate::batch::Batch;
use crate::offload::OffloadCaps;
use crate::port::{Pending, PortQueue, TxOutcome};

/// Placeholder for a queue pair that another worker owns. A placeholder neither receives nor sends
/// frames. A `Box` of the type `Absent` needs no heap allocation.
#[derive(Debug)]
pub(super) struct Absent;

impl PortQueue for Absent {
    fn pending(&mut self, _now: Cycles) -> Pending {
        Pending::No
    }

    fn rx_burst(&mut self, _batch: &mut Batch) {}

    fn tx_ready(&self) -> bool {
        false
    }

    fn caps(&self) -> OffloadCaps {
        OffloadCaps::default()
    }

    fn tx_burst(&mut self, _batch: &Batch, frames: &[u8]) -> TxOutcome {
        TxOutcome { down: u32::try_from(frames.len()).unwrap_or(0), ..TxOutcome::default() }
    }
}
