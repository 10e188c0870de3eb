//! The rule tables for the frames of a port, up to three: its own, its tenant's and the host's.

use std::sync::Arc;

use super::key::{FlowKey, FlowMask};
use super::matching::{Actions, Rule};
use super::rules::RuleTable;

const INDEX_BITS: u32 = 28;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// Reference to a rule in one of a port's tables, or to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleRef(u32);

impl RuleRef {
    pub(super) const NONE: Self = Self(u32::MAX);

    #[inline]
    pub(super) fn is_some(self) -> bool {
        self != Self::NONE
    }
}

/// Rule tables of a port. The highest priority wins, then the port's own table, then the tenant's.
#[derive(Clone, Debug, Default)]
pub struct RuleTables {
    /// Table of the port itself.
    pub own: Option<Arc<RuleTable>>,
    /// Table of the port's tenant.
    pub tenant: Option<Arc<RuleTable>>,
    /// Table for all ports of the host.
    pub global: Option<Arc<RuleTable>>,
}

impl RuleTables {
    #[inline]
    fn all(&self) -> [Option<&Arc<RuleTable>>; 3] {
        [self.own.as_ref(), self.tenant.as_ref(), self.global.as_ref()]
    }

    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all().iter().flatten().all(|t| t.is_empty())
    }

    #[inline]
    fn pick(&self, find: impl Fn(&RuleTable) -> Option<u32>) -> Option<(RuleRef, &Rule)> {
        let mut best: Option<(RuleRef, &Rule)> = None;
        for (number, table) in (0_u32..).zip(self.all()) {
            let Some(table) = table else { continue };
            let beaten = best.is_some_and(|(_, b)| table.top_priority() <= Some(b.priority));
            if beaten {
                continue;
            }
            if let Some(index) = find(table)
                && let Some(rule) = table.rule(index)
                && best.is_none_or(|(_, b)| rule.priority > b.priority)
            {
                best = Some((RuleRef(number << INDEX_BITS | index & INDEX_MASK), rule));
            }
        }
        best
    }

    /// The best rule for `key` in network `vid`, with its actions.
    #[inline]
    pub(super) fn lookup(&self, key: &FlowKey, vid: u16) -> Option<(RuleRef, &Actions)> {
        self.pick(|table| table.lookup_in(vid, key)).map(|(at, rule)| (at, &rule.actions))
    }

    /// The key bits that any rule examines.
    pub(super) fn mask(&self) -> FlowMask {
        let tables = self.all().into_iter().flatten();
        tables.fold(FlowMask::default(), |all, table| all.union(&table.mask()))
    }

    /// The rule that wins over all others, whether or not it matches a frame.
    pub(super) fn top(&self) -> Option<(RuleRef, &Rule)> {
        self.pick(|table| (!table.is_empty()).then_some(0))
    }

    /// Adds `frames` to the hits of `rule`.
    #[inline]
    pub(super) fn hit(&self, rule: RuleRef, worker: usize, frames: u64) {
        let table = match rule.0 >> INDEX_BITS {
            0 => &self.own,
            1 => &self.tenant,
            2 => &self.global,
            _ => return,
        };
        if let Some(table) = table {
            table.hit(rule.0 & INDEX_MASK, worker, frames);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::matching::{Match, Then};
    use super::*;

    fn table(priority: u16, id: u32) -> Option<Arc<RuleTable>> {
        let actions = Actions::only(Then::Drop);
        let rule = Rule { priority, matching: Match::default(), actions, id };
        Some(Arc::new(RuleTable::build(&[rule], 32).unwrap()))
    }

    fn winner(own: u16, tenant: u16, global: u16) -> u32 {
        let t =
            RuleTables { own: table(own, 1), tenant: table(tenant, 2), global: table(global, 3) };
        let (at, _) = t.lookup(&FlowKey::default(), 0).unwrap();
        t.hit(at, 0, 1);
        let hits = [&t.own, &t.tenant, &t.global].map(|t| t.as_ref().unwrap().rules().next());
        hits.iter().flatten().find(|(_, n)| *n == 1).unwrap().0.id
    }

    #[test]
    fn priority_wins_then_the_nearer_table() {
        assert_eq!((winner(5, 5, 5), winner(4, 5, 5), winner(4, 4, 5)), (1, 2, 3));
        assert_eq!((winner(6, 5, 7), winner(6, 7, 7), winner(7, 0, 7)), (3, 2, 1));
    }
}
