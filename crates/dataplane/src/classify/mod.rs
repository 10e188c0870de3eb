//! Classification decides to which ports each frame of a batch goes.
//!
//! # Problem
//! A classification decision may take some tens of CPU cycles. No tenant may see another tenant's
//! frames, slow down another tenant's decisions, or evict another tenant's cache entries.
//!
//! # Source
//! In C2QoS §IV, classification is the stage between ingress and egress. The numbered datapath
//! rules 2 and 29 to 33 (`docs/internals/datapath-rules.md`) apply to classification.
//!
//! # Approach
//! Classification has four stages. Each stage handles the whole batch, so that a stage can prefetch
//! memory for the next stage.
//!
//! - Stage 1 parses and hashes all frames, and prefetches the cache's buckets.
//! - Stage 2 compares signatures, and prefetches the cache entries.
//! - Stage 3 verifies the keys and applies the cached decisions.
//! - Stage 4 sends the frames without a cached decision through `forward`, one by one.
//!
//! If all frames of a port go to one other port, the frames skip the four stages of classification.
//! The cache compares only the key bits on which a decision about the port's frames can depend.
//! Flows that differ only in key bits outside the mask share a cache entry. If two consecutive
//! frames have equal relevant bits, the second frame gets the first frame's decision without a
//! cache look-up.
//!
//! # Cost
//!
//! The benchmark `benches/classify.rs` measures the cost of classification. Classification makes no
//! allocation or system call, takes no lock and reads no clock. Every loop in classification is
//! limited by a constant, by the limits of the rule table or by the number of a domain's members.
//!
//! # Code map
//!
//! A frame passes the modules [`parse`](crate::headers::parse), [`key`](crate::headers::key),
//! `cache` and `forward` in this order. The module `forward` uses [`fdb`] and the
//! [`snapshot`](crate::snapshot), which contains the ports' policies, bindings and rules. The
//! module `edit` performs a rule's edits of a frame.

mod cache;
pub mod fdb;
mod forward;
mod hidden;
mod port_state;
#[cfg(test)]
mod tests;

use penstock_units::MacAddr;

use crate::batch::{BATCH_FRAMES, Batch, Verdict};
use crate::counters::PortCounters;
use crate::drop::DropReason;
use crate::offload::Offload;

pub use cache::CACHE_ENTRIES;
pub use fdb::{FDB_CAPACITY_DEFAULT, Fdb, FdbRecord, FdbStats, News, Station};

use crate::headers::edit;
use crate::headers::key::{ETHERTYPE_IPV4, ETHERTYPE_VLAN, FlowKey, HashSeed};
use crate::headers::parse::{HeaderFlags, Headers, L3, be16, be32, be64, parse_plain};
use crate::snapshot::signature::Candidates;
use crate::snapshot::{Patch, PortPolicy, Snapshot};
use cache::{Cache, Decision, KEEP_DSCP, NO_MIRROR, ONLY_MIRROR};
use forward::{Path, Recent, Tally, is_no_source, is_reserved};
use hidden::parse_for;
use port_state::PortState;

#[derive(Clone, Copy, Debug)]
pub struct ClassifierConfig {
    /// Number of slots in the FDB. The constructor [`Fdb::new`] limits the number of FDB slots.
    pub fdb_entries: usize,
    /// Random seed of the hashes, drawn once per boot so that tenants cannot predict the hashes.
    pub seed: u64,
    /// Upper bound of port numbers: every port number is less than `max_ports`.
    pub max_ports: usize,
}

/// The classifier of one worker.
pub struct Classifier {
    cache: Cache,
    fdb: Fdb,
    ports: Box<[PortState]>,
    scratch: Box<Scratch>,
    seed: HashSeed,
    worker: usize,
    generation: Option<u64>,
    unlearned: u64,
    attached: usize,
    /// Number of FDB slots that ageing has not yet examined in the present second.
    to_age: usize,
    aged_s: u32,
}

impl core::fmt::Debug for Classifier {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Classifier").field("fdb", &self.fdb).finish_non_exhaustive()
    }
}

/// Results that the classification stages pass to each other, indexed by frame.
struct Scratch {
    headers: [Headers; BATCH_FRAMES],
    hashes: [u64; BATCH_FRAMES],
    ways: [Candidates; BATCH_FRAMES],
}

/// The frames of a batch, divided by stage 1 into three sets.
#[derive(Clone, Copy, Debug, Default)]
struct Parsed {
    /// Frames that stage 2 looks up in the cache.
    cacheable: FrameSet,
    /// Frames with the same key as the preceding cacheable frame. A frame with the same key as the
    /// preceding frame gets the preceding frame's decision.
    followers: FrameSet,
    /// Frames that stage 4 decides one by one, without a cache look-up.
    apart: FrameSet,
}

/// A set of a batch's frames, with one bit for each frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FrameSet(u32);

const _: () = assert!(BATCH_FRAMES == u32::BITS as usize);

impl FrameSet {
    #[inline]
    fn insert(&mut self, i: usize) {
        self.0 |= 1 << (i % BATCH_FRAMES);
    }

    /// Returns the set that contains the first `n` frames of a batch.
    #[inline]
    fn first(n: usize) -> Self {
        Self(if n < BATCH_FRAMES { (1 << n) - 1 } else { u32::MAX })
    }
}

impl Iterator for FrameSet {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let i = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (i < BATCH_FRAMES).then_some(i)
    }
}

/// Classification inputs that are equal for all frames of a batch.
struct Turn<'a> {
    policy: &'a PortPolicy,
    snapshot: &'a Snapshot,
    now_s: u32,
    now_ns: u64,
}

impl Classifier {
    /// Creates a classifier with an empty cache and FDB.
    #[must_use]
    pub fn new(config: &ClassifierConfig) -> Self {
        let seed = HashSeed::new(config.seed);
        let scratch = Scratch {
            headers: [Headers::default(); BATCH_FRAMES],
            hashes: [0; BATCH_FRAMES],
            ways: [Candidates::NONE; BATCH_FRAMES],
        };
        Self {
            cache: Cache::new(),
            fdb: Fdb::new(config.fdb_entries, HashSeed::new(config.seed.rotate_left(32) ^ 1)),
            ports: vec![PortState::default(); config.max_ports].into_boxed_slice(),
            scratch: Box::new(scratch),
            seed,
            worker: 0,
            generation: None,
            unlearned: 0,
            attached: 0,
            to_age: 0,
            aged_s: 0,
        }
    }

    /// Sets the worker's number, which selects the worker's row of the rules' counters
    /// ([`RuleTable::build_for`](crate::snapshot::rules::RuleTable::build_for)).
    #[must_use]
    pub fn for_worker(mut self, worker: usize) -> Self {
        self.worker = worker;
        self
    }

    /// Sets `verdict`, `tci` and `hash` of every frame of `batch`, which came from `port`. `now_s`
    /// and `now_ns` are the same moment on the worker's clock. If the snapshot is new, `classify`
    /// first calls [`Self::on_snapshot`]. Returns the number of frames without a cached decision.
    #[expect(clippy::too_many_arguments, reason = "the worker has these at hand, apart")]
    pub fn classify(
        &mut self,
        batch: &mut Batch,
        port: u16,
        policy: &PortPolicy,
        snapshot: &Snapshot,
        now_s: u32,
        now_ns: u64,
        counters: &PortCounters,
    ) -> usize {
        debug_assert_eq!(port, policy.id);
        if self.generation != Some(snapshot.generation) {
            self.on_snapshot(snapshot);
        }
        let turn = Turn { policy, snapshot, now_s, now_ns };
        if !policy.up || usize::from(port) >= self.ports.len() {
            for i in 0..batch.len() {
                batch.frame_mut(i).verdict = Verdict::Drop(DropReason::PortDown);
            }
            return 0;
        }
        let all = match policy.patch {
            Some(patch) => self.by_patch(batch, policy, patch),
            None => FrameSet::first(batch.len()),
        };
        if all.0 == 0 {
            return 0;
        }
        let mut tally = Tally::default();
        let parsed = self.parse_and_hash(batch, policy, all);
        self.compare(parsed.cacheable);
        let missed = self.verify(batch, &turn, &mut tally, parsed);
        let rest = FrameSet(missed.0 | parsed.apart.0);
        if rest.0 != 0 {
            self.decide(batch, &turn, &mut tally, rest);
        }
        counters.cache_hits.add(tally.cache_hits);
        if tally.rule_lookups | tally.slow_path | tally.learned | tally.unlearned != 0 {
            counters.rule_lookups.add(tally.rule_lookups);
            counters.slow_path.add(tally.slow_path);
            counters.learned.add(tally.learned);
            self.unlearned += tally.unlearned;
        }
        rest.0.count_ones() as usize
    }

    /// Forwards the frames of a patched port to the port's only output, without the stages of
    /// classification. Returns the frames that need all stages of classification: frames with a
    /// tag, with offload metadata, or with an address that a bridge refuses.
    fn by_patch(&mut self, batch: &mut Batch, policy: &PortPolicy, patch: Patch) -> FrameSet {
        let mut rest = FrameSet::default();
        let mut frames = 0;
        for i in 0..batch.len() {
            let w = batch.head_window(i);
            let (dst, src, ethertype) = (be64(w, 0) >> 16, be64(w, 6) >> 16, be16(w, 12));
            let addresses = if ethertype == ETHERTYPE_IPV4 { be64(w, L3 + 12) } else { 0 };
            let ports = if ethertype == ETHERTYPE_IPV4 { be32(w, L3 + 20) } else { 0 };
            let frame = batch.frame_mut(i);
            if (frame.len as usize) < L3
                || ethertype == ETHERTYPE_VLAN
                || !frame.offload.is_none()
                || is_no_source(src)
                || is_reserved(dst)
            {
                rest.insert(i);
                continue;
            }
            frame.offload = Offload::NONE;
            frame.tci = patch.vid;
            frame.verdict = Verdict::Output(patch.port);
            let flow = dst ^ src.rotate_left(16) ^ addresses ^ u64::from(ports) << 20;
            frame.hash = flow_hash(self.seed.hash_word(flow));
            frames += 1;
        }
        if frames != 0 {
            policy.rules.hit(patch.rule, self.worker, frames);
        }
        rest
    }

    /// Stage 1 parses and hashes a batch's frames. Stage 1 drops frames with headers that it cannot
    /// parse.
    // The stages are separate functions that are not inlined, so that each stage keeps its values
    // in registers. When the stages were inlined together, the compiler spilled most values to the
    // stack.
    #[inline(never)]
    fn parse_and_hash(
        &mut self,
        batch: &mut Batch,
        policy: &PortPolicy,
        frames: FrameSet,
    ) -> Parsed {
        let Scratch { headers, hashes, .. } = &mut *self.scratch;
        let (seed, relevant) = (&self.seed, &policy.relevant);
        let mut parsed = Parsed::default();
        // No key equals this value, because no key has ones in all its bits.
        let mut before = [u64::MAX; 4];
        for i in frames {
            let h = &mut headers[i];
            if let Some(plain) = parse_plain(batch, i, policy.id) {
                let plain = match plain {
                    Ok(plain) => plain,
                    Err(reason) => {
                        batch.at_mut(i).verdict = Verdict::Drop(reason);
                        continue;
                    }
                };
                batch.at_mut(i).hash = flow_hash(seed.flow(&plain.key));
                let key = plain.key.relevant_narrow(relevant);
                if key.narrow_is(&before) {
                    parsed.followers.insert(i);
                    continue;
                }
                before = key.narrow();
                hashes[i] = seed.hash_narrow(&key);
                *h = Headers { key, ..plain };
            } else {
                if let Err(reason) = parse_for(batch, i, policy, h) {
                    batch.at_mut(i).verdict = Verdict::Drop(reason);
                    continue;
                }
                batch.at_mut(i).hash = flow_hash(seed.flow(&h.key));
                before = [u64::MAX; 4];
                if h.flags.uncacheable() {
                    hashes[i] = seed.hash(&h.key);
                    parsed.apart.insert(i);
                    continue;
                }
                h.key = h.key.relevant(relevant);
                hashes[i] = seed.hash(&h.key);
            }
            self.cache.prefetch_bucket(hashes[i]);
            parsed.cacheable.insert(i);
        }
        parsed
    }

    /// Stage 2 compares the frames' signatures with the cache's buckets.
    #[inline(never)]
    fn compare(&mut self, frames: FrameSet) {
        let Scratch { hashes, ways, .. } = &mut *self.scratch;
        for i in frames {
            ways[i] = self.cache.candidates(hashes[i]);
        }
    }

    /// Stage 3 verifies the frames' keys and sets the verdict of frames with a cached decision and
    /// of their followers. Returns the frames that still have no verdict.
    #[inline(never)]
    fn verify(
        &mut self,
        batch: &mut Batch,
        turn: &Turn<'_>,
        tally: &mut Tally,
        parsed: Parsed,
    ) -> FrameSet {
        let mut missed = FrameSet::default();
        let mut rest = parsed.cacheable;
        while let Some(i) = rest.next() {
            // The followers of this frame come before the next frame that is not a follower.
            let before_next = FrameSet::first(rest.0.trailing_zeros() as usize);
            let behind = (u32::MAX << 1) << i;
            let followers = FrameSet(parsed.followers.0 & before_next.0 & behind);
            let Scratch { headers, hashes, ways } = &mut *self.scratch;
            let (h, hash) = (&headers[i], hashes[i]);
            let found = self.cache.find(ways[i], hash, &h.key, &mut self.fdb, turn.now_s);
            let Some(decision) = found else {
                missed.insert(i);
                for f in followers {
                    (headers[f], hashes[f], ways[f]) = (headers[i], hash, ways[i]);
                }
                missed.0 |= followers.0;
                continue;
            };
            let flags = h.flags;
            apply(batch, i, decision, flags);
            for f in followers {
                apply(batch, f, decision, flags);
            }
            let frames = 1 + u64::from(followers.0.count_ones());
            tally.cache_hits += frames;
            if decision.rule.is_some() {
                turn.policy.rules.hit(decision.rule, self.worker, frames);
            }
        }
        missed
    }

    /// Stage 4 sends the remaining frames through the full path, in the order of the frames.
    #[inline(never)]
    fn decide(&mut self, batch: &mut Batch, turn: &Turn<'_>, tally: &mut Tally, frames: FrameSet) {
        let Scratch { headers, hashes, ways } = &*self.scratch;
        let policy = turn.policy;
        let mut path = Path {
            policy,
            snapshot: turn.snapshot,
            fdb: &mut self.fdb,
            port: &mut self.ports[usize::from(policy.id)],
            tally,
            now_s: turn.now_s,
            now_ns: turn.now_ns,
            recent: Recent::default(),
        };
        let mut decision = Decision::drop(DropReason::Runt);
        // `of` is the frame for which `decision` was made, if the decision applies to other frames
        // of the flow. `kept` says whether the cache stored the decision.
        let (mut of, mut kept) = (None, false);
        for i in frames {
            let (h, hash) = (&headers[i], hashes[i]);
            let same = of.is_some_and(|of: usize| hashes[of] == hash && headers[of].key.is(&h.key));
            let mut keep = same && !kept;
            if !same {
                let lasting =
                    path.decide(batch.head_window(i), h, &mut decision) && !h.flags.uncacheable();
                of = lasting.then_some(i);
                keep = lasting
                    && (self.cache.knows(ways[i], hash, &h.key)
                        || path.port.seen_before(hash, self.cache.is_full_for(policy.id)));
                kept = false;
            }
            if keep {
                self.cache.insert(hash, &h.key, &decision, path.fdb, turn.now_s);
                kept = true;
            }
            apply(batch, i, &decision, h.flags);
            if decision.rule.is_some() {
                policy.rules.hit(decision.rule, self.worker, 1);
            }
        }
    }

    /// Adopts a snapshot and removes all cached decisions. `on_snapshot` also removes FDB entries
    /// of ports and domains that no longer exist, and of ports that left a domain. The caller must
    /// adopt a snapshot between two batches, because `on_snapshot` reads the whole FDB.
    pub fn on_snapshot(&mut self, snapshot: &Snapshot) {
        self.generation = Some(snapshot.generation);
        self.attached = snapshot.ports.iter().flatten().count();
        self.flush_cache();
        self.fdb.set_ageing(snapshot.fdb_ageing_s);
        let _ = self.fdb.retain(|domain, port| snapshot.is_member(domain, port));
    }

    /// Adopts a snapshot that decides about all frames as the present snapshot does, and keeps the
    /// cached decisions. `before` is the generation of the present snapshot. If the classifier has
    /// not adopted that generation, it removes all cached decisions.
    pub(crate) fn on_like_snapshot(&mut self, before: u64, snapshot: &Snapshot) {
        if self.generation != Some(before) {
            self.on_snapshot(snapshot);
            return;
        }
        self.generation = Some(snapshot.generation);
        self.fdb.set_ageing(snapshot.fdb_ageing_s);
    }

    /// Removes all of the classifier's state about a port. The caller must call `forget_port` when
    /// another port gets the port's number.
    pub fn forget_port(&mut self, port: u16) {
        self.fdb.flush_port(port);
        if let Some(state) = self.ports.get_mut(usize::from(port)) {
            *state = PortState::default();
        }
        self.flush_cache();
    }

    pub fn flush_cache(&mut self) {
        self.cache.flush(self.attached);
    }

    /// Removes expired addresses from the FDB. A worker may call `age` at every turn, because each
    /// call reads only a few cache lines of the FDB. Ageing normally reads a sixteenth of the FDB
    /// per second. Returns true for the first call in a second.
    #[inline]
    pub fn age(&mut self, now_s: u32, snapshot: &Snapshot) -> bool {
        const SLOTS_A_CALL: usize = 32;
        let begins = self.aged_s != now_s;
        if begins {
            self.aged_s = now_s;
            self.fdb.set_ageing(snapshot.fdb_ageing_s);
            // A round over the FDB takes up to 16 s, which is much less than an entry's lifetime.
            // In each round the other workers learn which entries are alive.
            let round_s = usize::try_from(snapshot.fdb_ageing_s / 4).unwrap_or(16).clamp(1, 16);
            self.to_age = self.fdb.capacity() / round_s;
        }
        if self.to_age > 0 {
            self.fdb.age(now_s, SLOTS_A_CALL);
            self.to_age = self.to_age.saturating_sub(SLOTS_A_CALL);
        }
        begins
    }

    /// Learns an address that another worker reported, if the port is a member of the domain in
    /// `snapshot`.
    pub fn hear(&mut self, news: &News, now_s: u32, snapshot: &Snapshot) {
        if snapshot.is_member(news.domain, news.port) {
            let limit = snapshot.domain(news.domain).map_or(0, |d| d.fdb_limit);
            self.fdb.hear(news, now_s, limit);
        }
    }

    /// Learns addresses that the former process of the switch had learned, as far as the ports are
    /// members of the domains and the domains have room.
    pub fn relearn(&mut self, all: &[Station], now_s: u32, snapshot: &Snapshot) {
        for station in all {
            if snapshot.is_member(station.domain, station.port.0) {
                let limit = snapshot.domain(station.domain).map_or(0, |d| d.fdb_limit);
                self.fdb.relearn(station, now_s, limit);
            }
        }
    }

    /// Appends the FDB's entries in `max` slots from slot `from` on to `out`, and returns the next
    /// slot. Allocates memory only if `out` has no room for `max` entries.
    pub fn fdb_chunk(&self, from: usize, max: usize, out: &mut Vec<FdbRecord>) -> Option<usize> {
        self.fdb.entries(from, max, out)
    }

    /// Removes learned addresses of a port, of a domain, or of a port in a domain from the FDB.
    /// Without a port and a domain, `fdb_flush` removes all learned addresses. Pinned addresses
    /// stay in the FDB. Returns the number of entries that were removed from the FDB.
    pub fn fdb_flush(&mut self, port: Option<u16>, domain: Option<u16>) -> usize {
        self.fdb.flush_learned(|d, p| port.is_none_or(|x| x == p) && domain.is_none_or(|x| x == d))
    }

    /// Pins an address to a port, or removes the address if `add` is false. Returns false if the
    /// port is no member of the domain or the FDB has no room.
    pub fn fdb_static(
        &mut self,
        domain: u16,
        mac: MacAddr,
        port: u16,
        add: bool,
        snapshot: &Snapshot,
    ) -> bool {
        if !add {
            self.fdb.forget(domain, mac);
            return true;
        }
        snapshot.is_member(domain, port) && self.fdb.pin(domain, mac, port, 0)
    }

    pub fn fdb_mut(&mut self) -> &mut Fdb {
        &mut self.fdb
    }

    #[must_use]
    pub fn fdb(&self) -> &Fdb {
        &self.fdb
    }

    /// Number of entries that a port has in the exact-match cache.
    #[must_use]
    pub fn cached(&self, port: u16) -> u16 {
        self.cache.held(port)
    }

    /// Returns a hash of the addresses, the protocol and the ports of a frame.
    #[must_use]
    pub(crate) fn flow_hash(&self, key: &FlowKey) -> u32 {
        flow_hash(self.seed.flow(key))
    }

    /// Number of frames whose source address was not learned, because the port had no token or the
    /// FDB had no room.
    #[must_use]
    pub fn unlearned(&self) -> u64 {
        self.unlearned
    }
}

/// Returns the part of a flow hash that selects an output queue.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "takes 32 bits on purpose")]
const fn flow_hash(hash: u64) -> u32 {
    (hash >> 16) as u32
}

#[inline(always)]
fn apply(batch: &mut Batch, i: usize, decision: &Decision, flags: HeaderFlags) {
    let frame = batch.at_mut(i);
    frame.verdict = decision.verdict;
    frame.tci = frame.tci & 0xf000 | decision.vid;
    if decision.dscp != KEEP_DSCP {
        edit_and_mirror(batch, i, decision, flags);
    }
}

fn edit_and_mirror(batch: &mut Batch, i: usize, decision: &Decision, flags: HeaderFlags) {
    if decision.dscp != ONLY_MIRROR {
        edit::set_dscp(batch.head_mut(i), flags, decision.dscp);
    }
    if decision.mirror != NO_MIRROR {
        batch.mirror(i, decision.mirror);
    }
}
