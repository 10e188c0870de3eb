//! `penstock explain`: computes an upper bound on the wait of a port's frames, and names the
//! assumptions of this bound.
//!
//! [`penstock_qos::latency_bound`] computes the bound from the state of the running host:
//! - The latency bound depends on the workers, and on the queue pairs that each worker owns.
//! - The latency bound depends on the ports' entitlements in cycles, which the cost model's learner
//!   may have corrected.
//! - The latency bound depends on the cost of a batch of frames. The cost model computes the cost
//!   of a batch for the traffic that the contract declares, and the learner corrects this cost. If
//!   the host has no cost model, the cost of a batch is derived from the port's frames in the last
//!   seconds. If the port sent no frames in the last seconds, the latency bound uses the highest
//!   cost of all ports.

use penstock_dataplane::worker::bucket_terms;
use penstock_qos::latency_bound::{
    Batches, Bound, Core as Worker, Member, Surplus, Unbounded, of_class,
};
use penstock_units::{CyclesPerSecond, Nanos, PortId, Priority};

use super::apply::{Core, lock};
use crate::api::{Explanation, LatencyBound};
use crate::config::Schedule;
use crate::explain::Growth;

/// Number of frames that a port must have sent before the mean cost of the frames is used.
const FRAMES_MIN: u64 = 100;
/// Maximum number of ports without a cycle bucket that the text names.
const NAMED_MAX: usize = 3;

/// A worker, its ports, and ports of other workers that send frames to this worker's ports.
struct Population {
    worker: Worker,
    names: Vec<String>,
    members: Vec<Member>,
}

impl Core {
    /// Writes into the answer the bound of the port's latency class on its worker, or the reason
    /// why there is no bound.
    pub(super) fn bound(&self, answer: &mut Explanation, growth: &Growth) {
        let Some(population) = self.population(answer.worker, growth) else {
            answer.latency = "no bound: the cycles of a frame are not known; set `file` in \
                              [model], or ask while frames flow"
                .to_owned();
            return;
        };
        let own = population.names.iter().zip(&population.members);
        let own =
            own.filter(|(_, member)| !member.elsewhere).find(|(name, _)| **name == answer.port);
        let Some(class) = own.map(|(_, member)| member.class) else {
            answer.latency = "no bound: the port has no queue pair".to_owned();
            return;
        };
        let of = |surplus| of_class(&population.worker, &population.members, class, surplus);
        match of(Surplus::Shared) {
            Ok((whose, bound)) => {
                let left = of(Surplus::Left).ok().map(|(_, bound)| bound);
                population.word(answer, whose, &bound, left.as_ref());
            }
            Err(why) => answer.latency = population.word_none(class, why),
        }
    }

    fn population(&self, worker: u32, growth: &Growth) -> Option<Population> {
        let asked: Vec<(String, PortId, u16)> = {
            let shared = lock(&self.shared);
            let live = shared.ports.iter().filter(|(_, port)| port.link.is_some());
            live.map(|(name, port)| (name.clone(), port.id, port.attachment.queues())).collect()
        };
        let owned: Vec<_> = asked
            .into_iter()
            .map(|(name, id, queues)| (name, id, self.switch.owners(id, queues)))
            .collect();
        let shared = lock(&self.shared);
        let (tsc, config) = (self.switch.tsc(), &shared.config.worker);
        let by_class = config.schedule == Schedule::Hbs;
        let class = |name: &String| match by_class {
            true => shared.terms(name).priority,
            false => Priority::FIRST,
        };
        let owns = |owner: &&u16| u32::from(**owner) == worker;
        let here = owned.iter().filter(|(_, _, owners)| owners.iter().any(|owner| owns(&owner)));
        let first = here.map(|(name, ..)| class(name)).min().unwrap_or(Priority::FIRST);
        let dearest = growth.ports.iter().filter_map(per_frame).fold(0.0, f64::max);
        let seen = |name: &String| growth.ports.iter().find(|port| port.name == *name);
        let segments = |name: &String| seen(name).map_or(1.0, per_taken);
        let batches = |name: &String, id: PortId, whole: bool| {
            let plan = shared.pricing.plan.port(name);
            if let Some([first, lower]) = plan.and_then(|plan| plan.batches) {
                let learned = shared.pricing.learned(id).and_then(|port| port.full_error);
                // The model counts frames on a wire, but a batch counts received frames.
                let factor = (1.0 + learned.unwrap_or(0.0)) * segments(name);
                return Some(if whole { first } else { lower }.scaled(factor));
            }
            let cost = seen(name).and_then(per_frame).unwrap_or(dearest);
            (cost > 0.0).then(|| Batches::measured(cost, tsc, whole))
        };
        let (mut names, mut members) = (Vec::new(), Vec::new());
        for (name, id, owners) in &owned {
            let mut workers = owners.clone();
            workers.sort_unstable();
            workers.dedup();
            let qos = shared.terms(name);
            let terms = bucket_terms(&qos, workers.len() as u64, tsc, None);
            let count = owners.iter().filter(owns).count();
            for (elsewhere, count) in [(false, count), (true, owners.len() - count)] {
                if count > 0 {
                    let whole = elsewhere || class(name) <= first;
                    names.push(name.clone());
                    members.push(Member {
                        class: class(name),
                        units: u32::try_from(count).unwrap_or(u32::MAX),
                        elsewhere,
                        batches: batches(name, *id, whole)?,
                        bucket: qos.ingress.is_metered().then_some(terms),
                    });
                }
            }
        }
        let whole = CyclesPerSecond(tsc.hz());
        let capacity = config.capacity.map_or(whole, |capacity| capacity.0.min(whole));
        let refill = Nanos::from_micros(config.refill_us.into());
        Some(Population { worker: Worker { capacity, refill }, names, members })
    }
}

/// Mean number of cycles for a frame of the port; `None` if the port sent fewer than [`FRAMES_MIN`]
/// frames.
fn per_frame(port: &crate::explain::PortGrowth) -> Option<f64> {
    let reading = &port.reading;
    (reading.rx_frames >= FRAMES_MIN).then(|| to_f64(reading.cycles) / to_f64(reading.rx_frames))
}

/// Mean number of frames on the wire for each frame that the port sends. If the port sends large
/// segments (TSO), the mean number is above 1.
fn per_taken(port: &crate::explain::PortGrowth) -> f64 {
    let reading = &port.reading;
    if reading.rx_frames == 0 {
        1.0
    } else {
        to_f64(reading.on_wire()[0]) / to_f64(reading.rx_frames)
    }
}

impl Population {
    fn us(&self, cycles: u64) -> f64 {
        to_f64(cycles) * 1e6 / to_f64(self.worker.capacity.0.max(1))
    }

    fn word(&self, answer: &mut Explanation, whose: usize, bound: &Bound, left: Option<&Bound>) {
        let us = |bound: &Bound| bound.wait.0.div_ceil(1_000);
        let mut words = format!(
            "a frame waits at most {} us to the end of its batch, if the port of class {} keeps to \
             its bucket: {:.1} us for a batch that has begun, and {:.1} us for {} of the class",
            us(bound),
            answer.priority,
            self.us(bound.begun.0),
            self.us(bound.beside.0),
            rounds(bound.rounds),
        );
        if bound.above.0 > 0 {
            words.push_str(&format!(
                ", {:.1} us for cycles that earlier classes saved, while earlier classes use \
                 {:.1} % of the core",
                self.us(bound.above.0),
                self.us(bound.above_rate.0) / 1e4,
            ));
        }
        match left {
            Some(left) if us(left) > us(bound) => words.push_str(&format!(
                "; at most {} us if ports of the frame's class and of later classes leave \
                 purchased cycles to earlier classes",
                us(left)
            )),
            Some(_) => {}
            None => words.push_str(
                "; there is no bound if other ports leave purchased cycles to earlier classes",
            ),
        }
        let free = self.names.iter().zip(&self.members).filter(|(_, m)| m.bucket.is_none());
        let free: Vec<&str> = free.map(|(name, _)| name.as_str()).collect();
        if !free.is_empty() {
            let named = free[..free.len().min(NAMED_MAX)].join(", ");
            let more = if free.len() > NAMED_MAX { ", ..." } else { "" };
            words.push_str(&format!(
                "; the bound assumes that ports without a bucket ({named}{more}) use only unsold \
                 cycles"
            ));
        }
        answer.latency = words;
        answer.bound_us = Some(us(bound));
        answer.bound = Some(LatencyBound {
            port: self.names[whose].clone(),
            rounds: bound.rounds,
            begun: bound.begun.0,
            beside: bound.beside.0,
            above: bound.above.0,
            above_rate: bound.above_rate.0,
            capacity: self.worker.capacity.0,
            left_us: left.map(us),
        });
    }

    fn word_none(&self, class: Priority, why: Unbounded) -> String {
        let (who, remedy) = match why {
            Unbounded::Free(at) => {
                let handed = if self.members[at].elsewhere { ", on another worker" } else { "" };
                let remedy = "give the named port `cycles` and a policy that meters cycles, or a \
                              later `priority`";
                (format!(" ({}{handed})", self.names[at]), remedy)
            }
            Unbounded::Full => (
                String::new(),
                "sell earlier classes fewer cycles, or give the port an earlier `priority`",
            ),
            Unbounded::Slow => (
                String::new(),
                "give the port a class with fewer ports, or sell the port fewer cycles",
            ),
            Unbounded::Absent => (String::new(), "see `penstock port show`"),
        };
        format!("no bound for class {}: {why}{who}; {remedy}", class.get())
    }
}

/// A number of rounds as text, such as "1 round".
fn rounds(count: u64) -> String {
    format!("{count} round{}", if count == 1 { "" } else { "s" })
}

#[expect(clippy::cast_precision_loss, reason = "the number of cycles is rounded for display")]
fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_is_singular() {
        assert_eq!([0, 1, 2].map(rounds), ["0 rounds", "1 round", "2 rounds"]);
    }
}
