//! The processor that the VMs of the VM jitter paper share.
//!
//! # Source
//!
//! VM jitter §V: each test has its VMs on one physical processor. The driver domain is on another
//! processor (§III-B).
//!
//! # Departures
//!
//! The scheduler has only the shared processor. In Xen, processors that pinned VMs cannot use still
//! earn credits for those VMs. All VMs would then stay UNDER, and weights would have no effect, so
//! the baseline would be unfair.
//!
//! The path through the driver domain is left out. It takes a constant time of some tens of
//! microseconds. A guest needs 50 us to send or answer. This is an assumption, and the time is
//! small beside all values measured here. A switch between vCPUs costs nothing.
//!
//! Each VM starts at a moment within the first 30 ms, by the seed.

use penstock_qos::delay::{Jitter, Variation};
use penstock_sim::Rng;
use penstock_sim::vcpu::{Background, Frame, GuestId, GuestSpec, Idle, Machine};
use penstock_units::{CpuId, Nanos, Weight};
use penstock_vcpu::admission::{Claim, Limits, WHOLE_PPM, admit};
use penstock_vcpu::credit1::Credit1;
use penstock_vcpu::double_queue::DoubleQueue;
use penstock_vcpu::{Contract, Mode, VcpuScheduler};

use crate::evidence::stats::{count, ms};
use crate::jitter::stream::{CLOCK, stream};

const SHARED: CpuId = CpuId(0);
const CPUS: u16 = 1;
/// Processor time that a guest needs for one packet.
const PACKET: Nanos = Nanos::from_micros(50);

/// The processor and its VMs, under either scheduler.
pub(super) type Bed = Machine<Box<dyn VcpuScheduler>>;

/// A bed with Xen's credit scheduler.
pub(super) fn credit1(seed: u64) -> Bed {
    bed(Box::new(Credit1::new(CPUS)), seed)
}

/// A bed with Penstock's scheduler.
pub(super) fn double_queue(seed: u64) -> Bed {
    bed(Box::new(DoubleQueue::new(CPUS)), seed)
}

fn bed(scheduler: Box<dyn VcpuScheduler>, seed: u64) -> Bed {
    let mut bed = Machine::new(scheduler, CPUS, seed);
    bed.run_until(Nanos(Rng::new(seed).below(30_000_000)));
    bed
}

pub(super) fn weight(weight: u64) -> anyhow::Result<Weight> {
    Ok(Weight::new(weight)?)
}

/// Starts a VM on the shared processor.
pub(super) fn start(
    bed: &mut Bed,
    contract: &Contract,
    spec: GuestSpec,
) -> anyhow::Result<GuestId> {
    bed.start(contract, SHARED, spec).ok_or_else(|| anyhow::anyhow!("{contract:?} does not fit"))
}

/// Whether the shared processor admits these deadlines, each with one of `vms` equal shares.
pub(super) fn are_admitted(deadlines: &[Nanos], vms: u64) -> bool {
    let claim = |deadline: &Nanos| Claim { deadline: *deadline, share_ppm: WHOLE_PPM / vms };
    let claims: Vec<Claim> = deadlines.iter().map(claim).collect();
    admit(&claims, false, Limits::default()).is_ok()
}

/// Contract of a VM with this deadline. Without a deadline, the VM is scheduled by credit.
pub(super) fn terms(mode: Mode, deadline: Option<Nanos>, weight: Weight) -> Contract {
    match deadline {
        Some(deadline) => Contract::real_time(mode, deadline, weight),
        None => Contract::by_credit(weight),
    }
}

/// Length of the group of pictures that an encoder processes at a time. Open in the paper.
const BATCH: Nanos = Nanos::from_millis(500);

/// The streaming VM of Figs. 2 and 6. Its encoder uses `load_pct` of a processor, and the seed
/// varies each batch by up to a tenth. A separate thread, which the encoder does not delay, sends
/// the packets of [`crate::jitter::stream`].
pub(super) fn streaming(seed: u64, span: Nanos, load_pct: u64, idle: Idle) -> GuestSpec {
    let due = |(due, _): (Nanos, Nanos)| due;
    let packets = stream(seed).into_iter().map(due);
    let packets: Vec<Nanos> = packets.take_while(|due| *due < span).collect();
    let work = Nanos(BATCH.0 / 100 * load_pct);
    let background = Background::Batches { period: BATCH, work, spread_pct: 10 };
    GuestSpec { background, stream: (packets, PACKET), answer: PACKET, idle }
}

/// A guest's stream as it left the machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Stream {
    /// RFC 3550's J after each packet: (seconds, ms).
    jitter: Vec<(f64, f64)>,
    /// Greatest difference between the delays of two consecutive packets (RFC 3393), in ms.
    pub variation_max: f64,
}

impl Stream {
    /// All packets that `guest` sent.
    pub fn of(bed: &Bed, guest: GuestId) -> Self {
        let mut j = Jitter::new(CLOCK);
        let mut variation = Variation::new();
        let mut found = Self::default();
        for sent in bed.sent().iter().filter(|sent| sent.guest == guest) {
            let Frame::Stream(due) = sent.frame else { continue };
            let units = u128::from(due.0) * u128::from(CLOCK) / 1_000_000_000;
            #[expect(clippy::cast_possible_truncation, reason = "timestamps go round")]
            j.record(sent.at, units as u32);
            variation.record(sent.at.saturating_sub(due));
            found.jitter.push((ms(sent.at) / 1e3, ms(j.nanos())));
        }
        found.variation_max = ms(variation.sizes().max());
        found
    }

    /// Mean of J, in ms.
    pub fn mean(&self) -> f64 {
        self.jitter.iter().map(|point| point.1).sum::<f64>() / count(self.jitter.len())
    }

    /// Greatest J, in ms.
    pub fn max(&self) -> f64 {
        self.jitter.iter().map(|point| point.1).fold(0.0, f64::max)
    }

    /// Every eighth value of J, because a picture cannot show more.
    pub fn thinned(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.jitter.iter().copied().step_by(8)
    }
}
