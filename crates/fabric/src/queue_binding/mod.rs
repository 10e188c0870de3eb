//! Which tenants have a switch queue of their own.
//!
//! **Problem.** A port has eight queues and may carry more tenants than that; only those with more
//! to send than they are guaranteed gain from a queue of their own, and who that is changes.
//!
//! **Source.** QShare §V-C, Algorithm 2. Hysteresis, the sum of several victims, epochs and the
//! order of change are ours: `docs/fabric.md`.
//!
//! **Rule.** Once an interval, tenants are looked at by score, highest first. Who has queues keeps
//! them. Else a tenant gets one on *every* port of its tree: a spare one, or that of a tenant with
//! less score. It may take one only from tenants that have had it for [`Settings::hold`] intervals
//! and whose score it exceeds by [`Settings::hysteresis_permille`], and only if its score is above
//! that of all who lose theirs together. What is spare after that goes to those who were looked at
//! too early for it, highest score first. All others share queue 0.
//!
//! **Cost.** For each tenant its ports times the queues, and 100 times the queues for each port
//! whose reservations changed.

use std::collections::{BTreeMap, BTreeSet};

use penstock_units::Nanos;
use thiserror::Error;

use crate::dscp::{Palette, User, colour};
use crate::hose::Need;
use crate::tenant_placement::TenantSlot;
use crate::topology::{LinkId, NodeId, Topology};

mod plan;
mod weights;

pub use plan::{Bound, Plan, Port, Step};
pub use weights::{WEIGHT_MAX, Weights, shortfall_ppm, weights};

use plan::Reweigh;

/// Most queues of a port.
pub const QUEUES_MAX: u8 = 64;
/// Most that a tenant in the shared queue may send, in thousandths of what it is guaranteed.
pub const HEADROOM_MAX: u32 = 100_000;

/// How switches get from a code point to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One map for all ports, set once: a code point means the same queue everywhere, so a tenant
    /// has the same queue on its whole tree. A change is the hosts' business and the weights'.
    StaticMap,
    /// Maps by port in two steps, as switches have them: the code point gives a traffic class where
    /// a packet comes in, the class a queue where it goes out. A tenant has the same queue on all
    /// ports of one switch; others elsewhere.
    PerPortMap,
    /// A map from code point to queue for each port going out, which QShare assumes.
    PerEgressMap,
}

/// The settings of binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Queues of a port, the shared one included; 2 to 64.
    pub queues: u8,
    /// How code points become queues.
    pub mode: Mode,
    /// The code points that may be used. [`Mode::StaticMap`] uses the first of them, one a queue.
    pub palette: Palette,
    /// What a score must be, in thousandths of the one whose queue it takes; above 1000.
    pub hysteresis_permille: u32,
    /// Intervals for which a queue cannot be taken away.
    pub hold: u64,
    /// For how long a packet may be on its way.
    pub drain: Nanos,
}

/// Settings that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// No dedicated queue, or too many.
    #[error("{0} queues a port; write 2 to {QUEUES_MAX}")]
    Queues(u8),
    /// Fewer code points than queues.
    #[error("{points} code points for {queues} dedicated queues; reserve fewer code points")]
    Palette {
        /// Usable values.
        points: usize,
        /// Queues that need one.
        queues: u8,
    },
}

/// A binding that cannot be gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The settings cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A queue that is not there, or is somebody else's.
    #[error("tenant {} has queue {queue} of a port that has none such or gave it away", .tenant.0)]
    Queue {
        /// Whose.
        tenant: TenantSlot,
        /// Which.
        queue: u8,
    },
}

impl Settings {
    /// Eight queues, all code points but 0, a tenth of hysteresis, two intervals of hold and 100 ms
    /// of drain.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        let palette = Palette::without(&[]).expect("63 values are left");
        let drain = Nanos(100_000_000);
        Self { queues: 8, mode, palette, hysteresis_permille: 1100, hold: 2, drain }
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

/// A tenant that wants a queue.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The tenant.
    pub tenant: TenantSlot,
    /// Its score; see [`crate::score`].
    pub score: u64,
    /// The links of its tree and what it has reserved there. Without links it wants none.
    pub links: &'a [(LinkId, Need)],
    /// Whether it may get or lose queues; `false` if a host or a switch of its tree cannot be told,
    /// so that what it has is all that is certain.
    pub movable: bool,
}

/// What a pass did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Its number, from 1.
    pub interval: u64,
    /// Who has queues now and had none before.
    pub promoted: Vec<TenantSlot>,
    /// Who had queues before and has none now.
    pub demoted: Vec<TenantSlot>,
    /// Who would have queues, were there a code point for it: it shares queue 0.
    pub without_code_point: Vec<TenantSlot>,
    /// How to get there.
    pub plan: Plan,
}

const NOBODY: u32 = u32::MAX;

/// Queues that a tenant may have, and who loses theirs for it.
struct Grab {
    queues: Vec<(Port, u8)>,
    victims: BTreeSet<u32>,
}

/// The weights of a port: old and new reservations, the link's rate, during and after.
struct Known<'a> {
    old: &'a [u64],
    new: &'a [u64],
    /// Reserved by those who are still in queue 0 and get another.
    guests: u64,
    rate: u64,
    during: Weights,
    after: Weights,
}

/// Who has which queue, from interval to interval.
#[derive(Clone, Debug)]
pub struct Binding {
    settings: Settings,
    interval: u64,
    bound: BTreeMap<TenantSlot, Bound>,
    /// By port and dedicated queue.
    holders: Vec<u32>,
    /// By port and queue: what is reserved in it.
    reserved: Vec<u64>,
    weights: BTreeMap<Port, Weights>,
}

impl Binding {
    /// Nobody has a queue on any of `links` links.
    ///
    /// # Errors
    /// When the settings cannot work.
    pub fn new(settings: Settings, links: usize) -> Result<Self, SettingsError> {
        settings.check()?;
        let holders = vec![NOBODY; 2 * links * usize::from(settings.dedicated())];
        let reserved = vec![0; 2 * links * usize::from(settings.queues)];
        let (bound, weights) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { settings, interval: 0, bound, holders, reserved, weights })
    }

    /// Goes on where another has stopped: after `interval` passes these tenants have these queues.
    /// What is reserved where is known after the next pass.
    ///
    /// # Errors
    /// When the settings cannot work, or a queue is not there or is somebody else's.
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

    /// How many passes there were.
    #[must_use]
    pub const fn interval(&self) -> u64 {
        self.interval
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A tenant's queues; `None`: it shares queue 0.
    #[must_use]
    pub fn of(&self, tenant: TenantSlot) -> Option<&Bound> {
        self.bound.get(&tenant)
    }

    /// Whether a tenant's queues are those of these links: if not, it has none or has moved since.
    #[must_use]
    pub fn covers(&self, tenant: TenantSlot, links: &[(LinkId, Need)]) -> bool {
        let bound = self.bound.get(&tenant);
        bound.is_some_and(|b| ports(links).eq(b.queues.iter().map(|(port, _)| *port)))
    }

    /// All who have queues, by tenant.
    pub fn bound(&self) -> impl Iterator<Item = (TenantSlot, &Bound)> {
        self.bound.iter().map(|(tenant, bound)| (*tenant, bound))
    }

    /// Who has a queue (from 1) of a port.
    #[must_use]
    pub fn holder(&self, port: Port, queue: u8) -> Option<TenantSlot> {
        let holder = *self.holders.get(self.place(index(port), queue))?;
        (holder != NOBODY).then_some(TenantSlot(holder))
    }

    /// A port's weights; `None` where nobody has reserved anything.
    #[must_use]
    pub fn weights(&self, port: Port) -> Option<&Weights> {
        self.weights.get(&port)
    }

    /// The largest guarantee error of any port, in millionths of its link.
    #[must_use]
    pub fn worst_error_ppm(&self) -> u32 {
        self.weights.values().map(|weights| weights.error_ppm).max().unwrap_or(0)
    }

    /// What tenants without a queue of their own may send at most, in thousandths of what they are
    /// guaranteed, by what there is on these links: if all who share queue 0 with them send as
    /// much, all of it still has room in the part of the link that queue 0 has by its weight. At
    /// least 1000, and at most [`HEADROOM_MAX`].
    #[must_use]
    pub fn headroom_permille(&self, topology: &Topology, links: &[(LinkId, Need)]) -> u32 {
        let queues = usize::from(self.settings.queues);
        let of = |port: Port| {
            let reserved = *self.reserved.get(index(port) * queues)?;
            let weights = &self.weights.get(&port)?.weights;
            let (own, all) = (weights.first()?, weights.iter().map(|w| u128::from(*w)).sum());
            let given = 1_000 * u128::from(topology.rate(port.link).0) * u128::from(*own);
            let permille = given.checked_div(all)?.checked_div(reserved.into())?;
            Some(u32::try_from(permille).unwrap_or(HEADROOM_MAX))
        };
        // Where nothing is known to wait in queue 0 nothing is promised.
        let least = ports(links).map(|port| of(port).unwrap_or(1_000)).min();
        least.unwrap_or(1_000).clamp(1_000, HEADROOM_MAX)
    }

    fn place(&self, port: usize, queue: u8) -> usize {
        port * usize::from(self.settings.dedicated()) + usize::from(queue) - 1
    }

    /// One interval. `tenants` are all that are placed, each once, in any order; who had queues and
    /// is not among them, or has another tree, loses them.
    pub fn pass(&mut self, topology: &Topology, tenants: &[Candidate<'_>]) -> Pass {
        self.interval += 1;
        let mut lost = self.drop_strangers(tenants);
        let mut order: Vec<usize> = (0..tenants.len()).collect();
        order.sort_by_key(|at| (core::cmp::Reverse(tenants[*at].score), tenants[*at].tenant));
        // Nobody's score is above that of who cannot be told.
        let price = |t: &Candidate<'_>| if t.movable { t.score } else { u64::MAX };
        let scores: BTreeMap<u32, u64> = tenants.iter().map(|t| (t.tenant.0, price(t))).collect();
        let mut won = BTreeSet::new();
        for candidate in order.iter().map(|at| &tenants[*at]) {
            if !self.wants(candidate) {
                continue;
            }
            let Some(Grab { queues, victims }) = self.choose(topology, candidate, &scores) else {
                continue;
            };
            for victim in victims {
                // One that was promoted in this pass cannot be a victim: it holds its queue.
                lost.extend(self.release(TenantSlot(victim)));
            }
            self.seize(candidate.tenant, queues);
            won.insert(candidate.tenant);
        }
        self.sweep(topology, &order, tenants, &mut won);
        let without_code_point = self.mark(topology, &order, tenants, &mut won);
        self.finish(topology, tenants, lost, &won, without_code_point)
    }

    /// Goes back to queues that tenants had: they have those of `target` again and nobody else has
    /// any. Who has another tree now, or would meet a stranger, shares queue 0; who cannot be told
    /// keeps what it has.
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
            .map(|(tenant, _)| *tenant)
            .collect();
        lost.extend(others.into_iter().filter_map(|tenant| self.release(tenant)));
        let mut won = BTreeSet::new();
        for candidate in tenants {
            let Some(bound) = wanted.get(&candidate.tenant) else { continue };
            let free = |(port, queue): &(Port, u8)| {
                let there = (1..self.settings.queues).contains(queue);
                there && self.holders[self.place(index(*port), *queue)] == NOBODY
            };
            let fits = ports(candidate.links).eq(bound.queues.iter().map(|(port, _)| *port));
            if fits && self.wants(candidate) && bound.queues.iter().all(free) {
                self.seize(candidate.tenant, bound.queues.clone());
                self.bound.entry(candidate.tenant).and_modify(|has| has.dscp = bound.dscp);
                won.insert(candidate.tenant);
            }
        }
        self.finish(topology, tenants, lost, &won, Vec::new())
    }

    /// Gives what is still spare to those who were looked at before it was: a victim leaves queues
    /// on ports where nobody took one from it.
    fn sweep(
        &mut self,
        topology: &Topology,
        order: &[usize],
        tenants: &[Candidate<'_>],
        won: &mut BTreeSet<TenantSlot>,
    ) {
        for at in order {
            // With no score nobody is a victim.
            let candidate = Candidate { score: 0, ..tenants[*at] };
            if !self.wants(&candidate) {
                continue;
            }
            if let Some(Grab { queues, .. }) = self.choose(topology, &candidate, &BTreeMap::new()) {
                self.seize(candidate.tenant, queues);
                won.insert(candidate.tenant);
            }
        }
    }

    fn wants(&self, candidate: &Candidate<'_>) -> bool {
        let has = self.bound.contains_key(&candidate.tenant);
        !has && candidate.movable && !candidate.links.is_empty()
    }

    /// Takes the queues of those who are gone or have other links.
    fn drop_strangers(&mut self, tenants: &[Candidate<'_>]) -> Vec<(TenantSlot, Bound)> {
        let links: BTreeMap<TenantSlot, _> = tenants.iter().map(|t| (t.tenant, t.links)).collect();
        let same = |tenant| links.get(&tenant).is_some_and(|links| self.covers(tenant, links));
        let strangers = self.bound.keys().copied().filter(|tenant| !same(*tenant));
        let strangers: Vec<TenantSlot> = strangers.collect();
        strangers.into_iter().filter_map(|tenant| self.release(tenant)).collect()
    }

    /// Queues for a tenant on all of its ports, and whose they are now.
    fn choose(
        &self,
        topology: &Topology,
        candidate: &Candidate<'_>,
        scores: &BTreeMap<u32, u64>,
    ) -> Option<Grab> {
        let mut queues = Vec::new();
        let mut victims = BTreeSet::new();
        let mut price = 0_u64;
        for group in self.groups(topology, candidate) {
            let offers = (1..=self.settings.dedicated()).filter_map(|queue| {
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

    /// What a queue on these ports costs: the scores of those who lose theirs, and who they are.
    fn price(
        &self,
        group: &[Port],
        queue: u8,
        candidate: &Candidate<'_>,
        scores: &BTreeMap<u32, u64>,
        victims: &BTreeSet<u32>,
    ) -> Option<(u64, Vec<u32>)> {
        let (mut price, mut taken) = (0_u64, Vec::new());
        for port in group {
            let holder = self.holders[self.place(index(*port), queue)];
            if holder == NOBODY || victims.contains(&holder) || taken.contains(&holder) {
                continue;
            }
            let score = scores.get(&holder).copied().unwrap_or(0);
            if !self.may_lose(TenantSlot(holder), score, candidate.score) {
                return None;
            }
            price = price.saturating_add(score);
            taken.push(holder);
        }
        Some((price, taken))
    }

    fn may_lose(&self, holder: TenantSlot, score: u64, to: u64) -> bool {
        let held = self.bound.get(&holder).map_or(0, |bound| self.interval - bound.since);
        let wanted = u128::from(score) * u128::from(self.settings.hysteresis_permille);
        held >= self.settings.hold && u128::from(to) * 1000 > wanted
    }

    /// A tenant's ports, those together that must have the same queue.
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

    /// A tenant's queue on each switch, where that is one queue.
    fn by_switch(&self, topology: &Topology, tenant: TenantSlot) -> Vec<(NodeId, u8)> {
        let bound = self.bound.get(&tenant).filter(|_| self.settings.mode == Mode::PerPortMap);
        let queues = bound.into_iter().flat_map(|bound| &bound.queues);
        let all: BTreeSet<_> = queues.map(|(p, queue)| (sender(topology, *p), *queue)).collect();
        all.into_iter().collect()
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
        let bound = self.bound.remove(&tenant)?;
        for (port, queue) in &bound.queues {
            let place = self.place(index(*port), *queue);
            self.holders[place] = NOBODY;
        }
        Some((tenant, bound))
    }

    /// Gives code points to those who won queues; who finds none is returned, without queues.
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
                if let Some(bound) = self.bound.get_mut(tenant) {
                    let queue = bound.queues.first().map_or(1, |(_, queue)| *queue);
                    bound.dscp = palette.values()[usize::from(queue) - 1];
                }
            }
            return Vec::new();
        }
        let bound = order.iter().map(|at| &tenants[*at]);
        let bound: Vec<_> = bound.filter(|t| self.bound.contains_key(&t.tenant)).collect();
        let links: Vec<Vec<LinkId>> =
            bound.iter().map(|t| t.links.iter().map(|(link, _)| *link).collect()).collect();
        let queues: Vec<_> = bound.iter().map(|t| self.by_switch(topology, t.tenant)).collect();
        let users: Vec<User<'_>> = (bound.iter().zip(&links).zip(&queues))
            .map(|((t, links), queues)| User {
                has: self.bound.get(&t.tenant).map(|b| b.dscp),
                links,
                queues,
            })
            .collect();
        let all_links = self.holders.len() / 2 / usize::from(self.settings.dedicated());
        let values = colour(palette, all_links, &users);
        let mut without = Vec::new();
        for (candidate, value) in bound.iter().zip(values) {
            match (value, self.bound.get_mut(&candidate.tenant)) {
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
        let ports = self.reweigh(topology, tenants, won);
        let gained: Vec<_> =
            won.iter().filter_map(|tenant| Some((*tenant, self.bound.get(tenant)?))).collect();
        let plan = plan::plan(self.interval, self.settings.drain, &lost, &gained, ports);
        let had: BTreeSet<TenantSlot> = lost.iter().map(|(tenant, _)| *tenant).collect();
        let demoted = had.iter().filter(|tenant| !self.bound.contains_key(tenant)).copied();
        let demoted = demoted.collect();
        let promoted = won.difference(&had).copied().collect();
        Pass { interval: self.interval, promoted, demoted, without_code_point, plan }
    }

    /// By port of these links the tenant's queue there and what it has reserved.
    fn parts(
        &self,
        tenant: TenantSlot,
        links: &[(LinkId, Need)],
    ) -> impl Iterator<Item = (Port, usize, u64)> {
        let own = self.bound.get(&tenant).filter(|_| self.covers(tenant, links));
        let mut own = own.into_iter().flat_map(|bound| bound.queues.iter());
        let rates = links.iter().flat_map(|(_, need)| [need.down.0, need.up.0]);
        ports(links).zip(rates).map(move |(port, rate)| {
            (port, own.next().map_or(0, |(_, queue)| usize::from(*queue)), rate)
        })
    }

    /// Works out anew what all tenants have reserved, and all weights, without a pass: after
    /// [`Self::resume`].
    pub fn reserve_all<'a>(
        &mut self,
        topology: &Topology,
        tenants: impl IntoIterator<Item = (TenantSlot, &'a [(LinkId, Need)])>,
    ) {
        let queues = usize::from(self.settings.queues);
        self.reserved.fill(0);
        self.weights.clear();
        let mut used = BTreeSet::new();
        for (tenant, links) in tenants {
            let parts: Vec<_> = self.parts(tenant, links).collect();
            for (port, queue, rate) in parts {
                self.reserved[index(port) * queues + queue] += rate;
                used.insert(port);
            }
        }
        for port in used {
            self.weights.insert(port, self.weigh(topology, port));
        }
    }

    /// A tenant that had `before` has `now`: enters what it reserves at once, so that no port waits
    /// for the next pass. It gets no queues by that, and what it had stays reserved till then.
    /// Returns the steps that give ports their new weights.
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
            if self.weights.get(&port) != Some(&weights) {
                self.weights.insert(port, weights.clone());
                steps.push(Step::Weigh { port, weights });
            }
        }
        steps
    }

    /// A port's weights by what is reserved there.
    fn weigh(&self, topology: &Topology, port: Port) -> Weights {
        let queues = usize::from(self.settings.queues);
        let reserved = &self.reserved[index(port) * queues..][..queues];
        weights(reserved, topology.rate(port.link).0)
    }

    /// Works out what is reserved in each queue; returns the ports where that changed. Meanwhile
    /// queue 0 has those who have lost their queues already and those who are still to get some.
    fn reweigh(
        &mut self,
        topology: &Topology,
        tenants: &[Candidate<'_>],
        won: &BTreeSet<TenantSlot>,
    ) -> Vec<Reweigh> {
        let queues = usize::from(self.settings.queues);
        let mut now = vec![0_u64; self.reserved.len()];
        // By port: of those who are still to get a queue.
        let mut guests: BTreeMap<usize, u64> = BTreeMap::new();
        for candidate in tenants {
            for (port, queue, rate) in self.parts(candidate.tenant, candidate.links) {
                let at = index(port);
                now[at * queues + queue] += rate;
                if queue != 0 && won.contains(&candidate.tenant) {
                    *guests.entry(at).or_default() += rate;
                }
            }
        }
        let mut changed = Vec::new();
        let mut last: Option<Known<'_>> = None;
        let pairs = self.reserved.chunks(queues).zip(now.chunks(queues));
        for (at, (old, new)) in pairs.enumerate() {
            let guests = guests.get(&at).copied().unwrap_or(0);
            if old == new && guests == 0 {
                continue;
            }
            let port = Port { link: LinkId(crate::topology::number(at / 2)), up: at % 2 == 1 };
            let rate = topology.rate(port.link).0;
            // The two directions of a link are mostly alike.
            let same = |l: &Known<'_>| (l.old, l.new, l.guests, l.rate) == (old, new, guests, rate);
            let known = last.filter(same).unwrap_or_else(|| {
                let mut either: Vec<u64> = old.iter().zip(new).map(|(a, b)| *a.max(b)).collect();
                either[0] = either[0].max(new[0] + guests);
                let after = weights(new, rate);
                let during = if either == new { after.clone() } else { weights(&either, rate) };
                Known { old, new, guests, rate, during, after }
            });
            let (during, after) = (known.during.clone(), known.after.clone());
            last = Some(known);
            changed.push(Reweigh { port, during, after });
        }
        for port in &changed {
            self.weights.insert(port.port, port.after.clone());
        }
        self.reserved = now;
        changed
    }
}

/// Both ends of each link, in the order of [`Port`].
fn ports(links: &[(LinkId, Need)]) -> impl Iterator<Item = Port> + '_ {
    links.iter().flat_map(|(link, _)| [false, true].map(|up| Port { link: *link, up }))
}

/// Which node sends by a port.
fn sender(topology: &Topology, port: Port) -> NodeId {
    if port.up { topology.child(port.link) } else { topology.parent(port.link) }
}

fn index(port: Port) -> usize {
    2 * port.link.index() + usize::from(port.up)
}
