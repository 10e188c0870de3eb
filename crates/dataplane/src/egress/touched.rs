//! A worker records the queue pairs that it used since the last notification of drivers, and the
//! ports that pay for the next notifications.
//!
//! # Problem
//!
//! The worker notifies drivers after several batches, when the senders' turns are over. A
//! notification can be a system call that costs more than a batch. For this reason, the ports that
//! caused a notification must pay for it (C2QoS §III).
//!
//! # Approach
//!
//! Each notified queue pair has one entry. The entry has the number of delivered frames since the
//! last notification, for each port that pays.
//!
//! # Cost
//!
//! Recording a notification's payer takes a few instructions per batch and output, and allocates no
//! memory after construction.

use penstock_units::PortId;

use crate::unit::Unit;

/// Index of a queue pair in [`Touched`] plus one, or 0 if the queue pair has no entry in
/// [`Touched`].
pub type Mark = u16;

const NONE: u16 = u16::MAX;

/// Entry for a queue pair to notify, with the first port that pays for the notification and the
/// index of the second.
#[derive(Clone, Copy, Debug)]
struct Entry {
    unit: Unit,
    payer: Payer,
    /// Index in `Touched::others` of the second port that pays for the notification, or [`NONE`].
    others: u16,
}

/// A port that pays for a notification, with the number of its frames that the worker delivered to
/// the notified queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payer {
    pub port: PortId,
    pub frames: u32,
}

/// Another port that pays for a queue pair's notification, as an element of a linked list.
#[derive(Clone, Copy, Debug)]
struct Other {
    payer: Payer,
    next: u16,
}

/// The queue pairs to notify, and the ports that pay for the notifications.
#[derive(Debug)]
pub struct Touched {
    entries: Vec<Entry>,
    others: Vec<Other>,
}

impl Touched {
    /// Allocates room for `capacity` queue pairs, and for `capacity` further ports that pay for
    /// notifications.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.min(usize::from(NONE));
        Self { entries: Vec::with_capacity(capacity), others: Vec::with_capacity(capacity) }
    }

    /// Records that the worker took frames from queue pair `unit`.
    #[inline]
    pub fn took(&mut self, unit: Unit, mark: &mut Mark) {
        if *mark == 0 {
            self.enter(unit, Payer { port: unit.port, frames: 0 }, mark);
        }
    }

    /// Records that the worker delivered `frames` frames to queue pair `unit`, and that port
    /// `payer` pays for the notification.
    #[inline]
    pub fn gave(&mut self, unit: Unit, mark: &mut Mark, payer: PortId, frames: usize) {
        let payer = Payer { port: payer, frames: u32::try_from(frames).unwrap_or(u32::MAX) };
        let Some(entry) = usize::from(*mark).checked_sub(1).and_then(|at| self.entries.get_mut(at))
        else {
            self.enter(unit, payer, mark);
            return;
        };
        if entry.payer.frames == 0 {
            entry.payer = payer;
        } else if entry.payer.port == payer.port {
            entry.payer.frames += payer.frames;
        } else {
            self.gave_another(usize::from(*mark) - 1, payer);
        }
    }

    fn enter(&mut self, unit: Unit, payer: Payer, mark: &mut Mark) {
        self.entries.push(Entry { unit, payer, others: NONE });
        *mark = u16::try_from(self.entries.len()).unwrap_or(0);
    }

    #[inline(never)]
    fn gave_another(&mut self, entry: usize, payer: Payer) {
        let mut at = self.entries[entry].others;
        while let Some(other) = self.others.get_mut(usize::from(at)) {
            if other.payer.port == payer.port {
                other.payer.frames += payer.frames;
                return;
            }
            at = other.next;
        }
        // Without room, the other payers pay for this one. There are as many places as queue pairs.
        if self.others.len() < self.others.capacity()
            && let Ok(place) = u16::try_from(self.others.len())
        {
            self.others.push(Other { payer, next: self.entries[entry].others });
            self.entries[entry].others = place;
        }
    }

    /// Returns the queue pair to notify at index `place`, or `None` after the last queue pair.
    pub(crate) fn unit(&self, place: usize) -> Option<Unit> {
        self.entries.get(place).map(|entry| entry.unit)
    }

    /// Returns the ports that pay for the notification of the queue pair at index `place`. Returns
    /// no port if the worker only took frames from the queue pair.
    pub(crate) fn payers(&self, place: usize) -> impl Iterator<Item = Payer> + '_ {
        let entry = self.entries.get(place);
        let mut next = entry.map_or(NONE, |entry| entry.others);
        let others = core::iter::from_fn(move || {
            let other = self.others.get(usize::from(next))?;
            next = other.next;
            Some(other.payer)
        });
        entry.map(|entry| entry.payer).filter(|payer| payer.frames > 0).into_iter().chain(others)
    }

    /// Returns the ports that pay for the notifications of all recorded queue pairs. A port can
    /// appear several times in the returned list of payers.
    pub(crate) fn all_payers(&self) -> impl Iterator<Item = Payer> + '_ {
        let first = self.entries.iter().map(|entry| entry.payer);
        first.chain(self.others.iter().map(|other| other.payer)).filter(|payer| payer.frames > 0)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.others.clear();
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_units::QueueId;

    #[test]
    fn each_queue_pair_knows_whose_frames_it_got() {
        let unit = |port| Unit { port: PortId(port), queue: QueueId(0) };
        let (mut touched, mut marks) = (Touched::with_capacity(3), [0; 3]);
        touched.took(unit(0), &mut marks[0]);
        assert_eq!(touched.payers(0).count(), 0, "nobody pays for what was only taken");
        for (payer, frames) in [(1, 32), (2, 1), (1, 8), (2, 3), (9, 5), (2, 1)] {
            touched.gave(unit(0), &mut marks[0], PortId(payer), frames);
        }
        touched.gave(unit(7), &mut marks[1], PortId(2), 4);
        touched.took(unit(7), &mut marks[1]);
        let payers = |place| {
            let mut all: Vec<_> = touched.payers(place).map(|p| (p.port.0, p.frames)).collect();
            all.sort_unstable();
            all
        };
        assert_eq!((payers(0), payers(1)), (vec![(1, 40), (2, 5), (9, 5)], vec![(2, 4)]));
        assert_eq!((touched.unit(1), touched.unit(2)), (Some(unit(7)), None));
        touched.clear();
        assert!(touched.is_empty());
    }
}
