//! Sets the rates of the pairs of VMs that share a queue of a fabric, once per period.
//!
//! # Approach
//!
//! The workers count frames and store answers of other hosts in a table
//! ([`penstock_qos::pair_table`]). A period reads the table, computes the rates
//! ([`penstock_fabric::rate_alloc::host_rates`]) and writes them to the table. No snapshot changes.
//!
//! TCP does not reach the rate of a bucket that drops frames, so a bucket's rate is the pair's rate
//! times a headroom, which shrinks if the pair exceeds its rate (`pace`). All frames of a VM
//! together have the sum of the rates of the VM's pairs, and at least the guarantee. Frames above
//! that rate wait in the VM's ring.
//!
//! A VM receives as much as all pairs that asked may send, and its guarantee in addition. Hosts
//! that do not ask send no more than the guarantee.
//!
//! A host that does not allocate spare bandwidth uses [`GuaranteeControl`] instead.

mod guarantees;
mod pace;

use std::collections::BTreeMap;

use penstock_fabric::rate_alloc::host_rates::{
    Answer, DefaultUse, Hose, PairId, Readings, ReceivedPair, SentPair,
};
use penstock_fabric::rate_alloc::{HostRates, HostRatesSettings, RateSettings};
use penstock_qos::pair_table::{PairKey, PairRef, PairTable, ReceiveReading, SendReading, VmRates};
use penstock_qos::policer::{RATE_MAX, RATE_MIN};
use penstock_units::{BitsPerSecond, Nanos};

pub use guarantees::{GuaranteeControl, TenantTerms};
use pace::Pace;

/// Additional demand that a VM assumes for a pair, in parts per million of the rate that the pair
/// sent.
const SLACK: u32 = 100_000;
/// Ratio of a new bucket's rate to a pair's rate, in thousandths. TCP reaches about an eighth less
/// than the rate of a policer.
const SEND_HEADROOM: u32 = 1_125;
/// Ratio of a receive bucket's rate to the expected rate, in thousandths. With many senders, the
/// rate at a receiver varies.
const RECEIVE_HEADROOM: u32 = 1_250;

/// Guarantee of a VM whose pairs have rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmTerms {
    /// Guaranteed sending rate in bits per second.
    pub send: u64,
    /// Guaranteed receiving rate in bits per second.
    pub receive: u64,
    /// Ratio of the VM's limits to its guarantees, in thousandths.
    pub headroom_permille: u32,
}

/// Pairs of a host after a period. Pairs that are only measured do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairUse {
    /// Pairs with their sender on this host.
    pub sending: usize,
    /// Pairs with their receiver on this host.
    pub receiving: usize,
    /// Sum of the guarantees of the VMs whose pairs have rates, in bits per second.
    pub guaranteed: u64,
    /// Sum of the rates at which the pairs may send, in bits per second.
    pub rate: u64,
}

/// Rates of the pairs of an uplink.
#[derive(Clone, Debug)]
pub struct PairControl {
    rates: HostRates,
    /// Pace of each pair's bucket, and of each VM's default bucket.
    paces: BTreeMap<BucketId, Pace>,
    last: Option<Nanos>,
}

/// A VM's bucket: that of a pair, or the default bucket.
type BucketId = (u16, Option<PairId>);

impl PairControl {
    /// Creates the control of an uplink with the rate `link` in bits per second.
    #[must_use]
    pub const fn new(link: u64) -> Self {
        let rates = RateSettings::shared_queue(BitsPerSecond(link));
        let rates = HostRates::new(HostRatesSettings { rates, slack: SLACK });
        Self { rates, paces: BTreeMap::new(), last: None }
    }

    /// Returns the rate of the uplink in bits per second.
    #[must_use]
    pub const fn link(&self) -> u64 {
        self.rates.settings().rates.most.0
    }

    /// Ends a period at time `now`: reads the table and sets new rates. `vms` has the guarantees of
    /// the VMs whose pairs have rates, by port number. Other VMs have no limits. If `confined` is
    /// true, no pair gets more than its guarantee.
    pub fn period_ends(
        &mut self,
        table: &PairTable,
        vms: &BTreeMap<u16, VmTerms>,
        confined: bool,
        now: Nanos,
    ) -> PairUse {
        let (mut senders, mut receivers) = (BTreeMap::new(), BTreeMap::new());
        let sent: Vec<_> = table.sending().map(|pair| sent(&pair, &mut senders)).collect();
        let received: Vec<_> =
            table.receiving().map(|pair| received(&pair, &mut receivers)).collect();
        let of_vm = |(vm, bytes, refused)| DefaultUse { vm, bytes, refused };
        let defaults: Vec<_> = table.limited().map(of_vm).collect();
        let hoses = vms.iter().map(|(vm, terms)| (*vm, terms.hose())).collect();
        let readings = Readings { sent: &sent, received: &received, defaults: &defaults };
        let rates = self.rates.period_ends(now, &hoses, readings, confined);
        let elapsed = self.last.replace(now).map_or(Nanos::ZERO, |last| now.saturating_sub(last));
        let passed = sent.iter().map(|pair| ((pair.id.vm, Some(pair.id)), pair.bytes));
        let passed = passed.chain(defaults.iter().map(|used| ((used.vm, None), used.bytes)));
        self.pace(passed, vms, elapsed);
        let mut together: BTreeMap<u16, u64> = BTreeMap::new();
        for send in &rates.send {
            let sum = together.entry(send.id.vm).or_default();
            *sum = sum.saturating_add(send.rate.0);
            if let Some(pair) = senders.get(&send.id) {
                let rate = self.bucket_rate((send.id.vm, Some(send.id)), send.rate);
                table.set_sender(*pair, rate, (send.rate, send.part, send.want));
            }
        }
        for (id, part) in &rates.parts {
            if let Some(pair) = receivers.get(id) {
                table.set_receiver(*pair, *part);
            }
        }
        let ended = |ids: &[PairId], refs: &BTreeMap<PairId, PairRef>| -> Vec<PairRef> {
            ids.iter().filter_map(|id| refs.get(id).copied()).collect()
        };
        ended(&rates.idle_senders, &senders).into_iter().for_each(|pair| table.end_sender(pair));
        let idle = ended(&rates.idle_receivers, &receivers);
        idle.into_iter().for_each(|pair| table.end_receiver(pair));
        for ((vm, default), (_, towards)) in rates.default.iter().zip(&rates.towards) {
            let Some(terms) = vms.get(vm) else { continue };
            let default = self.bucket_rate((*vm, None), *default);
            let sum = together.get(vm).copied().unwrap_or(0);
            limit(table, *vm, terms, default, [BitsPerSecond(sum), *towards]);
        }
        for used in defaults.iter().filter(|used| !vms.contains_key(&used.vm)) {
            table.unlimit(used.vm);
        }
        PairUse {
            sending: rates.send.len(),
            receiving: rates.parts.len(),
            guaranteed: vms.values().fold(0, |sum: u64, terms| sum.saturating_add(terms.send)),
            rate: rates.send.iter().fold(0, |sum: u64, send| sum.saturating_add(send.rate.0)),
        }
    }

    /// Ends a period of the buckets with the totals of bytes `passed`, and forgets all other
    /// buckets.
    fn pace(
        &mut self,
        passed: impl Iterator<Item = (BucketId, u64)>,
        vms: &BTreeMap<u16, VmTerms>,
        elapsed: Nanos,
    ) {
        let mut old = std::mem::take(&mut self.paces);
        for (id, bytes) in passed {
            let Some(terms) = vms.get(&id.0) else { continue };
            let least = terms.headroom_permille.max(1_000);
            let most = least.max(SEND_HEADROOM);
            let mut pace = old.remove(&id).unwrap_or_else(|| Pace::new(bytes, most));
            pace.period_ends(bytes, elapsed, (least, most));
            self.paces.insert(id, pace);
        }
    }

    /// Returns the rate of a bucket whose frames may have the rate `rate`.
    fn bucket_rate(&mut self, id: BucketId, rate: BitsPerSecond) -> BitsPerSecond {
        let first = u64::from(SEND_HEADROOM) * 1_000;
        let headroom = self.paces.get_mut(&id).map_or(first, |pace| pace.set(rate.0));
        part(rate.0, headroom, 1_000_000)
    }
}

impl VmTerms {
    const fn hose(&self) -> Hose {
        Hose { send: BitsPerSecond(self.send), receive: BitsPerSecond(self.receive) }
    }

    /// Limits a VM to its guarantees before the first period ends. A VM that has limits already
    /// keeps them.
    pub fn enter(&self, table: &PairTable, vm: u16) {
        if !table.is_limited(vm) {
            let headroom = self.headroom_permille.max(SEND_HEADROOM);
            let default = part(self.send, headroom.into(), 1_000);
            limit(table, vm, self, default, [BitsPerSecond(0); 2]);
        }
    }
}

/// Sets the rates of a VM. `default` is the rate of its default bucket. `sent` is the sum of the
/// rates of the VM's pairs, and `towards` is the sum of the rates at which others may send to the
/// VM.
fn limit(
    table: &PairTable,
    vm: u16,
    terms: &VmTerms,
    default: BitsPerSecond,
    [sent, towards]: [BitsPerSecond; 2],
) {
    let receive = terms.receive.saturating_add(towards.0);
    let headroom = |least: u32| u64::from(terms.headroom_permille.max(least));
    let rates = VmRates {
        default,
        // Frames above this rate wait, so TCP needs no headroom.
        send: part(terms.send.max(sent.0), headroom(1_000), 1_000),
        receive: part(receive, headroom(RECEIVE_HEADROOM), 1_000),
    };
    table.limit(vm, rates);
}

/// Returns `parts` of the `whole` parts of a rate, limited to the range of a bucket's rates.
fn part(rate: u64, parts: u64, whole: u64) -> BitsPerSecond {
    let wide = u128::from(rate) * u128::from(parts) / u128::from(whole.max(1));
    let rate = u64::try_from(wide).unwrap_or(u64::MAX);
    BitsPerSecond(rate.clamp(RATE_MIN.0, RATE_MAX.0))
}

fn id(pair: &PairRef) -> PairId {
    let key: PairKey = pair.key;
    PairId { vm: key.port(), peer: key.mac(), epoch: pair.epoch }
}

fn sent(reading: &SendReading, refs: &mut BTreeMap<PairId, PairRef>) -> SentPair {
    let id = id(&reading.pair);
    refs.insert(id, reading.pair);
    let answer = reading.answer.map(|answer| Answer {
        question: answer.number,
        sent: answer.sent,
        epoch: answer.receive_epoch,
        received: answer.received,
        marked: answer.marked,
        part: answer.part,
    });
    let SendReading { bytes, refused, asked, flows, .. } = *reading;
    SentPair { id, bytes, refused, asked, answer, flows }
}

fn received(reading: &ReceiveReading, refs: &mut BTreeMap<PairId, PairRef>) -> ReceivedPair {
    let id = id(&reading.pair);
    refs.insert(id, reading.pair);
    let ReceiveReading { questions, part, want, rate, flows, .. } = *reading;
    ReceivedPair { id, questions, part, want, rate, flows }
}
