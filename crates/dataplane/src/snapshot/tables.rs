//! Up to three rule tables apply to a port's frames: the table of the port, of the port's tenant
//! and of the host.

use std::sync::Arc;

use super::matching::{Actions, Rule};
use super::rules::RuleTable;
use crate::headers::key::{FlowKey, FlowMask};

const INDEX_BITS: u32 = 28;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// Identifies a rule in the tables of the port, the tenant or the host, or means that no rule
/// matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleRef(u32);

impl RuleRef {
    pub(crate) const NONE: Self = Self(u32::MAX);

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self != Self::NONE
    }
}

/// Rule tables that apply to a port's frames. The matching rule with the highest priority wins.
/// Among equal priorities, the port's own table comes first, then the tenant's table, and then the
/// host's table.
#[derive(Clone, Debug, Default)]
pub struct RuleTables {
    /// The port's own rule table, besides the tables of its tenant and of the host. The port's rule
    /// table is `None` if the port has no rules.
    pub own: Option<Arc<RuleTable>>,
    /// Rule table of the port's tenant. The tenant's rule table is `None` if the tenant has no
    /// rules.
    pub tenant: Option<Arc<RuleTable>>,
    /// Rule table for all ports of the host. The host's rule table is `None` if the host has no
    /// rules.
    pub global: Option<Arc<RuleTable>>,
}

impl RuleTables {
    /// Whether these are the same tables as `other`, not only equal ones. The hits of a rule are in
    /// its table.
    pub(super) fn are(&self, other: &Self) -> bool {
        self.all().into_iter().zip(other.all()).all(|tables| match tables {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        })
    }

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

    /// Returns the best rule that matches the flow key `key` in VLAN `vid`, and the rule's actions.
    #[inline]
    pub(crate) fn lookup(&self, key: &FlowKey, vid: u16) -> Option<(RuleRef, &Actions)> {
        self.pick(|table| table.lookup_in(vid, key)).map(|(at, rule)| (at, &rule.actions))
    }

    /// Returns the ports that get copies of frames because of a rule.
    pub(crate) fn mirrors(&self) -> impl Iterator<Item = u16> {
        self.all().into_iter().flatten().flat_map(|table| table.mirrors().iter().copied())
    }

    /// Returns the best rule that matches the flow key `key` in VLAN `vid`, with the number of its
    /// table: 0 for the port's, 1 for the tenant's and 2 for the host's table.
    #[must_use]
    pub fn find(&self, key: &FlowKey, vid: u16) -> Option<(u32, &Rule)> {
        let (at, rule) = self.pick(|table| table.lookup_in(vid, key))?;
        Some((at.0 >> INDEX_BITS, rule))
    }

    /// Returns the bits of the flow key that any rule in the tables of port, tenant and host
    /// examines.
    pub(crate) fn mask(&self) -> FlowMask {
        let tables = self.all().into_iter().flatten();
        tables.fold(FlowMask::default(), |all, table| all.union(&table.mask()))
    }

    /// Returns the rule with the highest precedence among all rules of the port's, the tenant's and
    /// the host's tables.
    pub(crate) fn top(&self) -> Option<(RuleRef, &Rule)> {
        self.pick(|table| (!table.is_empty()).then_some(0))
    }

    /// Adds the number `frames` to the hit counter of the rule `rule`.
    #[inline]
    pub(crate) fn hit(&self, rule: RuleRef, worker: usize, frames: u64) {
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
