//! The exact-match cache contains decisions about flows. A look-up in the exact-match cache reads
//! two cache lines.
//!
//! # Problem
//! Most frames belong to a flow that the switch saw a moment ago. A look-up in the rules and the
//! FDB costs several times as much as a look-up in the exact-match cache.
//!
//! # Source
//! C2QoS §V describes a cache of 8,192 entries. The numbered datapath rules 30 to 32
//! (`docs/internals/datapath-rules.md`) apply to the exact-match cache.
//!
//! # Quantities
//! The exact-match cache has 1,024 buckets of 8 ways. A bucket is one 64-bit word of eight 8-bit
//! signatures. All buckets together take 8 KiB and stay in the CPU's first-level cache. An entry is
//! one cache line with a 32-byte key and the decision. The upper half of IPv6 keys is in a separate
//! array. A way of a cache bucket and the way's entry have the same index, so the bucket stores no
//! index.
//!
//! # Approach
//! A cache entry is valid while its signature is present and its domain's generation is unchanged.
//! A new snapshot clears all signatures. A port may replace any entry that is free, outdated or
//! idle for [`IDLE_S`]. If no entry in a bucket is free, outdated or idle, a port replaces one of
//! its own entries in the bucket. A port below its quota may also replace an entry of a port above
//! its quota. The quota of a port is its share of the entries in the exact-match cache. No port can
//! push another port below its share of the exact-match cache.
//!
//! # Cost
//! A cache hit reads one word and one cache line. Each cache line is prefetched one stage before
//! the line is read. An insertion examines the eight entries of one bucket.
//!
//! # Departures
//! DPDK's hash table has 16-bit signatures and index words. Longer signatures and index words cost
//! one more cache line and about twenty more instructions per hit. An 8-bit signature matches a
//! wrong entry once in 60 hits.

use core::ptr;

use super::fdb::Fdb;
use crate::batch::Verdict;
use crate::drop::DropReason;
use crate::headers::key::FlowKey;
use crate::mem::prefetch;
use crate::snapshot::signature::{Candidates, WAYS, signature};
use crate::snapshot::tables::RuleRef;

/// Number of entries in a worker's exact-match cache.
pub const CACHE_ENTRIES: usize = 8_192;
/// Seconds without a hit after which any port may replace an entry.
pub const IDLE_S: u32 = 10;

const BUCKETS: usize = CACHE_ENTRIES / WAYS;
/// Value of [`Decision::dscp`] that leaves the frame's DSCP unchanged.
pub(super) const KEEP_DSCP: u8 = 0xff;
/// Value of [`Decision::dscp`] that leaves the frame's DSCP unchanged, and says that the frame has
/// a mirror. So one comparison per frame finds all flows with an edit or a mirror.
pub(super) const ONLY_MIRROR: u8 = 0xfe;
/// Value of [`Decision::mirror`] for flows without a mirror.
pub(super) const NO_MIRROR: u16 = u16::MAX;

/// A cached decision about the frames of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) verdict: Verdict,
    /// VLAN ID of the flow's frames after the rules' edits.
    pub(super) vid: u16,
    /// Domain whose change of generation invalidates the decision. `domain` is
    /// [`crate::snapshot::NO_DOMAIN`] if the decision depends on no domain.
    pub(super) domain: u16,
    pub(super) rule: RuleRef,
    /// FDB slot of the flow's source address.
    pub(super) fdb_slot: u32,
    /// DSCP to write into the flow's frames, or [`KEEP_DSCP`] to leave the DSCP unchanged.
    pub(super) dscp: u8,
    /// Port that gets a copy of the flow's frames, or [`NO_MIRROR`]. Only a decision whose `dscp`
    /// is not [`KEEP_DSCP`] may have a mirror.
    pub(super) mirror: u16,
}

impl Decision {
    /// Returns a decision to drop a flow's frames that depends only on the flow key and the
    /// snapshot.
    pub(super) const fn drop(reason: DropReason) -> Self {
        Self {
            verdict: Verdict::Drop(reason),
            vid: 0,
            domain: crate::snapshot::NO_DOMAIN,
            rule: RuleRef::NONE,
            fdb_slot: u32::MAX,
            dscp: KEEP_DSCP,
            mirror: NO_MIRROR,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Entry {
    key: [u64; 4],
    decision: Decision,
    generation: u32,
    seen_s: u32,
}

/// The exact-match cache of one worker.
pub(super) struct Cache {
    /// One signature (part of the hash) for each entry of the exact-match cache. A signature of 0
    /// means that the cache entry is empty.
    buckets: Box<[u64; BUCKETS]>,
    entries: Box<[Entry; CACHE_ENTRIES]>,
    upper: Box<[[u64; 4]; CACHE_ENTRIES]>,
    /// Number of cache entries of each port, indexed by port number.
    held: Box<[u16; 1 << 16]>,
    quota: u16,
}

fn boxed<T: Copy, const N: usize>(item: T) -> Box<[T; N]> {
    match vec![item; N].into_boxed_slice().try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("the slice has the length of the array"),
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the hash is masked by the number of buckets")]
const fn bucket_of(hash: u64) -> usize {
    hash as usize & (BUCKETS - 1)
}

#[inline]
const fn port_of(key: &[u64; 4]) -> usize {
    (key[0] >> 48) as u16 as usize
}

impl Cache {
    pub(super) fn new() -> Self {
        let decision = Decision::drop(DropReason::Runt);
        let empty = Entry { key: [0; 4], decision, generation: 0, seen_s: 0 };
        Self {
            buckets: boxed(0),
            entries: boxed(empty),
            upper: boxed([0; 4]),
            held: boxed(0),
            quota: u16::MAX,
        }
    }

    /// Removes all cache entries. From this call on, each of `ports` ports has an equal share of
    /// the cache.
    pub(super) fn flush(&mut self, ports: usize) {
        self.buckets.fill(0);
        self.held.fill(0);
        self.quota = u16::try_from(CACHE_ENTRIES / ports.max(1)).unwrap_or(u16::MAX).max(1);
    }

    #[inline]
    pub(super) fn prefetch_bucket(&self, hash: u64) {
        prefetch(ptr::from_ref(&self.buckets[bucket_of(hash)]).cast());
    }

    /// Returns the ways with a signature that matches `hash`, and prefetches the entry of the first
    /// matching way.
    #[inline]
    pub(super) fn candidates(&self, hash: u64) -> Candidates {
        let found = Candidates::among(self.buckets[bucket_of(hash)], signature(hash));
        if let Some(way) = found.first() {
            prefetch(ptr::from_ref(&self.entries[bucket_of(hash) * WAYS + way]).cast());
        }
        found
    }

    /// Returns the index of the cache entry with `key`, even if the entry is outdated.
    #[inline(always)]
    fn position(&self, mut ways: Candidates, hash: u64, key: &FlowKey) -> Option<usize> {
        while let Some(way) = ways.first() {
            let at = bucket_of(hash) * WAYS + way;
            let wide = key.is_wide();
            if key.narrow_is(&self.entries[at].key) && (!wide || key.upper_is(&self.upper[at])) {
                return Some(at);
            }
            ways = ways.without_first();
        }
        None
    }

    /// Returns the decision about `key` if the decision is still valid. Once a second, a hit also
    /// refreshes the flow's source address in the FDB.
    #[inline(always)]
    pub(super) fn find(
        &mut self,
        ways: Candidates,
        hash: u64,
        key: &FlowKey,
        fdb: &mut Fdb,
        now_s: u32,
    ) -> Option<&Decision> {
        let at = self.position(ways, hash, key)?;
        let entry = &mut self.entries[at];
        if entry.generation != fdb.generation(entry.decision.domain) {
            return None;
        }
        if entry.seen_s != now_s {
            entry.seen_s = now_s;
            fdb.touch(entry.decision.fdb_slot, entry.decision.domain, key.src_mac(), now_s);
        }
        Some(&entry.decision)
    }

    /// Whether the cache has an entry with `key`, valid or not. A flow that already has a cache
    /// entry skips the filter for new flows.
    #[inline]
    pub(super) fn knows(&self, ways: Candidates, hash: u64, key: &FlowKey) -> bool {
        self.position(ways, hash, key).is_some()
    }

    /// Stores a decision if the key's port may replace an entry. Returns true if the cache stored
    /// the decision.
    pub(super) fn insert(
        &mut self,
        hash: u64,
        key: &FlowKey,
        decision: &Decision,
        fdb: &Fdb,
        now_s: u32,
    ) -> bool {
        let port = usize::from(key.in_port());
        let ways = self.candidates(hash);
        let same = self.position(ways, hash, key);
        let Some(at) = same.or_else(|| self.victim(hash, port, fdb, now_s)) else { return false };
        let entry = &mut self.entries[at];
        let (word, shift) = (&mut self.buckets[at / WAYS], 8 * (at % WAYS));
        if *word >> shift & 0xff != 0 {
            let held = &mut self.held[port_of(&entry.key)];
            *held = held.saturating_sub(1);
        }
        *word = *word & !(0xff << shift) | signature(hash) << shift;
        self.held[port] += 1;
        *entry = Entry {
            key: key.narrow(),
            decision: *decision,
            generation: fdb.generation(decision.domain),
            seen_s: now_s,
        };
        if key.is_wide() {
            self.upper[at] = key.upper();
        }
        true
    }

    /// Returns the index of the entry in the bucket of `hash` that `port` may replace.
    fn victim(&self, hash: u64, port: usize, fdb: &Fdb, now_s: u32) -> Option<usize> {
        let first = bucket_of(hash) * WAYS;
        if let Some(way) = Candidates::among(self.buckets[bucket_of(hash)], 0).first() {
            return Some(first + way);
        }
        let stale = |at: &usize| {
            let e = &self.entries[*at];
            e.generation != fdb.generation(e.decision.domain)
                || now_s.wrapping_sub(e.seen_s) > IDLE_S
        };
        if let Some(at) = (first..first + WAYS).find(stale) {
            return Some(at);
        }
        // The first way to try depends on hash bits that select neither the bucket nor the
        // signature.
        let turn = (hash >> 32) as usize % WAYS;
        let turned = move |step: usize| first + (turn + step) % WAYS;
        let own = |at: &usize| port_of(&self.entries[*at].key) == port;
        let over = |at: &usize| self.held[port_of(&self.entries[*at].key)] > self.quota;
        let own = (0..WAYS).map(turned).find(own);
        let over = (0..WAYS).map(turned).find(over).filter(|_| self.held[port] < self.quota);
        own.or(over)
    }

    /// Whether the port has at least its share of cache entries. The next entry of a full port
    /// replaces one of the port's own entries.
    #[inline]
    pub(super) fn is_full_for(&self, port: u16) -> bool {
        self.held[usize::from(port)] >= self.quota
    }

    /// Number of entries that a port has in the exact-match cache.
    pub(super) fn held(&self, port: u16) -> u16 {
        self.held[usize::from(port)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::key::{ETHERTYPE_IPV6, HashSeed, KeyFields};

    struct Fixture {
        cache: Cache,
        fdb: Fdb,
        seed: HashSeed,
    }

    impl Fixture {
        fn new(ports: usize) -> Self {
            let seed = HashSeed::new(5);
            let mut cache = Cache::new();
            cache.flush(ports);
            Self { cache, fdb: Fdb::new(64, seed), seed }
        }

        fn insert(&mut self, key: &FlowKey, domain: u16, now_s: u32) -> bool {
            let decision = Decision {
                domain,
                verdict: Verdict::Output(7),
                ..Decision::drop(DropReason::Runt)
            };
            self.cache.insert(self.seed.hash(key), key, &decision, &self.fdb, now_s)
        }

        fn has(&mut self, key: &FlowKey, now_s: u32) -> bool {
            let hash = self.seed.hash(key);
            let ways = self.cache.candidates(hash);
            self.cache.find(ways, hash, key, &mut self.fdb, now_s).is_some()
        }
    }

    fn key(in_port: u16, n: u32) -> FlowKey {
        FlowKey::new(&KeyFields { in_port, ipv4_src: n, ..KeyFields::default() })
    }

    #[test]
    fn an_entry_is_one_cache_line() {
        assert_eq!(size_of::<Entry>(), 64);
    }

    #[test]
    fn ipv6_flows_differ_by_their_upper_half() {
        let mut f = Fixture::new(1);
        let v6 = |n| {
            FlowKey::new(&KeyFields {
                ethertype: ETHERTYPE_IPV6,
                ipv6_dst: n,
                ..KeyFields::default()
            })
        };
        assert!(f.insert(&v6(1), 0, 0));
        assert!(f.has(&v6(1), 0) && !f.has(&v6(2), 0));
        // A key with the same first half and the same hash must not match another flow.
        let hash = f.seed.hash(&v6(1));
        let ways = f.cache.candidates(hash);
        assert!(f.cache.find(ways, hash, &v6(2), &mut f.fdb, 0).is_none());
    }

    #[test]
    fn a_new_generation_invalidates_only_entries_of_its_domain() {
        let mut f = Fixture::new(1);
        f.insert(&key(1, 1), 1, 0);
        f.insert(&key(1, 2), 2, 0);
        f.fdb.learn(1, 9, 1, 0, 10);
        assert!(f.has(&key(1, 1), 0) && f.has(&key(1, 2), 0));
        f.fdb.learn(1, 9, 2, 0, 10);
        assert!(!f.has(&key(1, 1), 0) && f.has(&key(1, 2), 0));
        f.cache.flush(1);
        assert!(!f.has(&key(1, 2), 0));
    }

    #[test]
    fn a_port_keeps_its_flows_however_many_another_has() {
        let mut f = Fixture::new(16);
        let mine: Vec<FlowKey> = (0..256).map(|n| key(1, n)).collect();
        let kept: Vec<&FlowKey> = mine.iter().filter(|k| f.insert(k, 0, 0)).collect();
        assert!(kept.len() >= 255);
        for n in 0..100_000 {
            f.insert(&key(2, n), 0, 0);
        }
        assert!(kept.iter().all(|k| f.has(k, 0)));
        // A third port has less than its share, so it replaces entries of the flooding port.
        let third = (0..256).filter(|&n| f.insert(&key(3, n), 0, 0)).count();
        assert!(third >= 250, "{third}");
        let held: usize = (1..=3).map(|p| usize::from(f.cache.held(p))).sum();
        assert!(held <= CACHE_ENTRIES);
    }

    #[test]
    fn any_port_may_replace_idle_entries() {
        let mut f = Fixture::new(16);
        for n in 0..100_000 {
            f.insert(&key(2, n), 0, 0);
        }
        let taken = (0..6000).filter(|&n| f.insert(&key(3, n), 0, IDLE_S + 1)).count();
        assert!(taken > 5900, "{taken}");
    }
}
