//! Tests the invariants of queue binding after each interval and at every step of a plan.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::dscp::{Palette, SHARED};
use penstock_fabric::hose::{Hose, Need};
use penstock_fabric::queue_binding::{Binding, Candidate, Mode, Pass, Plan, Port, Settings, Step};
use penstock_fabric::tenant_placement::{Datacenter, Policy, Request, TenantSlot};
use penstock_fabric::topology::{LinkId, NodeId, Regular, Tier};
use penstock_units::{BitsPerSecond, Nanos};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::common;

/// Model of hosts and switches that apply plans while packets are in transit.
#[derive(Default)]
struct Fabric {
    epoch: u64,
    maps: BTreeMap<(Port, u8), u8>,
    marks: BTreeMap<TenantSlot, u8>,
    /// Tenants that hosts limit during a plan.
    limited: BTreeSet<TenantSlot>,
    /// Code points of each tenant's packets in transit.
    flying: BTreeMap<TenantSlot, BTreeSet<u8>>,
    /// Tenants whose packets may wait in each dedicated queue. Nobody knows how long they wait.
    waiting: BTreeMap<(Port, u8), BTreeSet<TenantSlot>>,
}

impl Fabric {
    fn carry_out(&mut self, plan: &Plan, ports: &BTreeMap<TenantSlot, Vec<Port>>, drain: Nanos) {
        assert!(plan.epoch > self.epoch, "a plan is newer than the one before");
        self.epoch = plan.epoch;
        for step in &plan.steps {
            match step {
                Step::Limit { tenant } => assert!(self.limited.insert(*tenant)),
                Step::Release { tenant } => assert!(self.limited.remove(tenant)),
                Step::Weigh { .. } => {}
                Step::Mark { tenant, dscp } => {
                    // A tenant that left has no hosts that could limit it.
                    let here = ports.get(tenant).is_some_and(|ports| !ports.is_empty());
                    assert!(!here || self.limited.contains(tenant), "a mover is limited");
                    self.marks.insert(*tenant, *dscp);
                    self.flying.entry(*tenant).or_default().insert(*dscp);
                }
                Step::Wait(time) => self.wait(*time, drain),
                Step::Drain { queues, time } => {
                    self.wait(*time, drain);
                    queues.iter().for_each(|queue| drop(self.waiting.remove(queue)));
                }
                Step::Unmap { port, dscp } => {
                    assert!(self.maps.remove(&(*port, *dscp)).is_some(), "it was mapped");
                }
                Step::Map { port, dscp, queue } => {
                    let old = self.maps.insert((*port, *dscp), *queue);
                    assert_eq!(old, None, "a value has one meaning on a port");
                }
                Step::ReadBack(told) => {
                    assert!(told.iter().all(|port| self.maps.keys().any(|(p, _)| p == port)));
                }
                _ => panic!("{step:?}"),
            }
            self.check(ports);
        }
        assert!(self.limited.is_empty(), "a plan releases all tenants that it limits");
    }

    fn wait(&mut self, time: Nanos, drain: Nanos) {
        assert!(time >= drain);
        let marks = self.marks.iter();
        self.flying = marks.map(|(t, dscp)| (*t, BTreeSet::from([*dscp]))).collect();
    }

    /// Checks that every packet in transit has a queue, and that no packet meets packets of another
    /// tenant in a dedicated queue.
    fn check(&mut self, ports: &BTreeMap<TenantSlot, Vec<Port>>) {
        let Self { maps, flying, waiting, .. } = self;
        for (tenant, values) in flying.iter() {
            for dscp in values.iter().filter(|dscp| **dscp != SHARED) {
                for port in ports.get(tenant).into_iter().flatten() {
                    let queue = maps.get(&(*port, *dscp));
                    let queue = *queue.unwrap_or_else(|| panic!("{dscp} is unmapped on {port:?}"));
                    let inside = waiting.entry((*port, queue)).or_default();
                    inside.insert(*tenant);
                    assert_eq!(inside.len(), 1, "queue {queue} of {port:?}: {inside:?}");
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    Place(Request),
    Remove(Index),
    Pass(Vec<u64>),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => common::uniform(8).prop_map(Act::Place),
        1 => any::<Index>().prop_map(Act::Remove),
        3 => prop::collection::vec(0_u64..1000, 16).prop_map(Act::Pass),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    let mode = prop_oneof![Just(Mode::StaticMap), Just(Mode::PerPortMap), Just(Mode::PerEgressMap)];
    (mode, 2_u8..=5, 0_u64..=2, 0_u8..=4).prop_map(|(mode, queues, hold, spare)| {
        // There are few code points, so that none may be left if the mode permits this.
        let least = if mode == Mode::StaticMap { queues - 1 } else { 2 };
        let palette = Palette::new((1..=least + spare).map(|value| 3 * value).collect()).unwrap();
        Settings { queues, hold, palette, ..Settings::new(mode) }
    })
}

fn candidates<'a>(datacenter: &'a Datacenter, scores: &[u64]) -> Vec<Candidate<'a>> {
    let score = |slot: TenantSlot| scores[slot.index() % scores.len()];
    let candidate =
        |(tenant, t): (TenantSlot, &'a penstock_fabric::tenant_placement::Tenant)| Candidate {
            tenant,
            score: score(tenant),
            links: &t.placement.entry.links,
            movable: true,
            shares: false,
        };
    datacenter.tenants().map(candidate).collect()
}

fn ports_of(candidates: &[Candidate<'_>]) -> BTreeMap<TenantSlot, Vec<Port>> {
    let both = |link: LinkId| [false, true].map(|up| Port { link, up });
    let ports = |c: &Candidate<'_>| c.links.iter().flat_map(|(link, _)| both(*link)).collect();
    candidates.iter().map(|c| (c.tenant, ports(c))).collect()
}

/// Checks the invariants of queue binding between two intervals.
fn audit(binding: &Binding, datacenter: &Datacenter, candidates: &[Candidate<'_>]) {
    let settings = binding.settings();
    let ports = ports_of(candidates);
    let mut on_port: BTreeMap<Port, Vec<(u8, u8)>> = BTreeMap::new();
    let mut on_switch = BTreeMap::new();
    for (tenant, bound) in binding.bound() {
        let has: Vec<Port> = bound.queues.iter().map(|(port, _)| *port).collect();
        assert_eq!(Some(&has), ports.get(&tenant), "a queue on every port of its tree");
        assert!(settings.palette.values().contains(&bound.dscp), "a value that may be used");
        for (port, queue) in &bound.queues {
            assert_eq!(binding.holder(*port, *queue), Some(tenant));
            on_port.entry(*port).or_default().push((*queue, bound.dscp));
            if settings.mode == Mode::StaticMap {
                assert_eq!(settings.palette.values()[usize::from(*queue) - 1], bound.dscp);
            }
        }
        if settings.mode == Mode::PerPortMap {
            let switch = |port: &Port| {
                let end = datacenter.topology();
                if port.up { end.child(port.link) } else { end.parent(port.link) }
            };
            let classes: BTreeSet<_> = bound.queues.iter().map(|(p, q)| (switch(p), *q)).collect();
            let switches: BTreeSet<_> = bound.queues.iter().map(|(p, _)| switch(p)).collect();
            assert_eq!(classes.len(), switches.len(), "one class a switch");
            for (switch, queue) in classes {
                let known = *on_switch.entry((switch, bound.dscp)).or_insert(queue);
                assert_eq!(known, queue, "a value is in one queue of a switch");
            }
        }
    }
    for held in on_port.values() {
        assert!(held.len() < usize::from(settings.queues), "queues of a port");
        let queues: BTreeSet<u8> = held.iter().map(|(queue, _)| *queue).collect();
        let values: BTreeSet<u8> = held.iter().map(|(_, value)| *value).collect();
        assert_eq!((queues.len(), values.len()), (held.len(), held.len()), "all differ");
    }
}

proptest! {
    #[test]
    fn no_packet_is_ever_unmapped_and_every_dedicated_tenant_has_a_queue_on_all_of_its_tree(
        tree in common::regular(),
        settings in settings(),
        acts in prop::collection::vec(act(), 1..40),
    ) {
        let mut datacenter = common::datacenter(&tree, 0, Policy::default());
        let mut binding = Binding::new(settings.clone(), datacenter.topology().links()).unwrap();
        let mut fabric = Fabric::default();
        let mut ports = BTreeMap::new();
        for act in &acts {
            match act {
                Act::Place(request) => { let _ = datacenter.try_place(request); }
                Act::Remove(index) => {
                    let slots: Vec<_> = datacenter.tenants().map(|(slot, _)| slot).collect();
                    if !slots.is_empty() {
                        datacenter.remove(*index.get(&slots));
                    }
                }
                Act::Pass(scores) => {
                    let tenants = candidates(&datacenter, scores);
                    let topology = datacenter.topology();
                    let pass = binding.pass(topology, &tenants);
                    // Packets of a tenant that left are still in transit through its previous
                    // ports.
                    let now = ports_of(&tenants);
                    let lost: BTreeSet<_> = pass.plan.steps.iter().filter_map(|step| match step {
                        Step::Mark { tenant, dscp: SHARED } => Some(*tenant),
                        _ => None,
                    }).collect();
                    let mut under_way = now.clone();
                    under_way.extend(lost.iter().filter_map(|t| Some((*t, ports.get(t)?)))
                        .filter(|(t, old)| now.get(t) != Some(*old))
                        .map(|(t, _): (TenantSlot, &Vec<Port>)| (t, Vec::new())));
                    fabric.carry_out(&pass.plan, &under_way, settings.drain);
                    audit(&binding, &datacenter, &tenants);
                    check_pass(&binding, &pass);
                    ports = now;
                    let again = binding.clone().pass(topology, &tenants);
                    let changed = again.plan.steps.len();
                    if again.promoted.is_empty() && again.demoted.is_empty() {
                        prop_assert_eq!(changed, 0, "nothing to do is no plan");
                    }
                }
            }
        }
    }
}

/// Checks that tenants that a binding pass promoted have queues. Also checks that tenants that a
/// binding pass demoted or left without a code point have no queues.
fn check_pass(binding: &Binding, pass: &Pass) {
    assert!(pass.promoted.iter().all(|tenant| binding.of(*tenant).is_some()));
    assert!(pass.demoted.iter().all(|tenant| binding.of(*tenant).is_none()));
    assert!(pass.without_code_point.iter().all(|tenant| binding.of(*tenant).is_none()));
}

/// Creates a datacenter with two servers and `tenants` tenants. Each tenant has a VM on each
/// server, so all tenants share the two links of the datacenter.
fn meeting(tenants: u32) -> Datacenter {
    let tier = Tier { fan_out: 2, uplinks: 1, rate: BitsPerSecond(1000) };
    let tree = Regular { slots: 100, tiers: vec![tier] };
    let mut datacenter = common::datacenter(&tree, 0, Policy::default());
    let request = Request::new(Hose::homogeneous(2, BitsPerSecond(50)).unwrap());
    for _ in 0..tenants {
        datacenter.place(&request.clone().most_per_server(1)).unwrap();
    }
    datacenter
}

fn bound(binding: &Binding) -> Vec<u32> {
    binding.bound().map(|(tenant, _)| tenant.0).collect()
}

#[test]
fn a_queue_is_taken_only_by_a_clearly_higher_score_and_after_its_hold() {
    let datacenter = meeting(4);
    let settings = Settings { queues: 4, ..Settings::new(Mode::StaticMap) };
    let mut binding = Binding::new(settings, datacenter.topology().links()).unwrap();
    let mut pass = |scores: [u64; 4]| {
        let pass = binding.pass(datacenter.topology(), &candidates(&datacenter, &scores));
        (bound(&binding), pass.demoted.len())
    };
    assert_eq!(pass([100, 90, 80, 10]), (vec![0, 1, 2], 0));
    assert_eq!(pass([100, 90, 80, 200]), (vec![0, 1, 2], 0), "held for one interval only");
    assert_eq!(pass([100, 90, 80, 88]), (vec![0, 1, 2], 0), "not a tenth above");
    assert_eq!(pass([100, 90, 80, 89]), (vec![0, 1, 3], 1));
}

#[test]
fn a_tenant_whose_victims_score_more_in_sum_takes_nothing() {
    // Tenant 2 shares one rack with tenant 0 and the other rack with tenant 1.
    let tier = |fan_out| Tier { fan_out, uplinks: 1, rate: BitsPerSecond(1000) };
    let tree = Regular { slots: 2, tiers: vec![tier(2), tier(2)] };
    let mut datacenter = common::datacenter(&tree, 0, Policy::default());
    let hose = |vms| Hose::homogeneous(vms, BitsPerSecond(10)).unwrap();
    for _ in 0..2 {
        datacenter.place(&Request::new(hose(2)).most_per_server(1)).unwrap();
    }
    datacenter.place(&Request::new(hose(4)).most_per_server(1)).unwrap();
    let settings = Settings { queues: 2, ..Settings::new(Mode::StaticMap) };
    let mut binding = Binding::new(settings, datacenter.topology().links()).unwrap();
    let mut pass = |scores: [u64; 3]| {
        binding.pass(datacenter.topology(), &candidates(&datacenter, &scores));
        bound(&binding)
    };
    assert_eq!(pass([60, 50, 0]), [0, 1]);
    assert_eq!(pass([60, 50, 0]), [0, 1]);
    assert_eq!(pass([60, 50, 110]), [0, 1], "110 is not above 60 + 50");
    assert_eq!(pass([60, 50, 111]), [2]);
}

#[test]
fn a_port_with_fewer_queues_gives_no_tenant_a_queue_that_it_lacks() {
    let datacenter = meeting(4);
    for mode in [Mode::StaticMap, Mode::PerPortMap, Mode::PerEgressMap] {
        let settings = Settings { queues: 4, ..Settings::new(mode) };
        let mut binding = Binding::new(settings, datacenter.topology().links()).unwrap();
        let pass = |binding: &mut Binding, movable: bool| {
            let mut all = candidates(&datacenter, &[100, 90, 80, 70]);
            all.iter_mut().for_each(|c| c.movable = movable);
            binding.pass(datacenter.topology(), &all);
            bound(binding)
        };
        let two = Port { link: datacenter.topology().up(NodeId(0)).next().unwrap(), up: false };
        binding.limit_queues([(two, 2)].into());
        assert_eq!(pass(&mut binding, true), [0], "{mode:?}: one queue besides the shared one");
        assert_eq!((binding.queues(two), binding.queues(Port { up: true, ..two })), (2, 4));
        binding.limit_queues(BTreeMap::new());
        assert_eq!(pass(&mut binding, true), [0, 1, 2], "{mode:?}");
        // A switch that is replaced may have fewer queues than before.
        binding.limit_queues([(two, 3)].into());
        assert_eq!(pass(&mut binding, false), [0, 1, 2], "{mode:?}: the plan reaches nobody");
        assert_eq!(pass(&mut binding, true), [0, 1], "{mode:?}");
        let queues = binding.bound().flat_map(|(_, bound)| bound.queues.clone());
        assert!(queues.into_iter().all(|(port, queue)| queue < binding.queues(port)), "{mode:?}");
        binding.limit_queues([(two, 0)].into());
        assert_eq!((binding.queues(two), pass(&mut binding, true)), (1, vec![]), "{mode:?}");
    }
}

#[test]
fn a_tenant_that_is_not_movable_keeps_what_it_has_and_gets_nothing() {
    let datacenter = meeting(4);
    let settings = Settings { queues: 3, hold: 0, ..Settings::new(Mode::StaticMap) };
    let mut binding = Binding::new(settings, datacenter.topology().links()).unwrap();
    let mut pass = |scores: [u64; 4], cut_off: &[u32]| {
        let mut all = candidates(&datacenter, &scores);
        all.iter_mut().for_each(|c| c.movable = !cut_off.contains(&c.tenant.0));
        binding.pass(datacenter.topology(), &all);
        bound(&binding)
    };
    assert_eq!(pass([100, 90, 80, 70], &[]), [0, 1]);
    assert_eq!(pass([1, 1, 80, 70], &[0, 1]), [0, 1], "nobody takes from them");
    assert_eq!(pass([1, 1, 80, 70], &[0, 2]), [0, 3], "what is free goes to who can be told");
    assert_eq!(pass([1, 1, 80, 70], &[]), [2, 3]);
}

#[test]
fn earlier_queues_are_restored() {
    let datacenter = meeting(5);
    let settings = Settings { queues: 4, hold: 0, ..Settings::new(Mode::PerPortMap) };
    let mut binding = Binding::new(settings, datacenter.topology().links()).unwrap();
    let topology = datacenter.topology();
    binding.pass(topology, &candidates(&datacenter, &[9, 8, 7, 6, 5]));
    let had: Vec<_> = binding.bound().map(|(tenant, bound)| (tenant, bound.clone())).collect();
    binding.pass(topology, &candidates(&datacenter, &[9, 8, 7, 60, 50]));
    assert_eq!(bound(&binding), [0, 3, 4]);
    let all = candidates(&datacenter, &[0; 5]);
    let pass = binding.return_to(topology, &all, &had);
    assert_eq!(bound(&binding), [0, 1, 2]);
    let slots = |list: &[TenantSlot]| list.iter().map(|slot| slot.0).collect::<Vec<_>>();
    assert_eq!((slots(&pass.promoted), slots(&pass.demoted)), (vec![1, 2], vec![3, 4]));
    for (tenant, old) in &had {
        let now = binding.of(*tenant).unwrap();
        assert_eq!((now.dscp, &now.queues), (old.dscp, &old.queues));
    }
    assert!(binding.return_to(topology, &all, &had).plan.steps.is_empty());
}

#[test]
fn a_binding_resumes_where_another_stopped() {
    let datacenter = meeting(5);
    let settings = Settings { queues: 4, ..Settings::new(Mode::StaticMap) };
    let links = datacenter.topology().links();
    let mut first = Binding::new(settings.clone(), links).unwrap();
    let run = |binding: &mut Binding, scores: [u64; 5]| {
        binding.pass(datacenter.topology(), &candidates(&datacenter, &scores))
    };
    run(&mut first, [9, 8, 7, 6, 5]);
    let had: Vec<_> = first.bound().map(|(tenant, bound)| (tenant, bound.clone())).collect();
    let mut second =
        Binding::resume(settings.clone(), links, first.interval(), had.clone()).unwrap();
    for scores in [[9, 8, 7, 60, 5], [9, 8, 7, 60, 50], [90, 8, 7, 60, 50]] {
        run(&mut first, scores);
        run(&mut second, scores);
        assert_eq!(bound(&first), bound(&second));
        let weights =
            |b: &Binding| first.bound().next().map(|(_, q)| b.weights(q.queues[0].0).cloned());
        assert_eq!(weights(&first), weights(&second));
    }
    let twice = had.iter().cloned().chain([(TenantSlot(9), had[0].1.clone())]);
    let error = Binding::resume(settings, links, 1, twice).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tenant 9: stored queue 1 does not exist, or another tenant has it"
    );
}

/// Returns the links of a tenant with the tenant's reservations, for [`Binding::reserve`].
fn links_of(datacenter: &Datacenter, tenant: TenantSlot) -> Vec<(LinkId, Need)> {
    datacenter.tenant(tenant).unwrap().placement.entry.links.clone()
}

#[test]
fn reservations_between_passes_are_those_that_the_next_pass_finds() {
    let mut datacenter = meeting(3);
    let settings = Settings { queues: 4, ..Settings::new(Mode::PerPortMap) };
    let links = datacenter.topology().links();
    let mut binding = Binding::new(settings.clone(), links).unwrap();
    binding.pass(datacenter.topology(), &candidates(&datacenter, &[9, 8, 7]));
    // A large tenant arrives and shares queue 0.
    let request = Request::new(Hose::homogeneous(2, BitsPerSecond(600)).unwrap());
    let new = datacenter.place(&request.most_per_server(1)).unwrap();
    let now = links_of(&datacenter, new);
    let steps = binding.reserve(datacenter.topology(), new, &[], &now);
    assert!(!steps.is_empty() && !binding.covers(new, &now));
    let share = |binding: &Binding| {
        let port = Port { link: now[0].0, up: true };
        let weights = &binding.weights(port).unwrap().weights;
        f64::from(weights[0]) / f64::from(weights.iter().sum::<u32>())
    };
    assert!(share(&binding) >= 0.6, "{steps:?}");
    assert_eq!(binding.reserve(datacenter.topology(), new, &now, &now), [], "the same again");
    // A resumed binding has the same weights before any pass.
    let had = binding.bound().map(|(tenant, bound)| (tenant, bound.clone()));
    let mut next = Binding::resume(settings, links, binding.interval(), had).unwrap();
    let all: Vec<_> = datacenter.tenants().map(|(t, _)| (t, links_of(&datacenter, t))).collect();
    next.reserve_all(datacenter.topology(), all.iter().map(|(t, links)| (*t, links.as_slice())));
    let pass = binding.pass(datacenter.topology(), &candidates(&datacenter, &[9, 8, 7, 0]));
    assert_eq!(pass.plan.steps, [], "nothing is left to do");
    for port in now.iter().flat_map(|(link, _)| [false, true].map(|up| Port { link: *link, up })) {
        assert_eq!(next.weights(port), binding.weights(port));
    }
}

/// 11 or 13 of the tenants share queue 0, which has 11 of 18 or 13 of 20 parts of the link.
#[test]
fn the_limits_of_the_tenants_in_queue_0_leave_a_part_of_it_to_hosts() {
    for (tenants, limit) in [(18, 1_066), (20, 1_000)] {
        let datacenter = meeting(tenants);
        let settings = Settings { queues: 8, ..Settings::new(Mode::StaticMap) };
        let mut binding = Binding::new(settings, datacenter.topology().links()).unwrap();
        let scores: Vec<u64> = (0..tenants.into()).map(|tenant| 100 - tenant).collect();
        binding.pass(datacenter.topology(), &candidates(&datacenter, &scores));
        let links = links_of(&datacenter, TenantSlot(tenants - 1));
        assert_eq!(binding.headroom_permille(datacenter.topology(), &links), limit);
    }
}

#[test]
fn a_retired_slot_is_not_reused_before_it_is_free() {
    let mut datacenter = meeting(3);
    let request = Request::new(Hose::homogeneous(2, BitsPerSecond(1)).unwrap());
    assert!(datacenter.retire(TenantSlot(1)).is_some());
    assert!(
        datacenter.tenant(TenantSlot(1)).is_none() && datacenter.retire(TenantSlot(1)).is_none()
    );
    assert_eq!(datacenter.place(&request).unwrap(), TenantSlot(3));
    datacenter.free(TenantSlot(1));
    datacenter.free(TenantSlot(1));
    datacenter.free(TenantSlot(0));
    assert_eq!(datacenter.place(&request).unwrap(), TenantSlot(1), "and only once");
    assert_eq!(datacenter.place(&request).unwrap(), TenantSlot(4));
}

/// In a datacenter with two racks of eight servers, tenants of two to five VMs arrive, leave and
/// change their scores.
#[test]
fn a_switch_has_each_code_point_in_one_queue_and_so_no_more_classes_than_queues() {
    let tier = |fan_out| Tier { fan_out, uplinks: 1, rate: BitsPerSecond(1_000_000) };
    let tree = Regular { slots: 30, tiers: vec![tier(8), tier(2)] };
    let mut datacenter = common::datacenter(&tree, 0, Policy::default());
    let settings = Settings { queues: 4, hold: 0, ..Settings::new(Mode::PerPortMap) };
    let mut binding = Binding::new(settings, datacenter.topology().links()).unwrap();
    let mut state = 7_u64;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % limit
    };
    for _ in 0..200 {
        let vms = 2 + u32::try_from(below(4)).unwrap();
        let request = Request::new(Hose::homogeneous(vms, BitsPerSecond(10)).unwrap());
        let _ = datacenter.place(&request.most_per_server(1));
        let slots: Vec<_> = datacenter.tenants().map(|(slot, _)| slot).collect();
        if slots.len() > 20 {
            datacenter.remove(slots[usize::try_from(below(20)).unwrap()]);
        }
        let scores: Vec<u64> = (0..64).map(|_| 1 + below(1_000)).collect();
        let tenants = candidates(&datacenter, &scores);
        binding.pass(datacenter.topology(), &tenants);
        audit(&binding, &datacenter, &tenants);
    }
}
