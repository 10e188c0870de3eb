//! Tests that no step of any plan leaves a tenant less than 0.98 of a guarantee that fits before
//! and after the plan.
//!
//! The test executes plans step by step. At each step of the hosts, some hosts have executed the
//! step and others have not. Unlimited tenants always have frames in their queues, and limited
//! tenants divide their traffic between their queues in any proportion. An independent fluid model
//! of weighted max-min fairness says what each tenant gets.

use std::collections::{BTreeMap, BTreeSet};

use penstock_fabric::dscp::SHARED;
use penstock_fabric::hose::Hose;
use penstock_fabric::queue_binding::{
    Binding, Candidate, Load, Mode, Plan, Port, Settings, Step, WHOLE_PPM, dilution,
};
use penstock_fabric::tenant_placement::{Datacenter, Policy, Request, TenantSlot};
use penstock_fabric::topology::{LinkId, Regular, Tier, Topology};
use penstock_units::BitsPerSecond;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::common;

/// Part of a guarantee that each step of a plan must leave.
const LEAST: f64 = 0.98;
/// Error of the fluid model's floating-point numbers.
const ERROR: f64 = 1e-6;

/// State of hosts and switches.
#[derive(Clone, Default)]
struct Net {
    weights: BTreeMap<Port, Vec<u32>>,
    maps: BTreeMap<(Port, u8), u8>,
    marks: BTreeMap<TenantSlot, u8>,
    limited: BTreeSet<TenantSlot>,
}

impl Net {
    fn apply(&mut self, step: &Step) {
        match step {
            Step::Limit { tenant } => {
                self.limited.insert(*tenant);
            }
            Step::Release { tenant } => {
                self.limited.remove(tenant);
            }
            Step::Weigh { port, weights } => {
                self.weights.insert(*port, weights.weights.clone());
            }
            Step::Mark { tenant, dscp } => {
                self.marks.insert(*tenant, *dscp);
            }
            Step::Unmap { port, dscp } => {
                self.maps.remove(&(*port, *dscp));
            }
            Step::Map { port, dscp, queue } => {
                self.maps.insert((*port, *dscp), *queue);
            }
            Step::Wait(_) | Step::Drain { .. } | Step::ReadBack(_) => {}
            _ => panic!("{step:?}"),
        }
    }

    fn queue(&self, tenant: TenantSlot, port: Port) -> usize {
        let dscp = self.marks.get(&tenant).copied().unwrap_or(SHARED);
        let mapped = (dscp != SHARED).then(|| self.maps.get(&(port, dscp)));
        let queue = mapped.map(|q| q.unwrap_or_else(|| panic!("{dscp} is unmapped on {port:?}")));
        queue.copied().map_or(0, usize::from)
    }
}

/// A step is executed by hosts, or by switches, or by the executor itself.
fn kind(step: &Step) -> u8 {
    match step {
        Step::Limit { .. } => 0,
        Step::Weigh { .. } | Step::Unmap { .. } | Step::Map { .. } => 1,
        Step::Mark { .. } => 2,
        Step::Wait(_) | Step::Drain { .. } => 3,
        Step::ReadBack(_) => 4,
        _ => 5,
    }
}

/// Random numbers that depend only on the seed.
struct Random(u64);

impl Random {
    /// Returns a number of 0 to 3.
    fn choice(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % 4
    }

    /// Returns a part of 0 to 1. The extremes are frequent.
    fn part(&mut self) -> f64 {
        match self.choice() {
            0 => 0.0,
            1 => 1.0,
            _ => (0..8).fold(0.5, |part, _| (part + f64::from(u8::from(self.choice() < 2))) / 2.0),
        }
    }
}

/// Traffic of a tenant at a port.
struct Flow {
    tenant: TenantSlot,
    guarantee: f64,
    limited: bool,
    /// Traffic of a limited tenant in parts of its guarantee.
    load: f64,
    /// Part of the traffic in each of two queues.
    parts: [(usize, f64); 2],
}

/// Returns the bandwidth that each queue gets by weighted max-min fairness. A queue with an
/// infinite load always has frames.
fn shares(loads: &[f64], weights: &[u32], rate: f64) -> Vec<f64> {
    let mut given = vec![0.0; loads.len()];
    let mut open: BTreeSet<usize> = (0..loads.len()).filter(|q| loads[*q] > 0.0).collect();
    let mut left = rate;
    loop {
        let sum: f64 = open.iter().map(|q| f64::from(weights[*q])).sum();
        let part = |q: usize| left * f64::from(weights[q]) / sum;
        let served = |q: &usize| loads[*q].is_finite() && loads[*q] <= part(*q);
        let served: Vec<usize> = open.iter().copied().filter(served).collect();
        if served.is_empty() {
            open.iter().for_each(|q| given[*q] = part(*q));
            return given;
        }
        for q in served {
            given[q] = loads[q];
            left -= loads[q];
            open.remove(&q);
        }
    }
}

/// Returns the part of its guarantee, or of its smaller load, that each tenant gets at a port.
fn kept(flows: &[Flow], weights: &[u32], rate: f64) -> BTreeMap<TenantSlot, f64> {
    let mut loads = vec![0.0; weights.len()];
    let mut wanted = vec![0.0; weights.len()];
    for flow in flows {
        for (queue, part) in flow.parts.into_iter().filter(|(_, part)| *part > 0.0) {
            let load = flow.guarantee * flow.load * part;
            wanted[queue] += load;
            loads[queue] += if flow.limited { load } else { f64::INFINITY };
        }
    }
    let given = shares(&loads, weights, rate);
    let part = |queue: usize| if wanted[queue] > 0.0 { given[queue] / wanted[queue] } else { 1.0 };
    let of =
        |flow: &Flow| flow.parts.iter().map(|(q, share)| share * part(*q).min(1.0)).sum::<f64>();
    flows.iter().map(|flow| (flow.tenant, of(flow))).collect()
}

/// All ports with the guarantees of the tenants there.
type Needs = BTreeMap<Port, Vec<(TenantSlot, u64)>>;

fn needs(tenants: &[Candidate<'_>]) -> Needs {
    let mut needs = Needs::new();
    for candidate in tenants {
        for (link, need) in candidate.links {
            for (up, rate) in [(false, need.down), (true, need.up)] {
                let at = needs.entry(Port { link: *link, up }).or_default();
                at.push((candidate.tenant, rate.0));
            }
        }
    }
    needs
}

/// A plan that is executed step by step.
struct Execution<'a> {
    topology: &'a Topology,
    queues: usize,
    needs: &'a Needs,
    /// False for hosts that ignore the limits of a plan.
    limits: bool,
    random: Random,
}

impl Execution<'_> {
    /// Returns what each tenant of each port gets. Each tenant's hosts are somewhere between the
    /// states `before` and `after`, which differ by the steps of one kind.
    fn kept(&mut self, before: &Net, after: &Net) -> Vec<(Port, TenantSlot, f64)> {
        let mut all = Vec::new();
        // A tenant's hosts are in the same states for all ports.
        let tenants: BTreeSet<_> = self.needs.values().flatten().map(|(t, _)| *t).collect();
        let random = &mut self.random;
        let states = tenants.into_iter().map(|t| (t, (random.part(), random.part())));
        let states: BTreeMap<TenantSlot, (f64, f64)> = states.collect();
        for (port, tenants) in self.needs {
            let flow = |(tenant, guarantee): &(TenantSlot, u64)| {
                let (done, load) = states[tenant];
                let some = [(before, 1.0 - done), (after, done)];
                let unlimited =
                    |(net, part): &(&Net, f64)| *part > 0.0 && !net.limited.contains(tenant);
                let limited = self.limits && !some.iter().any(unlimited);
                let load = if limited { load.max(0.5) } else { 1.0 };
                let parts = some.map(|(net, part)| (net.queue(*tenant, *port), part));
                Flow { tenant: *tenant, guarantee: *guarantee as f64, limited, load, parts }
            };
            let flows: Vec<Flow> = tenants.iter().map(flow).collect();
            let equal = vec![1; self.queues];
            let weights = after.weights.get(port).unwrap_or(&equal);
            let rate = self.topology.rate(port.link).0 as f64;
            let kept = kept(&flows, weights, rate);
            all.extend(kept.into_iter().map(|(tenant, kept)| (*port, tenant, kept)));
        }
        all
    }

    /// Returns the guarantees that fit if all queues with a tenant always have frames.
    fn fits(&self, net: &Net) -> BTreeSet<(Port, TenantSlot)> {
        let mut all = BTreeSet::new();
        for (port, tenants) in self.needs {
            let flow = |(tenant, guarantee): &(TenantSlot, u64)| {
                let parts = [(net.queue(*tenant, *port), 1.0), (0, 0.0)];
                let (tenant, guarantee) = (*tenant, *guarantee as f64);
                Flow { tenant, guarantee, limited: false, load: 1.0, parts }
            };
            let flows: Vec<Flow> = tenants.iter().map(flow).collect();
            let equal = vec![1; self.queues];
            let weights = net.weights.get(port).unwrap_or(&equal);
            let kept = kept(&flows, weights, self.topology.rate(port.link).0 as f64);
            let whole = kept.into_iter().filter(|(_, kept)| *kept >= 1.0 - ERROR);
            all.extend(whole.map(|(tenant, _)| (*port, tenant)));
        }
        all
    }

    /// Executes a plan, and returns the least part that any step leaves of a guarantee that fits
    /// before and after the plan.
    fn carry_out(&mut self, net: &mut Net, plan: &Plan) -> f64 {
        let mut end = net.clone();
        plan.steps.iter().for_each(|step| end.apply(step));
        let (start, end) = (self.fits(net), self.fits(&end));
        let fits = |port: Port, tenant: TenantSlot| {
            start.contains(&(port, tenant)) && end.contains(&(port, tenant))
        };
        let mut least = 1.0_f64;
        for steps in plan.steps.chunk_by(|a, b| kind(a) == kind(b)) {
            let before = net.clone();
            steps.iter().for_each(|step| net.apply(step));
            // Weights and maps of one port change at once, and ports do not depend on each other.
            let hosts = matches!(kind(&steps[0]), 0 | 2 | 5);
            let moments = if hosts { 6 } else { 0 };
            for moment in 0..=moments {
                let from = if moment == moments { &*net } else { &before };
                for (port, tenant, kept) in self.kept(from, net) {
                    if fits(port, tenant) {
                        least = least.min(kept);
                    }
                }
            }
        }
        least
    }
}

#[derive(Clone, Debug)]
enum Act {
    Place(Request),
    Remove(Index),
    Pass(Vec<u64>),
}

fn request() -> impl Strategy<Value = Request> {
    (2_u32..=6, 1_u64..=300, 1_u32..=3).prop_map(|(vms, rate, most)| {
        let hose = Hose::homogeneous(vms, BitsPerSecond(rate)).unwrap();
        Request::new(hose).most_per_server(most)
    })
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => request().prop_map(Act::Place),
        1 => any::<Index>().prop_map(Act::Remove),
        4 => prop::collection::vec(0_u64..1000, 16).prop_map(Act::Pass),
    ]
}

fn tree() -> impl Strategy<Value = Regular> {
    let tier = |fan_out, uplinks, rate| Tier { fan_out, uplinks, rate: BitsPerSecond(rate) };
    (2_u32..=3, 1_u32..=2, 1_u32..=2, 200_u64..=1000, 200_u64..=2000).prop_map(
        move |(servers, racks, uplinks, low, high)| {
            let tiers = vec![tier(servers, 1, low), tier(racks, uplinks, high)];
            Regular { slots: 12, tiers }
        },
    )
}

fn settings() -> impl Strategy<Value = Settings> {
    let mode = prop_oneof![Just(Mode::StaticMap), Just(Mode::PerPortMap), Just(Mode::PerEgressMap)];
    (mode, 2_u8..=8, 0_u64..=1).prop_map(|(mode, queues, hold)| Settings {
        queues,
        hold,
        ..Settings::new(mode)
    })
}

fn candidates<'a>(datacenter: &'a Datacenter, scores: &[u64]) -> Vec<Candidate<'a>> {
    let tenants = datacenter.tenants().map(|(tenant, of)| Candidate {
        tenant,
        score: scores[tenant.index() % scores.len()],
        links: &of.placement.entry.links,
        movable: true,
        shares: false,
    });
    tenants.collect()
}

proptest! {
    #[test]
    fn no_step_of_a_plan_leaves_less_than_0_98_of_a_guarantee_that_fits(
        tree in tree(),
        settings in settings(),
        acts in prop::collection::vec(act(), 2..40),
        seed in any::<u64>(),
    ) {
        let mut datacenter = common::datacenter(&tree, 0, Policy::default());
        let queues = usize::from(settings.queues);
        let mut binding = Binding::new(settings, datacenter.topology().links()).unwrap();
        let (mut net, mut leaving) = (Net::default(), Vec::new());
        for act in &acts {
            match act {
                Act::Place(request) => {
                    let Some(slot) = datacenter.try_place(request) else { continue };
                    let links = datacenter.tenant(slot).unwrap().placement.entry.links.clone();
                    net.marks.remove(&slot);
                    let steps = binding.reserve(datacenter.topology(), slot, &[], &links);
                    steps.iter().for_each(|step| net.apply(step));
                }
                Act::Remove(index) => {
                    let slots: Vec<_> = datacenter.tenants().map(|(slot, _)| slot).collect();
                    if !slots.is_empty() {
                        let slot = *index.get(&slots);
                        datacenter.retire(slot);
                        leaving.push(slot);
                    }
                }
                Act::Pass(scores) => {
                    let tenants = candidates(&datacenter, scores);
                    let pass = binding.pass(datacenter.topology(), &tenants);
                    let (needs, topology) = (needs(&tenants), datacenter.topology());
                    let (needs, random) = (&needs, Random(seed));
                    let mut execution = Execution { topology, queues, needs, limits: true, random };
                    let least = execution.carry_out(&mut net, &pass.plan);
                    prop_assert!(least >= LEAST - ERROR, "{least}: {:#?}", pass.plan);
                    prop_assert!(net.limited.is_empty());
                    leaving.drain(..).for_each(|slot| datacenter.free(slot));
                }
            }
        }
    }

    /// Compares [`dilution`] with the fluid model.
    #[test]
    fn no_traffic_leaves_less_than_the_computed_dilution(
        tenants in prop::collection::vec((1_u64..300, any::<bool>()), 2..7),
        shared in 0_u64..300,
        weights in prop::collection::vec(1_u32..=100, 8),
        spare in 1_000_u64..2_000,
        seed in any::<u64>(),
    ) {
        let load = |(queue, (guarantee, moves)): (u8, &(u64, bool))| {
            Load { guarantee: *guarantee, queue, also_shared: *moves, limited: *moves }
        };
        let mut loads: Vec<Load> = (1_u8..).zip(&tenants).map(load).collect();
        loads.push(Load { guarantee: shared, queue: 0, also_shared: false, limited: true });
        let sum: u64 = loads.iter().map(|load| load.guarantee).sum();
        // All guarantees fit into the rate.
        let rate = (sum * spare).div_ceil(1_000);
        let bound = f64::from(dilution(&loads, &weights, rate)) / f64::from(WHOLE_PPM);
        let mut random = Random(seed);
        let mut least = 1.0_f64;
        for moment in 0..300_u32 {
            // The first moments have the extremes.
            let mut split = |nth: usize| {
                if moment < 128 { f64::from((moment >> nth) & 1) } else { random.part() }
            };
            let flow = |(nth, load): (usize, &Load)| {
                let tenant = TenantSlot(u32::try_from(nth).unwrap());
                let (guarantee, limited) = (load.guarantee as f64, load.limited);
                let part = if load.also_shared { split(nth) } else { 0.0 };
                let parts = [(usize::from(load.queue), 1.0 - part), (0, part)];
                Flow { tenant, guarantee, limited, load: 1.0, parts }
            };
            let flows: Vec<Flow> = loads.iter().enumerate().map(flow).collect();
            let kept = kept(&flows, &weights, rate as f64);
            least = kept.values().fold(least, |least, kept| least.min(*kept));
        }
        prop_assert!(least >= bound - 2.0 * ERROR, "{least} is below the bound {bound}");
        let exact = loads.iter().all(|load| !load.also_shared);
        prop_assert!(!exact || least <= bound + 2.0 * ERROR, "{least} is above the bound {bound}");
    }
}

/// Creates a datacenter with two servers. Each tenant has a VM on each server, so all tenants share
/// the two links, of rate `rate`.
fn meeting(rate: u64, guarantees: &[u64]) -> Datacenter {
    let tier = Tier { fan_out: 2, uplinks: 1, rate: BitsPerSecond(rate) };
    let tree = Regular { slots: 100, tiers: vec![tier] };
    let mut datacenter = common::datacenter(&tree, 0, Policy::default());
    for guarantee in guarantees {
        let hose = Hose::homogeneous(2, BitsPerSecond(*guarantee)).unwrap();
        datacenter.place(&Request::new(hose).most_per_server(1)).unwrap();
    }
    datacenter
}

/// Binds the tenants of a datacenter by two lists of scores. Returns the second plan, and the least
/// part that any step of it leaves of a guarantee, with and without the limits of the plan.
fn two_plans(datacenter: &Datacenter, queues: u8, scores: [&[u64]; 2]) -> (Plan, [f64; 2]) {
    let settings = Settings { queues, hold: 0, ..Settings::new(Mode::StaticMap) };
    let topology = datacenter.topology();
    let mut binding = Binding::new(settings, topology.links()).unwrap();
    let mut net = Net::default();
    let first = candidates(datacenter, scores[0]);
    binding.pass(topology, &first).plan.steps.iter().for_each(|step| net.apply(step));
    let needs = needs(&first);
    let plan = binding.pass(topology, &candidates(datacenter, scores[1])).plan;
    let least = [true, false].map(|limits| {
        let (queues, random) = (usize::from(queues), Random(1));
        let mut execution = Execution { topology, queues, needs: &needs, limits, random };
        execution.carry_out(&mut net.clone(), &plan)
    });
    (plan, least)
}

#[test]
fn without_limits_one_tenant_of_ten_that_moves_takes_from_all_others() {
    let datacenter = meeting(1_000, &[94; 10]);
    let scores =
        [[50, 50, 50, 50, 50, 50, 50, 50, 40, 10], [50, 50, 50, 50, 50, 50, 50, 50, 1, 60]];
    let (plan, [limited, unlimited]) = two_plans(&datacenter, 10, [&scores[0], &scores[1]]);
    let limits = plan.steps.iter().filter(|step| matches!(step, Step::Limit { .. })).count();
    assert_eq!(limits, 2, "the tenant that loses its queue, and the tenant that gets it");
    assert!(limited >= 1.0 - ERROR, "{limited}: {plan:#?}");
    // The weights count two tenants twice: 1,000 of 11 × 94.
    assert!((unlimited - 0.967_117).abs() < 1e-4, "{unlimited}: {plan:#?}");
}

#[test]
fn where_whole_numbers_do_not_suffice_all_tenants_are_limited() {
    // While both large tenants share queue 0, a small one would need 1/200 of queue 0's weight.
    let datacenter = meeting(206, &[1, 1, 1, 1, 1, 1, 100, 100]);
    let scores = [[50, 50, 50, 50, 50, 50, 40, 10], [50, 50, 50, 50, 50, 50, 1, 40]];
    let (plan, [limited, _]) = two_plans(&datacenter, 8, [&scores[0], &scores[1]]);
    let limits = plan.steps.iter().filter(|step| matches!(step, Step::Limit { .. })).count();
    assert_eq!(limits, 8, "{plan:#?}");
    assert!(limited >= 1.0 - ERROR, "{limited}: {plan:#?}");
}

#[test]
fn a_plan_that_moves_nobody_limits_nobody() {
    let mut datacenter = meeting(1_000, &[100, 100, 500]);
    let settings = Settings { queues: 3, ..Settings::new(Mode::StaticMap) };
    let mut binding = Binding::new(settings, datacenter.topology().links()).unwrap();
    let scores = [9, 8, 1];
    binding.pass(datacenter.topology(), &candidates(&datacenter, &scores));
    datacenter.remove(TenantSlot(2)).unwrap();
    let pass = binding.pass(datacenter.topology(), &candidates(&datacenter, &scores));
    assert!(!pass.plan.steps.is_empty());
    assert!(pass.plan.steps.iter().all(|step| matches!(step, Step::Weigh { .. })), "{pass:?}");
    let ports: BTreeSet<LinkId> = pass.plan.steps.iter().filter_map(port_of).collect();
    assert_eq!(ports.len(), 2, "each port once: {pass:?}");
    assert_eq!(pass.plan.steps.len(), 4, "each port once: {pass:?}");
}

fn port_of(step: &Step) -> Option<LinkId> {
    match step {
        Step::Weigh { port, .. } => Some(port.link),
        _ => None,
    }
}
