//! Limits on pairs of VMs, as hypervisors enforce them with [`penstock_fabric::rate_alloc`].
//!
//! - Start: when a pair of VMs gets its first flow, each of the two VMs assigns an equal part of
//!   its guarantee to the pair. The smaller part that one of the two VMs assigned becomes the
//!   pair's guarantee and initial rate.
//! - Guarantees: in every `partition` interval, each VM divides its guarantee among its pairs
//!   again. A VM divides its guarantee according to the demand of each pair since the last
//!   division. The division also uses the part that the pair's other VM assigned in the last
//!   division.
//! - Rates: in every rate period, a congestion signal changes the rate limit of each pair. The
//!   congestion signal is the mean fraction of a pair's demand that the pair's queue refused. A TCP
//!   flow with a limit above its share of the queue would lose the refused fraction of its packets.

use penstock_fabric::rate_alloc::{
    LimitedPair, Parts, RateSettings, Signal, UNLIMITED, WHOLE, partition,
};
use penstock_units::{BitsPerSecond, Nanos};

/// Parameters of the limits on pairs of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairLimits {
    /// Parameters for changes of the pairs' rates.
    pub rates: RateSettings,
    /// Time between two divisions of a VM's guarantee.
    pub partition: Nanos,
    /// Additional demand that a VM assumes for a pair, in parts per million of the rate that the
    /// pair sent.
    pub slack: Parts,
    /// Time for which a pair without flows keeps its limit.
    pub forget: Nanos,
}

/// State of a pair of VMs that has a limit.
#[derive(Clone, Debug)]
struct Limited {
    pair: LimitedPair,
    /// Total bits that the pair had sent at the last division of guarantees.
    bits: f64,
    /// Refused fraction of the pair's demand, as an integral over the seconds since the last rate
    /// period.
    refused: f64,
    idle_since: Option<Nanos>,
}

/// The two VMs of a limited pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub pair: u32,
    /// Numbers of the sending VM and the receiving VM.
    pub vms: [u32; 2],
    /// Guaranteed rate of the sending VM, which is also the guaranteed rate of the receiving VM.
    pub hose: BitsPerSecond,
}

impl Ends {
    /// Returns the pair's place in the order of its senders (`side` 0) or receivers (`side` 1).
    const fn place(&self, side: usize) -> (u32, u32) {
        (self.vms[side], self.pair)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Limits {
    settings: PairLimits,
    pairs: Vec<Option<Limited>>,
    listed: Vec<Ends>,
    /// The limited pairs in the order of their senders, and in the order of their receivers. Pairs
    /// of the same VM are in the order of their numbers.
    by_vm: [Vec<Ends>; 2],
    /// For each VM: the number of limited pairs with the VM as sender, and the number with the VM
    /// as receiver.
    busy: Vec<[usize; 2]>,
    last_period: Nanos,
    last_partition: Nanos,
}

impl Limits {
    pub fn new(settings: PairLimits, pairs: usize, vms: usize) -> Self {
        let pairs = std::iter::repeat_with(|| None).take(pairs).collect();
        Self {
            settings,
            pairs,
            listed: Vec::new(),
            by_vm: [Vec::new(), Vec::new()],
            busy: vec![[0; 2]; vms],
            last_period: Nanos(0),
            last_partition: Nanos(0),
        }
    }

    pub fn settings(&self) -> &PairLimits {
        &self.settings
    }

    /// Starts to limit a pair that has flows again. `bits` is the number of bits that the pair has
    /// sent so far.
    pub fn begins(&mut self, ends: Ends, bits: f64) {
        if let Some(limited) = &mut self.pairs[ends.pair as usize] {
            limited.idle_since = None;
            return;
        }
        let hose = self.given(ends.hose);
        for (side, pairs) in self.by_vm.iter_mut().enumerate() {
            self.busy[ends.vms[side] as usize][side] += 1;
            let place = pairs.partition_point(|other| other.place(side) < ends.place(side));
            pairs.insert(place, ends);
        }
        let part = |side: usize| partition::equal(hose, self.busy[ends.vms[side] as usize][side]);
        let sides = [part(0), part(1)];
        self.listed.push(ends);
        self.pairs[ends.pair as usize] = Some(Limited {
            pair: LimitedPair::new(sides, self.settings.slack, &self.settings.rates),
            bits,
            refused: 0.0,
            idle_since: None,
        });
    }

    /// Records that a pair has no flows any more since the time `now`.
    pub fn ends(&mut self, pair: u32, now: Nanos) {
        if let Some(limited) = &mut self.pairs[pair as usize] {
            limited.idle_since = Some(now);
        }
    }

    /// Removes the limits of pairs for which `gone` returns true.
    pub fn lift(&mut self, gone: impl Fn(&Ends) -> bool) {
        self.lift_if(|ends, _| gone(ends));
    }

    fn lift_if(&mut self, gone: impl Fn(&Ends, &Limited) -> bool) {
        let Self { pairs, listed, by_vm, busy, .. } = self;
        let before = listed.len();
        listed.retain(|ends| {
            let limited = &mut pairs[ends.pair as usize];
            let lifted = limited.as_ref().is_some_and(|limited| gone(ends, limited));
            if lifted {
                *limited = None;
                for side in 0..2 {
                    busy[ends.vms[side] as usize][side] -= 1;
                }
            }
            !lifted
        });
        if listed.len() < before {
            for by_vm in by_vm {
                by_vm.retain(|ends| pairs[ends.pair as usize].is_some());
            }
        }
    }

    /// Records that a queue refused the fraction `share` of a pair's demand for `seconds` seconds.
    pub fn refused(&mut self, pair: u32, share: f64, seconds: f64) {
        if let Some(limited) = &mut self.pairs[pair as usize] {
            limited.refused += share * seconds;
        }
    }

    /// Returns a pair's guarantee and rate in bits/s. Guarantee and rate are infinite if the pair
    /// is not limited.
    pub fn of(&self, pair: u32) -> (f64, f64) {
        match &self.pairs[pair as usize] {
            Some(limited) => (bits(limited.pair.guarantee()), bits(limited.pair.rate())),
            None => (f64::INFINITY, f64::INFINITY),
        }
    }

    pub fn pairs(&self) -> impl Iterator<Item = u32> + '_ {
        self.listed.iter().map(|ends| ends.pair)
    }

    /// Ends a rate period, and updates the rates of all limited pairs.
    pub fn period_ends(&mut self, now: Nanos) {
        let seconds = secs(now) - secs(self.last_period);
        self.last_period = now;
        for ends in &self.listed {
            let Some(limited) = &mut self.pairs[ends.pair as usize] else { continue };
            let share = std::mem::replace(&mut limited.refused, 0.0) / seconds;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1")]
            let share = (share.clamp(0.0, 1.0) * f64::from(WHOLE)).round() as u32;
            // The rate of a pair without flows stays unchanged.
            if limited.idle_since.is_none() {
                limited.pair.period_ends(now, Signal::Lost(share), &self.settings.rates);
            } else if share > 0 {
                limited.pair.press();
            }
        }
    }

    /// Divides the guarantees of all VMs among their pairs again. `sent` returns the bits that a
    /// pair has sent so far.
    pub fn divide(&mut self, now: Nanos, sent: impl Fn(u32) -> f64) {
        let seconds = secs(now) - secs(self.last_partition);
        self.last_partition = now;
        let forget = self.settings.forget;
        self.lift_if(|_, limited| limited.idle_since.is_some_and(|since| since + forget <= now));
        for ends in &self.listed {
            let Some(limited) = &mut self.pairs[ends.pair as usize] else { continue };
            let all = sent(ends.pair);
            let rate = ((all - limited.bits) / seconds).max(0.0);
            limited.bits = all;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
            limited.pair.measured(BitsPerSecond(rate as u64));
        }
        let parts = [self.side(0), self.side(1)];
        for (side, parts) in parts.into_iter().enumerate() {
            for (pair, part) in parts {
                if let Some(limited) = &mut self.pairs[pair as usize] {
                    limited.pair.assign(side, part);
                }
            }
        }
        for ends in &self.listed {
            if let Some(limited) = &mut self.pairs[ends.pair as usize] {
                limited.pair.settle(&self.settings.rates);
            }
        }
    }

    /// Divides the guarantees of all senders (`side` 0) or receivers (`side` 1). Returns the part
    /// of a VM's guarantee that each pair of VMs gets.
    fn side(&self, side: usize) -> Vec<(u32, BitsPerSecond)> {
        let order = &self.by_vm[side];
        let mut found = Vec::with_capacity(order.len());
        let (mut wants, mut parts) = (Vec::new(), Vec::new());
        for of_vm in order.chunk_by(|a, b| a.vms[side] == b.vms[side]) {
            let want = |ends: &Ends| {
                let limited = self.pairs[ends.pair as usize].as_ref();
                limited.map_or(UNLIMITED, |limited| limited.pair.want(side))
            };
            wants.clear();
            wants.extend(of_vm.iter().map(want));
            partition::fill(self.given(of_vm[0].hose), &wants, &mut parts);
            found.extend(of_vm.iter().map(|ends| ends.pair).zip(parts.iter().copied()));
        }
        found
    }

    /// Returns the part of a VM's guarantee that the VM divides among its pairs: the guarantee
    /// without the head room.
    fn given(&self, hose: BitsPerSecond) -> BitsPerSecond {
        let kept = u128::from(WHOLE - self.settings.rates.head_room.min(WHOLE));
        let given = u128::from(hose.0) * kept / u128::from(WHOLE);
        BitsPerSecond(u64::try_from(given).unwrap_or(u64::MAX))
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates are far below 2^53")]
fn bits(rate: BitsPerSecond) -> f64 {
    rate.0 as f64
}

#[expect(clippy::cast_precision_loss, reason = "simulated time is far below 2^53 ns")]
pub(super) fn secs(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}
