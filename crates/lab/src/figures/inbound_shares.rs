//! The claim `inbound_share_error_pct` of the experiment `uplink-shares`: what arrives through an
//! uplink is shared by weight.
//!
//! # Problem
//!
//! More arrives than the configured rate of the uplink (`inbound`), or than the core can deliver.
//! The tenant with the smallest weight receives most. Its share must not grow by that, and a tenant
//! that receives nothing must leave its share to the others.
//!
//! # Approach
//!
//! The production worker runs in virtual time. Frames to four VMs of three tenants arrive at the
//! uplink: the tenants have the weights 5, 3 and 1, and the VMs of the first tenant 2 and 1. In the
//! runs, all tenants receive, or one of them receives nothing. The value is the largest deviation
//! of a VM's rate on the link from what is due to it, in per cent of what is due. What is due is
//! the VM's share by weight of all frames that were delivered.
//!
//! - *Link*: the rate is 500 Mbit/s, and the core is fast.
//! - *Core*: the rate is 2 Gbit/s, but the core is slower ([`SLOW`]).
//! - *Mixed*: as *link*, but the first tenant receives large segments, and the second one 64-byte
//!   frames. All tenants receive.
//!
//! `inbound_used_pct_min` is the lowest rate of all delivered frames in the runs of *link*, in per
//! cent of the configured rate.
//!
//! The live form is in `crate::live::shared_link::inbound`, with the same tenants and arrivals.
//!
//! # Departures
//!
//! The senders do not react to marks and losses.

use std::sync::Arc;

use penstock_dataplane::port::memory_queue::MemoryFrame;
use penstock_dataplane::snapshot::SlowPathLimit;
use penstock_qos::inbound_shares::{InboundShares, Member};
use penstock_sim::{Costs, PortHandle, Rng, SinkSpec, World, tcp_segment, udp_frame, wire_bytes};
use penstock_units::{BitsPerSecond, MacAddr, Nanos, Weight};

use super::uplink_bed::{CORE, COSTS, float};
use crate::evidence::stats::{fit, ms};
use crate::evidence::{Axis, Claim, Context, Outcome, Panel, Record, points};

/// Weights of the tenants.
pub(crate) const TENANTS: [u64; 3] = [5, 3, 1];
/// Tenant and weight of each VM.
pub(crate) const VMS: [(usize, u64); 4] = [(0, 2), (0, 1), (1, 1), (2, 1)];
/// Arrivals of each tenant's frames, relative to what a slow core can deliver if it refuses
/// nothing. In the first row all tenants receive, and in each other row one receives nothing. Each
/// tenant receives more than its share, and the last one receives up to ten times as much.
pub(crate) const OFFERED: [[f64; 3]; 4] =
    [[0.65, 0.4, 0.75], [0.0, 0.8, 1.0], [0.85, 0.0, 0.95], [0.7, 1.1, 0.0]];
/// Costs of the slow core.
const SLOW: Costs = Costs { factor: 40.0, ..Costs::EXAMPLE };
/// Rate on the link of 1,514-byte frames that the slow core delivers if it refuses nothing. It
/// follows from [`SLOW`]: a frame takes about 386 x 40 cycles.
const SLOW_BPS: f64 = 1.595e9;
/// Part of [`SLOW_BPS`] that the slow core delivers beside its refusals of [`OFFERED`], about.
const BESIDE_REFUSALS: f64 = 0.7;
const LINK_BPS: u64 = 500_000_000;
/// Rate of the uplink in runs with a slow core.
const FAST_LINK_BPS: u64 = 2_000_000_000;

const UPLINK_RING: usize = 1_024;
const VM_RING: usize = 256;
const PORTS: usize = 8;
/// Time in which the switch learns the addresses.
const SETTLE: Nanos = Nanos::from_millis(10);
const WARM_UP: Nanos = Nanos::from_millis(200);
const STEP: Nanos = Nanos::from_micros(5);
/// Time between two points of the fitted lines.
const POINT: Nanos = Nanos::from_millis(1);
/// Length of each run, and the least length of a shortened run.
const LENGTH: (Nanos, Nanos) = (Nanos::from_secs(4), Nanos::from_millis(500));
/// Frames and payload bytes of a large segment.
const SEGMENT: (u16, u16) = (44, 1_460);

/// Kind of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Link,
    Core,
    Mixed,
}

/// Frames to a VM.
#[derive(Debug)]
struct Stream {
    to: MacAddr,
    flow: u16,
    frames: Frames,
    /// Mean time between two bursts in ns; 0 if the VM receives nothing.
    gap: u64,
    /// Number of frames that arrive at once.
    burst: u32,
    next: Nanos,
    /// End of the interval in which the next burst arrives, if `burst` is above 1.
    end: Nanos,
    /// Bytes on the link of the delivered frames.
    wire: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frames {
    Of(usize),
    Segments,
}

#[derive(Debug)]
struct Bed {
    world: World,
    rng: Rng,
    now: Nanos,
    uplink: PortHandle,
    vms: Vec<PortHandle>,
    streams: Vec<Stream>,
}

impl Frames {
    fn frame(self, to: MacAddr, flow: u16) -> MemoryFrame {
        let from = World::mac_of(0);
        match self {
            Self::Of(len) => MemoryFrame::plain(udp_frame(from, to, len, flow, 0)),
            Self::Segments => tcp_segment(from, to, SEGMENT, flow, true),
        }
    }

    /// Returns the bits that one of the frames takes on the link.
    fn bits(self) -> f64 {
        float(wire_bytes(&self.frame(World::mac_of(1), 0))) * 8.0
    }
}

impl Stream {
    /// Returns the time of the burst after the present one.
    fn after(&mut self, rng: &mut Rng) -> Nanos {
        if self.burst == 1 {
            return self.next + Nanos(self.gap / 2 + rng.below(self.gap));
        }
        let begin = self.end;
        self.end += Nanos(self.gap);
        begin + Nanos(rng.below(self.gap))
    }
}

impl Bed {
    /// Creates a switch with an uplink, port 0, and the VMs, ports 1 to 4.
    fn new(seed: u64, kind: Kind) -> anyhow::Result<Self> {
        match kind {
            Kind::Core => Self::of(seed, SLOW, FAST_LINK_BPS),
            Kind::Link | Kind::Mixed => Self::of(seed, COSTS, LINK_BPS),
        }
    }

    /// Creates a switch with `costs`, whose uplink shares the rate `rate` in bits per second.
    fn of(seed: u64, costs: Costs, rate: u64) -> anyhow::Result<Self> {
        let mut world = World::new(CORE, costs, PORTS, seed);
        let uplink = world.add_vm(1, UPLINK_RING, SinkSpec::default())?;
        let (mut vms, mut members) = (Vec::new(), Vec::new());
        for (port, (tenant, weight)) in (1..).zip(VMS) {
            let vm = world.add_vm(1, VM_RING, SinkSpec::default())?;
            let number = u16::try_from(tenant)?;
            world.set_policy(vm, |policy| policy.tenant = Some(number));
            world.record(vm);
            world.introduce(vm);
            vms.push(vm);
            members.push(Member {
                port,
                tenant: number,
                tenant_weight: Weight::new(TENANTS[tenant])?,
                vm_weight: Weight::new(weight)?,
            });
        }
        world.run_until(SETTLE);
        let shares = Arc::new(InboundShares::new(BitsPerSecond(rate), &members));
        world.set_policy(uplink, |policy| {
            policy.tenant = None;
            policy.slow_path = SlowPathLimit::UNLIMITED;
            policy.inbound = Some(shares);
        });
        Ok(Self { world, rng: Rng::new(seed), now: SETTLE, uplink, vms, streams: Vec::new() })
    }

    /// Lets frames arrive for each VM: `offered` of each tenant's frames, in bits per second on the
    /// link. The VMs of a tenant receive equal numbers of frames.
    fn offer(&mut self, kind: Kind, offered: [f64; 3]) {
        let frames = |tenant| match (kind, tenant) {
            (Kind::Mixed, 0) => Frames::Segments,
            (Kind::Mixed, 1) => Frames::Of(60),
            _ => Frames::Of(1_514),
        };
        self.offer_frames(frames, offered);
    }

    /// Lets `frames` of each tenant arrive, as [`Self::offer`].
    fn offer_frames(&mut self, frames: impl Fn(usize) -> Frames, offered: [f64; 3]) {
        for (port, (tenant, _)) in (1..).zip(VMS) {
            let siblings = float(VMS.iter().filter(|(other, _)| *other == tenant).count() as u64);
            self.offer_to(port, frames(tenant), offered[tenant] / siblings);
        }
    }

    /// Lets `frames` arrive for the VM of `port`, at a rate of `offered` bits per second on the
    /// link.
    fn offer_to(&mut self, port: u16, frames: Frames, offered: f64) {
        let (to, flow) = (World::mac_of(port), 100 * port);
        let gap = frames.bits() * 1e9 / offered;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a gap")]
        let gap = if gap.is_finite() { gap as u64 } else { 0 };
        let (next, end) = (self.now, self.now);
        self.streams.push(Stream { to, flow, frames, gap, burst: 1, next, end, wire: 0 });
    }

    /// Puts all frames that arrive until the present time into the uplink's ring, in the order of
    /// their arrival. A frame that finds the ring full is lost, as at a NIC.
    fn arrive(&mut self) {
        let Self { world, rng, now, uplink, streams, .. } = self;
        loop {
            let due = streams.iter_mut().filter(|stream| stream.gap > 0 && stream.next <= *now);
            let Some(stream) = due.min_by_key(|stream| stream.next) else { return };
            stream.next = stream.after(rng);
            for _ in 0..stream.burst {
                world.offer(*uplink, stream.frames.frame(stream.to, stream.flow));
            }
        }
    }

    fn run(&mut self, length: Nanos) {
        let until = self.now + length;
        while self.now < until {
            self.now += STEP;
            self.arrive();
            self.world.run_until(self.now);
        }
        for (vm, stream) in self.vms.iter().zip(&mut self.streams) {
            let arrivals = self.world.take_arrivals(*vm);
            stream.wire += arrivals.iter().map(|arrival| arrival.wire).sum::<u64>();
        }
    }

    /// Returns the rate to each VM on the link, in bits per second.
    fn rates(&mut self, length: Nanos) -> [f64; 4] {
        let (from, until) = (self.now, self.now + length);
        let mut points: [Vec<(f64, f64)>; 4] = Default::default();
        while self.now < until {
            self.run(POINT);
            let secs = ms(self.now.saturating_sub(from)) / 1e3;
            for (points, stream) in points.iter_mut().zip(&self.streams) {
                points.push((secs, float(stream.wire) * 8.0));
            }
        }
        points.map(|points| fit(&points).slope)
    }
}

/// Measures the claims of inbound shares.
pub(super) fn claims(ctx: &Context<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    outcome.note("inbound_slow_cost_factor", SLOW.factor);
    let (mut worst, mut least) = (0.0_f64, f64::INFINITY);
    for (kind, name) in [(Kind::Link, "link"), (Kind::Core, "core"), (Kind::Mixed, "mixed")] {
        let runs = if kind == Kind::Mixed { 1 } else { OFFERED.len() };
        for (run, offered) in OFFERED.iter().take(runs).enumerate() {
            let rates = rates(ctx, kind, *offered)?;
            let all: f64 = rates.iter().sum();
            worst = worst.max(share_error(&rates, offered));
            if kind == Kind::Link {
                least = least.min(100.0 * all / float(LINK_BPS));
            }
            let shares = rates.iter().map(|rate| 100.0 * rate / all);
            let name = format!("inbound, {name}, run {}", run + 1);
            outcome.series(&name, "% of all", (0_u32..).map(f64::from).zip(shares));
        }
    }
    let what = "largest deviation of a VM's rate from its share by weight of what arrives";
    outcome.claim(Claim::new("inbound_share_error_pct", what, "%").at_most(0.5).measured(worst));
    let what = "lowest delivered rate, in per cent of the rate that is shared";
    outcome.claim(Claim::new("inbound_used_pct_min", what, "%").measured(least));
    Ok(())
}

fn rates(ctx: &Context<'_>, kind: Kind, offered: [f64; 3]) -> anyhow::Result<[f64; 4]> {
    // The overload of the link is that of the slow core.
    let link = float(LINK_BPS) / BESIDE_REFUSALS;
    let scale = if kind == Kind::Core { SLOW_BPS } else { link };
    let mut bed = Bed::new(ctx.seed, kind)?;
    bed.offer(kind, offered.map(|part| part * scale));
    bed.run(WARM_UP + Nanos(ctx.seed % 100 * 10_000));
    Ok(bed.rates(ctx.scaled(LENGTH.0).max(LENGTH.1)))
}

/// Returns the part of each VM in all that is delivered, by weight. VMs of tenants with nothing in
/// `offered` have no part.
pub(crate) fn parts(offered: &[f64; 3]) -> [f64; 4] {
    let busy = |tenant: usize| offered[tenant] > 0.0;
    let weights: u64 = (0..TENANTS.len()).filter(|of| busy(*of)).map(|of| TENANTS[of]).sum();
    VMS.map(|(tenant, weight)| {
        if !busy(tenant) {
            return 0.0;
        }
        let siblings = VMS.iter().filter(|(other, _)| *other == tenant);
        let of_tenant: u64 = siblings.map(|(_, weight)| weight).sum();
        float(TENANTS[tenant] * weight) / float(weights * of_tenant)
    })
}

/// Returns the largest deviation of a VM's rate from its share by weight, in per cent of the
/// latter. Tenants with nothing in `offered` have no share.
pub(crate) fn share_error(rates: &[f64; 4], offered: &[f64; 3]) -> f64 {
    let all: f64 = rates.iter().sum();
    let due = rates.iter().zip(parts(offered)).filter(|(_, part)| *part > 0.0);
    due.map(|(rate, part)| 100.0 * (rate / (all * part) - 1.0).abs()).fold(0.0, f64::max)
}

/// Draws the VMs' shares of the live form and of the simulated one.
pub(crate) fn panel(record: &Record, letter: &str) -> Panel {
    let vms = VMS.map(|(tenant, weight)| format!("{}, VM {weight}", TENANTS[tenant]));
    let axis = Axis::named("weights of tenant and VM", vms);
    let title = format!("{letter} shares of what arrives");
    let panel = Panel::new(title, axis, Axis::linear("% of all"));
    let runs = record.series_of("inbound, ");
    runs.fold(panel, |panel, (run, series)| panel.bars(run, points(series)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deviation_is_relative_to_what_is_due() {
        let due = [10.0 / 27.0, 5.0 / 27.0, 3.0 / 9.0, 1.0 / 9.0];
        assert!(share_error(&due, &OFFERED[0]) < 1e-9);
        let idle = [0.0, 0.0, 0.75, 0.25];
        assert!(share_error(&idle, &OFFERED[1]) < 1e-9);
        let error = share_error(&[0.0, 0.0, 0.7, 0.3], &OFFERED[1]);
        assert!((error - 20.0).abs() < 1e-9, "{error}");
    }

    #[test]
    fn without_shares_the_busiest_tenant_gets_most() -> anyhow::Result<()> {
        let mut bed = Bed::new(1, Kind::Core)?;
        bed.world.set_policy(bed.uplink, |policy| policy.inbound = None);
        bed.offer(Kind::Core, OFFERED[0].map(|part| part * SLOW_BPS));
        bed.run(Nanos::from_millis(100));
        let rates = bed.rates(Nanos::from_millis(200));
        assert!(share_error(&rates, &OFFERED[0]) > 100.0, "{rates:?}");
        Ok(())
    }

    /// Frames that arrive at a slow core, which takes `batch` of them at once.
    #[derive(Debug, Clone, Copy)]
    struct Load {
        frames: Frames,
        batch: f64,
        costs: Costs,
    }

    /// Parts of the VMs of what is delivered, if all receive too much.
    const DUE: [f64; 4] = [10.0 / 27.0, 5.0 / 27.0, 9.0 / 27.0, 3.0 / 27.0];

    impl Load {
        fn new(frames: Frames, batch: f64, factor: f64) -> Self {
            Self { frames, batch, costs: Costs { factor, ..Costs::EXAMPLE } }
        }

        /// Returns the cycles of a frame before the decision about its share, and those after it.
        fn cycles(self) -> (f64, f64) {
            let Costs { ingress, classification, egress, factor, .. } = self.costs;
            let bytes = float(self.frames.frame(World::mac_of(1), 0).bytes.len() as u64 + 4);
            let of_batch = ingress.batch + classification.batch + egress.batch;
            let of_frame = ingress.frame + classification.frame + ingress.byte * bytes;
            let deliver = egress.frame + egress.byte * bytes;
            (factor * (of_batch / self.batch + of_frame), factor * deliver)
        }

        /// Returns the rate on the link of the frames that the core delivers if it refuses none.
        fn speed(self) -> f64 {
            let (look, deliver) = self.cycles();
            float(CORE.hz()) / (look + deliver) * self.frames.bits()
        }

        /// Returns the part of [`Self::speed`] that the core can deliver, if `overload` times its
        /// speed arrives, and if it must look at `looks` frames for each that it delivers. Then no
        /// VM receives less than its share.
        fn reach(self, overload: f64, looks: f64) -> f64 {
            let (look, deliver) = self.cycles();
            let reach = (look + deliver) / (looks * look + deliver);
            if looks * reach <= overload {
                return reach;
            }
            // The core looks at all frames.
            (look + deliver - overload * look) / deliver
        }

        /// Returns a switch, and the rates of the VMs, if `offered` arrives for them. All rates are
        /// parts of [`Self::speed`].
        fn run(self, offered: [f64; 4]) -> anyhow::Result<(Bed, [f64; 4])> {
            let speed = self.speed();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
            let mut bed = Bed::of(1, self.costs, (1.3 * speed) as u64)?;
            for (port, offered) in (1..).zip(offered) {
                bed.offer_to(port, self.frames, offered * speed);
            }
            bed.run(Nanos::from_millis(600));
            let rates = bed.rates(Nanos::from_millis(600)).map(|rate| rate / speed);
            Ok((bed, rates))
        }
    }

    /// Checks that an overloaded core delivers at least the part `least` of what it can, and shares
    /// it. The last VM receives about twice its share, and each other VM a few per cent more than
    /// its share. So the core must refuse few frames, and may lose the others in the ring.
    fn check_overload(load: Load, least: f64) -> anyhow::Result<()> {
        const LOOKS: f64 = 1.15;
        for overload in [1.2, 1.5, 3.0] {
            let mut arrivals = DUE.map(|due| due / LOOKS);
            arrivals[3] += 1.0 - 1.0 / LOOKS;
            let (_, rates) = load.run(arrivals.map(|part| part * overload))?;
            let (all, reach) = (rates.iter().sum::<f64>(), load.reach(overload, LOOKS));
            assert!(reach > 0.9, "{overload}: {reach}");
            assert!(all >= least * reach, "{overload}: {all} of {reach}");
            let error = share_error(&rates, &[1.0; 3]);
            assert!(error < 2.0, "{overload}: {error} %, {rates:?}");
        }
        Ok(())
    }

    #[test]
    fn an_overloaded_core_shares_most_of_its_speed_of_short_frames() -> anyhow::Result<()> {
        check_overload(Load::new(Frames::Of(60), 32.0, 80.0), 0.97)
    }

    #[test]
    fn an_overloaded_core_shares_most_of_its_speed_of_full_frames() -> anyhow::Result<()> {
        check_overload(Load::new(Frames::Of(1_514), 32.0, 40.0), 0.97)
    }

    #[test]
    fn an_overloaded_core_shares_most_of_its_speed_of_large_segments() -> anyhow::Result<()> {
        check_overload(Load::new(Frames::Segments, 2.0, 40.0), 0.92)
    }

    /// The first VM of the first tenant receives less than its share. Its sibling gets the rest of
    /// the tenant's share, and the ring loses none of the first VM's frames.
    #[test]
    fn a_vm_below_its_share_gets_all_its_frames_from_an_overloaded_core() -> anyhow::Result<()> {
        let load = Load::new(Frames::Segments, 2.0, 40.0);
        let [first, second, third] = OFFERED[0].map(|part| part * 1.5 / 1.8);
        let offered = [first / 2.0, first / 2.0, second, third];
        let (_, rates) = load.run(offered)?;
        let all: f64 = rates.iter().sum();
        assert!(offered[0] < 0.9 * all * DUE[0], "the VM receives less than its share");
        assert!(rates[0] > 0.97 * offered[0], "{rates:?} of {offered:?}");
        for (tenant, rate) in [rates[0] + rates[1], rates[2], rates[3]].into_iter().enumerate() {
            let due = all * float(TENANTS[tenant]) / 9.0;
            assert!((rate / due - 1.0).abs() < 0.02, "tenant {tenant}: {rate}, due {due}");
        }
        let reach = load.reach(1.5, 1.5 * DUE[0] / offered[0]);
        assert!(all > 0.93 * reach, "{all} of {reach}");
        Ok(())
    }

    /// Bursts of 40 full frames arrive at random times of their intervals, as from programs that
    /// send large segments of datagrams. What arrives does not follow the speed of the core.
    #[test]
    fn an_overloaded_core_shares_bursts() -> anyhow::Result<()> {
        const BURST: u32 = 40;
        let load = |factor| Load::new(Frames::Of(1_514), 32.0, factor);
        let arrives = load(200.0).speed() / f64::from(BURST);
        for (load, offered) in OFFERED.iter().flat_map(|of| [(load(200.0), of), (load(300.0), of)])
        {
            let mut bed = Bed::of(1, load.costs, 1_000_000_000)?;
            bed.offer_frames(|_| load.frames, offered.map(|part| part * arrives));
            bed.streams.iter_mut().for_each(|stream| stream.burst = BURST);
            bed.run(Nanos::from_secs(1));
            let rates = bed.rates(Nanos::from_secs(4));
            let (error, all) = (share_error(&rates, offered), rates.iter().sum::<f64>());
            assert!(error < 1.0, "{error} %, {rates:?}");
            assert!(all > 0.65 * load.speed(), "{all} of {}", load.speed());
        }
        Ok(())
    }

    /// Two tenants receive more than their shares. Beside them, a VM receives 100 frames per second
    /// or none. The ring of the uplink is full only if no frame of this VM can be lost.
    #[test]
    fn the_ring_loses_no_frame_of_a_vm_that_seldom_receives() -> anyhow::Result<()> {
        let load = Load::new(Frames::Of(1_514), 32.0, 40.0);
        let few = 100.0 * load.frames.bits() / load.speed();
        for (few, full) in [(few, false), (0.0, true)] {
            let (bed, rates) = load.run([few, 0.0, 0.75, 0.75])?;
            let waiting = bed.world.unsent(bed.uplink);
            assert_eq!(waiting > UPLINK_RING / 2, full, "{waiting} frames wait");
            assert!((rates[2] / rates[3] / 3.0 - 1.0).abs() < 0.02, "{rates:?}");
        }
        Ok(())
    }

    /// A core that is four times as slow as [`SLOW`] takes a whole batch in a millisecond.
    #[test]
    fn a_core_of_few_batches_in_a_millisecond_shares_too() -> anyhow::Result<()> {
        let costs = Costs { factor: 4.0 * SLOW.factor, ..SLOW };
        let mut bed = Bed::of(1, costs, FAST_LINK_BPS / 4)?;
        bed.offer(Kind::Core, OFFERED[0].map(|part| part * SLOW_BPS / 4.0));
        bed.run(Nanos::from_millis(300));
        let rates = bed.rates(Nanos::from_millis(700));
        assert!(share_error(&rates, &OFFERED[0]) < 2.0, "{rates:?}");
        Ok(())
    }
}
