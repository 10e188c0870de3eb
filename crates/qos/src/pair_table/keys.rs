//! Open hash table of keys. Each key can be in one of [`WINDOW`] adjacent places.

use core::sync::atomic::{AtomicU64, Ordering};

use super::WINDOW;

/// Key of a free place. No pair has the key 0, because 0 is no MAC address.
const FREE: u64 = 0;

/// Returns a word that depends on all bits of `word` (finisher of SplitMix64).
#[inline]
pub(super) const fn mixed(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Place of a key that had none before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claimed {
    pub(super) place: usize,
    /// False if another thread gave the place to the same key at the same moment.
    pub(super) is_new: bool,
}

/// Keys of the slots of a table.
#[derive(Debug)]
pub(super) struct Keys {
    keys: Box<[AtomicU64]>,
    seed: u64,
}

impl Keys {
    pub(super) fn new(places: usize, seed: u64) -> Self {
        Self { keys: core::iter::repeat_with(|| AtomicU64::new(FREE)).take(places).collect(), seed }
    }

    /// Returns the places in which a key can be.
    #[inline]
    fn places(&self, key: u64) -> impl Iterator<Item = usize> + use<> {
        let mixed = mixed(key ^ self.seed);
        let places = self.keys.len().max(1);
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is below `places`")]
        let first = (mixed % places as u64) as usize;
        (first..first + WINDOW).map(move |place| place % places)
    }

    /// Returns the place of a key.
    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        self.places(key).find(|at| self.at(*at) == key)
    }

    fn at(&self, place: usize) -> u64 {
        self.keys.get(place).map_or(FREE, |key| key.load(Ordering::Acquire))
    }

    /// Gives a free place to a key, and calls `begin` with the place before other threads find the
    /// key. Returns `None` if no place is free. Another thread may give a place to the same key at
    /// the same moment; the later place is then never found.
    pub(super) fn claim(&self, key: u64, begin: impl Fn(usize)) -> Option<Claimed> {
        for place in self.places(key) {
            let Some(stored) = self.keys.get(place) else { continue };
            if stored.load(Ordering::Relaxed) != FREE {
                continue;
            }
            begin(place);
            let taken = stored.compare_exchange(FREE, key, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() || taken == Err(key) {
                return Some(Claimed { place, is_new: taken.is_ok() });
            }
        }
        None
    }

    /// Frees the place of a key. Returns false if the key is not in this place any more.
    pub(super) fn free(&self, place: usize, key: u64) -> bool {
        self.keys.get(place).is_some_and(|stored| {
            stored.compare_exchange(key, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Returns all places that are not free, with their keys.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let keys = self.keys.iter().map(|key| key.load(Ordering::Acquire)).enumerate();
        keys.filter(|(_, key)| *key != FREE)
    }
}
