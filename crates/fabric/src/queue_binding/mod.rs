//! Decides which tenants have their own switch queues (queue binding).
//!
//! # Problem
//!
//! A switch port typically has eight queues, but may carry more tenants. Only tenants with a demand
//! above their guarantee benefit from their own queue. The set of tenants with a demand above their
//! guarantee changes over time.
//!
//! # Source
//!
//! Queue binding follows QShare §V-C, Algorithm 2. Penstock adds the following rules to QShare's
//! queue binding (`docs/reference/fabric.md`):
//!
//! - A tenant takes a queue only if its score exceeds the score of the queue's holder by a
//!   hysteresis.
//! - A tenant's score must also exceed the sum of the scores of all tenants that would lose their
//!   queues.
//! - Each plan has an epoch and an order of its steps ([`Plan`]).
//!
//! # Approach
//!
//! Once per interval, a binding pass visits all tenants, the highest score first. A tenant that has
//! queues keeps its queues. A tenant without queues gets one queue on *every* port of its tree, or
//! no queue at all. On each port, the tenant gets a spare queue or takes the queue of another
//! tenant (the holder) with a lower score. A tenant may take a queue only under these conditions:
//!
//! - The queue's holder has had the queue for at least [`Settings::hold`] intervals.
//! - The tenant's score exceeds the score of the queue's holder times
//!   [`Settings::hysteresis_permille`] thousandths.
//! - The tenant's score exceeds the sum of the scores of all holders that lose their queues.
//!
//! If queues become free during a binding pass, tenants that the pass already visited get the free
//! queues, the highest score first. All tenants without their own queues share queue 0.
//!
//! # Cost
//!
//! A binding pass takes O(ports × queues) time for each tenant. A binding pass also computes new
//! weights for each port with changed reservations. Computing the weights takes O(100 × queues)
//! time per port, and O(100 × queues²) time per port on which tenants lose or get queues.

use std::collections::{BTreeMap, BTreeSet};

use penstock_units::Nanos;
use thiserror::Error;

use crate::dscp::{Palette, User, colour};
use crate::hose::Need;
use crate::tenant_placement::{SlotMap, TenantSlot};
use crate::topology::{LinkId, NodeId, Topology};

mod dilution;
mod plan;
mod transition;
mod weights;

pub use dilution::{Load, WHOLE_PPM, dilution};
pub use plan::{Bound, Plan, Port, Step};
pub use weights::{WEIGHT_MAX, Weights, shortfall_ppm, weights};

use transition::Movers;

/// Maximum number of queues of a port, including the shared queue.
pub const QUEUES_MAX: u8 = 64;
/// Maximum sending limit of a tenant in the shared queue, in thousandths of the tenant's guarantee.
pub const HEADROOM_MAX: u32 = 100_000;
/// Part of queue 0's bandwidth, in thousandths, that its tenants may use together. The rest is for
/// frames that hosts send on their own, such as questions about pairs. If queue 0 were full, its
/// tenants would share it like TCP flows, by their numbers of connections.
const USED_PERMILLE: u128 = 960;

/// Rule by which switches map code points to queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All switch ports have the same fixed map from code points to queues. A code point selects
    /// one queue number on all ports, so a tenant has one queue number on its whole tree. A new
    /// binding only changes the marks that hosts set and the weights of queues.
    StaticMap,
    /// Each port has an ingress map and an egress map, as in hardware switches. The ingress port
    /// maps a code point to a traffic class, and the egress port maps the class to a queue. A
    /// tenant has one queue number on all ports of a switch. A tenant may have different queue
    /// numbers on different switches.
    PerPortMap,
    /// Each egress port has a map from code point to queue, as QShare assumes.
    PerEgressMap,
}

/// Settings that decide how tenants get their own queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of queues of each port including the shared queue, 2 to 64.
    pub queues: u8,
    /// Rule by which switches map code points to queues.
    pub mode: Mode,
    /// Code points that tenants may get. [`Mode::StaticMap`] uses the first code points of the
    /// palette, one for each dedicated queue.
    pub palette: Palette,
    /// Score that a tenant must exceed to take a queue, in thousandths of the holder's score. The
    /// score hysteresis must be above 1000 thousandths.
    pub hysteresis_permille: u32,
    /// Minimum number of intervals for which a tenant keeps a new queue.
    pub hold: u64,
    /// Longest time that a packet spends in the network, apart from its waits in queues that a
    /// tenant loses ([`Step::Drain`]).
    pub drain: Nanos,
    /// Part of each link's rate that other traffic may take in queues of its own, in thousandths.
    /// Weights and limits count only on the rest.
    pub other_permille: u32,
}

/// Reason why the settings of queue binding are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The number of queues leaves no dedicated queue, or is above [`QUEUES_MAX`].
    #[error("{0} queues per port; write 2 to {QUEUES_MAX}")]
    Queues(u8),
    /// The palette has fewer code points than a port has dedicated queues.
    #[error(
        "only {points} code points are free for {queues} dedicated queues; reserve fewer code \
         points"
    )]
    Palette {
        /// Number of code points that tenants may get.
        points: usize,
        /// Number of dedicated queues of a port. Each dedicated queue needs a code point.
        queues: u8,
    },
}

/// Reason why a stored binding cannot be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The settings of queue binding are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A stored queue of a tenant does not exist or belongs to another tenant.
    #[error("tenant {}: stored queue {queue} does not exist, or another tenant has it", .tenant.0)]
    Queue {
        /// Tenant whose stored queue does not exist or belongs to another tenant.
        tenant: TenantSlot,
        /// Number of the stored queue that does not exist or belongs to another tenant. A valid
        /// binding has only queue numbers of 1 or more.
        queue: u8,
    },
}

impl Settings {
    /// Returns settings with eight queues and all code points except 0. The hysteresis is 10 %, a
    /// tenant keeps a new queue for two intervals, and the drain time is 100 ms.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        let palette = Palette::without(&[]).expect("63 values are left");
        let drain = Nanos(100_000_000);
        let other_permille = 0;
        Self { queues: 8, mode, palette, hysteresis_permille: 1100, hold: 2, drain, other_permille }
    }

    fn dedicated(&self) -> u8 {
        self.queues - 1
    }

    fn check(&self) -> Result<(), SettingsError> {
        if !(2..=QUEUES_MAX).contains(&self.queues) {
            return Err(SettingsError::Queues(self.queues));
        }
        let (points, queues) = (self.palette.values().len(), self.dedicated());
        let enough = self.mode != Mode::StaticMap || points >= usize::from(queues);
        enough.then_some(()).ok_or(SettingsError::Palette { points, queues })
    }
}

/// Tenant that may get its own queues.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Number of the tenant in [`crate::tenant_placement::Datacenter`].
    pub tenant: TenantSlot,
    /// Score of the tenant in bit/s ([`crate::score`]).
    pub score: u64,
    /// Links that carry the tenant's traffic, with the tenant's reservation on each link. A tenant
    /// without links needs no queue.
    pub links: &'a [(LinkId, Need)],
    /// True if the tenant may get or lose queues. `movable` is false if a host or switch that
    /// carries the tenant's traffic is unreachable, and therefore cannot apply a change of queues.
    pub movable: bool,
    /// True if the tenant must share queue 0, because a port of its tree has no queues for tenants.
    /// A tenant that is movable then loses its queues.
    pub shares: bool,
}

/// Result of a binding pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Number of the binding pass, from 1.
    pub interval: u64,
    /// Tenants that had no queues of their own before the binding pass, and have queues of their
    /// own after the pass.
    pub promoted: Vec<TenantSlot>,
    /// Tenants that had queues of their own before the binding pass, and have no queues of their
    /// own after the pass.
    pub demoted: Vec<TenantSlot>,
    /// Tenants that share queue 0 only because no code point is free.
    pub without_code_point: Vec<TenantSlot>,
    /// Steps that change hosts and switches to the new binding.
    pub plan: Plan,
}

const NOBODY: u32 = u32::MAX;

/// Queues that a tenant may take, and the holders that would lose these queues.
struct Grab {
    queues: Vec<(Port, u8)>,
    victims: BTreeSet<u32>,
}

/// Queue binding of a fabric: the queues and the code point of each tenant.
#[derive(Clone, Debug)]
pub struct Binding {
    settings: Settings,
    interval: u64,
    bound: SlotMap<Bound>,
    /// Slot of the tenant that has the queue, for each dedicated queue of each port.
    holders: Vec<u32>,
    /// Sum of the reservations in bit/s, for each queue of each port.
    reserved: Vec<u64>,
    /// Weights of each port at which bandwidth is reserved.
    weights: Vec<Option<Weights>>,
    /// Number of queues of each port that has fewer than [`Settings::queues`].
    limits: BTreeMap<Port, u8>,
}

impl Binding {
    /// Creates a binding in which no tenant has a queue on any of `links` links.
    ///
    /// # Errors
    /// Returns an error if the settings are invalid.
    pub fn new(settings: Settings, links: usize) -> Result<Self, SettingsError> {
        settings.check()?;
        let holders = vec![NOBODY; 2 * links * usize::from(settings.dedicated())];
        let reserved = vec![0; 2 * links * usize::from(settings.queues)];
        let (bound, weights) = (SlotMap::default(), vec![None; 2 * links]);
        let limits = BTreeMap::new();
        Ok(Self { settings, interval: 0, bound, holders, reserved, weights, limits })
    }

    /// Restores a stored binding: the queues of the tenants in `bound` after `interval` binding
    /// passes. After [`Self::resume`], the reservations of tenants are unknown until the next
    /// binding pass or a call of [`Self::reserve_all`].
    ///
    /// # Errors
    /// Returns an error if the settings are invalid, or if a queue does not exist or has another
    /// holder.
    pub fn resume(
        settings: Settings,
        links: usize,
        interval: u64,
        bound: impl IntoIterator<Item = (TenantSlot, Bound)>,
    ) -> Result<Self, ResumeError> {
        let mut binding = Self::new(settings, links)?;
        binding.interval = interval;
        for (tenant, bound) in bound {
            for (port, queue) in &bound.queues {
                let taken = ResumeError::Queue { tenant, queue: *queue };
                if port.link.index() >= links || !(1..binding.settings.queues).contains(queue) {
                    return Err(taken);
                }
                let place = binding.place(index(*port), *queue);
                if binding.holders[place] != NOBODY {
                    return Err(taken);
                }
                binding.holders[place] = tenant.0;
            }
            binding.bound.insert(tenant, bound);
        }
        Ok(binding)
    }

    /// Returns the number of binding passes so far.
    #[must_use]
    pub const fn interval(&self) -> u64 {
        self.interval
    }

    /// Returns the settings of the binding, which never change.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets the number of queues, including the shared queue, of each port that has fewer than
    /// [`Settings::queues`]. In the next pass, tenants that are movable lose other queues.
    pub fn limit_queues(&mut self, limits: BTreeMap<Port, u8>) {
        self.limits = limits;
    }

    /// Returns the number of queues of a port, including the shared queue.
    #[must_use]
    pub fn queues(&self, port: Port) -> u8 {
        let all = self.settings.queues;
        self.limits.get(&port).map_or(all, |limit| (*limit).clamp(1, all))
    }

    /// Returns true if a tenant has a queue that its port does not have.
    fn exceeds(&self, tenant: TenantSlot) -> bool {
        let queues = self.bound.get(tenant).map_or(&[][..], |bound| bound.queues.as_slice());
        !self.limits.is_empty() && queues.iter().any(|(port, queue)| *queue >= self.queues(*port))
    }

    /// Returns the queues and code point of a tenant. `None` if the tenant shares queue 0.
    #[must_use]
    pub fn of(&self, tenant: TenantSlot) -> Option<&Bound> {
        self.bound.get(tenant)
    }

    /// Returns true if a tenant has queues on exactly the links `links`. Returns false if the
    /// tenant has no queues, or if the tenant's traffic was moved to other links.
    #[must_use]
    pub fn covers(&self, tenant: TenantSlot, links: &[(LinkId, Need)]) -> bool {
        let bound = self.bound.get(tenant);
        bound.is_some_and(|b| ports(links).eq(b.queues.iter().map(|(port, _)| *port)))
    }

    /// Returns all tenants with their own queues, ordered by slot.
    pub fn bound(&self) -> impl Iterator<Item = (TenantSlot, &Bound)> {
        self.bound.iter()
    }

    /// Returns the tenant that has queue `queue` (1 or more) of a port. `None` if no tenant has the
    /// queue.
    #[must_use]
    pub fn holder(&self, port: Port, queue: u8) -> Option<TenantSlot> {
        let holder = *self.holders.get(self.place(index(port), queue))?;
        (holder != NOBODY).then_some(TenantSlot(holder))
    }

    /// Returns the weights of a port's queues. `None` if no bandwidth is reserved at the port.
    #[must_use]
    pub fn weights(&self, port: Port) -> Option<&Weights> {
        self.weights.get(index(port))?.as_ref()
    }

    /// Returns the largest guarantee error of all ports, in millionths of a link's rate
    /// ([`Weights::error_ppm`]).
    #[must_use]
    pub fn worst_error_ppm(&self) -> u32 {
        self.weights.iter().flatten().map(|weights| weights.error_ppm).max().unwrap_or(0)
    }

    /// Returns the sending limit of a tenant that shares queue 0 on `links`. The sending limit is
    /// in thousandths of the tenant's guarantee, 1000 to [`HEADROOM_MAX`]. A port permits the
    /// bandwidth that the weight of queue 0 yields, less a twenty-fifth, divided by the
    /// reservations in queue 0. The tenant's limit is the smallest permitted value of all its
    /// ports.
    #[must_use]
    pub fn headroom_permille(&self, topology: &Topology, links: &[(LinkId, Need)]) -> u32 {
        let queues = usize::from(self.settings.queues);
        let of = |port: Port| {
            let reserved = *self.reserved.get(index(port) * queues)?;
            let weights = &self.weights(port)?.weights;
            let (own, all) = (weights.first()?, weights.iter().map(|w| u128::from(*w)).sum());
            let given =
                USED_PERMILLE * u128::from(self.rate(topology, port.link)) * u128::from(*own);
            let permille = given.checked_div(all)?.checked_div(reserved.into())?;
            Some(u32::try_from(permille).unwrap_or(HEADROOM_MAX))
        };
        // If no reservation in queue 0 is known, the limit is the guarantee.
        let least = ports(links).map(|port| of(port).unwrap_or(1_000)).min();
        least.unwrap_or(1_000).clamp(1_000, HEADROOM_MAX)
    }

    /// Returns the rate in bit/s that other traffic leaves to tenants on a link.
    fn rate(&self, topology: &Topology, link: LinkId) -> u64 {
        let left = 1_000 - self.settings.other_permille.min(1_000);
        let rate = u128::from(topology.rate(link).0) * u128::from(left) / 1_000;
        u64::try_from(rate).unwrap_or(u64::MAX).max(1)
    }

    fn place(&self, port: usize, queue: u8) -> usize {
        port * usize::from(self.settings.dedicated()) + usize::from(queue) - 1
    }

    /// Runs one binding pass. `tenants` contains each placed tenant once, in any order. A tenant
    /// that is missing in `tenants` or has other links than before loses its queues. `tenants` may
    /// contain a tenant a second time with its former links, and not movable. The tenant then keeps
    /// its queues on the former links, and shares queue 0 on its present links.
    pub fn pass(&mut self, topology: &Topology, tenants: &[Candidate<'_>]) -> Pass {
        self.interval += 1;
        let mut lost = self.drop_strangers(tenants);
        let mut order: Vec<usize> = (0..tenants.len()).collect();
        order.sort_by_key(|at| (core::cmp::Reverse(tenants[*at].score), tenants[*at].tenant));
        // A tenant that is not movable gets the highest score, so that it keeps its queues.
        let price = |t: &Candidate<'_>| if t.movable { t.score } else { u64::MAX };
        let scores: SlotMap<u64> = tenants.iter().map(|t| (t.tenant, price(t))).collect();
        let mut won = BTreeSet::new();
        for candidate in order.iter().map(|at| &tenants[*at]) {
            if !self.wants(candidate) {
                continue;
            }
            let Some(Grab { queues, victims }) = self.choose(topology, candidate, &scores) else {
                continue;
            };
            for victim in victims {
                // A tenant promoted in this pass cannot be a victim, because its hold has just
                // begun.
                lost.extend(self.release(TenantSlot(victim)));
            }
            self.seize(candidate.tenant, queues);
            won.insert(candidate.tenant);
        }
        self.sweep(topology, &order, tenants, &mut won);
        let without_code_point = self.mark(topology, &order, tenants, &mut won);
        self.finish(topology, tenants, lost, &won, without_code_point)
    }

    /// Restores the earlier binding `target`. A tenant gets back the queues that the tenant has in
    /// `target`, and tenants without queues in `target` lose their queues. A tenant shares queue 0
    /// if its tree has changed or if its queue has another holder. A tenant that is not movable
    /// keeps its present queues.
    pub fn return_to(
        &mut self,
        topology: &Topology,
        tenants: &[Candidate<'_>],
        target: &[(TenantSlot, Bound)],
    ) -> Pass {
        self.interval += 1;
        let mut lost = self.drop_strangers(tenants);
        let wanted: BTreeMap<TenantSlot, &Bound> = target.iter().map(|(t, b)| (*t, b)).collect();
        let same =
            |has: &Bound, wants: &Bound| (has.dscp, &has.queues) == (wants.dscp, &wants.queues);
        let fixed = tenants.iter().filter(|t| !t.movable).map(|t| t.tenant);
        let fixed: BTreeSet<TenantSlot> = fixed.collect();
        let others: Vec<TenantSlot> = (self.bound.iter())
            .filter(|(tenant, has)| wanted.get(tenant).is_none_or(|wants| !same(has, wants)))
            .filter(|(tenant, _)| !fixed.contains(tenant))
            .map(|(tenant, _)| tenant)
            .collect();
        lost.extend(others.into_iter().filter_map(|tenant| self.release(tenant)));
        let mut won = BTreeSet::new();
        for candidate in tenants {
            let Some(bound) = wanted.get(&candidate.tenant) else { continue };
            let free = |(port, queue): &(Port, u8)| {
                let there = (1..self.queues(*port)).contains(queue);
                there && self.holders[self.place(index(*port), *queue)] == NOBODY
            };
            let fits = ports(candidate.links).eq(bound.queues.iter().map(|(port, _)| *port));
            if fits && self.wants(candidate) && bound.queues.iter().all(free) {
                self.seize(candidate.tenant, bound.queues.clone());
                if let Some(has) = self.bound.get_mut(candidate.tenant) {
                    has.dscp = bound.dscp;
                }
                won.insert(candidate.tenant);
            }
        }
        self.finish(topology, tenants, lost, &won, Vec::new())
    }

    /// Gives spare queues to tenants that the binding pass visited before the spare queues became
    /// free. A tenant that loses a queue on one port loses its queues on all ports. Some queues
    /// that tenants lost during a binding pass may have no new holder.
    fn sweep(
        &mut self,
        topology: &Topology,
        order: &[usize],
        tenants: &[Candidate<'_>],
        won: &mut BTreeSet<TenantSlot>,
    ) {
        let scores = SlotMap::default();
        for at in order {
            // With score 0, the tenant cannot take a queue from a holder.
            let candidate = Candidate { score: 0, ..tenants[*at] };
            if !self.wants(&candidate) {
                continue;
            }
            if let Some(Grab { queues, .. }) = self.choose(topology, &candidate, &scores) {
                self.seize(candidate.tenant, queues);
                won.insert(candidate.tenant);
            }
        }
    }

    fn wants(&self, candidate: &Candidate<'_>) -> bool {
        let has = self.bound.contains(candidate.tenant);
        !has && candidate.movable && !candidate.shares && !candidate.links.is_empty()
    }

    /// Removes the queues of tenants that left, of tenants whose traffic has moved to other links,
    /// and of tenants that must share queue 0.
    fn drop_strangers(&mut self, tenants: &[Candidate<'_>]) -> Vec<(TenantSlot, Bound)> {
        let stays = |t: &&Candidate<'_>| !(t.movable && (t.shares || self.exceeds(t.tenant)));
        let same = tenants.iter().filter(stays).filter(|t| self.covers(t.tenant, t.links));
        let same: SlotMap<()> = same.map(|t| (t.tenant, ())).collect();
        let strangers = self.bound.iter().map(|(tenant, _)| tenant);
        let strangers = strangers.filter(|tenant| !same.contains(*tenant));
        let strangers: Vec<TenantSlot> = strangers.collect();
        strangers.into_iter().filter_map(|tenant| self.release(tenant)).collect()
    }

    /// Chooses queues for a tenant on all its ports. Returns the chosen queues and the tenants that
    /// would lose these queues.
    fn choose(
        &self,
        topology: &Topology,
        candidate: &Candidate<'_>,
        scores: &SlotMap<u64>,
    ) -> Option<Grab> {
        let mut queues = Vec::new();
        let mut victims = BTreeSet::new();
        let mut price = 0_u64;
        for group in self.groups(topology, candidate) {
            let queue_count = group.iter().map(|port| self.queues(*port)).min()?;
            let offers = (1..queue_count).filter_map(|queue| {
                let (score, taken) = self.price(&group, queue, candidate, scores, &victims)?;
                Some((score, taken.len(), queue, taken))
            });
            let (score, _, queue, taken) = offers.min()?;
            price = price.saturating_add(score);
            victims.extend(taken);
            queues.extend(group.into_iter().map(|port| (port, queue)));
        }
        queues.sort_unstable();
        (victims.is_empty() || candidate.score > price).then_some(Grab { queues, victims })
    }

    /// Returns the price of queue `queue` on the given ports, and the tenants that would lose the
    /// queue. The price of a queue is the sum of the scores of the tenants that would lose it.
    fn price(
        &self,
        group: &[Port],
        queue: u8,
        candidate: &Candidate<'_>,
        scores: &SlotMap<u64>,
        victims: &BTreeSet<u32>,
    ) -> Option<(u64, Vec<u32>)> {
        let (mut price, mut taken) = (0_u64, Vec::new());
        for port in group {
            let holder = self.holders[self.place(index(*port), queue)];
            if holder == NOBODY || victims.contains(&holder) || taken.contains(&holder) {
                continue;
            }
            let score = scores.get(TenantSlot(holder)).copied().unwrap_or(0);
            if !self.may_lose(TenantSlot(holder), score, candidate.score) {
                return None;
            }
            price = price.saturating_add(score);
            taken.push(holder);
        }
        Some((price, taken))
    }

    fn may_lose(&self, holder: TenantSlot, score: u64, to: u64) -> bool {
        let held = self.bound.get(holder).map_or(0, |bound| self.interval - bound.since);
        let wanted = u128::from(score) * u128::from(self.settings.hysteresis_permille);
        held >= self.settings.hold && u128::from(to) * 1000 > wanted
    }

    /// Divides a tenant's ports into groups of ports that must give the tenant the same queue
    /// number.
    fn groups(&self, topology: &Topology, candidate: &Candidate<'_>) -> Vec<Vec<Port>> {
        let ports = ports(candidate.links);
        match self.settings.mode {
            Mode::StaticMap => vec![ports.collect()],
            Mode::PerEgressMap => ports.map(|port| vec![port]).collect(),
            Mode::PerPortMap => {
                let mut by_switch: BTreeMap<_, Vec<Port>> = BTreeMap::new();
                for port in ports {
                    by_switch.entry(sender(topology, port)).or_default().push(port);
                }
                by_switch.into_values().collect()
            }
        }
    }

    /// Returns a tenant's queue number on each switch, if the mode gives a tenant one queue number
    /// per switch.
    fn by_switch(&self, topology: &Topology, tenant: TenantSlot) -> Vec<(NodeId, u8)> {
        let bound = self.bound.get(tenant).filter(|_| self.settings.mode == Mode::PerPortMap);
        let queues = bound.into_iter().flat_map(|bound| &bound.queues);
        let mut all: Vec<_> =
            queues.map(|(port, queue)| (sender(topology, *port), *queue)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn seize(&mut self, tenant: TenantSlot, queues: Vec<(Port, u8)>) {
        for (port, queue) in &queues {
            let place = self.place(index(*port), *queue);
            debug_assert!(self.holders[place] == NOBODY, "a queue has one holder");
            self.holders[place] = tenant.0;
        }
        self.bound.insert(tenant, Bound { dscp: 0, queues, since: self.interval });
    }

    fn release(&mut self, tenant: TenantSlot) -> Option<(TenantSlot, Bound)> {
        let bound = self.bound.remove(tenant)?;
        for (port, queue) in &bound.queues {
            let place = self.place(index(*port), *queue);
            self.holders[place] = NOBODY;
        }
        Some((tenant, bound))
    }

    /// Assigns code points to tenants with new queues. Returns the tenants that lose their queues
    /// because no code point is free.
    fn mark(
        &mut self,
        topology: &Topology,
        order: &[usize],
        tenants: &[Candidate<'_>],
        won: &mut BTreeSet<TenantSlot>,
    ) -> Vec<TenantSlot> {
        let palette = &self.settings.palette;
        if self.settings.mode == Mode::StaticMap {
            for tenant in won.iter() {
                if let Some(bound) = self.bound.get_mut(*tenant) {
                    let queue = bound.queues.first().map_or(1, |(_, queue)| *queue);
                    bound.dscp = palette.values()[usize::from(queue) - 1];
                }
            }
            return Vec::new();
        }
        let bound = order.iter().map(|at| &tenants[*at]);
        let bound: Vec<_> = bound.filter(|t| self.covers(t.tenant, t.links)).collect();
        let links: Vec<Vec<LinkId>> =
            bound.iter().map(|t| t.links.iter().map(|(link, _)| *link).collect()).collect();
        let queues: Vec<_> = bound.iter().map(|t| self.by_switch(topology, t.tenant)).collect();
        let users: Vec<User<'_>> = (bound.iter().zip(&links).zip(&queues))
            .map(|((t, links), queues)| User {
                has: self.bound.get(t.tenant).map(|b| b.dscp),
                links,
                queues,
            })
            .collect();
        let all_links = self.holders.len() / 2 / usize::from(self.settings.dedicated());
        let values = colour(palette, all_links, &users);
        let mut without = Vec::new();
        for (candidate, value) in bound.iter().zip(values) {
            match (value, self.bound.get_mut(candidate.tenant)) {
                (Some(value), Some(bound)) => bound.dscp = value,
                _ => {
                    self.release(candidate.tenant);
                    won.remove(&candidate.tenant);
                    without.push(candidate.tenant);
                }
            }
        }
        without
    }

    fn finish(
        &mut self,
        topology: &Topology,
        tenants: &[Candidate<'_>],
        lost: Vec<(TenantSlot, Bound)>,
        won: &BTreeSet<TenantSlot>,
        without_code_point: Vec<TenantSlot>,
    ) -> Pass {
        let transition = self.reweigh(topology, tenants, &Movers::new(&lost, won));
        let gained: Vec<_> =
            won.iter().filter_map(|tenant| Some((*tenant, self.bound.get(*tenant)?))).collect();
        let plan = plan::plan(self.interval, self.settings.drain, &lost, &gained, &transition);
        let had: BTreeSet<TenantSlot> = lost.iter().map(|(tenant, _)| *tenant).collect();
        let demoted = had.iter().copied().filter(|tenant| !self.bound.contains(*tenant));
        let demoted = demoted.collect();
        let promoted = won.difference(&had).copied().collect();
        Pass { interval: self.interval, promoted, demoted, without_code_point, plan }
    }

    /// Returns each port of `links` with the tenant's queue and reservation at the port.
    fn parts(
        &self,
        tenant: TenantSlot,
        links: &[(LinkId, Need)],
    ) -> impl Iterator<Item = (Port, usize, u64)> {
        let own = self.bound.get(tenant).filter(|_| self.covers(tenant, links));
        let mut own = own.into_iter().flat_map(|bound| bound.queues.iter());
        let rates = links.iter().flat_map(|(_, need)| [need.down.0, need.up.0]);
        ports(links).zip(rates).map(move |(port, rate)| {
            (port, own.next().map_or(0, |(_, queue)| usize::from(*queue)), rate)
        })
    }

    /// Recomputes the reservations and weights of all ports. A caller of [`Self::resume`] that uses
    /// weights before the next binding pass must call [`Self::reserve_all`].
    pub fn reserve_all<'a>(
        &mut self,
        topology: &Topology,
        tenants: impl IntoIterator<Item = (TenantSlot, &'a [(LinkId, Need)])>,
    ) {
        let queues = usize::from(self.settings.queues);
        self.reserved.fill(0);
        self.weights.fill(None);
        let mut used = BTreeSet::new();
        for (tenant, links) in tenants {
            let parts: Vec<_> = self.parts(tenant, links).collect();
            for (port, queue, rate) in parts {
                self.reserved[index(port) * queues + queue] += rate;
                used.insert(port);
            }
        }
        for port in used {
            self.weights[index(port)] = Some(self.weigh(topology, port));
        }
    }

    /// Adds the reservations of a tenant immediately, without a binding pass. `before` has the
    /// tenant's links before the change, and `now` has the links after the change. The tenant gets
    /// no queues, and its old reservations stay until the next binding pass. Returns the steps that
    /// set new weights on ports.
    pub fn reserve(
        &mut self,
        topology: &Topology,
        tenant: TenantSlot,
        before: &[(LinkId, Need)],
        now: &[(LinkId, Need)],
    ) -> Vec<Step> {
        let queues = usize::from(self.settings.queues);
        let had = self.parts(tenant, before).map(|(port, queue, rate)| ((port, queue), rate));
        let had: BTreeMap<(Port, usize), u64> = had.collect();
        let has: Vec<_> = self.parts(tenant, now).collect();
        let mut steps = Vec::new();
        for (port, queue, rate) in has {
            let more = rate.saturating_sub(had.get(&(port, queue)).copied().unwrap_or(0));
            self.reserved[index(port) * queues + queue] += more;
            let weights = self.weigh(topology, port);
            if self.weights(port) != Some(&weights) {
                self.weights[index(port)] = Some(weights.clone());
                steps.push(Step::Weigh { port, weights });
            }
        }
        steps
    }

    /// Returns the weights of a port's queues for the port's present reservations.
    fn weigh(&self, topology: &Topology, port: Port) -> Weights {
        let queues = usize::from(self.settings.queues);
        let reserved = &self.reserved[index(port) * queues..][..queues];
        weights(reserved, self.rate(topology, port.link))
    }
}

/// Returns the two ports at the ends of each link, in the order of [`Port`].
fn ports(links: &[(LinkId, Need)]) -> impl Iterator<Item = Port> + '_ {
    links.iter().flat_map(|(link, _)| [false, true].map(|up| Port { link: *link, up }))
}

/// Returns the node that sends frames through a port.
fn sender(topology: &Topology, port: Port) -> NodeId {
    if port.up { topology.child(port.link) } else { topology.parent(port.link) }
}

fn index(port: Port) -> usize {
    2 * port.link.index() + usize::from(port.up)
}
