//! Shaping of what a port sends: its frames stay in its ring until their time.
//!
//! **Problem.** A shaper delays frames. Copying them to somewhere to wait costs a copy, and takes
//! from the guest what should tell it that it sends too fast: that its ring is full. **Source.** VM
//! jitter §II-C, §III-C. **Rule.** After a batch the shaper, asked for a frame of an MTU, says when
//! the next may depart; until then the port is put aside. The shaper is told each frame when it is
//! taken; one that is longer departs as early as that one would have, and the next waits for it.
//! **Bound.** One group of the shaper (one frame below 20 Mbit/s) more than the shaper lets pass.

use penstock_qos::delay_scale::part_of;
use penstock_qos::shaper::{FRAME, GROUP_TIME, GROUPS_FROM, Shaper};
use penstock_units::{Cycles, Nanos, PortId};

use super::Worker;
use super::aside::Why;
use crate::batch::{BATCH_FRAMES, Batch};
use crate::queue::{FCS, ShapeTerms, ShaperKind, shaper};
use crate::tsc::CycleCounter;

/// A port whose next frame is due within this is not put aside: a turn takes longer.
const SOON: Nanos = Nanos(1_000);

#[derive(Debug)]
struct Gate {
    terms: ShapeTerms,
    shaper: Shaper,
    /// Frames to take at once.
    group: usize,
}

/// The shapers of a worker's ports.
#[derive(Debug)]
pub(super) struct Gates(Box<[Option<Gate>]>);

/// Frames to take at once: a group of the shaper, or what its tokens' period brings, but no more.
fn group_of(terms: &ShapeTerms) -> usize {
    if terms.rate < GROUPS_FROM {
        return 1;
    }
    let time = match terms.kind {
        ShaperKind::Smooth => GROUP_TIME,
        ShaperKind::TokenBucket(period) => period.min(GROUP_TIME),
    };
    let frames = terms.rate.0.saturating_mul(time.0) / 8_000_000_000 / u64::from(FRAME);
    usize::try_from(frames).unwrap_or(BATCH_FRAMES).clamp(1, BATCH_FRAMES)
}

impl Gates {
    pub(super) fn new(ports: usize) -> Self {
        Self((0..ports).map(|_| None).collect())
    }

    /// A port is shaped by these terms from now on, or not at all. True: it is not any more.
    pub(super) fn set(&mut self, port: PortId, terms: Option<&ShapeTerms>) -> bool {
        let Some(gate) = self.0.get_mut(port.index()) else { return false };
        let Some(terms) = terms else { return gate.take().is_some() };
        match gate {
            Some(gate) if gate.terms == *terms => {}
            Some(gate) if gate.terms.kind == terms.kind => {
                // Bumpless: what was sent so far still counts.
                if gate.shaper.set_rate(terms.rate).is_ok() {
                    (gate.terms, gate.group) = (*terms, group_of(terms));
                }
            }
            _ => {
                let made = shaper(terms).ok();
                *gate = made.map(|shaper| Gate { terms: *terms, shaper, group: group_of(terms) });
            }
        }
        false
    }

    pub(super) fn forget(&mut self, port: PortId) {
        self.set(port, None);
    }

    /// Whether a port is shaped.
    #[inline]
    pub(super) fn is_shaped(&self, port: PortId) -> bool {
        self.0[port.index()].is_some()
    }

    /// How many frames may be taken at once.
    #[inline]
    pub(super) fn limit(&self, port: PortId) -> usize {
        match &self.0[port.index()] {
            None => BATCH_FRAMES,
            Some(gate) => gate.group,
        }
    }

    /// A batch was taken whose first frame came at `since`: when the next may be; `None`: the port
    /// is not shaped.
    fn pass(&mut self, port: PortId, batch: &Batch, since: Nanos, now: Nanos) -> Option<Nanos> {
        let gate = self.0.get_mut(port.index())?.as_mut()?;
        for frame in batch.frames() {
            gate.shaper.depart(since, frame.len + FCS);
        }
        Some(gate.shaper.clone().depart(now, FRAME))
    }
}

impl<C: CycleCounter> Worker<C> {
    /// After a batch of a port whose first frame can have waited so long: puts the port aside until
    /// the next may go.
    #[inline]
    pub(super) fn shape(&mut self, port: PortId, waited: Cycles) {
        let now = self.nanos();
        let since = now.saturating_sub(Nanos(self.clock.nanos(waited)));
        if let Some(counters) = self.port_counters[port.index()].as_deref() {
            let waited = now.saturating_sub(since);
            counters.shaped[part_of(waited)].add(self.batch.len() as u64);
        }
        if let Some(at) = self.outputs.gates.pass(port, &self.batch, since, now)
            && at > now + SOON
        {
            self.outputs.gate_until(port, at);
            self.put_aside(port, Why::Shaped);
        }
    }

    /// What a port sends is shaped as the snapshot says.
    pub(super) fn place_gate(&mut self, port: PortId) {
        let policy = self.snapshot.ports.get(port.index()).and_then(Option::as_deref);
        let terms = policy.and_then(|policy| policy.shape);
        if self.outputs.gates.set(port, terms.as_ref()) {
            self.outputs.gate_open(port);
            self.take_back(port, Why::Shaped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::Offload;
    use penstock_units::BitsPerSecond;

    fn terms(rate: u64) -> ShapeTerms {
        ShapeTerms { rate: BitsPerSecond(rate), kind: ShaperKind::Smooth }
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
        gates.set(port, Some(&terms(2_000_000)));
        let mut batch = Batch::new();
        batch.push(&[0; 1_500], Offload::NONE).unwrap();
        let (mut now, mut sent, mut since) = (Nanos(0), 0_u64, Nanos(0));
        while now < Nanos::from_secs(60) {
            let next = gates.pass(port, &batch, since, now).unwrap();
            sent += 1_500 * 8;
            // The next frame waits since then.
            since = now;
            now = next.max(now + Nanos(2_000));
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = sent as f64 / now.0 as f64 * 1e9;
        assert!((1.98e6..=2.02e6).contains(&rate), "{rate}");
        assert!(gates.set(port, None) && gates.limit(port) == BATCH_FRAMES);
    }
}
