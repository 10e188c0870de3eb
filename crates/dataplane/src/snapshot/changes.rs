//! Records what a snapshot changes, so that a worker handles only the changes.
//!
//! # Problem
//! A worker replaces its snapshot between two batches, and no frame passes meanwhile. With
//! thousands of ports, a visit of each port and a flush of the worker's caches take longer than
//! frames may wait. Most new snapshots change one port or only the ports' entitlements.
//!
//! # Approach
//! The control plane compares a new snapshot with the snapshot that the workers use
//! ([`Snapshot::following`]). The comparison takes time for each port, but not the worker's time.
//! The new snapshot contains the result, and a weak reference to the snapshot that it was compared
//! with. A worker uses the result only if its own snapshot is that one. Otherwise the worker
//! handles all ports, so a worker that missed a snapshot makes no mistake. The weak reference keeps
//! the old snapshot's address from being used again.
//!
//! A copy of a snapshot has no result, because the owner of a copy may change it.
//!
//! # Cost
//! A worker visits the ports of [`Changes::ports`]. If only one port's weight changed, the worker's
//! time does not depend on the number of ports.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use penstock_units::PortId;

use super::{PortPolicy, PortQos, Snapshot};
use crate::queue::QueueHome;

/// Differences between a snapshot and the snapshot before it.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Ports with a change that a worker must adopt, in rising order: a queue, a shaper, a rate
    /// limit or QoS parameters.
    pub(crate) ports: Box<[PortId]>,
    /// Whether decisions about frames may have changed, or which ports exist.
    pub(crate) decisions: bool,
    /// Whether a port's tenant or its weights at shared outputs changed.
    pub(crate) shares: bool,
    /// Whether the highest class or the sum of the entitlements of some ports may have changed.
    pub(crate) ranks: bool,
}

/// Relation of a snapshot to the snapshot before it.
#[derive(Debug)]
pub(super) struct Lineage {
    /// The compared snapshot and the differences. `None` if the snapshot was not compared.
    changes: Option<(Weak<Snapshot>, Changes)>,
    /// Number of changes of each port's queue home ([`QueueHome::changes`]) at the comparison,
    /// indexed by port number. 0 for a port without a queue. Empty if the snapshot was not
    /// compared.
    queues: Box<[u32]>,
    /// See [`Snapshot::shares`].
    shares: u32,
}

impl Default for Lineage {
    /// Returns the lineage of a snapshot that was not compared, whose shares may differ from those
    /// of all others.
    fn default() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let shares = NEXT.fetch_add(1, Ordering::Relaxed).max(1);
        Self { changes: None, queues: Box::default(), shares }
    }
}

impl Clone for Lineage {
    /// Returns an empty lineage, because the owner of a copied snapshot may change the copy.
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Parts in which two policies of a port differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Differences {
    /// The policies may lead to different decisions about a frame.
    decisions: bool,
    /// A worker has state that depends on the differing parts.
    state: bool,
    shares: bool,
    ranks: bool,
    /// The policies differ in a part that workers read from the snapshot for each batch.
    read: bool,
}

impl Differences {
    const NONE: Self =
        Self { decisions: false, state: false, shares: false, ranks: false, read: false };
    const ALL: Self = Self { decisions: true, state: true, shares: true, ranks: true, read: true };
}

fn is_alike<T>(a: &Option<T>, b: &Option<T>, alike: impl Fn(&T, &T) -> bool) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => alike(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

fn is_same<T>(a: &Option<Arc<T>>, b: &Option<Arc<T>>) -> bool {
    is_alike(a, b, Arc::ptr_eq)
}

/// Compares two policies of a port. Each field of a policy is named here, so that a new field must
/// be assigned to the parts that depend on it.
fn differences(from: &PortPolicy, to: &PortPolicy) -> Differences {
    let PortPolicy {
        // Parts on which decisions about frames depend.
        id,
        tenant,
        vlan,
        domains,
        binding,
        rules,
        slow_path,
        isolated,
        qinq,
        up,
        dscp,
        marks,
        mirror,
        patch,
        relevant,
        // Parts from which a worker derives a queue, a gate or a bucket.
        qos,
        queue,
        shape,
        ingress_policer,
        tenant_policer,
        // Part that shared outputs read with the next frame after a change.
        share,
        // Parts that workers read from the snapshot for each batch.
        egress_policer,
        inbound,
        pairs,
        rtp,
        watched,
        bell,
    } = from;
    let network = (id, tenant, vlan, domains, binding)
        == (&to.id, &to.tenant, &to.vlan, &to.domains, &to.binding);
    let admission =
        (slow_path, isolated, qinq, up) == (&to.slow_path, &to.isolated, &to.qinq, &to.up);
    let ways = (dscp, marks, mirror) == (&to.dscp, &to.marks, &to.mirror)
        && (patch, relevant) == (&to.patch, &to.relevant)
        && rules.are(&to.rules);
    let policer = is_alike(ingress_policer, &to.ingress_policer, |a, b| a.is_like(b));
    let gate = *shape == to.shape && policer && is_same(tenant_policer, &to.tenant_policer);
    let measured = is_same(rtp, &to.rtp) && *watched == to.watched;
    let read = is_same(egress_policer, &to.egress_policer)
        && is_same(inbound, &to.inbound)
        && is_same(pairs, &to.pairs)
        && measured
        && is_alike(bell, &to.bell, |a, b| a.is(b));
    let ranks = |qos: &PortQos| (qos.priority, qos.ingress.is_metered(), qos.entitlement);
    Differences {
        decisions: !network || !admission || !ways,
        state: *qos != to.qos || !gate || !is_same(queue, &to.queue),
        shares: *share != to.share || *tenant != to.tenant,
        ranks: ranks(qos) != ranks(&to.qos),
        read: !read,
    }
}

/// Compares two policies of a port. If the policies are equal, the new snapshot shares the old one.
fn compare(old: &Arc<PortPolicy>, new: &mut Arc<PortPolicy>) -> Differences {
    if Arc::ptr_eq(old, new) {
        return Differences::NONE;
    }
    let differ = differences(old, new);
    if differ == Differences::NONE {
        *new = Arc::clone(old);
    }
    differ
}

impl Snapshot {
    /// Records what this snapshot changes compared with `old`, the snapshot that the workers use.
    /// The new snapshot shares the policies that are equal in both. The caller must make all
    /// changes of output queues ([`QueueHome`]) for the new snapshot before the call.
    #[must_use]
    pub fn following(self: Arc<Self>, old: &Arc<Self>) -> Arc<Self> {
        let mut new = Arc::unwrap_or_clone(self);
        let mut changes = Changes { decisions: new.forwards_otherwise(old), ..Changes::default() };
        let count = old.ports.len().max(new.ports.len());
        let (mut ports, mut queues) = (Vec::new(), vec![0; count].into_boxed_slice());
        for (at, changed) in queues.iter_mut().enumerate() {
            let before = old.ports.get(at).and_then(Option::as_ref);
            let after = new.ports.get_mut(at).and_then(Option::as_mut);
            let differ = match (before, after) {
                (None, None) => continue,
                (Some(before), Some(after)) => compare(before, after),
                _ => Differences::ALL,
            };
            let home = new.ports.get(at).and_then(|port| port.as_ref()?.queue.as_deref());
            *changed = home.map_or(0, QueueHome::changes);
            let seen = old.lineage.queues.get(at).copied().unwrap_or(0);
            changes.decisions |= differ.decisions;
            changes.shares |= differ.shares;
            changes.ranks |= differ.ranks;
            if (differ.state || *changed != seen)
                && let Ok(port) = u16::try_from(at)
            {
                ports.push(PortId(port));
            }
        }
        changes.ports = ports.into_boxed_slice();
        let shares = if changes.shares { new.lineage.shares } else { old.lineage.shares };
        new.lineage = Lineage { changes: Some((Arc::downgrade(old), changes)), queues, shares };
        Arc::new(new)
    }

    /// Returns a number of the ports' tenants and weights at shared outputs, which is not 0.
    /// Snapshots with the same number have the same tenants and weights.
    #[inline]
    pub(crate) const fn shares(&self) -> u32 {
        self.lineage.shares
    }

    /// Returns the ports that a worker visits for this snapshot, if the worker's present snapshot
    /// is the compared one: all ports if this snapshot was not compared.
    pub(crate) fn visited(&self) -> impl Iterator<Item = PortId> + '_ {
        let changed = self.lineage.changes.as_ref().map(|(_, changes)| &*changes.ports);
        let all = if changed.is_none() { self.ports.len() } else { 0 };
        let all = (0..all).filter_map(|at| u16::try_from(at).ok().map(PortId));
        changed.unwrap_or_default().iter().copied().chain(all)
    }

    /// Returns the differences between the snapshot `old` and this snapshot. Returns `None` if the
    /// snapshot was not compared with `old`.
    pub(crate) fn changes_since(&self, old: &Arc<Self>) -> Option<&Changes> {
        let (base, changes) = self.lineage.changes.as_ref()?;
        core::ptr::eq(base.as_ptr(), Arc::as_ptr(old)).then_some(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Domain, SlowPathLimit};
    use super::*;
    use crate::queue::{Pacing, QueueTerms, ShareTerms};
    use penstock_units::{BitsPerSecond, CyclesPerSecond, Priority, Vid, Weight};

    const PORTS: u16 = 4;

    fn policy(port: u16) -> PortPolicy {
        PortPolicy::access(port, Some(1), Vid::UNTAGGED, 0)
    }

    fn snapshot(policies: Vec<PortPolicy>) -> Arc<Snapshot> {
        let ports = policies.into_iter().map(|policy| Some(Arc::new(policy.finish()))).collect();
        let members = (0..PORTS).collect();
        let domain = Domain { tenant: Some(1), vid: 0, members, fdb_limit: 64 };
        Arc::new(Snapshot::new(1, ports, vec![domain], Vec::new(), 300))
    }

    fn policies() -> Vec<PortPolicy> {
        (0..PORTS).map(policy).collect()
    }

    /// Returns the ports and the flags of the changes that `change` makes to port 2.
    fn changed(change: impl FnOnce(&mut PortPolicy)) -> (Vec<u16>, [bool; 3]) {
        let old = snapshot(policies());
        let mut new = policies();
        change(&mut new[2]);
        let new = snapshot(new).following(&old);
        let Changes { ports, decisions, shares, ranks } = new.changes_since(&old).unwrap();
        (ports.iter().map(|port| port.0).collect(), [*decisions, *shares, *ranks])
    }

    #[test]
    fn each_change_has_only_its_own_consequences() {
        let none = (Vec::new(), [false; 3]);
        assert_eq!(changed(|_| {}), none);
        assert_eq!(changed(|port| port.watched = true), none);
        let weight = Weight::new(7).unwrap();
        assert_eq!(changed(|port| port.qos.weight = weight), (vec![2], [false; 3]));
        let share = ShareTerms { vm: weight, ..ShareTerms::default() };
        assert_eq!(changed(|port| port.share = share), (Vec::new(), [false, true, false]));
        let qos = PortQos { entitlement: CyclesPerSecond(9), ..PortQos::default() };
        assert_eq!(changed(|port| port.qos = qos), (vec![2], [false, false, true]));
        let qos = PortQos { priority: Priority::FIRST, ..PortQos::default() };
        assert_eq!(changed(|port| port.qos = qos), (vec![2], [false, false, true]));
        let decisions = (Vec::new(), [true, false, false]);
        assert_eq!(changed(|port| port.isolated = true), decisions);
        assert_eq!(changed(|port| port.up = false), decisions);
        assert_eq!(changed(|port| port.slow_path = SlowPathLimit::UNLIMITED), decisions);
        assert_eq!(changed(|port| port.tenant = None), (Vec::new(), [true, true, false]));
    }

    #[test]
    fn equal_policies_are_shared_and_a_new_port_changes_all() {
        let old = snapshot(policies());
        let same = snapshot(policies()).following(&old);
        assert!((0..PORTS).all(|at| Arc::ptr_eq(old.port(at).unwrap(), same.port(at).unwrap())));
        let more = snapshot((0..=PORTS).map(policy).collect()).following(&same);
        let changes = more.changes_since(&same).unwrap();
        assert_eq!(*changes.ports, [PortId(PORTS)]);
        assert!(changes.decisions && changes.shares && changes.ranks);
        let fewer = snapshot(policies()).following(&more);
        assert_eq!(*fewer.changes_since(&more).unwrap().ports, [PortId(PORTS)]);
        assert_eq!(fewer.visited().collect::<Vec<_>>(), [PortId(PORTS)]);
        assert_eq!(old.visited().count(), usize::from(PORTS), "it was not compared");
    }

    #[test]
    fn changes_hold_only_for_the_compared_snapshot_and_not_for_a_copy() {
        let old = snapshot(policies());
        let new = snapshot(policies()).following(&old);
        assert!(new.changes_since(&old).is_some());
        assert!(new.changes_since(&snapshot(policies())).is_none());
        assert!(new.changes_since(&new).is_none());
        assert!(Snapshot::clone(&new).changes_since(&old).is_none());
        assert!(old.changes_since(&new).is_none());
    }

    #[test]
    fn shares_keep_their_number_until_a_weight_or_a_tenant_changes() {
        let old = snapshot(policies());
        let mut faster = policies();
        faster[2].qos.weight = Weight::new(7).unwrap();
        let same = snapshot(faster).following(&old);
        assert_eq!(same.shares(), old.shares());
        let changes: [fn(&mut PortPolicy); 2] =
            [|port| port.share.vm = Weight::new(7).unwrap(), |port| port.tenant = None];
        for change in changes {
            let mut new = policies();
            change(&mut new[2]);
            let new = snapshot(new).following(&same);
            assert_ne!(new.shares(), old.shares());
        }
        let copy = Snapshot::clone(&same);
        assert_ne!(copy.shares(), same.shares(), "its owner may change it");
        assert_eq!(Arc::new(copy).following(&same).shares(), old.shares());
    }

    #[test]
    fn a_changed_queue_home_changes_its_port() {
        let pacing = Pacing::Link(BitsPerSecond(1_000_000));
        let terms = QueueTerms { pacing, frames: 64, ..QueueTerms::default() };
        let home = QueueHome::new(terms, 4, 4);
        let with_queue = || {
            let mut all = policies();
            all[1].queue = Some(Arc::clone(&home));
            snapshot(all)
        };
        let ports = |new: &Arc<Snapshot>, old: &Arc<Snapshot>| {
            new.changes_since(old).unwrap().ports.to_vec()
        };
        let first = with_queue();
        let second = with_queue().following(&first);
        assert_eq!(ports(&second, &first), [PortId(1)], "it is unknown what the first one had");
        let third = with_queue().following(&second);
        assert!(ports(&third, &second).is_empty());
        home.set_pacing(Pacing::Link(BitsPerSecond(2_000_000)));
        let fourth = with_queue().following(&third);
        assert_eq!(ports(&fourth, &third), [PortId(1)]);
        let qos = Arc::new(fourth.with_qos(|_, _| {})).following(&fourth);
        assert!(ports(&qos, &fourth).is_empty());
    }
}
