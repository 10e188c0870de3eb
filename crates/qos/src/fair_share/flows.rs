//! Flow queues of VMs: each flow of a VM has its own queue.
//!
//! # Problem
//!
//! If all frames of a VM wait in one queue, the VM's pings wait behind its bulk TCP. A larger share
//! shortens the wait, but does not end it.
//!
//! # Approach
//!
//! While frames of a VM wait, the VM has a [`FlowTable`]. The tenants and VMs have their turns as
//! without flow queues. When a VM has its turn, its table decides which of the VM's frames leaves.
//! So the flows of a VM share what the VM gets, however many they are.
//!
//! An output has a fixed number of tables. A VM takes a table with its first frame, and gives it
//! back with its last one. If all tables are in use, the frames of further VMs wait in one queue
//! for each VM.
//!
//! # Lengths
//!
//! A frame of a flow with few frames can become the next frame of its VM, after the discipline has
//! got the length of another frame. The discipline may then decide too early or too late by one
//! frame. The next charge has the bytes of the frame that was sent, so the error does not add up.
//!
//! # Frames that are not sent
//!
//! The caller may drop a departing frame as a signal of congestion, and the VM is charged for the
//! frame already. Therefore the VM's next frames cost less by the bytes of the dropped frame
//! ([`FairShare::not_sent`]).

use penstock_units::Nanos;

use super::{FairShare, NONE, Vm, narrow};
use crate::flow_queues::{FlowTable, Line};
use crate::frame_pool::Frame;

/// The flow queues of an output's VMs.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    all: Box<[FlowTable]>,
    /// Numbers of the tables that no VM has.
    free: Vec<u32>,
}

impl Tables {
    /// Returns `tables` tables of `flows` queues each.
    pub fn new(tables: usize, flows: u32) -> Self {
        let all = vec![FlowTable::new(flows); tables].into_boxed_slice();
        Self { all, free: (0..narrow(tables)).collect() }
    }

    /// Takes a free table. Returns [`NONE`] if no table is free.
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or(NONE)
    }

    fn get(&mut self, table: u32) -> Option<&mut FlowTable> {
        self.all.get_mut(table as usize)
    }

    /// Returns the frames of a VM.
    pub(super) fn line<'a>(&'a mut self, vm: &'a mut Vm) -> Line<'a> {
        Line { flows: self.get(vm.table), queue: &mut vm.queue }
    }

    /// Takes the table of a VM back if no frame of the VM waits.
    fn tidy(&mut self, vm: &mut Vm) {
        if vm.queue.is_empty()
            && let Some(table) = self.all.get_mut(vm.table as usize)
        {
            table.release();
            self.free.push(vm.table);
            vm.table = NONE;
        }
    }
}

impl<T: Copy + Default> FairShare<T> {
    /// Adds a frame of a VM to the queue of the flow with the hash `flow`.
    pub(super) fn put(&mut self, slot: usize, flow: u32, (item, bytes): (T, u32), now: Nanos) {
        let vm = &mut self.vms[slot];
        if vm.queue.is_empty() {
            vm.table = self.flows.take();
        }
        self.flows.line(vm).push(&mut self.pool, flow, (item, bytes), now);
        self.frames += 1;
    }

    /// Removes and returns the next frame of a VM. Returns `None` if no frame of the VM waits.
    pub(super) fn take(&mut self, slot: usize) -> Option<Frame<T>> {
        let vm = self.vms.get_mut(slot)?;
        let frame = self.flows.line(vm).pop(&mut self.pool)?;
        self.flows.tidy(vm);
        self.frames -= 1;
        Some(frame)
    }

    /// Returns the length in bytes of a VM's next frame, or of its claim if no frame of the VM
    /// waits. 0 if the VM has neither.
    pub(super) fn next_of(&mut self, slot: u32) -> u32 {
        let Some(vm) = self.vms.get_mut(slot as usize) else { return 0 };
        self.flows.line(vm).head(&self.pool).unwrap_or(vm.claim)
    }

    /// Returns the flow queues of a VM. Returns `None` if no frame of the VM waits, or if the VM
    /// has one queue for all its frames.
    pub fn flow_table(&mut self, slot: usize) -> Option<&mut FlowTable> {
        let table = self.vms.get(slot)?.table;
        self.flows.get(table)
    }

    /// Removes and returns the first frame of a VM's flow with many waiting bytes: at least half as
    /// many as any other flow of the VM. Returns `None` if no frame of the VM waits, or if the VM
    /// has one queue for all its frames.
    pub fn evict(&mut self, slot: usize) -> Option<T> {
        if self.vms.get(slot)?.queue.frames <= 1 {
            // The VM may become silent, and its burst must be charged before.
            self.settle();
        }
        let vm = self.vms.get_mut(slot)?;
        let frame = self.flows.line(vm).evict(&mut self.pool)?;
        self.flows.tidy(vm);
        self.frames -= 1;
        vm.account.dropped_full += 1;
        let (tenant, is_active) = (vm.tenant as usize, vm.is_active());
        if !is_active {
            self.silence(tenant, slot);
        }
        Some(frame.item)
    }

    /// Gives a VM back `bytes` bytes of a frame that [`Self::next`] returned, because the caller
    /// does not send them. The VM's counters of sent frames and bytes keep them.
    pub fn not_sent(&mut self, slot: usize, bytes: u32) {
        if let Some(vm) = self.vms.get_mut(slot) {
            vm.credit = vm.credit.saturating_add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_units::Weight;

    use super::*;
    use crate::codel::Pace;
    use crate::fair_share::{Bound, Capacity, Excess};

    const QUEUES: u32 = 8;

    /// Returns the hash that selects queue `flow`.
    fn hash(flow: u32) -> u32 {
        flow << 29
    }

    /// Returns an output with a VM of each of two tenants, which have the weights 3 and 1.
    fn output(tables: usize) -> FairShare<u32> {
        let capacity = Capacity { tenants: 2, vms: 2, frames: 200 };
        let mut fair = FairShare::with_flows(capacity, tables, QUEUES);
        for (slot, weight) in [(0, 3), (1, 1)] {
            assert!(fair.set_tenant(slot, Weight::new(weight).unwrap()));
            assert!(fair.set_vm(slot, slot, Weight::ONE, Bound::default()));
        }
        fair
    }

    /// Adds frames of 1,000 bytes of the flow `flow`, which is also their handle.
    fn add(fair: &mut FairShare<u32>, vm: usize, flow: u32, frames: u32) {
        (0..frames).for_each(|_| fair.accept_flow(vm, hash(flow), (flow, 1_000), Nanos(0)));
    }

    /// Removes the next frame. Returns its VM and its flow.
    fn go(fair: &mut FairShare<u32>) -> Option<(usize, u32)> {
        let next = fair.next(Nanos(0), |_, _| unreachable!("no wait is too long"))?;
        Some((next.vm, next.item))
    }

    /// Lets both VMs send 20,000 frames, the first one of one flow, and the second one of seven
    /// flows. Every `lost`-th frame is dropped if it is of the first VM. Returns the number of
    /// frames that each VM sent.
    fn sent(lost: u32) -> [u64; 2] {
        let (mut fair, mut sent) = (output(2), [0_u64; 2]);
        for step in 1..=20_000_u32 {
            while fair.backlog(0).0 < 20 {
                add(&mut fair, 0, 1, 1);
            }
            while fair.backlog(1).0 < 20 {
                (1..8).for_each(|flow| add(&mut fair, 1, flow, 1));
            }
            let (vm, _) = go(&mut fair).unwrap();
            if vm == 0 && step % lost == 0 {
                fair.not_sent(0, 1_000);
            } else {
                sent[vm] += 1;
            }
        }
        sent
    }

    #[test]
    fn the_flows_of_a_vm_and_its_lost_frames_change_no_share() {
        for lost in [u32::MAX, 3] {
            let sent = sent(lost);
            assert!(sent[0].abs_diff(3 * sent[1]) <= 30, "one of {lost} is lost: {sent:?}");
        }
    }

    #[test]
    fn a_flow_with_few_frames_goes_before_the_other_frames_of_its_vm_only() {
        let mut fair = output(2);
        (0..2).for_each(|vm| add(&mut fair, vm, 1, 40));
        // The flows use the quanta of new flows.
        (0..20).for_each(|_| assert!(go(&mut fair).is_some()));
        add(&mut fair, 1, 5, 1);
        let order: Vec<_> = core::iter::from_fn(|| go(&mut fair)).collect();
        let first = order.iter().find(|(vm, _)| *vm == 1);
        assert_eq!(first, Some(&(1, 5)));
        assert_eq!((order.len(), fair.len()), (61, 0));
        assert_eq!(fair.flows.free.len(), 2);
    }

    #[test]
    fn a_vm_without_a_table_has_one_queue() {
        let mut fair = output(1);
        (0..2).for_each(|vm| add(&mut fair, vm, 1, 10));
        assert!(fair.flow_table(0).is_some() && fair.flow_table(1).is_none());
        add(&mut fair, 1, 5, 1);
        assert_eq!((fair.backlog(1), fair.evict(1)), ((11, 11_000), None));
        let flows = core::iter::from_fn(|| go(&mut fair)).filter(|(vm, _)| *vm == 1);
        assert_eq!(flows.last(), Some((1, 5)));
        add(&mut fair, 1, 1, 1);
        assert!(fair.flow_table(1).is_some(), "the table is free again");
    }

    #[test]
    fn a_vm_loses_frames_of_its_largest_flow() {
        let mut fair = output(2);
        add(&mut fair, 0, 1, 10);
        add(&mut fair, 0, 2, 1);
        add(&mut fair, 1, 3, 1);
        assert_eq!((fair.evict(0), fair.backlog(0)), (Some(1), (10, 10_000)));
        // The second VM has no frame any more, and no turn.
        assert_eq!((fair.evict(1), fair.evict(1), fair.len()), (Some(3), None, 10));
        assert!(core::iter::from_fn(|| go(&mut fair)).all(|(vm, _)| vm == 0));
        add(&mut fair, 1, 3, 2);
        fair.remove_vm(1, |flow| assert_eq!(flow, 3));
        assert_eq!((fair.len(), fair.flows.free.len(), go(&mut fair)), (0, 2, None));
    }

    #[test]
    fn late_frames_take_no_turns_of_their_flow() {
        let (mut fair, now) = (output(1), Nanos(2_000));
        let bound = Bound { bytes: 100_000, wait: Nanos(1_000), excess: Excess::Drop };
        assert!(fair.set_vm(0, 0, Weight::ONE, bound));
        add(&mut fair, 0, 1, 10);
        for (flow, handle) in [(1, 9), (2, 2)] {
            (0..4).for_each(|_| fair.accept_flow(0, hash(flow), (handle, 1_000), now));
        }
        let mut late = Vec::new();
        let next = || fair.next(now, |_, handle| late.push(handle)).map(|next| next.item);
        let order: Vec<u32> = core::iter::from_fn(next).collect();
        assert_eq!((late, &order[..4], order.len()), (vec![1; 10], &[9, 9, 2, 2][..], 8));
    }

    #[test]
    fn the_next_vm_with_a_table_gets_no_early_signal() {
        let mut fair = output(1);
        let signals = |fair: &mut FairShare<u32>, vm, ms| {
            let (wait, now) = (Nanos::from_millis(50), Nanos::from_millis(ms));
            fair.flow_table(vm).unwrap().signals(hash(1), wait, Pace::DEFAULT, now)
        };
        add(&mut fair, 0, 1, 5);
        let first = [0, 99, 100, 150].map(|ms| signals(&mut fair, 0, ms));
        assert_eq!(first, [false, false, true, true]);
        while go(&mut fair).is_some() {}
        add(&mut fair, 1, 1, 5);
        let second = [200, 299, 300].map(|ms| signals(&mut fair, 1, ms));
        assert_eq!(second, [false, false, true]);
    }
}
