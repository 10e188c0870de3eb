//! A simulated host whose ports `penstock explain` examines. The host knows what a daemon knows:
//! its configuration, its counters, and what the learner found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use penstock_control::api::{LinkPart, LinkStatus, PortStatus, QueueStatus};
use penstock_control::explain::{Bought, Growth, PortGrowth, WorkerGrowth};
use penstock_control::host::observed;
use penstock_dataplane::counters::{PortReading, WorkerReading};
use penstock_dataplane::ingress_policer::{IngressPolicer, LinkLimit};
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms, ShapeTerms};
use penstock_dataplane::schedule::ScheduleKind;
use penstock_dataplane::snapshot::{Binding, IngressPolicy, PortQos};
use penstock_qos::admission::WorkerSet;
use penstock_qos::bottleneck::part;
use penstock_qos::cost_model::{Contract, Flows, Rate, SizeMix};
use penstock_qos::egress_policer::{EgressPolicer, Meter, Sharing, Terms as MeterTerms};
use penstock_qos::fair_share::{Bound, Excess};
use penstock_qos::learner::{Learner, Terms};
use penstock_qos::policer::{Limit, Policer, Spec, wait_depth};
use penstock_sim::testbed::five_tuple;
use penstock_sim::{Costs, PortHandle, Rng, SinkSpec, SourceSpec, World, WorldConfig};
use penstock_units::{BitsPerSecond, CyclesPerSecond, Nanos, PortId, Priority, TscRate, Weight};

use super::super::paper_testbed::{LEARNS, float};

/// A slow core, so that some hundred thousand frames fill it.
const CORE: TscRate = TscRate::from_hz(100_000_000);
/// Buckets are refilled rarely, so that refills take as small a part of the slow core as on a host.
const REFILL: Nanos = Nanos::from_millis(1);
const STEP: Nanos = Nanos::from_millis(100);
/// Learning steps before the time that is explained.
const WARM_UP: u64 = 4;
/// Learning steps that are explained.
const EXPLAINED: u64 = 12;
const FRAMES_OF_BATCH: f64 = 32.0;
const FCS: usize = 4;
/// Frames of a ring of a VM.
const RING: usize = 256;
const PORTS: usize = 8;
/// Names of the ports. `to` and `far` only receive.
pub(super) const NAMES: [&str; 6] = ["to", "far", "vm", "a", "b", "c"];

/// Part of the core's time that another program takes, in periods.
const OTHER_PROGRAM: (Nanos, Nanos) = (Nanos::from_millis(4), Nanos::from_millis(10));

#[derive(Debug)]
struct Port {
    handle: PortHandle,
    qos: PortQos,
    contract: Option<Contract>,
    shaped_bps: Option<u64>,
    limits: [(&'static str, u64); 2],
    queue: Option<Arc<QueueHome>>,
}

/// The counters of the host at one time.
#[derive(Clone)]
struct Moment {
    at: Nanos,
    ports: Vec<PortReading>,
    queues: Vec<Vec<QueueStatus>>,
    worker: WorkerReading,
}

/// A simulated host with one worker.
pub(super) struct Bed {
    world: World,
    ports: Vec<Port>,
    learned: Vec<(PortId, Terms)>,
    link: Option<(usize, BitsPerSecond, Vec<LinkPart>)>,
    disturbed: bool,
    rng: Rng,
}

impl Bed {
    /// Creates a host whose receivers take at most these numbers of frames per second.
    pub(super) fn new(seed: u64, slow: [Option<u64>; 2]) -> anyhow::Result<Self> {
        let config =
            WorldConfig { schedule: ScheduleKind::Hbs, refill: REFILL, ..WorldConfig::default() };
        let mut world = World::with_config(&config, CORE, Costs::EXAMPLE, PORTS, seed);
        let mut ports = Vec::new();
        for (number, _) in NAMES.iter().enumerate() {
            let frames_per_second = slow.get(number).copied().flatten();
            let handle = world.add_vm(1, RING, SinkSpec { frames_per_second })?;
            world.set_policy(handle, |policy| {
                policy.rules = five_tuple();
                *policy = policy.clone().finish();
            });
            world.introduce(handle);
            let (qos, limits) = (PortQos::default(), Default::default());
            let (contract, shaped_bps, queue) = (None, None, None);
            ports.push(Port { handle, qos, contract, shaped_bps, limits, queue });
        }
        let rng = Rng::new(seed);
        let (learned, link, disturbed) = (Vec::new(), None, false);
        Ok(Self { world, ports, learned, link, disturbed, rng })
    }

    fn number(name: &str) -> usize {
        NAMES.iter().position(|of| *of == name).unwrap_or(0)
    }

    fn port(&mut self, name: &str) -> &mut Port {
        &mut self.ports[Self::number(name)]
    }

    fn handle(&mut self, name: &str) -> PortHandle {
        self.port(name).handle
    }

    /// Returns the cycles that a frame costs in a full batch. `size` includes the FCS.
    fn cost(size: u16) -> f64 {
        let Costs { ingress, classification, egress, .. } = Costs::EXAMPLE;
        let all = [ingress, classification, egress];
        let batch: f64 = all.iter().map(|stage| stage.batch).sum();
        let frame: f64 = all.iter().map(|stage| stage.frame).sum();
        let byte: f64 = all.iter().map(|stage| stage.byte).sum();
        batch / FRAMES_OF_BATCH + frame + byte * f64::from(size)
    }

    /// Makes a port send a part of what the whole core can move, in frames of one size with FCS.
    pub(super) fn send_to(&mut self, (from, to): (&str, &str), size: u16, flows: u16, part: f64) {
        let vary = 0.97 + 0.06 * self.rng.unit();
        let frames = vary * part * float(CORE.hz()) / Self::cost(size);
        self.frames((from, to), size, flows, frames);
    }

    pub(super) fn frames(
        &mut self,
        (from, to): (&str, &str),
        size: u16,
        flows: u16,
        per_second: f64,
    ) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 10 M")]
        let frames_per_second = per_second.ceil() as u64;
        let target = World::mac_of(u16::try_from(Self::number(to)).unwrap_or(0));
        let spec = SourceSpec {
            target,
            sizes: vec![(usize::from(size) - FCS, 1)],
            frames_per_second,
            flows,
            from: Nanos::ZERO,
            until: Nanos(STEP.0 * (WARM_UP + EXPLAINED)),
            loss_ppm: 0,
        };
        let from = self.handle(from);
        self.world.set_source(from, spec);
    }

    /// Sells a part of the core to a port.
    pub(super) fn cycles(&mut self, name: &str, ingress: IngressPolicy, part: f64) {
        let entitlement = cycles(part * float(CORE.hz()));
        self.port(name).qos.ingress = ingress;
        self.port(name).qos.entitlement = entitlement;
        self.set_qos(name);
    }

    /// Puts a port into a latency class.
    pub(super) fn class(&mut self, name: &str, class: u8) -> anyhow::Result<()> {
        self.port(name).qos.priority = Priority::new(class.into())?;
        self.set_qos(name);
        Ok(())
    }

    fn set_qos(&mut self, name: &str) {
        let (handle, qos) = (self.handle(name), self.port(name).qos);
        self.world.set_qos(handle, qos);
    }

    /// Sells a port a part of the core, as a rate of frames of this size, by a model whose costs
    /// are `error` times the true ones.
    pub(super) fn sell(
        &mut self,
        name: &str,
        ingress: IngressPolicy,
        (part, size): (f64, u16),
        error: f64,
    ) -> anyhow::Result<()> {
        let frames = part * float(CORE.hz()) / Self::cost(size);
        let bits = frames * 8.0 * f64::from(size);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
        let rate = Rate::Bits(BitsPerSecond(bits as u64));
        let contract = Contract { rate, sizes: SizeMix::fixed(size)?, flows: Flows::Single };
        let id = PortId(u16::try_from(Self::number(name))?);
        let (model_cost, base) = (Self::cost(size) * error, part * error * float(CORE.hz()));
        let terms = Terms {
            contract: Some(contract.clone()),
            capped: false,
            model_cost,
            base: cycles(base),
            workers: WorkerSet::one(0),
        };
        self.learned.push((id, terms));
        self.port(name).contract = Some(contract);
        self.cycles(name, ingress, part * error);
        Ok(())
    }

    /// Sets limits of frames that wait in the sender's ring, with the names of their keys.
    pub(super) fn police(
        &mut self,
        name: &str,
        (bits, frames): (Option<Limit>, Option<Limit>),
        keys: [&'static str; 2],
        waits: bool,
    ) -> anyhow::Result<()> {
        let rate = |limit: Option<Limit>| match limit {
            Some(Limit::SingleRate { cir, .. }) => cir.0,
            Some(Limit::Packets { rate, .. }) => rate.0,
            _ => u64::MAX,
        };
        self.port(name).limits = [(keys[0], rate(bits)), (keys[1], rate(frames))];
        let own = bits.into_iter().chain(frames).map(|limit| {
            let spec = Spec::new(limit)?.per_frame(4);
            Ok(Arc::new(Policer::new(if waits { spec.waiting() } else { spec })))
        });
        let own = own.collect::<anyhow::Result<Vec<_>>>()?;
        self.ingress(name, IngressPolicer { own, links: Vec::new() });
        Ok(())
    }

    fn ingress(&mut self, name: &str, limits: IngressPolicer) {
        let (handle, limits) = (self.handle(name), Arc::new(limits));
        self.world.set_policy(handle, |policy| policy.ingress_policer = Some(limits));
    }

    /// Sets the limit `send` of a tenant. The receivers belong to no tenant, like an uplink.
    pub(super) fn tenant_send(&mut self, name: &str, rate: BitsPerSecond, waits: bool) {
        let limit = meter(rate, waits);
        let handle = self.handle(name);
        self.world.set_policy(handle, |policy| policy.tenant_policer = Some(limit));
        for receiver in ["to", "far"] {
            let handle = self.handle(receiver);
            self.world.set_policy(handle, |policy| policy.tenant = None);
        }
    }

    /// Sets the limit `receive` of a receiver. Frames above it wait in a queue, or are dropped.
    pub(super) fn receive(&mut self, name: &str, rate: BitsPerSecond, waits: bool) {
        let limit = meter(rate, waits);
        if waits {
            let bound = Bound { bytes: 64 << 10, wait: Nanos::from_millis(100), ..dropping() };
            let home = self.queue(name, Order::Fifo, Pacing::None, bound);
            home.set_limit(Some(Arc::clone(&limit)));
        }
        let handle = self.handle(name);
        self.world.set_policy(handle, |policy| policy.egress_policer = Some(limit));
    }

    /// Gives a receiver a queue.
    pub(super) fn queue(
        &mut self,
        name: &str,
        order: Order,
        pacing: Pacing,
        bound: Bound,
    ) -> Arc<QueueHome> {
        let terms =
            QueueTerms { order, pacing, bound, held_bytes: bound.bytes, ..QueueTerms::default() };
        let home = QueueHome::new(terms, PORTS, PORTS);
        if order == Order::Wfq {
            self.port(name).queue = Some(Arc::clone(&home));
        }
        let (handle, queue) = (self.handle(name), Arc::clone(&home));
        self.world.set_policy(handle, |policy| policy.queue = Some(queue));
        home
    }

    /// Makes a receiver the port of a watched link, of which each sender has an equal part. The
    /// parts apply, because the link is full.
    pub(super) fn full_link(&mut self, name: &str, rate: BitsPerSecond, senders: &[&str]) {
        let active = Arc::new(AtomicBool::new(true));
        let waited = Arc::new(AtomicU64::new(0));
        let own = rate.0 / senders.len().max(1) as u64;
        let mut parts = Vec::new();
        for sender in senders {
            parts.push(LinkPart { port: (*sender).to_owned(), bps: own });
            let Ok(spec) = part(BitsPerSecond(own)) else { continue };
            let policer = Arc::new(Policer::new(spec));
            let (active, waited) = (Arc::clone(&active), Arc::clone(&waited));
            let links = vec![LinkLimit { active, waited, policer }];
            self.ingress(sender, IngressPolicer { own: Vec::new(), links });
        }
        self.watched_link(name, rate, parts);
    }

    /// Makes a receiver the port of a watched link.
    pub(super) fn watched_link(&mut self, name: &str, rate: BitsPerSecond, parts: Vec<LinkPart>) {
        self.link = Some((Self::number(name), rate, parts));
        let handle = self.handle(name);
        self.world.set_policy(handle, |policy| policy.watched = true);
    }

    /// Shapes the frames that a port sends.
    pub(super) fn shape(&mut self, name: &str, terms: ShapeTerms) {
        self.port(name).shaped_bps = Some(terms.rate.0);
        let handle = self.handle(name);
        self.world.set_policy(handle, |policy| policy.shape = Some(terms));
    }

    /// Binds a port to a source address that its VM does not use.
    pub(super) fn bind_elsewhere(&mut self, name: &str) {
        let handle = self.handle(name);
        self.world.set_policy(handle, |policy| {
            let mac = World::mac_of(u16::MAX - 1);
            policy.binding = Some(Binding::new(Some(&[mac]), None, None));
        });
    }

    /// Lets another program take the worker's core in periods.
    pub(super) fn disturb(&mut self) {
        self.disturbed = true;
    }

    fn run(&mut self, until: Nanos) {
        let (taken, period) = OTHER_PROGRAM;
        while self.disturbed && self.world.now() + period < until {
            let end = Nanos((self.world.now().0 / period.0 + 1) * period.0);
            self.world.run_until(end);
            self.world.steal(taken);
        }
        self.world.run_until(until);
    }

    fn moment(&self) -> Moment {
        let queues =
            self.ports.iter().map(|port| port.queue.as_deref().map_or_else(Vec::new, read));
        Moment {
            at: self.world.now(),
            ports: self.ports.iter().map(|port| self.world.port(port.handle)).collect(),
            queues: queues.collect(),
            worker: self.world.worker(),
        }
    }

    /// Simulates the host with its learner. Returns the growth of its counters, as the daemon
    /// computes it for `penstock explain`.
    pub(super) fn grow(mut self) -> Growth {
        let mut learner = Learner::new(LEARNS, &[CyclesPerSecond(CORE.hz())]);
        learner.set_ports(self.learned.clone());
        let mut last = self.moment();
        let mut before = last.clone();
        for step in 1..=WARM_UP + EXPLAINED {
            self.run(Nanos(STEP.0 * step));
            let now = self.moment();
            let seen: Vec<_> = (0_u16..)
                .zip(last.ports.iter().zip(&now.ports))
                .filter_map(|(id, (old, new))| {
                    let elapsed = now.at.saturating_sub(last.at);
                    Some((PortId(id), observed(old, new, (elapsed, CORE.hz()), 1)?))
                })
                .collect();
            for (id, entitlement) in learner.step(seen).changes {
                self.ports[id.index()].qos.entitlement = entitlement;
                self.set_qos(NAMES[id.index()]);
            }
            if step == WARM_UP {
                before = now.clone();
            }
            last = now;
        }
        self.growth(&before, &last, &learner)
    }

    fn growth(&self, before: &Moment, now: &Moment, learner: &Learner) -> Growth {
        let nanos = now.at.saturating_sub(before.at).0;
        let port = |(number, port): (usize, &Port)| {
            let reading = now.ports[number].since(&before.ports[number]);
            let learned = learner.port(PortId(u16::try_from(number).unwrap_or(0)));
            let dropped = |(now, old): (&QueueStatus, &QueueStatus)| QueueStatus {
                drops: now.drops - old.drops,
                ..now.clone()
            };
            PortGrowth {
                name: NAMES[number].to_owned(),
                number: u16::try_from(number).unwrap_or(0),
                reading,
                cycles: vec![reading.cycles],
                policy: port.qos.ingress,
                entitled: port.qos.entitlement.0,
                weight: port.qos.weight.get(),
                priority: port.qos.priority.get(),
                queues: now.queues[number]
                    .iter()
                    .zip(&before.queues[number])
                    .map(dropped)
                    .collect(),
                debt: now.ports[number].debt,
                bought: port.contract.as_ref().map(|of| Bought::new(of, learned.as_ref())),
                shaped_bps: port.shaped_bps,
                limits: port.limits,
                ..PortGrowth::default()
            }
        };
        let link = |(number, rate, parts): &(usize, BitsPerSecond, Vec<LinkPart>)| {
            let sent = now.ports[*number].tx_link - before.ports[*number].tx_link;
            let bits = u128::from(sent) * 8 * 1_000_000_000 / u128::from(nanos.max(1));
            let sent_permille =
                u64::try_from(bits * 1_000 / u128::from(rate.0.max(1))).unwrap_or(u64::MAX);
            LinkStatus {
                port: NAMES[*number].to_owned(),
                capacity_bps: rate.0,
                sent_permille,
                load_permille: sent_permille,
                limited: !parts.is_empty(),
                parts: parts.clone(),
                ..LinkStatus::default()
            }
        };
        Growth {
            nanos,
            tsc_hz: CORE.hz(),
            ports: self.ports.iter().enumerate().map(port).collect(),
            workers: vec![WorkerGrowth {
                reading: now.worker.since(&before.worker),
                stalled: false,
            }],
            links: self.link.iter().map(link).collect(),
            machine: learner.machine(),
            ..Growth::default()
        }
    }
}

/// State of the port that is examined. Its VM is attached.
pub(super) fn status() -> PortStatus {
    let (name, state, workers) = ("vm".to_owned(), "up".to_owned(), vec![0]);
    PortStatus { name, state, workers, ..PortStatus::default() }
}

fn read(home: &QueueHome) -> Vec<QueueStatus> {
    let (Some(lanes), classes) = (home.lanes(), home.classes()) else { return Vec::new() };
    let status = |(queue, weight): (u8, &Weight)| QueueStatus {
        queue: queue.into(),
        weight: weight.get().into(),
        drops: lanes.read(queue).drops,
        ..QueueStatus::default()
    };
    (0_u8..).zip(classes.weights()).map(status).collect()
}

/// A bound of a queue whose frames are dropped if they find no room.
pub(super) fn dropping() -> Bound {
    Bound { excess: Excess::Drop, ..Bound::default() }
}

fn meter(rate: BitsPerSecond, waits: bool) -> Arc<EgressPolicer> {
    let bytes = Some((rate, wait_depth(rate)));
    let terms = MeterTerms { bytes, per_frame: 4, waits, ..MeterTerms::default() };
    Arc::new(EgressPolicer::new(Meter::new(terms), None, Sharing::Strict))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of a core")]
fn cycles(of: f64) -> CyclesPerSecond {
    CyclesPerSecond(of.round() as u64)
}
