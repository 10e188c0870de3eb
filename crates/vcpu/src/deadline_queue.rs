//! Queue of the vCPUs with deadlines on one processor.
//!
//! # Problem
//! The deadline queue decides when a vCPU must preempt the running vCPU, so that every vCPU runs by
//! its deadline.
//!
//! # Source
//! The source is the paper VM jitter, §III-A and §IV. In the paper on VM jitter, the run queue is
//! ordered by deadline, polled every 0.5 ms, and has slices of 0.5 ms.
//!
//! # Quantities
//! - Slot: 0.5 ms of processor time ([`SLICE`]). Slots are numbered from time 0. The processor is
//!   polled at the start of each slot.
//! - Deadline: the time by which a vCPU must start to run. D is the interval from the vCPU's last
//!   run to the deadline.
//!
//! # Approach
//! 1. Each vCPU with a deadline owns some slots of its processor ([`crate::slots`]).
//! 2. A vCPU with a deadline books the latest free slot that starts by the deadline. A slot is free
//!    if no other vCPU owns the slot or has booked it.
//! 3. If no slot before the deadline is free, the vCPU books its next own slot, which starts less
//!    than a slot after the deadline.
//! 4. A vCPU is *due* when its booked slot starts. No two vCPUs book the same slot.
//!
//! According to the booking rules, a vCPU runs at most D + 0.5 ms after the vCPU was last
//! descheduled. Penstock's bound of D + 0.5 ms exceeds the bound D in the paper on VM jitter by the
//! time until the next poll.
//!
//! # Example
//! A vCPU with D = 3 ms books the slot that starts 6 slots later. A second vCPU with the same
//! deadline books the preceding slot.
//!
//! # Departures
//! The deadline queue is ordered by booked slots and not by deadlines. If the queue were ordered by
//! deadlines, the last of k vCPUs with equal deadlines would be k - 1 slices late.
//!
//! # Cost
//! The booking of a slot costs O(n) if n vCPUs on the processor have deadlines.

use penstock_units::{Nanos, VcpuId};

use crate::slots::{Residue, layout};

/// Length of a slot of the deadline queue. A due vCPU runs for one slot, and the scheduler polls
/// each processor once per slot.
pub const SLICE: Nanos = Nanos::from_micros(500);

/// The window of a vCPU with deadline D and slice S, in slots. The vCPU must run once in any D / S
/// + 1 consecutive slots.
#[must_use]
pub const fn window(deadline: Nanos) -> u64 {
    deadline.0 / SLICE.0 + 1
}

#[derive(Clone, Debug)]
struct Member {
    vcpu: VcpuId,
    deadline: Nanos,
    own: Residue,
    booked: Option<u64>,
    /// Deadline for which the vCPU booked its slot, as a point in time.
    by: Nanos,
}

/// Queue of the vCPUs with deadlines on one processor.
#[derive(Clone, Debug, Default)]
pub struct DeadlineQueue {
    members: Vec<Member>,
}

impl DeadlineQueue {
    /// Makes a deadline queue without vCPUs.
    #[must_use]
    pub const fn new() -> Self {
        Self { members: Vec::new() }
    }

    /// Adds a vCPU with its deadline, but books no slot for the vCPU. Returns true if the
    /// processor's slots suffice for the new vCPU and all other vCPUs. If the slots do not suffice
    /// for the new vCPU, the queue does not change.
    pub fn join(&mut self, now: Nanos, vcpu: VcpuId, deadline: Nanos) -> bool {
        let own = Residue { period: 1, phase: 0 };
        self.members.push(Member { vcpu, deadline, own, booked: None, by: Nanos(0) });
        let fits = self.lay_out(now);
        if !fits {
            self.members.pop();
        }
        fits
    }

    /// Removes a vCPU and the vCPU's booking. The remaining vCPUs of the queue get new slots of
    /// their own.
    pub fn part(&mut self, now: Nanos, vcpu: VcpuId) {
        self.members.retain(|member| member.vcpu != vcpu);
        // If deadlines fit together, any subset of these deadlines fits.
        self.lay_out(now);
    }

    /// Divides the slots among all vCPUs again, and repeats the vCPUs' bookings, the earliest
    /// deadline first. If a vCPU's deadline is less than one [`window`] away, the vCPU may be late
    /// by one window.
    fn lay_out(&mut self, now: Nanos) -> bool {
        let windows: Vec<u64> = self.members.iter().map(|m| window(m.deadline)).collect();
        let Some(own) = layout(&windows) else { return false };
        self.members.iter_mut().zip(own).for_each(|(member, own)| member.own = own);
        let booked =
            self.members.iter_mut().filter_map(|m| m.booked.take().map(|_| (m.by, m.vcpu)));
        let mut again: Vec<(Nanos, VcpuId)> = booked.collect();
        again.sort_unstable();
        again.into_iter().for_each(|(by, vcpu)| self.enter(now, vcpu, by));
        true
    }

    fn member(&mut self, vcpu: VcpuId) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.vcpu == vcpu)
    }

    /// Whether the vCPU may book `slot`, which no other vCPU may own or have booked.
    fn free(&self, slot: u64, vcpu: VcpuId) -> bool {
        self.members.iter().all(|member| {
            if member.vcpu == vcpu {
                true
            } else {
                !member.own.owns(slot) && member.booked != Some(slot)
            }
        })
    }

    /// Books a slot for `vcpu`, which must run by the time `by`. If the vCPU already has a booking
    /// for the same or an earlier deadline, that booking stays.
    pub fn enter(&mut self, now: Nanos, vcpu: VcpuId, by: Nanos) {
        let first = now.0.div_ceil(SLICE.0);
        let Some(member) = self.member(vcpu) else { return };
        let (own, window) = (member.own, window(member.deadline));
        if member.booked.is_some() && member.by <= by {
            return;
        }
        let last = (by.0 / SLICE.0).min(first.saturating_add(window));
        let latest = (first..=last).rev().find(|slot| self.free(*slot, vcpu));
        let slot = latest.unwrap_or_else(|| own.next(first));
        if let Some(member) = self.member(vcpu) {
            (member.booked, member.by) = (Some(slot), by);
        }
    }

    /// Removes the booking of a vCPU, because the vCPU runs or is blocked.
    pub fn leave(&mut self, vcpu: VcpuId) {
        if let Some(member) = self.member(vcpu) {
            member.booked = None;
        }
    }

    /// Deadline of a vCPU. Returns `None` if the vCPU has no deadline on this processor.
    #[must_use]
    pub fn deadline(&self, vcpu: VcpuId) -> Option<Nanos> {
        self.members.iter().find(|member| member.vcpu == vcpu).map(|member| member.deadline)
    }

    /// Start of the slot that a vCPU has booked. Returns `None` if the vCPU has booked no slot.
    #[must_use]
    pub fn due_at(&self, vcpu: VcpuId) -> Option<Nanos> {
        let member = self.members.iter().find(|member| member.vcpu == vcpu)?;
        member.booked.map(|slot| Nanos(slot.saturating_mul(SLICE.0)))
    }

    /// The due vCPU with the earliest booked slot, except the vCPU `running`. Returns `None` if no
    /// other vCPU is due.
    #[must_use]
    pub fn due(&self, now: Nanos, running: Option<VcpuId>) -> Option<VcpuId> {
        let slot = now.0 / SLICE.0;
        let waiting = self.members.iter().filter(|member| Some(member.vcpu) != running);
        let due = waiting.filter(|member| member.booked.is_some_and(|at| at <= slot));
        due.min_by_key(|member| member.booked).map(|member| member.vcpu)
    }

    /// Time at which the next vCPU is due. Returns `None` if no slot is booked.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let booked = self.members.iter().filter_map(|member| member.booked).min();
        booked.map(|slot| Nanos(slot.saturating_mul(SLICE.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const A: VcpuId = VcpuId(0);
    const B: VcpuId = VcpuId(1);

    fn queue(deadlines_ms: &[u64]) -> DeadlineQueue {
        let mut queue = DeadlineQueue::new();
        for (at, deadline) in (0..).zip(deadlines_ms) {
            assert!(queue.join(Nanos(0), VcpuId(at), Nanos::from_millis(*deadline)));
        }
        queue
    }

    #[test]
    fn one_is_due_when_its_deadline_is_and_the_next_a_slot_before() {
        let mut queue = queue(&[3, 3]);
        queue.enter(Nanos(0), A, Nanos(3 * MS));
        // Slot 6 may be an own slot of B. If slot 6 belongs to B, A books slot 5, because B owns
        // only one slot.
        assert!([5, 6].map(|s| Some(Nanos(s * SLICE.0))).contains(&queue.due_at(A)));
        queue.enter(Nanos(0), B, Nanos(3 * MS));
        assert_ne!(queue.due_at(A), queue.due_at(B));
        assert_eq!(queue.next_due(), queue.due_at(A).min(queue.due_at(B)));
        assert_eq!(queue.due(Nanos(2 * MS), None), None);
        assert!(queue.due(Nanos(3 * MS), None).is_some());
    }

    #[test]
    fn alone_it_is_due_at_the_last_poll_before_its_deadline() {
        let mut queue = queue(&[3]);
        queue.enter(Nanos(100_000), A, Nanos(3 * MS + 100_000));
        assert_eq!(queue.due_at(A), Some(Nanos(3 * MS)));
        assert_eq!(
            (queue.due(Nanos(3 * MS - 1), None), queue.due(Nanos(3 * MS), None)),
            (None, Some(A))
        );
        // A later deadline does not postpone the booking, but an earlier one brings it forward.
        queue.enter(Nanos(100_000), A, Nanos(9 * MS));
        assert_eq!(queue.due_at(A), Some(Nanos(3 * MS)));
        queue.enter(Nanos(100_000), A, Nanos(2 * MS));
        assert_eq!(queue.due_at(A), Some(Nanos(2 * MS)));
        queue.leave(A);
        assert_eq!((queue.due_at(A), queue.due(Nanos(90 * MS), None)), (None, None));
    }

    #[test]
    fn a_vcpu_that_does_not_fit_is_refused_and_one_that_leaves_makes_room() {
        let mut queue = queue(&[1, 1]);
        assert!(!queue.join(Nanos(0), VcpuId(2), Nanos(SLICE.0)));
        assert!(queue.deadline(VcpuId(2)).is_none() && queue.deadline(B).is_some());
        queue.enter(Nanos(0), A, Nanos(MS));
        queue.part(Nanos(0), B);
        assert!(queue.join(Nanos(0), VcpuId(2), Nanos(SLICE.0)) && queue.due_at(A).is_some());
    }
}
