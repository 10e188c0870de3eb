//! Division of one link's rate: by strict priority, by weight between queues, and equally within a
//! queue.
//!
//! # Problem
//!
//! A thousand flows send too many packets for a simulation of minutes of traffic. The module
//! computes the fair rates of flows, and simulates no packets.
//!
//! # Source
//!
//! The computed rates are the fluid limit of weighted fair queuing (generalised processor sharing,
//! Parekh and Gallager 1993). Inside a queue, rates are max-min fair.
//!
//! # Approach
//!
//! The link serves the priorities in order, lowest number first. A priority gets the rate of the
//! link that queues with lower priority numbers do not use. Within a priority, a queue gets at most
//! its demand. Queues with a higher demand share the remaining rate by weight. Flows share the rate
//! of a queue with equal weights, and a flow gets at most its demand.
//!
//! The result for each queue is the maximum rate of each flow in the queue, and the refused
//! fraction of the queue's demand. The maximum rate of each flow is infinite if the link meets the
//! whole demand of the queue. The refused fraction is the fraction of the queue's demand that the
//! link does not meet.
//!
//! # Example
//!
//! Two queues with weights 1 and 3 share a link of 100 Mbit/s. The first queue demands 20 Mbit/s
//! and gets 20 Mbit/s. Three flows of the second queue demand 10 Mbit/s, 60 Mbit/s and an infinite
//! rate. The second queue gets 80 Mbit/s, of which the three flows get 10, 35 and 35 Mbit/s.
//!
//! # Cost
//!
//! Dividing a link's rate takes one pass over the demands of all groups of flows, and a few passes
//! over the groups whose demand is not met yet. Dividing a link's rate allocates memory only if the
//! scratch space must grow.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queue {
    /// Strict priority of the queue. The link serves queues with lower priority numbers first.
    pub priority: u8,
    /// Weight of the queue among the queues of its priority, above 0.
    pub weight: f64,
}

impl Queue {
    /// Default queue for a link that has only one queue.
    pub const ONLY: Self = Self { priority: 0, weight: 1.0 };
}

/// A group of flows that share a queue and have equal demands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Asker {
    /// Index of the queue that the flows share.
    pub queue: usize,
    /// Number of flows in the group, above 0.
    pub flows: f64,
    /// Demand of all flows of the group together in bits/s. The demand is 0 or more, and may be
    /// infinite.
    pub demand: f64,
}

/// Rate and unmet demand of one queue after the division of a link's rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Maximum rate of each flow in bits/s, which is infinite if the link meets the demand of every
    /// flow.
    pub per_flow: f64,
    /// Fraction of the queue's demand that the link refuses, from 0 to 1.
    pub refused: f64,
}

impl Level {
    const OPEN: Self = Self { per_flow: f64::INFINITY, refused: 0.0 };
}

/// Memory that [`divide`] reuses between calls.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    asked: Vec<f64>,
    share: Vec<f64>,
    flows: Vec<f64>,
    open: Vec<bool>,
    /// Queues of the present priority whose rate is not known yet, in order.
    waiting: Vec<usize>,
    /// Groups of flows whose rate is not known yet, in order.
    rest: Vec<Asker>,
}

/// Divides a link's `capacity` (bits/s) among the groups of flows in `askers`, and writes the
/// result for each queue to `levels`. Returns the demand of all flows. If the demand is at most the
/// capacity, no queue has a maximum rate.
pub fn divide(
    capacity: f64,
    queues: &[Queue],
    askers: &[Asker],
    scratch: &mut Scratch,
    levels: &mut Vec<Level>,
) -> f64 {
    levels.clear();
    levels.resize(queues.len(), Level::OPEN);
    let Scratch { asked, share, flows, open, .. } = scratch;
    for sums in [&mut *asked, &mut *share, &mut *flows] {
        sums.clear();
        sums.resize(queues.len(), 0.0);
    }
    open.clear();
    open.resize(queues.len(), true);
    if queues.len() == 1 {
        // Local variables, because the next addition would wait for a store to memory.
        let (mut sum, mut number) = (0.0, 0.0);
        for asker in askers {
            sum += asker.demand;
            number += asker.flows;
        }
        (asked[0], flows[0]) = (sum, number);
    } else {
        for asker in askers {
            asked[asker.queue] += asker.demand;
            flows[asker.queue] += asker.flows;
        }
    }
    let demand = asked.iter().sum::<f64>();
    if demand <= capacity {
        return demand;
    }
    let mut left = capacity;
    let last = queues.iter().map(|q| q.priority).max().unwrap_or(0);
    for priority in 0..=last {
        left = among_queues(left, priority, queues, scratch);
    }
    within_queues(askers, scratch, levels);
    demand
}

/// Divides the rate `left` among the queues with the given priority, and returns the rate that
/// these queues do not use. Writes the rate of each queue to `share`. Sets `open` to `false` for
/// each queue with a rate below its demand.
fn among_queues(mut left: f64, priority: u8, queues: &[Queue], scratch: &mut Scratch) -> f64 {
    let Scratch { asked, share, open, waiting, .. } = scratch;
    waiting.clear();
    waiting.extend((0..queues.len()).filter(|q| queues[*q].priority == priority));
    loop {
        let weights: f64 = waiting.iter().map(|q| queues[*q].weight).sum();
        let level = left / weights;
        let content = waiting.iter().position(|q| asked[*q] <= queues[*q].weight * level);
        let Some(content) = content else {
            for queue in waiting.iter().copied() {
                share[queue] = queues[queue].weight * level;
                open[queue] = false;
            }
            return if weights > 0.0 { 0.0 } else { left };
        };
        let queue = waiting.remove(content);
        share[queue] = asked[queue];
        left = (left - asked[queue]).max(0.0);
    }
}

/// Computes the maximum rate of the flows in each queue that gets less than its demand. Each pass
/// over a queue fixes the rates of flows with a demand below the queue's fair share.
fn within_queues(askers: &[Asker], scratch: &mut Scratch, levels: &mut [Level]) {
    let Scratch { asked, share, flows, open, rest, .. } = scratch;
    for (queue, level) in levels.iter_mut().enumerate().filter(|(q, _)| !open[*q]) {
        let refused =
            if asked[queue].is_finite() { 1.0 - share[queue] / asked[queue] } else { 1.0 };
        *level = Level { per_flow: share[queue] / flows[queue], refused: refused.clamp(0.0, 1.0) };
    }
    rest.clear();
    rest.extend(askers.iter().filter(|a| !open[a.queue]));
    loop {
        let before = rest.len();
        rest.retain(|asker| {
            let settled = asker.demand < asker.flows * levels[asker.queue].per_flow;
            if settled {
                share[asker.queue] -= asker.demand;
                flows[asker.queue] -= asker.flows;
            }
            !settled
        });
        if rest.len() == before {
            return;
        }
        for (queue, level) in levels.iter_mut().enumerate().filter(|(q, _)| !open[*q]) {
            // The number of flows is whole. A remainder without flows is a rounding error.
            if flows[queue] > 0.5 {
                level.per_flow = (share[queue] / flows[queue]).max(level.per_flow);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(capacity: f64, queues: &[Queue], askers: &[(usize, f64, f64)]) -> Vec<Level> {
        let asker = |(queue, flows, demand): &(usize, f64, f64)| Asker {
            queue: *queue,
            flows: *flows,
            demand: *demand,
        };
        let askers: Vec<_> = askers.iter().map(asker).collect();
        let mut levels = Vec::new();
        divide(capacity, queues, &askers, &mut Scratch::default(), &mut levels);
        levels
    }

    fn weighted(weight: f64) -> Queue {
        Queue { priority: 0, weight }
    }

    const ANY: f64 = f64::INFINITY;

    #[test]
    fn small_demands_leave_the_rest_by_weight_and_then_equally() {
        let queues = [weighted(1.0), weighted(3.0)];
        let askers = [(0, 1.0, 20.0), (1, 1.0, 10.0), (1, 1.0, 60.0), (1, 1.0, ANY)];
        let found = levels(100.0, &queues, &askers);
        assert_eq!(found[0], Level::OPEN);
        assert!((found[1].per_flow - 35.0).abs() < 1e-9 && found[1].refused == 1.0);
        // Both queues are backlogged and share by weight. Three flows share the second queue.
        let found = levels(100.0, &queues, &[(0, 1.0, ANY), (1, 3.0, ANY)]);
        assert_eq!((found[0].per_flow, found[1].per_flow), (25.0, 25.0));
    }

    #[test]
    fn refusals_are_a_fraction_of_the_demand() {
        let found = levels(100.0, &[Queue::ONLY], &[(0, 1.0, 80.0), (0, 1.0, 120.0)]);
        assert_eq!(found[0], Level { per_flow: 50.0, refused: 0.5 });
        let found = levels(200.0, &[Queue::ONLY], &[(0, 1.0, 80.0), (0, 1.0, 120.0)]);
        assert_eq!(found[0], Level::OPEN);
    }

    #[test]
    fn a_lower_priority_gets_only_what_the_higher_leaves() {
        let queues = [Queue { priority: 0, weight: 1.0 }, Queue { priority: 1, weight: 1.0 }];
        let found = levels(100.0, &queues, &[(0, 2.0, 70.0), (1, 1.0, ANY)]);
        assert_eq!(found[0], Level::OPEN);
        assert!((found[1].per_flow - 30.0).abs() < 1e-9);
        let found = levels(100.0, &queues, &[(0, 2.0, 170.0), (1, 1.0, 10.0)]);
        assert_eq!((found[0].per_flow, found[1].per_flow), (50.0, 0.0));
    }
}
