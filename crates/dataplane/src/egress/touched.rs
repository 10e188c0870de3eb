//! Queue pairs that a worker wrote to since it last notified drivers, and whose frames these were.
//!
//! **Problem.** Drivers are notified after several batches, when the senders' turns are over. A
//! notification can be a system call that costs more than a batch, so it must be charged to the
//! ports whose frames made it necessary (C2QoS §III). **Rule.** Each queue pair has one entry with
//! the frames of each payer since the last notification. **Cost.** A few instructions a batch and
//! output; nothing is allocated after construction.

use penstock_units::PortId;

use crate::schedule::Unit;

/// Where a queue pair stands in [`Touched`]: 0 if it does not, else its place plus one.
pub type Mark = u16;

const NONE: u16 = u16::MAX;

/// A queue pair, its first payer, and where its other payers are.
#[derive(Clone, Copy, Debug)]
struct Entry {
    unit: Unit,
    payer: Payer,
    others: u16,
}

/// A port, and how many of its frames were delivered to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payer {
    pub port: PortId,
    pub frames: u32,
}

#[derive(Clone, Copy, Debug)]
struct Other {
    payer: Payer,
    next: u16,
}

/// See the module's text.
#[derive(Debug)]
pub struct Touched {
    entries: Vec<Entry>,
    others: Vec<Other>,
}

impl Touched {
    /// With room for `capacity` queue pairs, and as many payers beside their first ones.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.min(usize::from(NONE));
        Self { entries: Vec::with_capacity(capacity), others: Vec::with_capacity(capacity) }
    }

    /// Frames were taken from `unit`.
    #[inline]
    pub fn took(&mut self, unit: Unit, mark: &mut Mark) {
        if *mark == 0 {
            self.enter(unit, Payer { port: unit.port, frames: 0 }, mark);
        }
    }

    /// Frames of `payer` were delivered to `unit`.
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
        // Without room the others pay for this one: there are as many places as queue pairs.
        if self.others.len() < self.others.capacity()
            && let Ok(place) = u16::try_from(self.others.len())
        {
            self.others.push(Other { payer, next: self.entries[entry].others });
            self.entries[entry].others = place;
        }
    }

    /// The queue pair at a place, while there is one.
    pub(crate) fn unit(&self, place: usize) -> Option<Unit> {
        self.entries.get(place).map(|entry| entry.unit)
    }

    /// Whose frames were delivered to the queue pair at a place; none if frames were only taken.
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

    /// Whose frames were delivered to any of the queue pairs.
    pub(crate) fn all_payers(&self) -> impl Iterator<Item = Payer> + '_ {
        let first = self.entries.iter().map(|entry| entry.payer);
        first.chain(self.others.iter().map(|other| other.payer)).filter(|payer| payer.frames > 0)
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.others.clear();
    }

    /// Whether none is remembered.
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
