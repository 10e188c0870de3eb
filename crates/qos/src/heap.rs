//! A binary min-heap of slots, from which any slot can be removed.
//!
//! A client may leave while its slot is in the heap. The heap records the position of each slot, so
//! that it can remove a slot from any position. Each operation of the heap takes O(log n); only
//! `first` takes O(1). The heap allocates no memory after its construction.

const ABSENT: u32 = u32::MAX;

/// A min-heap of slots, whose numbers are below a fixed limit. Each slot is in the heap at most
/// once. Slots with equal keys are ordered by slot number.
#[derive(Clone, Debug)]
pub(crate) struct SlotHeap {
    heap: Vec<(u128, u32)>,
    place: Box<[u32]>,
}

#[expect(clippy::cast_possible_truncation, reason = "heap positions and slots are below 2^32")]
const fn narrow(n: usize) -> u32 {
    n as u32
}

impl SlotHeap {
    /// Returns an empty heap for slots 0 to `slots` - 1.
    pub fn new(slots: usize) -> Self {
        let place = vec![ABSENT; slots].into_boxed_slice();
        Self { heap: Vec::with_capacity(slots), place }
    }

    /// Returns the smallest key of the heap, with its slot.
    pub fn first(&self) -> Option<(u128, usize)> {
        self.heap.first().map(|(key, slot)| (*key, *slot as usize))
    }

    /// Adds a slot to the heap; the slot must not be in the heap.
    pub fn push(&mut self, slot: usize, key: u128) {
        debug_assert_eq!(self.place[slot], ABSENT, "slot {slot} is in the heap");
        self.heap.push((key, narrow(slot)));
        self.rise(self.heap.len() - 1);
    }

    /// Removes the slot with the smallest key from the heap, and returns the slot.
    pub fn pop(&mut self) -> Option<usize> {
        let (_, slot) = self.first()?;
        self.remove(slot);
        Some(slot)
    }

    /// Removes a slot from the heap, whatever its position. Returns false if the slot was not in
    /// the heap.
    pub fn remove(&mut self, slot: usize) -> bool {
        let at = self.place[slot];
        if at == ABSENT {
            return false;
        }
        self.place[slot] = ABSENT;
        let at = at as usize;
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            // The last item is now at `at`. It may have to move up or down.
            self.rise(at);
            self.sink(at);
        }
        true
    }

    fn set(&mut self, at: usize, item: (u128, u32)) {
        self.heap[at] = item;
        self.place[item.1 as usize] = narrow(at);
    }

    fn rise(&mut self, mut at: usize) {
        let item = self.heap[at];
        while at > 0 {
            let above = (at - 1) / 2;
            // Slots with equal keys are ordered by slot number.
            if self.heap[above] <= item {
                break;
            }
            self.set(at, self.heap[above]);
            at = above;
        }
        self.set(at, item);
    }

    fn sink(&mut self, mut at: usize) {
        let item = self.heap[at];
        loop {
            let left = 2 * at + 1;
            let Some(mut least) = self.heap.get(left).map(|_| left) else { break };
            if self.heap.get(left + 1).is_some_and(|right| *right < self.heap[left]) {
                least = left + 1;
            }
            if item <= self.heap[least] {
                break;
            }
            self.set(at, self.heap[least]);
            at = least;
        }
        self.set(at, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_by_key_also_when_some_were_taken_from_the_middle() {
        let mut heap = SlotHeap::new(100);
        // A permutation of 0..100 from which every third slot is removed.
        (0..100).for_each(|slot| heap.push(slot, (slot as u128 * 37) % 100));
        (0..100).filter(|slot| slot % 3 == 0).for_each(|slot| assert!(heap.remove(slot)));
        assert!(!heap.remove(0));
        let mut keys = Vec::new();
        while let Some((key, slot)) = heap.first() {
            assert_eq!(heap.pop(), Some(slot));
            assert_eq!((slot as u128 * 37) % 100, key);
            keys.push(key);
        }
        assert_eq!(keys.len(), 66);
        assert!(keys.is_sorted());
    }

    #[test]
    fn equal_keys_come_by_slot() {
        let mut heap = SlotHeap::new(5);
        [3, 1, 4, 0, 2].into_iter().for_each(|slot| heap.push(slot, 7));
        let order: Vec<_> = std::iter::from_fn(|| heap.pop()).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }
}
