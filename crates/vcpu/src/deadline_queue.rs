//! The deadlines of one processor's vCPUs, earliest first.
//!
//! # Problem
//! The queue decides which vCPU must preempt the running one, and when, so that no vCPU is late.
//!
//! # Source
//! VM jitter §III-A, §IV: the run queue is ordered by deadline and polled every 0.5 ms, with slices
//! of 0.5 ms.
//!
//! # Quantities
//! - Slot: 0.5 ms of the processor ([`SLICE`]), counted from time 0. Polls fall on the beginnings
//!   of slots.
//! - Deadline: the time by which a vCPU must begin to run.
//!
//! # Approach
//! A vCPU that must run by a deadline books the latest slot that begins by the deadline. It chooses
//! among its own slots and the slots that no other vCPU owns or has booked ([`crate::slots`]). If
//! there is no such slot, it books its next own slot, which begins less than a slot later. The vCPU
//! is due when its slot begins, and two vCPUs are never due together. A vCPU thus runs at most D +
//! 0.5 ms after it was last descheduled. This is the paper's D and one poll.
//!
//! # Example
//! A vCPU with D = 3 ms books the slot 6 slots later. A second vCPU that is due at the same time
//! books the slot before. A test covers this.
//!
//! # Departures
//! The queue is ordered by booked slots and not by bare deadlines. By bare deadlines, the last of k
//! vCPUs with equal deadlines would wait k - 1 slices more.
//!
//! # Cost
//! A booking costs O(n) if n vCPUs on this processor have deadlines.

use penstock_units::{Nanos, VcpuId};

use crate::slots::{Residue, layout};

/// Length of the slice that a due vCPU gets, and time between two polls.
pub const SLICE: Nanos = Nanos::from_micros(500);

/// Number of slots in which a vCPU with this deadline must run once: D / S + 1.
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
    /// Deadline for which the slot was booked.
    by: Nanos,
}

/// The vCPUs with deadlines on one processor.
#[derive(Clone, Debug, Default)]
pub struct DeadlineQueue {
    members: Vec<Member>,
}

impl DeadlineQueue {
    /// A queue without vCPUs.
    #[must_use]
    pub const fn new() -> Self {
        Self { members: Vec::new() }
    }

    /// Adds a vCPU with its deadline. The vCPU is not queued. Returns whether the vCPU fits with
    /// the others. If not, the queue is unchanged.
    pub fn join(&mut self, now: Nanos, vcpu: VcpuId, deadline: Nanos) -> bool {
        let own = Residue { period: 1, phase: 0 };
        self.members.push(Member { vcpu, deadline, own, booked: None, by: Nanos(0) });
        let fits = self.lay_out(now);
        if !fits {
            self.members.pop();
        }
        fits
    }

    /// Removes a vCPU with its booking. The other vCPUs get new own slots.
    pub fn part(&mut self, now: Nanos, vcpu: VcpuId) {
        self.members.retain(|member| member.vcpu != vcpu);
        // A subset of a set that fits always fits.
        self.lay_out(now);
    }

    /// Assigns new own slots to all vCPUs and books again, the earliest deadline first. If a
    /// deadline is closer than its vCPU's window, the booking can be late by one window, once.
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

    /// Whether the vCPU may book `slot`.
    fn free(&self, slot: u64, vcpu: VcpuId) -> bool {
        self.members.iter().all(|member| {
            if member.vcpu == vcpu {
                true
            } else {
                !member.own.owns(slot) && member.booked != Some(slot)
            }
        })
    }

    /// Queues `vcpu`, which must run by `by`. If the vCPU already has a booking that is not later,
    /// that booking stays.
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

    /// Queues `vcpu` with its own deadline, counted from `now`.
    pub fn enter_anew(&mut self, now: Nanos, vcpu: VcpuId) {
        if let Some(deadline) = self.deadline(vcpu) {
            self.enter(now, vcpu, now + deadline);
        }
    }

    /// Removes the booking of a vCPU that runs or waits for an event or timer.
    pub fn leave(&mut self, vcpu: VcpuId) {
        if let Some(member) = self.member(vcpu) {
            member.booked = None;
        }
    }

    /// Deadline of a member.
    #[must_use]
    pub fn deadline(&self, vcpu: VcpuId) -> Option<Nanos> {
        self.members.iter().find(|member| member.vcpu == vcpu).map(|member| member.deadline)
    }

    /// Beginning of a vCPU's booked slot. `None` if it has booked none.
    #[must_use]
    pub fn due_at(&self, vcpu: VcpuId) -> Option<Nanos> {
        let member = self.members.iter().find(|member| member.vcpu == vcpu)?;
        member.booked.map(|slot| Nanos(slot.saturating_mul(SLICE.0)))
    }

    /// The vCPU that is due, ignoring the running one.
    #[must_use]
    pub fn due(&self, now: Nanos, running: Option<VcpuId>) -> Option<VcpuId> {
        let slot = now.0 / SLICE.0;
        let waiting = self.members.iter().filter(|member| Some(member.vcpu) != running);
        let due = waiting.filter(|member| member.booked.is_some_and(|at| at <= slot));
        due.min_by_key(|member| member.booked).map(|member| member.vcpu)
    }

    /// Time at which the next vCPU is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let booked = self.members.iter().filter_map(|member| member.booked).min();
        booked.map(|slot| Nanos(slot.saturating_mul(SLICE.0)))
    }

    /// Whether no vCPU has a deadline here.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.members.is_empty()
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
        queue.enter_anew(Nanos(0), A);
        // Slot 6 may be an own slot of B. If so, A books the slot before it, because B owns only
        // one slot.
        assert!([5, 6].map(|s| Some(Nanos(s * SLICE.0))).contains(&queue.due_at(A)));
        queue.enter_anew(Nanos(0), B);
        assert_ne!(queue.due_at(A), queue.due_at(B));
        assert_eq!(queue.next_due(), queue.due_at(A).min(queue.due_at(B)));
        assert_eq!(queue.due(Nanos(2 * MS), None), None);
        assert!(queue.due(Nanos(3 * MS), None).is_some());
    }

    #[test]
    fn alone_it_is_due_at_the_last_poll_before_its_deadline() {
        let mut queue = queue(&[3]);
        queue.enter_anew(Nanos(100_000), A);
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
        queue.enter_anew(Nanos(0), A);
        queue.part(Nanos(0), B);
        assert!(queue.join(Nanos(0), VcpuId(2), Nanos(SLICE.0)) && queue.due_at(A).is_some());
    }
}
