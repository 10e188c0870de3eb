//! The simulated processor that the VMs in Figs. 2, 6, 7 and 12 of the VM jitter paper share.
//!
//! # Source
//!
//! VM jitter §V: in each test, all VMs are on one physical processor. The driver domain is on
//! another processor (§III-B).
//!
//! # Departures
//!
//! The scheduler manages only the shared processor. In Xen, other processors also earn credits for
//! VMs that are pinned to the shared processor. With the credits of other processors, all VMs would
//! always have credits (Xen's state UNDER), and weights would have no effect. A baseline in which
//! weights have no effect would be unfair.
//!
//! The simulation omits the path through the driver domain, which takes a constant time of some
//! tens of microseconds. A guest needs 50 us to send or answer. The time of 50 us for sending or
//! answering is an assumption, and is small compared with all measured values. In the simulation, a
//! switch between vCPUs takes no time.
//!
//! Each VM starts at a random time within the first 30 ms.

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
/// Processor time that a guest needs to send or answer one packet.
const PACKET: Nanos = Nanos::from_micros(50);

/// The shared processor and its VMs, with Xen's or Penstock's scheduler.
pub(super) type Bed = Machine<Box<dyn VcpuScheduler>>;

/// Creates a simulated processor with Xen's credit scheduler.
pub(super) fn credit1(seed: u64) -> Bed {
    bed(Box::new(Credit1::new(CPUS)), seed)
}

/// Creates a simulated processor with Penstock's scheduler.
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
    bed.start(contract, SHARED, spec)
        .ok_or_else(|| anyhow::anyhow!("the processor cannot admit the VM {contract:?}"))
}

/// Returns true if admission control accepts VMs with the deadlines `deadlines`, if each of `vms`
/// VMs has an equal share.
pub(super) fn are_admitted(deadlines: &[Nanos], vms: u64) -> bool {
    let claim = |deadline: &Nanos| Claim { deadline: *deadline, share_ppm: WHOLE_PPM / vms };
    let claims: Vec<Claim> = deadlines.iter().map(claim).collect();
    admit(&claims, false, Limits::default()).is_ok()
}

/// Returns the contract of a VM with the deadline `deadline`. If `deadline` is `None`, the VM has
/// no deadline and gets processor time only by its weight.
pub(super) fn terms(mode: Mode, deadline: Option<Nanos>, weight: Weight) -> Contract {
    match deadline {
        Some(deadline) => Contract::real_time(mode, deadline, weight),
        None => Contract::by_credit(weight),
    }
}

/// Length of the video that an encoder processes in one batch. The paper does not print the length
/// of a batch.
const BATCH: Nanos = Nanos::from_millis(500);

/// Creates the streaming VM of Figs. 2 and 6 of VM jitter. The VM's encoder uses `load_pct` percent
/// of a processor. The encoder's work for each batch varies at random by up to 10 %. A separate
/// thread of the VM, which the encoder does not delay, sends the packets of
/// [`crate::jitter::stream`].
pub(super) fn streaming(seed: u64, span: Nanos, load_pct: u64, idle: Idle) -> GuestSpec {
    let due = |(due, _): (Nanos, Nanos)| due;
    let packets = stream(seed).into_iter().map(due);
    let packets: Vec<Nanos> = packets.take_while(|due| *due < span).collect();
    let work = Nanos(BATCH.0 / 100 * load_pct);
    let background = Background::Batches { period: BATCH, work, spread_pct: 10 };
    GuestSpec { background, stream: (packets, PACKET), answer: PACKET, idle }
}

/// Jitter of a guest's stream at the point where the packets leave the machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Stream {
    /// Interarrival jitter J of RFC 3550 after each packet, as pairs of seconds and ms.
    jitter: Vec<(f64, f64)>,
    /// Greatest difference between the delays of two consecutive packets (RFC 3393), in ms.
    pub variation_max: f64,
}

impl Stream {
    /// Computes the jitter of all packets of the stream that the guest `guest` sent.
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

    /// Returns the mean of the interarrival jitter J, in ms.
    pub fn mean(&self) -> f64 {
        self.jitter.iter().map(|point| point.1).sum::<f64>() / count(self.jitter.len())
    }

    /// Returns the greatest interarrival jitter J, in ms.
    pub fn max(&self) -> f64 {
        self.jitter.iter().map(|point| point.1).fold(0.0, f64::max)
    }

    /// Returns every eighth value of J, because a picture cannot show more values.
    pub fn thinned(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.jitter.iter().copied().step_by(8)
    }
}
