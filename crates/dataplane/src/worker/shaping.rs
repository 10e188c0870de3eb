//! Frames of a port with a shaper or a rate limit stay in the port's ring until they are due.
//!
//! # Problem
//!
//! A shaper delays frames that a port sends. Copying delayed frames into a queue would cost cycles.
//! With a queue, the guest would not notice that the guest sends too fast, because the guest's ring
//! would not fill. A rate limit that drops large segments (TSO) of a TCP stream costs the stream
//! most of its rate.
//!
//! # Source
//!
//! VM jitter §II-C and §III-C describe the shaping of sent frames.
//!
//! # Approach
//!
//! After each batch, the worker asks the shaper when the port may send the next frame of one MTU.
//! Until the computed departure time, the worker does not poll the port. The shaper counts a frame
//! when the worker receives the frame from the port's ring, and not when the frame leaves. A frame
//! longer than one MTU departs as early as a frame of one MTU would, and the next frame waits for
//! the difference. Large segments (TSO) are cut first ([`super::cutter`]).
//!
//! A port sends at most one group of frames more than the shaper permits, because the worker
//! receives the frames in groups. If the shaper's rate is below 20 Mbit/s, a group contains only
//! one frame.
//!
//! A rate limit without a stated depth ([`IngressPolicer::waiting`]) charges each batch to its
//! bucket, and so does the port's part of a full link. If the bucket of the rate limit is in debt,
//! the worker does not poll the port. Several workers may poll queue pairs of one port, and each
//! worker may add a batch to the debt of the port's rate limit. A worker therefore checks the debt
//! again before it polls a port with a rate limit.
//!
//! While the frames in a ring wait too long for a limit, the first frame of a batch signals
//! congestion ([`crate::congestion`], [`penstock_qos::codel`]). A ring does not record when a frame
//! arrived, so the worker estimates the wait from the number of frames in the ring and the limit's
//! rate. Without signals, the stream that began first would keep most of the rate: a ring that
//! never drops a frame makes no TCP stream slow down.
//!
//! A limit on the frames that a tenant sends through shared ports is charged at the output, which
//! may belong to another worker. After a batch with frames to a shared port, the worker does not
//! poll the sending port while the tenant's limit is in debt. A port that sends only to ports of
//! its own host never waits for the limit.
//!
//! [`IngressPolicer::waiting`]: crate::ingress_policer::IngressPolicer::waiting

use core::sync::atomic::Ordering;
use std::sync::Arc;

use penstock_qos::codel::{Codel, Pace};
use penstock_qos::egress_policer::EgressPolicer;
use penstock_qos::flow_shares::{Due, FlowShares};
use penstock_qos::policer::{Limit, Policer, Size};
use penstock_qos::shaper::{FRAME, GROUP_TIME, GROUPS_FROM, Shaper};
use penstock_units::{Nanos, PortId};

use super::cutter::{Cutter, Spares};
use crate::batch::{BATCH_FRAMES, Batch};
use crate::counters::PortCounters;
use crate::ingress_policer::{IngressPolicer, on_wire};
use crate::queue::{FCS, ShapeTerms, ShaperKind, reshape, shaper};
use crate::snapshot::PortPolicy;
use crate::unit::{QUEUES_MAX, Unit};

/// If a port's next frame is due later than this time from now, the worker puts the port aside. If
/// the next frame is due earlier, the port stays in the schedule, because a worker's turn takes
/// longer than 1 us.
pub(super) const SOON: Nanos = Nanos(1_000);

/// Number of frames from which the mean size of a ring's frames is computed.
const RECENT_FRAMES: u32 = 64;

#[derive(Debug)]
struct Shaping {
    terms: ShapeTerms,
    shaper: Shaper,
    /// Maximum number of frames that the worker receives from the shaped port at once.
    group: usize,
    /// Whether the worker put the port aside after the port's last batch.
    aside: bool,
    /// Wait of the first batch of the present group of frames. Zero if the group's first batch did
    /// not wait for the shaper, or if the ring was seen empty since.
    behind: Nanos,
}

/// Rate limits for which a port's frames wait in the ring.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    /// The port's own limits, and its parts of links. Limits that drop frames have no gate.
    pub own: Option<Arc<IngressPolicer>>,
    /// The limit on the frames that the port's tenant sends through shared ports.
    pub network: Option<Arc<EgressPolicer>>,
}

/// Rate limit for which a port's frames wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Holder {
    /// The port's own limit in bits per second.
    #[default]
    Bits,
    /// The port's own limit in frames per second.
    Frames,
    /// The limit on the frames that the port's tenant sends through shared ports.
    Network,
    /// The port's part of a full link, as its place in [`IngressPolicer::links`].
    Link(usize),
}

impl Limits {
    /// Returns the limits of a port with the policy `policy`.
    pub(super) fn of(policy: Option<&PortPolicy>) -> Self {
        let own = policy.and_then(|policy| policy.ingress_policer.clone());
        let network = policy.and_then(|policy| policy.tenant_policer.clone());
        Self { own, network: network.filter(|limit| limit.waits()) }
    }

    /// The port's own limits for which frames wait, and its parts of links that are full now.
    fn own(&self) -> impl Iterator<Item = (&Arc<Policer>, Holder)> {
        let holder = |limit: &Arc<Policer>| match limit.spec().limit() {
            Limit::Packets { .. } => Holder::Frames,
            Limit::SingleRate { .. } | Limit::TwoRate { .. } => Holder::Bits,
        };
        let own = self.own.iter().flat_map(|limits| limits.waiting());
        let links = self.own.iter().flat_map(|limits| limits.links.iter().enumerate());
        let full = links.filter(|(_, link)| link.is_active());
        own.map(move |limit| (limit, holder(limit)))
            .chain(full.map(|(place, link)| (&link.policer, Holder::Link(place))))
    }

    /// Like [`Self::own`], with the parts of links that are not full.
    fn possible(&self) -> impl Iterator<Item = &Arc<Policer>> {
        let links = self.own.iter().flat_map(|limits| limits.links.iter());
        let own = self.own.iter().flat_map(|limits| limits.waiting());
        own.chain(links.map(|link| &link.policer))
    }

    /// Returns the time in which the limit that holds a port passes frames of the size `size`.
    fn time_for(&self, holder: Holder, size: Size) -> Nanos {
        match holder {
            Holder::Network => self.network.as_ref().map_or(Nanos::ZERO, |l| l.time_for(size)),
            Holder::Bits | Holder::Frames | Holder::Link(_) => {
                self.own().map(|(limit, _)| limit.time_for(size)).max().unwrap_or_default()
            }
        }
    }

    /// Whether large segments must be cut before one of the limits now. The limit on the frames
    /// that leave the host counts only if the port's frames leave.
    fn cut(&self, leaves: bool) -> bool {
        let network = self.network.as_ref().filter(|_| leaves);
        self.own().any(|(limit, _)| limit.cuts()) || network.is_some_and(|limit| limit.cuts())
    }

    /// Whether large segments may have to be cut before one of the limits.
    fn may_cut(&self) -> bool {
        let network = self.network.as_ref().is_some_and(|limit| limit.cuts());
        network || self.possible().any(|limit| limit.cuts())
    }

    fn is_none(&self) -> bool {
        self.possible().next().is_none() && self.network.is_none()
    }

    /// Whether the port's frames may have to wait now.
    fn apply(&self) -> bool {
        self.network.is_some() || self.own().next().is_some()
    }

    /// Whether `other` has all limits of `self`.
    fn are_in(&self, other: &Self) -> bool {
        let own = |limit| other.possible().any(|other| Arc::ptr_eq(limit, other));
        let network = |limit| other.network.as_ref().is_some_and(|other| Arc::ptr_eq(limit, other));
        self.possible().all(own) && self.network.iter().all(network)
    }

    /// Counts a wait for the limit `holder`, if the port's part of a link holds it.
    fn count_wait(&self, wait: Nanos, holder: Holder) {
        if let (Some(limits), Holder::Link(place)) = (&self.own, holder)
            && let Some(link) = limits.links.get(place)
        {
            link.waited.fetch_add(wait.0, Ordering::Relaxed);
        }
    }
}

/// Limits that make a port's frames wait in the ring: the shaper, and the rate limits that delay
/// frames instead of dropping them. Only a port with a shaper or with a rate limit for which frames
/// wait has a gate.
#[derive(Debug, Default)]
struct Gate {
    shaping: Option<Shaping>,
    limits: Limits,
    /// Cuts large segments. If the port has no shaper and no slow limit any more, the cutter may
    /// still hold earlier frames.
    cutter: Option<Box<Cutter>>,
    /// Whether the cutter gave the frames of the port's last batch.
    gave: bool,
    /// State of the early signals to the port's senders, if the port has a limit.
    early: Option<Early>,
    /// Whether the port sent frames to a shared port since its limit [`Limits::network`] was in
    /// debt, so that the port waits for the limit.
    leaves: bool,
}

/// State of the signals of congestion that a limit sends before the ring is full.
#[derive(Debug, Default)]
struct Early {
    codel: [Codel; QUEUES_MAX],
    /// For each queue pair, the number of signals that wait for a frame of a heavy flow.
    due: [Due; QUEUES_MAX],
    flows: FlowShares,
    /// For each queue pair, the sum of the sizes of the last frames from its ring, and their
    /// number. A single short frame must not make the ring look short.
    recent: [(Size, u32); QUEUES_MAX],
    /// The limit for which the port waited before the present batch.
    held: Option<Holder>,
}

/// The shapers and waiting rate limits of a worker's ports.
#[derive(Debug)]
pub(super) struct Gates {
    /// Gates by port number. `None` for a port without a shaper and without a limit.
    gates: Box<[Option<Gate>]>,
    /// Cutters for ports that begin to need one.
    spares: Arc<Spares>,
}

/// Limits that [`Gates::set`] removed from a port, so that the port's frames need not wait for
/// these limits any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    pub shaper: bool,
    pub policer: bool,
}

/// Whether a port with the policy `policy` needs a cutter.
pub(super) fn needs_cutter(policy: &PortPolicy) -> bool {
    policy.shape.is_some() || Limits::of(Some(policy)).may_cut()
}

/// Returns the number of frames that the worker takes from a shaped port at once. The number of
/// frames is at most the shaper's group, and at most the frames that the token bucket permits in
/// one period.
fn group_of(terms: &ShapeTerms) -> usize {
    if terms.rate < GROUPS_FROM {
        return 1;
    }
    let time = match terms.kind {
        ShaperKind::Smooth(_) => GROUP_TIME,
        ShaperKind::TokenBucket(period) => period.min(GROUP_TIME),
    };
    let frames = terms.rate.0.saturating_mul(time.0) / 8_000_000_000 / u64::from(FRAME);
    usize::try_from(frames).unwrap_or(BATCH_FRAMES).clamp(1, BATCH_FRAMES)
}

impl Gates {
    pub(super) fn new(ports: usize) -> Self {
        // A port may have a cutter, and another one for a new snapshot.
        let spares = Arc::new(Spares::new(2 * ports));
        Self { gates: (0..ports).map(|_| None).collect(), spares }
    }

    /// Returns the cutters that no port uses.
    pub(super) const fn spares(&self) -> &Arc<Spares> {
        &self.spares
    }

    /// Sets a port's shaper, and the port's rate limits for which frames wait. If a new rate limit
    /// replaces an old rate limit, the old limit counts as removed, because its debt does not apply
    /// to the new limit.
    pub(super) fn set(&mut self, port: PortId, terms: Option<&ShapeTerms>, limits: Limits) -> Gone {
        let Some(slot) = self.gates.get_mut(port.index()) else { return Gone::default() };
        let mut gate = slot.take().unwrap_or_default();
        let policer = !gate.limits.are_in(&limits);
        let gone = Gone { shaper: gate.set_shaper(terms), policer };
        gate.limits = limits;
        let may_cut = gate.shaping.is_some() || gate.limits.may_cut();
        // What the cutter still holds leaves under the new limits.
        if may_cut && gate.cutter.is_none() {
            gate.cutter = Some(self.spares.take());
        } else if !may_cut && let Some(empty) = gate.cutter.take_if(|cutter| cutter.is_empty()) {
            self.spares.put(empty);
        }
        if gate.limits.is_none() {
            gate.early = None;
        } else {
            gate.early.get_or_insert_default();
        }
        let needed = gate.cutter.is_some() || gate.shaping.is_some() || !gate.limits.is_none();
        *slot = needed.then_some(gate);
        gone
    }

    /// Removes all limits of a port. Returns the number of frames that the cutter held and that are
    /// lost.
    pub(super) fn forget(&mut self, port: PortId) -> usize {
        let lost = self.cutter(port).map_or(0, Cutter::clear);
        self.set(port, None, Limits::default());
        lost
    }

    /// Whether large segments of the port may have to be cut.
    pub(super) fn cuts(&self, port: PortId) -> bool {
        let gate = self.gates.get(port.index()).and_then(Option::as_ref);
        gate.is_some_and(|gate| gate.shaping.is_some() || gate.limits.may_cut())
    }

    /// Returns the cutter for the port's next large segments. Returns `None` if they are not cut.
    pub(super) fn cutter_of_next(&mut self, port: PortId) -> Option<&mut Cutter> {
        let gate = self.gates.get_mut(port.index())?.as_mut()?;
        let cuts = gate.shaping.is_some() || gate.limits.cut(gate.leaves);
        gate.cutter.as_deref_mut().filter(|_| cuts)
    }

    fn cutter(&mut self, port: PortId) -> Option<&mut Cutter> {
        self.gates.get_mut(port.index())?.as_mut()?.cutter.as_deref_mut()
    }

    /// Whether the port's cutter holds frames, which leave before the frames in the port's rings.
    pub(super) fn holds(&self, port: PortId) -> bool {
        let cutter = self.gates[port.index()].as_ref().and_then(|gate| gate.cutter.as_deref());
        cutter.is_some_and(|cutter| !cutter.is_empty())
    }

    /// Fills the empty `batch` from the port's cutter. Returns false if the cutter is empty, so
    /// that the worker must take the frames from the port's ring.
    pub(super) fn give(
        &mut self,
        port: PortId,
        batch: &mut Batch,
        counters: &PortCounters,
    ) -> bool {
        let Some(Some(gate)) = self.gates.get_mut(port.index()) else { return false };
        gate.gave = false;
        let Some(cutter) = gate.cutter.as_deref_mut().filter(|cutter| !cutter.is_empty()) else {
            return false;
        };
        cutter.give(batch, port, counters);
        gate.gave = true;
        true
    }

    /// Returns the time at which the frames of the port's last batch arrived in the port's ring, if
    /// the frames came from the port's cutter.
    pub(super) fn arrived(&self, port: PortId) -> Option<Nanos> {
        let gate = self.gates[port.index()].as_ref().filter(|gate| gate.gave)?;
        gate.cutter.as_ref().map(|cutter| cutter.arrived())
    }

    /// Records whether the batch that the worker took from a port had frames to a shared port. A
    /// port with such frames waits for its tenant's limit until the limit is out of debt, even if
    /// later batches have only frames to neighbours.
    pub(super) fn note_leaves(&mut self, port: PortId, leaves: bool, now: Nanos) {
        let Some(gate) = &mut self.gates[port.index()] else { return };
        let Some(limit) = &gate.limits.network else { return };
        gate.leaves = leaves
            || gate.leaves && {
                limit.refill(now);
                limit.wait().is_some()
            };
    }

    /// Whether a limit of the port signals congestion early.
    pub(super) fn has_early(&self, port: PortId) -> bool {
        let gate = self.gates.get(port.index()).and_then(Option::as_ref);
        gate.is_some_and(|gate| gate.early.is_some())
    }

    /// Notes the sizes of the frames that the worker took from the ring of a queue pair.
    pub(super) fn note_sizes(&mut self, unit: Unit, batch: &Batch) {
        let Some(Some(gate)) = self.gates.get_mut(unit.port.index()) else { return };
        let Some(early) = gate.early.as_mut().filter(|_| gate.limits.apply()) else { return };
        let mut sum = Size::default();
        (0..batch.len()).for_each(|i| sum += on_wire(batch, i));
        let Some((sizes, frames)) = early.recent.get_mut(unit.queue.index()) else { return };
        if *frames >= RECENT_FRAMES {
            // The older half of the frames counts half.
            (sizes.bytes, sizes.frames, *frames) = (sizes.bytes / 2, sizes.frames / 2, *frames / 2);
        }
        *sizes += sum;
        *frames += u32::try_from(batch.len()).unwrap_or(0);
    }

    /// Notes whether a limit makes the port wait after its last batch, and for how long.
    pub(super) fn note_held(&mut self, port: PortId, held: Option<(Nanos, Holder)>) {
        if let Some(Some(Gate { early: Some(early), limits, .. })) =
            self.gates.get_mut(port.index())
        {
            early.held = held.map(|(_, holder)| holder);
            if let Some((wait, holder)) = held {
                limits.count_wait(wait, holder);
            }
        }
    }

    /// Whether the port waited for a limit before the present batch, and the batch is from the ring
    /// of this queue pair.
    pub(super) fn is_held(&self, unit: Unit) -> bool {
        let Some(gate) = self.gates.get(unit.port.index()).and_then(Option::as_ref) else {
            return false;
        };
        let held = gate.early.as_ref().is_some_and(|early| early.held.is_some());
        let cutter = gate.cutter.as_deref().filter(|_| gate.gave);
        held && cutter.is_none_or(|cutter| cutter.from() == unit.queue)
    }

    /// Whether the next frame of a queue pair is to signal congestion, while `backlog` frames wait
    /// behind it in the ring. The next frame has a flow and a length in bytes. A signal waits for a
    /// frame of a flow that uses at least its share of the limit, until the next signal is due.
    pub(super) fn signals(
        &mut self,
        unit: Unit,
        (flow, bytes): (u32, u32),
        backlog: usize,
        now: Nanos,
    ) -> bool {
        let Some(Some(Gate { early: Some(early), limits, .. })) =
            self.gates.get_mut(unit.port.index())
        else {
            return false;
        };
        let Some(holder) = early.held else { return false };
        let (sum, frames) = early.recent[unit.queue.index() % QUEUES_MAX];
        let all = |part: u32, frames_behind: usize| {
            let units = u64::from(part) * frames_behind as u64 / u64::from(frames.max(1));
            u32::try_from(units).unwrap_or(u32::MAX)
        };
        let time = |frames_behind| {
            let (bytes, frames) = (all(sum.bytes, frames_behind), all(sum.frames, frames_behind));
            limits.time_for(holder, Size { bytes, frames })
        };
        let (waited, pace) = (time(backlog), Pace::of(time(1)));
        let codel = &mut early.codel[unit.queue.index() % QUEUES_MAX];
        let due = &mut early.due[unit.queue.index() % QUEUES_MAX];
        early.flows.note(flow, bytes);
        let new = codel.signals(waited, pace, backlog > 1, now);
        due.signals(new, codel.is_signalling(), || early.flows.is_heavy(flow))
    }

    /// Whether the port has a shaper or a rate limit for which frames wait.
    #[inline]
    pub(super) fn is_gated(&self, port: PortId) -> bool {
        self.gates[port.index()].is_some()
    }

    pub(super) fn is_shaped(&self, port: PortId) -> bool {
        self.gates[port.index()].as_ref().is_some_and(|gate| gate.shaping.is_some())
    }

    /// Returns the maximum number of frames that the worker may receive from a port at once.
    #[inline]
    pub(super) fn limit(&self, port: PortId) -> usize {
        match &self.gates[port.index()] {
            None => BATCH_FRAMES,
            Some(gate) => gate.limit(),
        }
    }

    /// Returns the time from `now` until the port's rate limits are out of debt, and the limit with
    /// the longest debt. Returns 0 if no rate limit is in debt.
    pub(super) fn debt(&self, port: PortId, now: Nanos) -> (Nanos, Holder) {
        let gate = self.gates.get(port.index()).and_then(Option::as_ref);
        gate.map_or_else(Default::default, |gate| gate.debt(now))
    }

    /// Charges a received batch to the port's shaper. The first frame of the batch arrived in the
    /// ring at time `since`. Returns the time from which the worker may receive the port's next
    /// batch. Returns `None` if the port is not shaped.
    pub(super) fn pass(
        &mut self,
        port: PortId,
        batch: &Batch,
        since: Nanos,
        now: Nanos,
    ) -> Option<Nanos> {
        let shaping = self.gates.get_mut(port.index())?.as_mut()?.shaping.as_mut()?;
        for frame in batch.frames() {
            shaping.shaper.depart(since, frame.len + FCS);
        }
        let next = shaping.shaper.clone().depart(now, FRAME);
        shaping.aside = next > now + SOON;
        Some(next)
    }

    /// Returns how long the frames of a shaped port's batch waited for the shaper. `waited` is the
    /// time since the worker last looked at the port's ring. A group of frames may take several
    /// batches. The worker receives the later batches without a wait, but their frames were in the
    /// ring while the first batch waited.
    pub(super) fn shaped_wait(&mut self, port: PortId, batch: &Batch, waited: Nanos) -> Nanos {
        let Some(gate) = self.gates.get_mut(port.index()).and_then(Option::as_mut) else {
            return waited;
        };
        let full = batch.len() >= gate.limit();
        let Some(shaping) = &mut gate.shaping else { return waited };
        let behind = if shaping.aside { waited } else { shaping.behind };
        shaping.behind = if full { behind } else { Nanos::ZERO };
        behind.max(waited)
    }
}

impl Gate {
    /// Sets the rate and the method of the shaper. Returns true if a shaper was removed.
    fn set_shaper(&mut self, terms: Option<&ShapeTerms>) -> bool {
        let Some(terms) = terms else { return self.shaping.take().is_some() };
        if let Some(shaping) = &mut self.shaping {
            if shaping.terms == *terms {
                return false;
            }
            if reshape(&mut shaping.shaper, &mut shaping.terms, *terms) {
                shaping.group = group_of(terms);
                return false;
            }
        }
        let (made, group) = (shaper(terms).ok(), group_of(terms));
        self.shaping = made.map(|shaper| Shaping {
            terms: *terms,
            shaper,
            group,
            aside: false,
            behind: Nanos::ZERO,
        });
        false
    }

    fn limit(&self) -> usize {
        let group = self.shaping.as_ref().map_or(BATCH_FRAMES, |shaping| shaping.group);
        let own = self.limits.own().fold(group, |most, (limit, _)| limit.batch(most));
        self.limits.network.as_ref().map_or(own, |limit| limit.batch(own))
    }

    fn debt(&self, now: Nanos) -> (Nanos, Holder) {
        let own = self.limits.own().map(|(limit, holder)| {
            limit.refill(now);
            (limit.wait(), holder)
        });
        let network = self.limits.network.iter().filter(|_| self.leaves).map(|limit| {
            limit.refill(now);
            (limit.wait().map_or(Nanos(0), |(wait, _)| wait), Holder::Network)
        });
        own.chain(network).max_by_key(|(wait, _)| *wait).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicU64};

    use crate::ingress_policer::LinkLimit;
    use crate::offload::Offload;
    use penstock_qos::egress_policer::{Meter, Sharing, Terms};
    use penstock_qos::policer::Spec;
    use penstock_qos::shaper::Smoothing;
    use penstock_units::BitsPerSecond;

    fn terms(rate: u64) -> ShapeTerms {
        ShapeTerms { rate: BitsPerSecond(rate), kind: ShaperKind::Smooth(Smoothing::DEFAULT) }
    }

    #[test]
    fn groups_grow_with_the_rate() {
        let groups = [256_000, 19_999_999, 20_000_000, 200_000_000, 10_000_000_000];
        let frames = groups.map(|rate| group_of(&terms(rate)));
        assert_eq!(frames, [1, 1, 1, 8, 32]);
    }

    #[test]
    fn a_backlogged_port_keeps_its_rate() {
        let (mut gates, port) = (Gates::new(2), PortId(1));
        gates.set(port, Some(&terms(2_000_000)), Limits::default());
        let mut batch = Batch::new();
        batch.push(&[0; 1_500], Offload::NONE).unwrap();
        let (mut now, mut sent, mut since) = (Nanos(0), 0_u64, Nanos(0));
        while now < Nanos::from_secs(60) {
            let next = gates.pass(port, &batch, since, now).unwrap();
            sent += 1_500 * 8;
            // The next frame has waited since then.
            since = now;
            now = next.max(now + Nanos(2_000));
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = sent as f64 / now.0 as f64 * 1e9;
        assert!((1.98e6..=2.02e6).contains(&rate), "{rate}");
        assert_eq!(gates.set(port, None, Limits::default()), Gone { shaper: true, policer: false });
        assert_eq!(gates.limit(port), BATCH_FRAMES);
    }

    #[test]
    fn frames_behind_a_batch_that_waited_have_waited_as_long() {
        let (mut gates, port) = (Gates::new(2), PortId(1));
        gates.set(port, Some(&terms(200_000_000)), Limits::default());
        let batch_of = |frames: usize| {
            let mut batch = Batch::new();
            for _ in 0..frames {
                batch.push(&[0; 508], Offload::NONE).unwrap();
            }
            batch
        };
        let (full, rest) = (batch_of(8), batch_of(3));
        let (short, long) = (Nanos(200), Nanos::from_micros(400));
        // A group has 12,500 bytes. Its last batch reaches the end of the group.
        let mut now = Nanos(0);
        for batch in [&full; 3] {
            assert_eq!(gates.shaped_wait(port, batch, short), short, "nothing waited yet");
            now = gates.pass(port, batch, now, now).unwrap();
        }
        assert!(now > Nanos(0) + SOON);
        let waits = [(&full, long), (&full, short), (&rest, short), (&full, short)];
        let waits = waits.map(|(batch, waited)| {
            let wait = gates.shaped_wait(port, batch, waited);
            gates.pass(port, batch, now, now).unwrap();
            wait
        });
        assert_eq!(waits, [long, long, long, short], "the third batch emptied the ring");
    }

    #[test]
    fn a_port_takes_a_spare_cutter_and_gives_it_back() {
        let (mut gates, port) = (Gates::new(2), PortId(1));
        let spares = Arc::clone(gates.spares());
        spares.provide(3);
        gates.set(port, Some(&terms(2_000_000)), Limits::default());
        assert_eq!(spares.count(), 2);
        gates.set(port, Some(&terms(1_000_000)), Limits::default());
        assert_eq!(spares.count(), 2, "it has one");
        gates.set(port, None, Limits::default());
        assert_eq!(spares.count(), 3);
        spares.provide(1);
        assert_eq!(spares.count(), 1);
    }

    fn own(policer: &Arc<Policer>) -> Limits {
        let own = IngressPolicer { own: vec![Arc::clone(policer)], links: Vec::new() };
        Limits { own: Some(Arc::new(own)), network: None }
    }

    #[test]
    fn a_port_above_its_limit_waits_until_the_debt_is_paid() {
        let (mut gates, port) = (Gates::new(2), PortId(1));
        let spec =
            Spec::new(Limit::SingleRate { cir: BitsPerSecond(8_000_000), cbs: 2_000, ebs: 0 });
        let policer = Arc::new(Policer::new(spec.unwrap().waiting()));
        assert_eq!(gates.set(port, None, own(&policer)), Gone::default());
        assert!(gates.is_gated(port) && !gates.is_shaped(port));
        assert_eq!(gates.debt(port, Nanos(0)).0, Nanos(0));
        policer.charge([Size { bytes: 1_500, frames: 1 }; 2].into_iter());
        // A byte takes a microsecond.
        assert_eq!(gates.debt(port, Nanos(0)).0, Nanos::from_micros(1_000));
        assert_eq!(gates.debt(port, Nanos::from_micros(400)).0, Nanos::from_micros(600));
        assert_eq!(gates.debt(port, Nanos::from_micros(1_000)).0, Nanos(0));
        assert_eq!(gates.set(port, None, own(&policer)), Gone::default(), "nothing changed");
        let other = Arc::new(Policer::new(*policer.spec()));
        let replaced = Gone { shaper: false, policer: true };
        assert_eq!(gates.set(port, None, own(&other)), replaced);
        assert_eq!(gates.set(port, None, Limits::default()), replaced);
        assert!(!gates.is_gated(port));
    }

    #[test]
    fn a_part_of_a_link_holds_only_while_the_link_is_full() {
        let (mut gates, port) = (Gates::new(2), PortId(1));
        let part = penstock_qos::bottleneck::part(BitsPerSecond(8_000_000)).unwrap();
        let policer = Arc::new(Policer::new(part));
        let (active, waited): (Arc<AtomicBool>, Arc<AtomicU64>) = Default::default();
        let link = LinkLimit {
            active: Arc::clone(&active),
            waited: Arc::clone(&waited),
            policer: Arc::clone(&policer),
        };
        let own = Some(Arc::new(IngressPolicer { own: Vec::new(), links: vec![link] }));
        let limits = Limits { own, network: None };
        gates.set(port, None, limits.clone());
        policer.charge([Size { bytes: 10_000, frames: 1 }].into_iter());
        assert!(gates.is_gated(port) && gates.cuts(port) && gates.cutter_of_next(port).is_none());
        assert_eq!((gates.debt(port, Nanos(0)).0, gates.limit(port)), (Nanos(0), BATCH_FRAMES));
        active.store(true, Ordering::Relaxed);
        assert!(gates.cutter_of_next(port).is_some());
        let debt = gates.debt(port, Nanos(0));
        assert!(debt.0 > Nanos::from_millis(5) && debt.1 == Holder::Link(0), "{debt:?}");
        gates.note_held(port, Some(debt));
        gates.note_held(port, None);
        assert_eq!(waited.load(Ordering::Relaxed), debt.0.0);
        assert_eq!(gates.set(port, None, limits), Gone::default(), "nothing changed");
        active.store(false, Ordering::Relaxed);
        assert_eq!(gates.debt(port, Nanos(0)).0, Nanos(0));
    }

    #[test]
    fn the_tenants_limit_holds_only_a_port_that_sends_through_shared_ports() {
        let (mut gates, port) = (Gates::new(2), PortId(1));
        let rate = Some((BitsPerSecond(8_000_000), 1_000));
        let meter = Meter::new(Terms { bytes: rate, waits: true, ..Terms::default() });
        let network = Arc::new(EgressPolicer::new(meter, None, Sharing::Strict));
        gates.set(port, None, Limits { own: None, network: Some(Arc::clone(&network)) });
        network.charge_batch([Size { bytes: 1_500, frames: 1 }; 2].into_iter());
        assert_eq!(gates.debt(port, Nanos(0)).0, Nanos(0), "it sends to neighbours");
        gates.note_leaves(port, true, Nanos(0));
        assert_eq!(gates.debt(port, Nanos(0)), (Nanos::from_micros(2_000), Holder::Network));
        assert_eq!(gates.limit(port), 1, "a millisecond has less than a frame");
        gates.note_leaves(port, false, Nanos::from_micros(1_000));
        let left = gates.debt(port, Nanos::from_micros(1_000)).0;
        assert_eq!(left, Nanos::from_micros(1_000), "a frame to a neighbour does not end the wait");
        gates.note_leaves(port, false, Nanos::from_micros(2_000));
        network.charge_batch([Size { bytes: 1_500, frames: 1 }; 2].into_iter());
        assert_eq!(gates.debt(port, Nanos::from_micros(2_000)).0, Nanos(0));
    }
}
