//! The forwarding database (FDB) maps each MAC address of a domain to the port behind which the
//! address lives.
//!
//! # Problem
//! All tenants share one FDB. No tenant may fill other tenants' part of the FDB or slow down
//! look-ups.
//!
//! # Source
//! IEEE 802.1D defines the learning and ageing of MAC addresses.
//!
//! # Quantities
//! A slot of the FDB has 16 bytes, so a cache line contains four slots.
//!
//! # Approach
//! A keyed hash chooses two candidate lines for a key, and the emptier line takes the entry. FDB
//! entries never move between slots, so a slot's number stays valid until its entry is removed.
//! Each domain has a limit of entries and a *generation*. A domain's generation changes if an
//! address moved to another port, was removed or was pinned. After a change of a domain's
//! generation, earlier results of look-ups in the domain may be wrong. A new entry does not change
//! the generation, because the answer "unknown" is never cached. A flood of new addresses leaves
//! cached decisions valid.
//!
//! # Cost
//! A look-up in the FDB reads at most two cache lines. The caller of [`Fdb::age`] gives the maximum
//! number of slots that one call examines.
//!
//! # Departures
//! If both candidate lines are full, the FDB refuses a new entry even if other lines have room. At
//! half load, the FDB refused none of 100,000 entries. The FDB's capacity should therefore be twice
//! the sum of the domains' limits of entries.

use penstock_units::{MacAddr, PortId};

use crate::headers::key::{HashSeed, MAC_MASK};
use crate::snapshot::AGEING_DEFAULT_S;

/// Default number of slots in a worker's FDB.
pub const FDB_CAPACITY_DEFAULT: usize = 8_192;
/// Maximum number of slots in a worker's FDB.
pub const FDB_CAPACITY_MAX: usize = 131_072;
/// Minimum number of slots in a worker's FDB.
pub const FDB_CAPACITY_MIN: usize = 64;

const WAYS: usize = 4;
const USED: u16 = 1;
const PINNED: u16 = 2;
/// Flag of an address that another worker reported. The flag is cleared when this worker receives a
/// frame from the address.
const REMOTE: u16 = 4;
/// Maximum number of learned addresses that wait to be reported to other workers. If the limit is
/// reached, further learned addresses are reported in the next round of ageing.
const NEWS_MAX: usize = 256;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Key of an FDB entry: domain number in the upper 16 bits, MAC address in the lower 48 bits.
    key: u64,
    seen_s: u32,
    port: u16,
    flags: u16,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct Line([Slot; WAYS]);

/// An FDB entry as the API lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbRecord {
    pub domain: u16,
    pub mac: MacAddr,
    /// Number of the port behind which the address lives.
    pub port: u16,
    /// Time of the last frame from the address, in seconds of the worker's clock.
    pub seen_s: u32,
    /// Whether the control plane pinned the entry. A pinned entry neither moves nor ages.
    pub pinned: bool,
    /// Whether another worker reported the address. The reporting worker's own FDB has a more
    /// precise `seen_s`.
    pub remote: bool,
}

impl FdbRecord {
    /// Seconds since the last frame from the address, at time `now_s` of the worker's clock.
    #[must_use]
    pub const fn age_s(&self, now_s: u32) -> u32 {
        age_of(self.seen_s, now_s)
    }
}

/// Seconds from `seen_s` to `now_s`. An address of the former process of the switch may be older
/// than the worker's clock, so the difference wraps. A time after `now_s` counts as now.
const fn age_of(seen_s: u32, now_s: u32) -> u32 {
    let age_s = now_s.wrapping_sub(seen_s);
    if age_s < 1 << 31 { age_s } else { 0 }
}

/// A learned address of the former process of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    pub domain: u16,
    pub mac: MacAddr,
    /// Port behind which the address lives.
    pub port: PortId,
    /// Seconds since the last frame from the address.
    pub age_s: u32,
}

/// Report of a learned address to the other workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    pub domain: u16,
    pub mac: u64,
    /// Number of the port behind which the address lives.
    pub port: u16,
    /// Seconds since the last frame from the address. The time since the last frame is relative,
    /// because the workers' clocks start at different moments.
    pub age_s: u32,
}

/// Result of learning a MAC address. The number in a variant of `Learned` is the slot of the
/// address's FDB entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The address was unknown, and the FDB has a new entry for the address.
    New(u32),
    /// The address was known behind another port before and has moved to this port.
    Moved(u32),
    /// The FDB already had an entry for the address behind this port.
    Known(u32),
    /// The address is pinned to another port, so the frame has a spoofed source address.
    Pinned,
    /// The FDB cannot store the address: the domain is at its limit, or both candidate lines are
    /// full.
    Full,
}

/// Counts of FDB events since the worker's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FdbStats {
    pub learned: u64,
    pub moved: u64,
    pub aged: u64,
    /// Number of addresses that were not learned because the domain was at its limit.
    pub over_limit: u64,
    /// Number of addresses that were not learned because both candidate lines were full.
    pub no_slot: u64,
}

/// The forwarding database of one worker, for all domains.
pub struct Fdb {
    lines: Box<[Line]>,
    seed: HashSeed,
    /// One generation counter for each possible domain number, so that a look-up needs no bounds
    /// check.
    generations: Box<[u32; 1 << 16]>,
    counts: Box<[u32; 1 << 16]>,
    len: usize,
    ageing_s: u32,
    cursor: usize,
    stats: FdbStats,
    /// Learned addresses to report to the other workers. `news` is `None` if the switch has no
    /// other workers.
    news: Option<Vec<News>>,
}

impl core::fmt::Debug for Fdb {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Fdb").field("len", &self.len).field("stats", &self.stats).finish()
    }
}

fn zeros() -> Box<[u32; 1 << 16]> {
    match vec![0; 1 << 16].into_boxed_slice().try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("the slice has the length of the array"),
    }
}

#[inline]
const fn key_of(domain: u16, mac: u64) -> u64 {
    (domain as u64) << 48 | mac & MAC_MASK
}

#[inline]
const fn domain_of(key: u64) -> u16 {
    (key >> 48) as u16
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most FDB_CAPACITY_MAX slots")]
const fn slot_number(line: usize, way: usize) -> u32 {
    (line * WAYS + way) as u32
}

impl Fdb {
    /// Creates an empty FDB of at least `capacity` slots. The number of slots is a power of two
    /// from [`FDB_CAPACITY_MIN`] to [`FDB_CAPACITY_MAX`].
    #[must_use]
    pub fn new(capacity: usize, seed: HashSeed) -> Self {
        let capacity = capacity.clamp(FDB_CAPACITY_MIN, FDB_CAPACITY_MAX).next_power_of_two();
        Self {
            lines: vec![Line::default(); capacity / WAYS].into_boxed_slice(),
            seed,
            generations: zeros(),
            counts: zeros(),
            len: 0,
            ageing_s: AGEING_DEFAULT_S,
            cursor: 0,
            stats: FdbStats::default(),
            news: None,
        }
    }

    /// Returns the two different lines that may contain `key`.
    #[inline]
    fn candidates(&self, key: u64) -> [usize; 2] {
        let hash = self.seed.hash_word(key);
        let mask = self.lines.len() - 1;
        #[expect(clippy::cast_possible_truncation, reason = "a mask limits the hash to the table")]
        let (first, step) = (hash as usize & mask, (hash >> 32) as usize & mask);
        [first, first ^ step.max(1)]
    }

    #[inline(always)]
    fn position(&self, key: u64) -> Option<(usize, usize)> {
        for at in self.candidates(key) {
            for (way, slot) in self.lines.get(at)?.0.iter().enumerate() {
                if slot.key == key && slot.flags & USED != 0 {
                    return Some((at, way));
                }
            }
        }
        None
    }

    #[inline]
    #[must_use]
    pub fn lookup(&self, domain: u16, mac: u64) -> Option<(u32, u16)> {
        let (line, way) = self.position(key_of(domain, mac))?;
        Some((slot_number(line, way), self.lines[line].0[way].port))
    }

    /// Updates an address's time of the last frame and returns the address's slot. Returns `None`
    /// if the address is not known behind `port`.
    #[inline]
    pub fn refresh(&mut self, domain: u16, mac: u64, port: u16, now_s: u32) -> Option<u32> {
        let (line, way) = self.position(key_of(domain, mac))?;
        let slot = &mut self.lines[line].0[way];
        if slot.port != port {
            return None;
        }
        if slot.seen_s != now_s {
            slot.seen_s = now_s;
            slot.flags &= !REMOTE;
        }
        Some(slot_number(line, way))
    }

    /// Returns the generation of `domain`, which changes when earlier answers about `domain` may be
    /// wrong.
    #[inline]
    #[must_use]
    pub fn generation(&self, domain: u16) -> u32 {
        self.generations[usize::from(domain)]
    }

    #[inline]
    fn bump(&mut self, domain: u16) {
        let generation = &mut self.generations[usize::from(domain)];
        *generation = generation.wrapping_add(1);
    }

    /// Learns that `mac` of `domain` is behind `port`. `limit` is the domain's maximum number of
    /// entries.
    pub fn learn(&mut self, domain: u16, mac: u64, port: u16, now_s: u32, limit: u32) -> Learned {
        let key = key_of(domain, mac);
        if let Some((line, way)) = self.position(key) {
            let slot = &mut self.lines[line].0[way];
            let number = slot_number(line, way);
            if slot.port == port {
                slot.seen_s = now_s;
                return Learned::Known(number);
            }
            if slot.flags & PINNED != 0 {
                return Learned::Pinned;
            }
            slot.port = port;
            slot.seen_s = now_s;
            slot.flags &= !REMOTE;
            self.stats.moved += 1;
            self.bump(domain);
            self.note(News { domain, mac, port, age_s: 0 });
            return Learned::Moved(number);
        }
        if self.counts[usize::from(domain)] >= limit {
            self.stats.over_limit += 1;
            return Learned::Full;
        }
        let slot = Slot { key, seen_s: now_s, port, flags: USED };
        match self.place(slot, now_s) {
            Some(number) => {
                self.stats.learned += 1;
                self.note(News { domain, mac, port, age_s: 0 });
                Learned::New(number)
            }
            None => {
                self.stats.no_slot += 1;
                Learned::Full
            }
        }
    }

    /// Learns an address of the former process of the switch, with its age. An address that this
    /// process knows already does not change. The other workers learn the address themselves, so
    /// it is not reported to them. `limit` is the domain's maximum number of entries.
    pub fn relearn(&mut self, station: &Station, now_s: u32, limit: u32) {
        let key = key_of(station.domain, station.mac.to_u64());
        if self.position(key).is_some() {
            return;
        }
        if self.counts[usize::from(station.domain)] >= limit {
            self.stats.over_limit += 1;
            return;
        }
        let seen_s = now_s.wrapping_sub(station.age_s);
        match self.place(Slot { key, seen_s, port: station.port.0, flags: USED }, now_s) {
            Some(_) => self.stats.learned += 1,
            None => self.stats.no_slot += 1,
        }
    }

    /// Makes the FDB record learned addresses, which [`Self::take_news`] returns.
    pub fn share(&mut self) {
        self.news = Some(Vec::with_capacity(NEWS_MAX));
    }

    fn note(&mut self, news: News) {
        if let Some(all) = &mut self.news
            && all.len() < NEWS_MAX
        {
            all.push(news);
        }
    }

    /// Returns the next learned address to report to the other workers.
    #[inline]
    pub fn take_news(&mut self) -> Option<News> {
        self.news.as_mut()?.pop()
    }

    /// Learns an address that another worker reported. If this worker received a later frame from
    /// the address, `hear` leaves the FDB entry unchanged, because the latest frame is right.
    /// `limit` is the domain's maximum number of entries.
    pub fn hear(&mut self, news: &News, now_s: u32, limit: u32) {
        let News { domain, mac, port, age_s } = *news;
        let seen_s = now_s.wrapping_sub(age_s);
        let key = key_of(domain, mac);
        if let Some((line, way)) = self.position(key) {
            let slot = &mut self.lines[line].0[way];
            let ours = age_of(slot.seen_s, now_s);
            let older = age_s > ours || slot.port == port && age_s == ours;
            if older || slot.flags & PINNED != 0 {
                return;
            }
            slot.seen_s = seen_s;
            slot.flags |= REMOTE;
            if slot.port != port {
                slot.port = port;
                self.stats.moved += 1;
                self.bump(domain);
            }
        } else if self.counts[usize::from(domain)] < limit {
            let slot = Slot { key, seen_s, port, flags: USED | REMOTE };
            if self.place(slot, now_s).is_none() {
                self.stats.no_slot += 1;
            }
        } else {
            self.stats.over_limit += 1;
        }
    }

    /// Stores a new FDB entry in a slot that is free or has an expired entry.
    fn place(&mut self, slot: Slot, now_s: u32) -> Option<u32> {
        let lines = self.candidates(slot.key);
        let free = |line: usize| {
            let ways = &self.lines[line].0;
            let count = ways.iter().filter(|s| s.flags & USED == 0).count();
            ways.iter().position(|s| s.flags & USED == 0).map(|way| (count, line, way))
        };
        // The emptier line takes the entry. If both are equally full, the first takes it, because
        // look-ups try that line first.
        let room = match lines.map(free) {
            [Some(a), Some(b)] => Some(if b.0 > a.0 { b } else { a }),
            [a, b] => a.or(b),
        };
        let mut room = room.map(|(_, line, way)| (line, way));
        for line in lines {
            let old = self.lines[line].0.iter().position(|s| self.expired(s, now_s));
            room = room.or(old.map(|way| (line, way)));
        }
        let (line, way) = room?;
        self.remove(line, way);
        self.lines[line].0[way] = slot;
        self.counts[usize::from(domain_of(slot.key))] += 1;
        self.len += 1;
        Some(slot_number(line, way))
    }

    fn expired(&self, slot: &Slot, now_s: u32) -> bool {
        slot.flags & (USED | PINNED) == USED
            && self.ageing_s != 0
            && age_of(slot.seen_s, now_s) > self.ageing_s
    }

    /// Empties a slot of the FDB. Removing an FDB slot that is already empty has no effect.
    fn remove(&mut self, line: usize, way: usize) {
        let slot = core::mem::take(&mut self.lines[line].0[way]);
        if slot.flags & USED != 0 {
            let domain = domain_of(slot.key);
            let count = &mut self.counts[usize::from(domain)];
            *count = count.saturating_sub(1);
            self.len -= 1;
            self.bump(domain);
        }
    }

    /// Updates the time of the last frame of address `mac`, if `slot` still contains `mac`.
    #[inline]
    pub fn touch(&mut self, slot: u32, domain: u16, mac: u64, now_s: u32) {
        let (line, way) = (slot as usize / WAYS, slot as usize % WAYS);
        if let Some(slot) = self.lines.get_mut(line).map(|l| &mut l.0[way])
            && slot.key == key_of(domain, mac)
            && slot.flags & USED != 0
        {
            slot.seen_s = now_s;
            slot.flags &= !REMOTE;
        }
    }

    /// Pins an address to a port and overwrites a learned entry for the address. The domain's limit
    /// does not apply to pinned entries. Returns false if no slot was free for the address.
    pub fn pin(&mut self, domain: u16, mac: MacAddr, port: u16, now_s: u32) -> bool {
        let key = key_of(domain, mac.to_u64());
        let slot = Slot { key, seen_s: now_s, port, flags: USED | PINNED };
        if let Some((line, way)) = self.position(key) {
            let old = core::mem::replace(&mut self.lines[line].0[way], slot);
            if old.port != port {
                self.bump(domain);
            }
            return true;
        }
        self.place(slot, now_s).is_some()
    }

    /// Removes an address from the FDB and returns whether the address was known.
    pub fn forget(&mut self, domain: u16, mac: MacAddr) -> bool {
        let Some((line, way)) = self.position(key_of(domain, mac.to_u64())) else { return false };
        self.remove(line, way);
        true
    }

    /// Removes every learned or pinned entry for which `keep(domain, port)` is false. Returns the
    /// number of entries that were removed from the FDB.
    pub fn retain(&mut self, mut keep: impl FnMut(u16, u16) -> bool) -> usize {
        let before = self.len;
        for line in 0..self.lines.len() {
            for way in 0..WAYS {
                let slot = self.lines[line].0[way];
                if slot.flags & USED != 0 && !keep(domain_of(slot.key), slot.port) {
                    self.remove(line, way);
                }
            }
        }
        before - self.len
    }

    /// Removes every learned FDB entry for which `which(domain, port)` is true.
    /// Returns the number of entries that were removed from the FDB.
    pub fn flush_learned(&mut self, mut which: impl FnMut(u16, u16) -> bool) -> usize {
        let before = self.len;
        for line in 0..self.lines.len() {
            for way in 0..WAYS {
                let slot = self.lines[line].0[way];
                if slot.flags & (USED | PINNED) == USED && which(domain_of(slot.key), slot.port) {
                    self.remove(line, way);
                }
            }
        }
        before - self.len
    }

    pub fn flush_port(&mut self, port: u16) {
        let _ = self.retain(|_, p| p != port);
    }

    /// Sets the time in seconds after which FDB entries expire. 0 means that entries never expire.
    pub fn set_ageing(&mut self, seconds: u32) {
        self.ageing_s = seconds;
    }

    /// Examines the next `slots` slots of the FDB, rounded up to cache lines, and removes expired
    /// entries. Reports this worker's live entries to the other workers again, so that the entries
    /// do not expire in the other workers' FDBs.
    pub fn age(&mut self, now_s: u32, slots: usize) {
        for _ in 0..slots.div_ceil(WAYS).min(self.lines.len()) {
            let line = self.cursor;
            self.cursor = (line + 1) & (self.lines.len() - 1);
            for way in 0..WAYS {
                let slot = self.lines[line].0[way];
                if self.expired(&slot, now_s) {
                    self.remove(line, way);
                    self.stats.aged += 1;
                } else if slot.flags & (USED | PINNED | REMOTE) == USED {
                    let (domain, mac) = (domain_of(slot.key), slot.key & MAC_MASK);
                    let age_s = age_of(slot.seen_s, now_s);
                    self.note(News { domain, mac, port: slot.port, age_s });
                }
            }
        }
    }

    /// Appends the FDB entries in up to `max` slots from slot `from` on to `out`. Returns the next
    /// slot, or `None` at the end of the FDB.
    pub fn entries(&self, from: usize, max: usize, out: &mut Vec<FdbRecord>) -> Option<usize> {
        let end = from.saturating_add(max).min(self.capacity());
        for at in from..end {
            let slot = &self.lines[at / WAYS].0[at % WAYS];
            if slot.flags & USED != 0 {
                let b = slot.key.to_be_bytes();
                out.push(FdbRecord {
                    domain: domain_of(slot.key),
                    mac: MacAddr([b[2], b[3], b[4], b[5], b[6], b[7]]),
                    port: slot.port,
                    seen_s: slot.seen_s,
                    pinned: slot.flags & PINNED != 0,
                    remote: slot.flags & REMOTE != 0,
                });
            }
        }
        (end < self.capacity()).then_some(end)
    }

    /// Number of slots in the FDB.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.lines.len() * WAYS
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of FDB entries of a domain.
    #[must_use]
    pub fn domain_len(&self, domain: u16) -> u32 {
        self.counts[usize::from(domain)]
    }

    #[must_use]
    pub fn stats(&self) -> FdbStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fdb() -> Fdb {
        Fdb::new(1024, HashSeed::new(1))
    }

    #[test]
    fn an_address_is_found_where_it_was_heard_and_moves() {
        let mut t = fdb();
        assert!(matches!(t.learn(1, 7, 3, 10, 100), Learned::New(_)));
        assert_eq!(t.lookup(1, 7).map(|e| e.1), Some(3));
        assert_eq!(t.lookup(2, 7), None);
        let before = t.generation(1);
        assert!(matches!(t.learn(1, 7, 3, 11, 100), Learned::Known(_)));
        assert_eq!(t.generation(1), before);
        assert!(matches!(t.learn(1, 7, 4, 11, 100), Learned::Moved(_)));
        assert_ne!(t.generation(1), before);
        assert_eq!((t.stats().learned, t.stats().moved), (1, 1));
    }

    #[test]
    fn a_domain_stops_at_its_limit_and_others_go_on() {
        let mut t = fdb();
        for mac in 0..1000 {
            t.learn(1, mac, 3, 0, 64);
        }
        assert_eq!((t.domain_len(1), t.stats().over_limit), (64, 936));
        let flooded = t.generation(1);
        assert!(matches!(t.learn(2, 5, 9, 0, 64), Learned::New(_)));
        assert_eq!(t.lookup(2, 5).map(|e| e.1), Some(9));
        assert_eq!((flooded, t.generation(2)), (0, 0));
    }

    #[test]
    fn half_the_capacity_always_finds_a_slot_here() {
        let mut t = Fdb::new(8192, HashSeed::new(99));
        for mac in 0..4096 {
            t.learn(1, mac * 257, 1, 0, u32::MAX);
        }
        assert_eq!(t.stats().no_slot, 0);
    }

    #[test]
    fn an_address_of_the_former_process_keeps_its_age_although_the_clock_is_younger() {
        let mut t = fdb();
        t.set_ageing(300);
        t.share();
        let mac = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
        let station = |age_s| Station { domain: 1, mac, port: PortId(4), age_s };
        t.relearn(&station(200), 1, 10);
        assert_eq!(t.take_news(), None, "each worker learns it itself");
        let record = |t: &Fdb, now_s| {
            let mut all = Vec::new();
            let _ = t.entries(0, t.capacity(), &mut all);
            all.first().map(|record: &FdbRecord| (record.port, record.age_s(now_s)))
        };
        assert_eq!(record(&t, 1), Some((4, 200)));
        // A later state of the former process does not renew it.
        t.relearn(&station(0), 1, 10);
        assert_eq!(record(&t, 2), Some((4, 201)));
        // Older news from another worker does not change it, younger news does.
        let news = |port, age_s| News { domain: 1, mac: mac.to_u64(), port, age_s };
        t.hear(&news(5, 250), 2, 10);
        assert_eq!(record(&t, 2), Some((4, 201)));
        t.hear(&news(5, 100), 2, 10);
        assert_eq!(record(&t, 2), Some((5, 100)));
        t.age(202, 1024);
        assert_eq!(t.len(), 1);
        t.age(203, 1024);
        assert_eq!(t.len(), 0, "it expires at its age");
    }

    #[test]
    fn entries_age_in_slices_and_pinned_ones_stay() {
        let mut t = fdb();
        t.set_ageing(300);
        t.learn(1, 1, 3, 0, 10);
        t.learn(1, 2, 3, 200, 10);
        assert!(t.pin(1, MacAddr([0, 0, 0, 0, 0, 3]), 4, 0));
        let slot = t.lookup(1, 1).unwrap().0;
        t.touch(slot, 1, 2, 999);
        for _ in 0..64 {
            t.age(301, 16);
        }
        assert_eq!((t.lookup(1, 1), t.len(), t.stats().aged), (None, 2, 1));
        t.touch(t.lookup(1, 2).unwrap().0, 1, 2, 400);
        t.age(700, 1024);
        assert!(t.lookup(1, 2).is_some());
        assert_eq!(t.learn(1, 3, 9, 0, 10), Learned::Pinned);
        assert_eq!(t.lookup(1, 3).map(|e| e.1), Some(4));
    }

    #[test]
    fn flushes_take_what_they_name_and_listings_come_in_chunks() {
        let mut t = fdb();
        for mac in 0..40 {
            t.learn((mac % 2) as u16, mac, (mac % 4) as u16, 0, 100);
        }
        t.flush_port(3);
        assert_eq!(t.retain(|domain, _| domain != 0), 20);
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = t.entries(at, 100, &mut all);
        }
        assert_eq!((all.len(), t.len(), t.domain_len(0)), (10, 10, 0));
        assert!(all.iter().all(|e| e.domain == 1 && e.port == 1));
        assert!(t.forget(1, all[0].mac) && !t.forget(1, all[0].mac));
    }
}
