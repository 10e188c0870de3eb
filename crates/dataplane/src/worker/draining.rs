//! Sends the frames that wait inside a worker, before the ports go to another process.
//!
//! # Problem
//! A held worker takes no frame from its ports. But frames that it took before may still wait in
//! the queue of an output or in a cutter. The next process of the switch does not get these frames,
//! and their senders have their buffers back already.
//!
//! # Approach
//! The control plane first holds all workers, and then asks one after the other to send what waits.
//! A cutter sends at once, although its port's shaper would space the frames. An output sends each
//! frame when the frame is due, because a link or a ceiling must not be exceeded. Frames that are
//! due after the limit of the request are lost. The worker does not check whether an output's port
//! has cycles, because this process does not use its cycles any more.

use penstock_units::{Nanos, PortId, QueueId};

use super::Worker;
use crate::tsc::CycleCounter;
use crate::unit::Unit;

/// Maximum number of looks at the outputs, if the clock does not advance.
const LOOKS_MAX: u32 = 100_000;

impl<C: CycleCounter> Worker<C> {
    /// Sends the frames that wait in cutters and output queues, for about the time `limit`. The
    /// worker must be held.
    pub(super) fn send_waiting(&mut self, limit: Nanos) {
        self.rested();
        let end = self.ctx.nanos() + limit;
        self.empty_cutters();
        for _ in 0..LOOKS_MAX {
            self.pass_time();
            let waits = self.run_outputs();
            // Drivers without free buffers return some when they are notified.
            self.end_idle();
            if !waits || self.ctx.nanos() >= end {
                return;
            }
        }
    }

    fn empty_cutters(&mut self) {
        for index in 0..self.ctx.ports.len() {
            let (port, owned) = (port_at(index), self.ctx.ports[index].owned);
            if owned != 0 && self.input.holds(port) {
                let queue = QueueId(u16::try_from(owned.trailing_zeros()).unwrap_or(0));
                self.send_held(Unit { port, queue });
            }
        }
    }

    /// Sends one batch of each output that has due frames. Returns whether a frame still waits at
    /// an output.
    fn run_outputs(&mut self) -> bool {
        let mut waits = false;
        for port in (0..self.ctx.ports.len()).map(port_at) {
            if self.outputs.is_ready(port)
                && let Some(bill) = self.outputs.run(&mut self.ctx, &mut self.roster, port, false)
            {
                self.settle(&bill);
            }
            waits |= self.outputs.holds(port);
        }
        waits
    }
}

fn port_at(index: usize) -> PortId {
    PortId(u16::try_from(index).unwrap_or(u16::MAX))
}
