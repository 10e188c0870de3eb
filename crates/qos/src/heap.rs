//! A binary min-heap of slots that can also remove a slot from the middle.
//!
//! A client may leave while it waits in a queue ordered by time. The heap therefore records the
//! position of each slot. All operations take O(log n), except reading the first slot, which takes
//! O(1). Nothing is allocated after construction.

const ABSENT: u32 = u32::MAX;

/// Heap of slots below a fixed number, each at most once. Equal keys are ordered by slot.
#[derive(Clone, Debug)]
pub(crate) struct SlotHeap {
    heap: Vec<(u128, u32)>,
    place: Box<[u32]>,
}

#[expect(clippy::cast_possible_truncation, reason = "places and slots are below 2^32")]
const fn narrow(n: usize) -> u32 {
    n as u32
}

impl SlotHeap {
    /// An empty heap for slots 0 to `slots` - 1.
    pub fn new(slots: usize) -> Self {
        let place = vec![ABSENT; slots].into_boxed_slice();
        Self { heap: Vec::with_capacity(slots), place }
    }

    /// The slot with the smallest key, and that key.
    pub fn first(&self) -> Option<(u128, usize)> {
        self.heap.first().map(|(key, slot)| (*key, *slot as usize))
    }

    /// Adds a slot that is not in the heap.
    pub fn push(&mut self, slot: usize, key: u128) {
        debug_assert_eq!(self.place[slot], ABSENT, "slot {slot} is in the heap");
        self.heap.push((key, narrow(slot)));
        self.rise(self.heap.len() - 1);
    }

    /// Removes the slot with the smallest key and returns it.
    pub fn pop(&mut self) -> Option<usize> {
        let (_, slot) = self.first()?;
        self.remove(slot);
        Some(slot)
    }

    /// Removes a slot from any position. Returns whether it was in the heap.
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
            // Equal keys are ordered by slot, so that runs are reproducible.
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
