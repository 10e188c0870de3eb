//! A tuple-space search with hard limits finds the best rule of a port, a tenant or the host.
//!
//! # Problem
//! The search must find the best of many masked rules in limited time, even if a tenant chooses
//! unfavourable masks. Crafted rules and packets reduced the throughput of OVS to 12 %
//! (CVE-2019-25076).
//!
//! # Source
//! Datapath rule 33 demands upper limits on the work of a rule search. The search is from
//! Srinivasan, Suri, Varghese, "Packet Classification using Tuple Space Search" (1999).
//!
//! # Approach
//! Rules are sorted once by falling priority and rising ID, so that a better rule has a smaller
//! index. Rules with equal masks share a hash subtable. The search examines the subtables in the
//! order of their best rule. The search ends when no remaining subtable can contain a better rule
//! than the best match. The number of subtables is limited. If rules have more different masks, the
//! masks with the fewest rules get no subtable. Rules with masks that have no subtable go to a list
//! of at most [`LINEAR_MAX`] rules, in rule order. A subtable look-up reads one bucket of eight
//! signatures. A rule that finds no room in its bucket also goes to the list outside the subtables.
//!
//! # Cost
//! In the worst case a search takes a hash and a bucket look-up for each of the allowed subtables,
//! plus [`LINEAR_MAX`] comparisons. If no signature in a subtable matches, the look-up in this
//! subtable reads one word, and rarely mispredicts a branch.

use super::matching::{MatchError, Rule};
use super::signature::{Candidates, WAYS, signature};
use crate::counters::Counter;
use crate::headers::key::{FlowKey, FlowMask, HashSeed};

/// Default maximum number of subtables in a rule table.
pub const SUBTABLES_DEFAULT: usize = 32;
/// Maximum number of rules in a rule table's list, outside the subtables.
pub const LINEAR_MAX: usize = 256;
/// Maximum number of rules in a rule table.
pub const RULES_MAX: usize = 1 << 20;
const NONE: u32 = u32::MAX;
/// A subtable may grow until it has this number of ways (entries) for each of its rules. Rules that
/// do not fit a subtable of the maximum size go to the list outside the subtables.
const WAYS_PER_RULE_MAX: usize = 32;

/// Reason why rules cannot form a rule table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleTableError {
    /// A rule's match cannot be compiled.
    #[error("rule {id}")]
    Match {
        id: u32,
        #[source]
        source: MatchError,
    },
    /// The rules have too many different masks.
    #[error(
        "{linear} rules are outside the {subtables} subtables, the limit is {LINEAR_MAX}; use \
         fewer combinations of fields and prefix lengths"
    )]
    TooManyMasks {
        /// Number of rules that are outside the subtables, in the list.
        linear: usize,
        subtables: usize,
    },
    /// The table would have more than [`RULES_MAX`] rules.
    #[error("{0} rules are too many; the limit is {RULES_MAX} rules")]
    TooManyRules(usize),
    #[error("two rules have id {0}")]
    DuplicateId(u32),
}

#[derive(Debug)]
struct Subtable {
    mask: FlowMask,
    wide: bool,
    best: u32,
    /// Each 64-bit word contains the eight signatures of one bucket. If a signature is 0, its way
    /// (entry of the bucket) is empty.
    buckets: Box<[u64]>,
    rules: Box<[[u32; WAYS]]>,
}

#[derive(Clone, Copy, Debug)]
struct Linear {
    mask: FlowMask,
    value: FlowKey,
    rule: u32,
}

/// An immutable set of rules, arranged in subtables and a list for the search.
#[derive(Debug)]
pub struct RuleTable {
    rules: Box<[Rule]>,
    values: Box<[FlowKey]>,
    subtables: Box<[Subtable]>,
    linear: Box<[Linear]>,
    seed: HashSeed,
    /// Hit counters of the rules, with one row for each worker, so that each counter has one
    /// writer.
    hits: Box<[Box<[Counter]>]>,
    /// Ports that get copies because of a rule, in rising order.
    mirrors: Box<[u16]>,
}

impl Subtable {
    #[inline]
    fn bucket(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the mask limits the bucket index")]
        let at = hash as usize & (self.buckets.len() - 1);
        at
    }

    /// Builds a subtable (hash table for one mask) with `buckets` buckets. `rules` contains the
    /// indices of the rules, beginning with the best rule. The function also returns the rules that
    /// did not fit into the subtable. If several rules have equal matches, the subtable keeps only
    /// the best of the rules, because a worse rule can never win.
    fn fill(
        mask: FlowMask,
        rules: &[u32],
        values: &[FlowKey],
        seed: &HashSeed,
        buckets: usize,
    ) -> (Self, Vec<u32>) {
        let mut table = Self {
            mask,
            wide: mask.is_wide(),
            best: rules.first().copied().unwrap_or(NONE),
            buckets: vec![0; buckets].into_boxed_slice(),
            rules: vec![[NONE; WAYS]; buckets].into_boxed_slice(),
        };
        let mut left = Vec::new();
        for &rule in rules {
            let value = &values[rule as usize];
            if table.find(value.0[0], value, values, seed).is_some() {
                continue;
            }
            let hash = if table.wide { seed.hash_wide(value) } else { seed.hash_narrow(value) };
            let at = table.bucket(hash);
            match table.rules[at].iter().position(|&r| r == NONE) {
                Some(way) => {
                    table.rules[at][way] = rule;
                    table.buckets[at] |= signature(hash) << (8 * way);
                }
                None => left.push(rule),
            }
        }
        (table, left)
    }

    /// Doubles the subtable's number of buckets until every rule fits or the size limit is reached.
    fn build(
        mask: FlowMask,
        rules: &[u32],
        values: &[FlowKey],
        seed: &HashSeed,
    ) -> (Self, Vec<u32>) {
        let mut buckets = (rules.len() * 2 / WAYS).next_power_of_two();
        loop {
            let (table, left) = Self::fill(mask, rules, values, seed, buckets);
            if left.is_empty() || buckets * WAYS >= rules.len() * WAYS_PER_RULE_MAX {
                return (table, left);
            }
            buckets *= 2;
        }
    }

    #[inline(always)]
    fn find(&self, first: u64, key: &FlowKey, values: &[FlowKey], seed: &HashSeed) -> Option<u32> {
        let hash = if self.wide {
            self.hash_wide(first, key, seed)
        } else {
            seed.hash_narrow(&key.masked_narrow(first, &self.mask))
        };
        let at = self.bucket(hash);
        let ways = Candidates::among(*self.buckets.get(at)?, signature(hash));
        if ways == Candidates::NONE {
            return None;
        }
        self.verify(first, key, values, at, ways)
    }

    // The next two functions are not inlined, because otherwise the compiler would load all eight
    // words before every search.
    #[inline(never)]
    fn hash_wide(&self, first: u64, key: &FlowKey, seed: &HashSeed) -> u64 {
        seed.hash_wide(&key.masked_with(first, &self.mask))
    }

    /// Returns the rule in bucket `at` that has an equal key, from the candidate ways `ways`. The
    /// keys must be compared, because different keys can have equal signatures.
    #[inline(never)]
    fn verify(
        &self,
        first: u64,
        key: &FlowKey,
        values: &[FlowKey],
        at: usize,
        mut ways: Candidates,
    ) -> Option<u32> {
        let masked = key.masked_with(first, &self.mask);
        while let Some(way) = ways.first() {
            let rule = *self.rules.get(at)?.get(way)?;
            if values.get(rule as usize).is_some_and(|v| v.is(&masked)) {
                return Some(rule);
            }
            ways = ways.without_first();
        }
        None
    }
}

impl RuleTable {
    /// Builds a rule table for a switch with one worker.
    ///
    /// # Errors
    /// Returns [`RuleTableError`] if a match is invalid, if there are too many masks or rules, or
    /// if two rules have one ID.
    pub fn build(rules: &[Rule], subtable_cap: usize) -> Result<Self, RuleTableError> {
        Self::build_for(rules, subtable_cap, 1)
    }

    /// Builds a rule table with a row of hit counters for each of `workers` workers. Each worker
    /// counts rule hits in its own row.
    ///
    /// # Errors
    /// Returns a [`RuleTableError`] in the same cases as [`Self::build`].
    pub fn build_for(
        rules: &[Rule],
        subtable_cap: usize,
        workers: usize,
    ) -> Result<Self, RuleTableError> {
        if rules.len() > RULES_MAX {
            return Err(RuleTableError::TooManyRules(rules.len()));
        }
        let mut rules = rules.to_vec();
        rules.sort_by_key(|r| (core::cmp::Reverse(r.priority), r.id));
        let mut ids: Vec<u32> = rules.iter().map(|r| r.id).collect();
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(RuleTableError::DuplicateId(pair[0]));
        }
        let compiled = rules
            .iter()
            .map(|r| {
                let wrong = |source| RuleTableError::Match { id: r.id, source };
                r.matching.compile().map_err(wrong)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let values: Box<[FlowKey]> = compiled.iter().map(|c| c.0).collect();
        let masks: Vec<FlowMask> = compiled.iter().map(|c| c.1).collect();
        // A constant seed suffices, because a look-up is bounded whatever keys a tenant chooses.
        let seed = HashSeed::new(0x7075_6c73_7461_6b65);
        let (subtables, linear) = Self::partition(&masks, &values, &seed, subtable_cap);
        if linear.len() > LINEAR_MAX {
            let (linear, subtables) = (linear.len(), subtables.len());
            return Err(RuleTableError::TooManyMasks { linear, subtables });
        }
        let row = || rules.iter().map(|_| Counter::default()).collect();
        let hits = (0..workers.max(1)).map(|_| row()).collect();
        let rules = rules.into_boxed_slice();
        let mut mirrors: Vec<u16> = rules.iter().filter_map(|r| r.actions.mirror).collect();
        mirrors.sort_unstable();
        mirrors.dedup();
        Ok(Self { rules, values, subtables, linear, seed, hits, mirrors: mirrors.into() })
    }

    fn partition(
        masks: &[FlowMask],
        values: &[FlowKey],
        seed: &HashSeed,
        cap: usize,
    ) -> (Box<[Subtable]>, Box<[Linear]>) {
        let mut order: Vec<u32> = (0..).take(masks.len()).collect();
        order.sort_by_key(|&rule| (masks[rule as usize], rule));
        let mut groups: Vec<&[u32]> =
            order.chunk_by(|&a, &b| masks[a as usize] == masks[b as usize]).collect();
        // The masks with the most rules get the subtables. If two masks have equally many rules,
        // the mask with the better rule comes first.
        groups.sort_by_key(|g| (core::cmp::Reverse(g.len()), g.first().copied()));
        let mut subtables = Vec::new();
        let mut linear = Vec::new();
        for (at, group) in groups.into_iter().enumerate() {
            let mask = group.first().map_or(FlowMask::default(), |&r| masks[r as usize]);
            if at < cap {
                let (table, left) = Subtable::build(mask, group, values, seed);
                subtables.push(table);
                linear.extend(left);
            } else {
                linear.extend(group);
            }
        }
        subtables.sort_by_key(|t| t.best);
        linear.sort_unstable();
        let entry = |&rule: &u32| {
            let at = rule as usize;
            Linear { mask: masks[at], value: values[at], rule }
        };
        (subtables.into_boxed_slice(), linear.iter().map(entry).collect())
    }

    /// Returns the ports that get copies of frames because of a rule of the table.
    #[must_use]
    pub(crate) fn mirrors(&self) -> &[u16] {
        &self.mirrors
    }

    /// Returns the index of the best rule that matches `key`. The caller must put the VLAN ID of
    /// the frame's network into `key`.
    #[must_use]
    pub fn lookup(&self, key: &FlowKey) -> Option<u32> {
        self.lookup_in(key.vid(), key)
    }

    /// Looks a key up like [`Self::lookup`], with the VLAN ID `vid` instead of the VLAN ID in
    /// `key`.
    #[inline(never)]
    pub(crate) fn lookup_in(&self, vid: u16, key: &FlowKey) -> Option<u32> {
        let first = key.first_with_vid(vid);
        let mut best = NONE;
        for table in &self.subtables {
            if table.best >= best {
                break;
            }
            if let Some(rule) = table.find(first, key, &self.values, &self.seed) {
                best = best.min(rule);
            }
        }
        for entry in &self.linear {
            if entry.rule >= best {
                break;
            }
            if key.masked_with(first, &entry.mask).is(&entry.value) {
                best = entry.rule;
            }
        }
        (best != NONE).then_some(best)
    }

    /// Returns the bits of the flow key that any rule in the table examines.
    #[must_use]
    pub fn mask(&self) -> FlowMask {
        let linear = self.linear.iter().map(|entry| &entry.mask);
        let masks = self.subtables.iter().map(|table| &table.mask).chain(linear);
        masks.fold(FlowMask::default(), |all, mask| all.union(mask))
    }

    /// Returns the table's rule with index `index`. Rules are sorted, so index 0 is the best rule
    /// and the highest index is the worst rule.
    #[inline]
    #[must_use]
    pub fn rule(&self, index: u32) -> Option<&Rule> {
        self.rules.get(index as usize)
    }

    /// Returns all rules from the best to the worst, each with the number of frames that the rule
    /// decided.
    pub fn rules(&self) -> impl Iterator<Item = (&Rule, u64)> {
        let sum = |at: usize| self.hits.iter().map(|row| row[at].get()).sum();
        self.rules.iter().enumerate().map(move |(at, rule)| (rule, sum(at)))
    }

    /// Adds `frames` to the hit counter of rule `index` in the row of `worker`.
    #[inline]
    pub fn hit(&self, index: u32, worker: usize, frames: u64) {
        let row = self.hits.get(worker).or_else(|| self.hits.first());
        if let Some(counter) = row.and_then(|row| row.get(index as usize)) {
            counter.add(frames);
        }
    }

    #[inline]
    #[must_use]
    pub fn top_priority(&self) -> Option<u16> {
        self.rules.first().map(|r| r.priority)
    }

    #[must_use]
    pub fn subtables(&self) -> usize {
        self.subtables.len()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::matching::{Actions, Match, Then};
    use super::*;
    use crate::headers::key::KeyFields;

    fn rule(id: u32, priority: u16, matching: Match) -> Rule {
        Rule { priority, matching, actions: Actions::only(Then::Drop), id }
    }

    fn port(p: u16) -> Match {
        Match { ethertype: Some(0x0800), dst_port: Some((p, 0xffff)), ..Match::default() }
    }

    fn key(p: u16) -> FlowKey {
        FlowKey::new(&KeyFields { ethertype: 0x0800, dst_port: p, ..KeyFields::default() })
    }

    fn found(table: &RuleTable, p: u16) -> Option<u32> {
        table.lookup(&key(p)).and_then(|at| table.rule(at)).map(|r| r.id)
    }

    #[test]
    fn priority_wins_then_the_lower_id() {
        let rules = [
            rule(9, 5, port(80)),
            rule(7, 5, port(80)),
            rule(8, 1, port(80)),
            rule(3, 2, Match::default()),
        ];
        for cap in [0, 1, 32] {
            let table = RuleTable::build(&rules, cap).unwrap();
            assert_eq!((found(&table, 80), found(&table, 81)), (Some(7), Some(3)));
            assert_eq!(table.top_priority(), Some(5));
        }
    }

    #[test]
    fn masks_beyond_the_cap_are_searched_in_order_and_bounded() {
        let masks = |n: u16| -> Vec<Rule> {
            (0..n).map(|i| Rule { id: u32::from(i), ..rule(0, i, masked(i)) }).collect()
        };
        fn masked(i: u16) -> Match {
            Match { ethertype: Some(0x0800), src_port: Some((0, i)), ..Match::default() }
        }
        let table = RuleTable::build(&masks(40), 32).unwrap();
        assert_eq!((table.subtables(), table.linear.len()), (32, 8));
        assert_eq!(found(&table, 1), Some(39));
        assert_eq!(
            RuleTable::build(&masks(300), 32).unwrap_err(),
            RuleTableError::TooManyMasks { linear: 268, subtables: 32 }
        );
    }

    #[test]
    fn hits_of_all_workers_are_counted_by_rule() {
        let table = RuleTable::build_for(&[rule(4, 1, port(80)), rule(5, 1, port(81))], 32, 2);
        let table = table.unwrap();
        table.hit(1, 0, 3);
        table.hit(1, 1, 4);
        let seen: Vec<(u32, u64)> = table.rules().map(|(r, n)| (r.id, n)).collect();
        assert_eq!(seen, [(4, 0), (5, 7)]);
    }

    #[test]
    fn a_repeated_id_is_refused() {
        let twice = [rule(1, 1, port(80)), rule(1, 2, port(81))];
        assert_eq!(RuleTable::build(&twice, 32).unwrap_err(), RuleTableError::DuplicateId(1));
    }
}
