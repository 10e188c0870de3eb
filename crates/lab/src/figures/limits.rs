//! The experiment `limits`: every kind of rate limit gives its rate, and no more.
//!
//! # Source
//!
//! The limits are the baseline of C2QoS §II-B and the policers of FS-VDE §4.2. Neither paper prints
//! a rate of a limited stream; the claims are Penstock's own.
//!
//! # Approach
//!
//! In the simulation, a flood of frames meets each limit whose frames wait: `police` and `send`,
//! for which frames wait in the sender's ring, and `receive`, for which they wait in a queue. The
//! flood offers twice the limit. The live run ([`crate::live`]) adds real TCP.

use std::sync::Arc;

use penstock_dataplane::ingress_policer::IngressPolicer;
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms};
use penstock_qos::egress_policer::{EgressPolicer, Meter, Sharing, Terms};
use penstock_qos::fair_share::{Bound, Excess};
use penstock_qos::policer::{Limit, Policer, Spec, wait_depth, wait_frames};
use penstock_sim::{Costs, PortHandle, Rng, SinkSpec, SourceSpec, World};
use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond, TscRate};

use crate::evidence::stats::float;
use crate::evidence::{Axis, Context, Experiment, Outcome, Panel, Picture, Record, points};
use crate::live;

pub const EXPERIMENT: Experiment = Experiment {
    name: "limits",
    source: "C2QoS §II-B, FS-VDE §4.2",
    about: "every kind of rate limit gives TCP and UDP its rate, and no more",
    sim: Some(sim),
    live: Some(live::limits),
    picture,
};

const CORE: TscRate = TscRate::from_hz(2_000_000_000);
/// Time before the measurement, in which the bucket's depth and the queue fill.
const WARM_UP: Nanos = Nanos::from_millis(500);
const LENGTH: Nanos = Nanos::from_secs(2);
/// Rates of the limits in Mbit/s.
const RATES: [u64; 3] = [10, 100, 1_000];
/// Bytes of a frame without FCS.
const SIZES: [usize; 2] = [60, 1_514];

#[derive(Clone, Copy)]
enum Kind {
    Police,
    Receive,
    Send,
}

const KINDS: [(&str, Kind); 3] =
    [("police", Kind::Police), ("receive", Kind::Receive), ("tenant send", Kind::Send)];

/// A receiver and a sender that floods it.
struct Bed {
    world: World,
    to: PortHandle,
    from: PortHandle,
    length: Nanos,
    rng: Rng,
}

impl Bed {
    fn new(ctx: &Context<'_>) -> anyhow::Result<Self> {
        let mut world = World::new(CORE, Costs::EXAMPLE, 8, ctx.seed);
        let mut vm = || world.add_vm(1, 1_024, SinkSpec::default());
        let (to, from) = (vm()?, vm()?);
        world.introduce(to);
        let length = ctx.scaled(LENGTH).max(Nanos::from_secs(1));
        Ok(Self { world, to, from, length, rng: Rng::new(ctx.seed) })
    }

    fn police(&mut self, limits: Vec<Limit>) -> anyhow::Result<()> {
        let own = limits
            .into_iter()
            .map(|limit| Ok(Arc::new(Policer::new(Spec::new(limit)?.per_frame(4).waiting()))));
        let own = own.collect::<anyhow::Result<Vec<_>>>()?;
        let limits = Arc::new(IngressPolicer { own, links: Vec::new() });
        self.world.set_policy(self.from, |policy| policy.ingress_policer = Some(limits));
        Ok(())
    }

    fn set(&mut self, kind: Kind, rate: BitsPerSecond) -> anyhow::Result<()> {
        let limit = || {
            let bytes = Some((rate, wait_depth(rate)));
            let terms = Terms { bytes, per_frame: 4, waits: true, ..Terms::default() };
            Arc::new(EgressPolicer::new(Meter::new(terms), None, Sharing::Strict))
        };
        match kind {
            Kind::Police => self.police(vec![bits(rate)])?,
            Kind::Receive => {
                let (bytes, wait) = (2 << 20, Nanos::from_millis(200));
                let bound = Bound { bytes, wait, excess: Excess::Drop };
                let (order, pacing) = (Order::Fifo, Pacing::None);
                let home = QueueHome::new(
                    QueueTerms {
                        order,
                        pacing,
                        bound,
                        held_bytes: 2 << 20,
                        ..QueueTerms::default()
                    },
                    8,
                    8,
                );
                let limit = limit();
                home.set_limit(Some(Arc::clone(&limit)));
                self.world.set_policy(self.to, |policy| {
                    policy.egress_policer = Some(limit);
                    policy.queue = Some(home);
                });
            }
            Kind::Send => {
                let limit = limit();
                self.world.set_policy(self.from, |policy| policy.tenant_policer = Some(limit));
                self.world.set_policy(self.to, |policy| policy.tenant = None);
            }
        }
        Ok(())
    }

    /// Floods the receiver with twice as many frames per second as `allowed`, varied by the seed.
    /// Returns the frames per second that arrive.
    fn flood(mut self, size: usize, allowed: f64) -> f64 {
        let end = WARM_UP + self.length;
        let vary = 0.9 + 0.2 * self.rng.unit();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of a limit")]
        let frames_per_second = (2.0 * vary * allowed).ceil() as u64;
        let spec = SourceSpec {
            target: World::mac_of(0),
            sizes: vec![(size, 1)],
            frames_per_second,
            flows: 1,
            from: Nanos(0),
            until: end,
            loss_ppm: 0,
        };
        self.world.set_source(self.from, spec);
        self.world.run_until(WARM_UP);
        let before = self.world.port(self.to).tx_frames;
        self.world.run_until(end);
        float(self.world.port(self.to).tx_frames - before) / (float(self.length.0) / 1e9)
    }
}

fn bits(cir: BitsPerSecond) -> Limit {
    Limit::SingleRate { cir, cbs: wait_depth(cir), ebs: 0 }
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::new();
    outcome.note("core_hz", CORE.hz());
    let mut floods = Vec::new();
    for ((name, kind), done) in KINDS.into_iter().zip([0.0, 0.3, 0.6]) {
        ctx.progress(done, name);
        for size in SIZES {
            let mut points = Vec::new();
            for mbps in RATES {
                let allowed = float(mbps) * 1e6 / 8.0 / float(size as u64 + 4);
                // Two million short frames a second are more than this core can pass.
                if allowed > 1_000_000.0 {
                    continue;
                }
                let mut bed = Bed::new(ctx)?;
                bed.set(kind, BitsPerSecond(mbps * 1_000_000))?;
                let got = 100.0 * bed.flood(size, allowed) / allowed;
                points.push((float(mbps), got));
                floods.push(got);
            }
            outcome.series(&format!("{name}, {} B", size + 4), "% of the limit", points);
        }
    }
    ctx.progress(0.9, "bits and frames");
    let mut worst = 0.0_f64;
    for (mbps, pps, due) in [(100, 4_000, 4_000.0), (30, 8_000, 30e6 / 8.0 / 1_518.0)] {
        let mut bed = Bed::new(ctx)?;
        let rate = PacketsPerSecond(pps);
        let frames = Limit::Packets { rate, burst: wait_frames(rate) };
        bed.police(vec![bits(BitsPerSecond(mbps * 1_000_000)), frames])?;
        worst = worst.max(100.0 * (bed.flood(1_514, due) / due - 1.0).abs());
    }
    outcome.claim(live::udp_claim("64 or 1,518 bytes", &floods).within(99.0, 101.0));
    outcome.claim(live::both_claim(worst).at_most(1.0));
    Ok(outcome)
}

fn picture(record: &Record) -> Picture {
    let y = Axis::linear("delivered rate, % of the limit").from(0.0);
    let panel = Panel::new("one stream under each limit", Axis::log("limit, Mbit/s"), y);
    // The cost of cutting has its own unit.
    let all = record.series_of("").filter(|(name, _)| !name.starts_with(live::COST));
    let panel = all.fold(panel, |panel, (name, series)| panel.line(name, points(series)));
    Picture::new(format!("limits: the part of a limit that a stream gets ({})", record.mode))
        .panel(panel)
}
