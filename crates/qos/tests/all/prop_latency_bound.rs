//! Compares the latency bound of C2QoS with a small model of a worker. The model of the worker uses
//! the product's token buckets and scheduler. In the model, one port sends no more than it
//! purchased, and all other ports behave arbitrarily. No frame of the port that sends within its
//! purchase may wait longer than the computed bound.

use std::collections::VecDeque;

use penstock_qos::c2tb::{BucketSet, Mode, Terms};
use penstock_qos::hbs::{BatchScheduler, Readiness};
use penstock_qos::latency_bound::{Batches, Core, GLANCES, Member, Surplus, worst_case};
use penstock_units::{Cycles, CyclesPerSecond, Nanos, Priority, TscRate, Weight};
use proptest::prelude::*;

/// Frequency of the core, 1 GHz, so that a cycle is a nanosecond.
const HZ: u64 = 1_000_000_000;
const REFILL: u64 = 50_000;
/// Duration of the simulation in cycles.
const END: u64 = 20_000_000;

/// A pseudorandom generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }
}

/// A port of the model: its terms, the cost of its frames, and the arrival times of the frames in
/// its ring.
struct Port {
    member: Member,
    frame: u64,
    frames: usize,
    ring: VecDeque<u64>,
    next: u64,
}

fn port(random: &mut Random, class: u64, share: u64, minmax: bool) -> Port {
    let (frame, frames) = (random.between(100, 1_000), random.between(4, 32));
    let batch = Cycles(frame * frames);
    let entitlement = share * (HZ / 1_000);
    let refill = entitlement * REFILL / HZ;
    let terms = Terms {
        entitlement: CyclesPerSecond(entitlement),
        weight: Weight::new(random.between(1, 8)).unwrap(),
        mode: if minmax && random.below(2) == 0 { Mode::MinMax } else { Mode::Strict },
        depth: Cycles(refill + random.between(1_000, 60_000)),
    };
    Port {
        member: Member {
            class: Priority::new(class).unwrap(),
            units: 1,
            elsewhere: false,
            batches: Batches { least: batch, most: batch },
            bucket: Some(terms),
        },
        frame,
        frames: usize::try_from(frames).unwrap(),
        ring: VecDeque::new(),
        next: random.below(200_000),
    }
}

/// Cycles that the port under test may still spend at once without exceeding its purchase.
struct Allowance {
    level: u64,
    burst: u64,
    at: u64,
    carry: u64,
}

impl Allowance {
    fn of(member: &Member) -> Self {
        let terms = member.bucket.unwrap();
        let burst = terms.depth.0 - terms.entitlement.0 * REFILL / HZ - 1;
        Self { level: burst, burst, at: 0, carry: 0 }
    }

    fn frames(&mut self, port: &Port, now: u64, most: u64) -> u64 {
        let rate = port.member.bucket.unwrap().entitlement.0;
        let due = (now - self.at) * rate + self.carry;
        (self.at, self.carry) = (now, due % HZ);
        self.level = (self.level + due / HZ).min(self.burst);
        let frames = (self.level / port.frame).min(most);
        self.level -= frames * port.frame;
        frames
    }
}

struct World {
    ports: Vec<Port>,
    buckets: BucketSet,
    hbs: BatchScheduler,
    random: Random,
    allowance: Allowance,
    now: u64,
    refilled: u64,
    throttled: bool,
    passed: bool,
    /// Longest wait of a frame of the port under test, which is the first port.
    worst: u64,
}

impl World {
    fn new(ports: Vec<Port>, random: Random) -> Self {
        let slots = ports.len();
        let core = TscRate::from_hz(HZ);
        let mut buckets = BucketSet::new(slots, core, CyclesPerSecond(HZ));
        let mut hbs = BatchScheduler::new(slots, Readiness::Pending);
        for (slot, port) in ports.iter().enumerate() {
            hbs.add(slot, port.member.class);
            if let Some(terms) = &port.member.bucket {
                buckets.join(slot, terms, terms.depth.0.cast_signed());
            }
        }
        let allowance = Allowance::of(&ports[0].member);
        let (now, refilled, throttled, passed, worst) = (0, 0, false, false, 0);
        Self { ports, buckets, hbs, random, allowance, now, refilled, throttled, passed, worst }
    }

    /// Adds all frames that have arrived by now to the rings.
    fn arrive(&mut self) {
        let random = &mut self.random;
        for (slot, port) in self.ports.iter_mut().enumerate() {
            while port.next <= self.now {
                let at = port.next;
                let gap = match random.below(4) {
                    0 => random.below(3_000),
                    1 => random.below(1_000_000),
                    _ => random.below(100_000),
                };
                port.next = at + 1 + gap;
                let most = if random.below(3) == 0 { 1 } else { random.between(1, 300) };
                let frames = if slot == 0 { self.allowance.frames(port, at, most) } else { most };
                let room = if slot == 0 { u64::MAX } else { 400 - port.ring.len() as u64 };
                port.ring.extend((0..frames.min(room)).map(|_| at));
            }
        }
    }

    fn refill(&mut self) {
        self.buckets.refill(Cycles(self.now - self.refilled));
        self.refilled = self.now;
        self.throttled = false;
        let buckets = &self.buckets;
        self.hbs.release(penstock_qos::hbs::RELEASE_MOST, |slot| buckets.may_run(slot));
        for _ in 0..if core::mem::take(&mut self.passed) { 0 } else { GLANCES } {
            let Some(slot) = self.hbs.next_glance() else { break };
            self.buckets.note_waiting(slot, !self.ports[slot].ring.is_empty());
        }
    }

    /// Makes one scheduling decision and runs one batch, as a worker does. Returns false if no port
    /// has both tokens and frames.
    fn sweep(&mut self) -> bool {
        self.hbs.begin();
        while let Some(candidate) = self.hbs.next_look() {
            let slot = candidate.slot;
            if !self.buckets.may_run(slot) {
                self.throttled = true;
                self.hbs.hold(slot);
            } else if self.ports[slot].ring.is_empty() {
                self.buckets.note_waiting(slot, false);
            } else {
                self.run(slot);
                return true;
            }
        }
        self.passed = true;
        false
    }

    fn run(&mut self, slot: usize) {
        let port = &mut self.ports[slot];
        let taken = port.frames.min(port.ring.len());
        let oldest = port.ring[0];
        port.ring.drain(..taken);
        let cost = port.frame * taken as u64;
        self.now += cost;
        if slot == 0 {
            self.worst = self.worst.max(self.now - oldest);
        }
        let more = taken == port.frames;
        let left = self.buckets.charge(slot, Cycles(cost), more);
        self.hbs.ran(slot);
        if !left {
            self.hbs.hold(slot);
        }
    }

    fn go(&mut self) {
        while self.now < END {
            self.arrive();
            let busy = self.sweep();
            if self.now >= self.refilled + REFILL {
                self.refill();
            } else if !busy {
                let early = self.refilled + REFILL / 8;
                let waits = self.throttled || self.hbs.waiting() > 0;
                if waits && self.now >= early {
                    self.refill();
                    continue;
                }
                let next = self.ports.iter().map(|port| port.next).min().unwrap();
                let refill = if waits { early } else { self.refilled + REFILL };
                self.now = next.min(refill).max(self.now + 1);
            }
        }
    }
}

/// Builds a worker. The first port of the worker is the port under test. All ports except the first
/// get random classes and random shares, in thousandths.
fn world(seed: u64, others: u64, minmax: bool) -> (World, Option<u64>) {
    let mut random = Random(seed | 1);
    let class = random.between(1, 4);
    let own = random.between(20, 200);
    let mut left = 950 - own;
    let mut ports = vec![port(&mut random, class, own, minmax)];
    for _ in 0..others {
        let share = random.below(left.min(250));
        left -= share;
        let its_class = random.between(1, 4);
        ports.push(port(&mut random, its_class, share, minmax));
    }
    let members: Vec<Member> = ports.iter().map(|port| port.member).collect();
    let core = Core { capacity: CyclesPerSecond(HZ), refill: Nanos(REFILL) };
    let bound = worst_case(&core, &members, 0, Surplus::Left).ok();
    (World::new(ports, random), bound.map(|bound| bound.wait.0))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_frame_of_a_port_within_its_bucket_waits_longer(
        seed in any::<u64>(),
        others in 0_u64..12,
        minmax in any::<bool>(),
    ) {
        let (mut world, bound) = world(seed, others, minmax);
        prop_assume!(bound.is_some());
        world.go();
        prop_assert!(world.worst <= bound.unwrap(), "{} > {}", world.worst, bound.unwrap());
    }
}

#[test]
fn the_bound_is_within_a_small_factor_of_reality() {
    // In at least one of many runs with strict ports, the longest wait is at least half of the
    // bound. The bound is therefore not far too large.
    let closest = (1..200_u64).filter_map(|seed| {
        let (mut world, bound) = world(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15), 4, false);
        let bound = bound?;
        world.go();
        Some(world.worst * 100 / bound)
    });
    let closest = closest.max().unwrap();
    assert!(closest >= 50, "the nearest is {closest} % of its bound");
}
