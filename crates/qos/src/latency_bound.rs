//! How long a frame may have to wait for its batch, by class.
//!
//! **Problem.** A latency class is worth what can be promised for it before anything is measured.
//!
//! **Source.** C2QoS §IV-B.2: `(N1 k1 + N2 k2 + ... + Nn) c`, with `k` left open.
//!
//! **Quantities.** `N` → [`Member::units`]; `c` → [`Core::batch`], the costliest batch, in cycles;
//! `k` follows from the tokens: [`Member::depth`] and [`Member::rate`].
//!
//! **Rule.** For a port that has tokens, before its batch is done come: one batch that had begun;
//! one of each unit of its own class, itself included; and from the classes above what their tokens
//! allow. That is at most a full bucket and one batch into debt each, what a refill brings at
//! once, and what is generated for them while the frame waits: a part `rho` of the core. So the
//! wait is the first sum divided by `1 - rho`. Rates ([`Member::rate`]) are those of a worker on
//! which everybody uses what it bought: its entitlement and its weight's part of what is not sold.
//! A higher class that lives on what sleepers leave can exceed it while it drains a full bucket.
//!
//! **Example** (a test). 1 GHz, batches of 10,000 cycles, two ports in class 1 with 20 % each and
//! depth 50,000, one in class 2, refills every 50 us: class 1 waits 30 us, class 2 (10 + 10 + 120 +
//! 20) / 0.6 = 266 us.
//!
//! **Departures.** The paper's `k` is worked out instead of left open, and the batch that had
//! begun is counted.
//!
//! **Cost.** O(ports), when somebody asks.

use penstock_units::{Cycles, CyclesPerSecond, Nanos, Priority, TscRate};

/// A port on the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its class.
    pub class: Priority,
    /// Its queue pairs there.
    pub units: u32,
    /// Depth of its bucket.
    pub depth: Cycles,
    /// What is generated for it when everybody uses what it bought; `None`: it has no bucket.
    pub rate: Option<CyclesPerSecond>,
}

/// The worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its cycles.
    pub rate: TscRate,
    /// Between two refills.
    pub refill: Nanos,
    /// What the costliest batch takes.
    pub batch: Cycles,
}

/// The longest that a frame in `class` waits for the end of its batch, as long as its port has
/// tokens. `None`: there is no bound, because a port above has no bucket, or those above may use
/// the whole core.
#[must_use]
pub fn worst_case(core: &Core, members: &[Member], class: Priority) -> Option<Nanos> {
    let batch = u128::from(core.batch.0);
    let own = members.iter().filter(|member| member.class == class);
    let own: u128 = own.map(|member| u128::from(member.units)).sum();
    let others = members.iter().any(|member| member.class != class) || own > 1;
    let mut work = own.max(1) * batch + if others { batch } else { 0 };
    let (mut rates, hz) = (0, u128::from(core.rate.hz()));
    for member in members.iter().filter(|member| member.class < class) {
        let rate = u128::from(member.rate?.0);
        rates += rate;
        work += u128::from(member.depth.0) + batch;
        work += rate * u128::from(core.refill.0) / 1_000_000_000;
    }
    let left = hz.checked_sub(rates).filter(|&left| left > 0)?;
    // work / hz seconds, divided by left / hz.
    Some(Nanos(u64::try_from(work * 1_000_000_000 / left).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(n: u64) -> Priority {
        Priority::new(n).unwrap()
    }

    #[test]
    fn a_class_waits_for_those_above_as_far_as_their_tokens_go() {
        let core = Core {
            rate: TscRate::from_hz(1_000_000_000),
            refill: Nanos::from_micros(50),
            batch: Cycles(10_000),
        };
        let member = |n, percent: u64| Member {
            class: class(n),
            units: 1,
            depth: Cycles(50_000),
            rate: Some(CyclesPerSecond(percent * 10_000_000)),
        };
        let members = [member(1, 20), member(1, 20), member(2, 20)];
        assert_eq!(worst_case(&core, &members, class(1)), Some(Nanos(30_000)));
        assert_eq!(worst_case(&core, &members, class(2)), Some(Nanos(266_666)));
        let alone = worst_case(&core, &members[2..], class(2));
        assert_eq!(alone, Some(Nanos(10_000)), "its own batch");
        let all = [member(1, 60), member(1, 40), member(2, 0)];
        assert_eq!(worst_case(&core, &all, class(2)), None, "those above may use the whole core");
        let free = [Member { rate: None, ..member(1, 0) }, member(2, 10)];
        assert_eq!(worst_case(&core, &free, class(2)), None);
        assert!(worst_case(&core, &free, class(1)).is_some());
    }
}
