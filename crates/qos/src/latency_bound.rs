//! Computes an upper bound of the time from a frame's arrival to the end of its batch, for each
//! priority class.
//!
//! # Problem
//!
//! An operator needs to know the largest delay of a class before any traffic is measured.
//!
//! # Source
//!
//! The paper C2QoS (§IV-B.2) gives the latency bound `(N1 k1 + N2 k2 + ... + Nn) c` for class n.
//! C2QoS does not define how to compute the factors `k` of the latency bound.
//!
//! # Quantities
//!
//! For each class, N is the number of queue pairs ([`Member::units`]), and c is the cost of a batch
//! in cycles ([`Batches`]). The factor `k` of the C2QoS bound is computed from the depth
//! ([`Terms::depth`]) and the rate ([`Terms::entitlement`]) of a port's bucket.
//!
//! # Scope
//!
//! - For a port with a bucket, the bound applies only if the port sends within the limits of its
//!   bucket. In any time `t`, frames within a bucket's limits cost at most the depth minus one
//!   refill, plus the rate times `t`. A port that sends within its bucket's limits never waits for
//!   tokens.
//! - For a port without a bucket, the bound applies only to a frame with less than a batch of
//!   frames before it in the ring.
//! - The bound on a frame's wait is valid regardless of the frames that other ports send.
//!
//! # Approach
//!
//! The *ports above* a port are the ports of earlier classes. Ports on other workers that hand
//! frames over to this worker count as ports of earlier classes. In every class, batches of frames
//! that other workers handed over alternate with local batches. The core does three kinds of work
//! between the arrival of a frame and the end of its batch:
//!
//! 1. The work *begun* is a batch that started before the frame arrived, either of the frame's own
//!    port or of a later class.
//! 2. The work *beside* consists of rounds in which every unit (queue pair) of the frame's class
//!    runs a batch. The number of rounds is the number of batches that the port needs for all
//!    frames that it may put into its ring at once.
//! 3. The work *above* consists of the batches of ports of earlier classes. Each port of an earlier
//!    class may spend a full bucket and go into debt by one batch. A port of an earlier class may
//!    also spend the tokens of one refill, and all tokens generated while the frame waits.
//!
//! The latency bound is the total time of three kinds of work (begun, beside and above), divided by
//! `1 - rho`. The variable `rho` is the fraction of the core's capacity that refills generate for
//! ports of earlier classes.
//!
//! The bound assumes that each port of an earlier class gets the cycles that it purchased. Ports of
//! earlier classes in mode `minmax` also get cycles that other ports do not use. The caller chooses
//! one of two assumptions about cycles that other ports do not use:
//!
//! - With [`Surplus::Shared`], the bound assumes that all other ports use the cycles that they
//!   purchased. With [`Surplus::Shared`], `minmax` ports of earlier classes get their weighted part
//!   of the unsold cycles.
//! - With [`Surplus::Left`], the bound assumes that all other ports leave their cycles unused. With
//!   [`Surplus::Left`], ports of earlier classes get all cycles except the cycles generated for the
//!   frame's own port. If ports of earlier classes use the whole core, the worker may find the
//!   frame only by its checks after refills ([`GLANCES`]).
//!
//! If no port of an earlier class is in mode `minmax`, `Shared` and `Left` give the same bound.
//!
//! # Example
//!
//! The latency example has a core of 1 GHz, batches of 10,000 cycles, depths of 20,000 cycles and
//! refills every 50 µs. In the example, two ports in class 1 purchased 20 % of the core each, and
//! one port in class 2 purchased 10 %. All three ports of the example are in mode `strict`.
//!
//! In the example, a port of class 1 may at once put frames that cost 20,000 - 10,000 = 10,000
//! cycles (depth minus one refill) into its ring. In the example, a port may need two batches for
//! frames that cost 10,000 cycles in total. In the example, the bound of class 1 is 50 µs: 10 µs
//! for the batch begun, and two rounds of 20 µs beside.
//!
//! In the example, the port of class 2 also needs two batches for all frames that it may put into
//! its ring at once. In the example, work for class 2 takes 10 µs (begun), 20 µs (beside) and 80 µs
//! (above), in total 110 µs. In the example, the bound of class 2 is 110 µs of work divided by 1 -
//! 0.4 = 0.6, which is 183 µs.
//!
//! # Limits
//!
//! The bound on a frame's wait excludes the following delays:
//!
//! - A port without a bucket, in the same or a later class, may use more cycles than are unsold. If
//!   a port without a bucket uses sold cycles, refills generate fewer cycles than were sold (see
//!   [`crate::c2tb`]), and other ports may wait.
//! - The kernel or control work may use the core for some time.
//! - If a queue pair was idle and is not polled, the worker needs time to wake it.
//! - The worker wakes drivers by calls of the kernel. While such a call takes longer than
//!   [`LOWER_CLASS`], batches of later classes may take as long as the call.
//! - Frames may be delayed after the end of the batch, on the link and at the receiver.
//!
//! # Departures
//!
//! Penstock computes the factor `k` of the C2QoS formula from the buckets. The formula of C2QoS
//! excludes the batch that had begun and a burst of the port's own frames; Penstock's bound
//! includes both delays.
//!
//! # Cost
//!
//! A computation of a bound takes O(ports).

use core::fmt;

use penstock_units::{Cycles, CyclesPerSecond, Nanos, Priority, TscRate};

use crate::c2tb::{Mode, Terms};
use crate::cost_model::{CostModel, Deployment, FCS, Profile, to_f64, whole_up};

/// Maximum number of frames in a batch.
pub const BATCH_FRAMES: u32 = 32;
/// Longest time for which a batch may run, for a port that is not in the worker's first class and
/// whose frames cause no calls of the kernel. A full batch takes less than 5 µs at nearly all frame
/// sizes, so the limit costs no throughput.
pub const LOWER_CLASS: Nanos = Nanos::from_micros(5);
/// Number of units that a worker checks for frames after each refill, outside of decisions.
pub const GLANCES: u32 = 4;

/// Cost in cycles of a batch with the maximum number of frames of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// Cycles of a batch in which all frames are of the cheapest kind.
    pub least: Cycles,
    /// Cost of the batch if all its frames are of the most expensive kind.
    pub most: Cycles,
}

impl Batches {
    /// Computes the costs of a profile's batches from the cost model. The argument `whole` is true
    /// if the port is in the worker's first class, so that batches have full length. The cost of
    /// the most expensive batch includes the spread of the measurements.
    #[must_use]
    pub fn modelled(
        model: &CostModel,
        (profile, at): (&Profile, Deployment),
        core: TscRate,
        whole: bool,
    ) -> Self {
        let sizes = || profile.sizes.entries().iter().map(|(size, _)| u64::from(*size));
        let cost = |frames: u32, size: u64| {
            let bytes = u64::from(frames) * size.saturating_sub(FCS);
            model.batch(profile, at, frames, bytes)
        };
        let of = |frames: u32| sizes().map(move |size| (frames, size));
        let least = |all: &mut dyn Iterator<Item = (u32, u64)>| {
            all.map(|(n, size)| cost(n, size)).fold(f64::INFINITY, f64::min)
        };
        let most = |all: &mut dyn Iterator<Item = (u32, u64)>| {
            all.map(|(n, size)| cost(n, size)).fold(0.0, f64::max)
        };
        let (few, many) = if whole {
            (BATCH_FRAMES, BATCH_FRAMES)
        } else {
            let each = f64::from(BATCH_FRAMES);
            let dear = most(&mut of(BATCH_FRAMES)) / each;
            let cheap = least(&mut of(BATCH_FRAMES)) / each;
            (frames_in(LOWER_CLASS, core, dear), frames_in(LOWER_CLASS, core, cheap))
        };
        let spread = 1.0 + model.uncertainty(profile);
        Self {
            least: Cycles(whole_up(least(&mut of(few))).max(1)),
            most: Cycles(whole_up(most(&mut of(many)) * spread).max(1)),
        }
    }

    /// Returns the costs multiplied by `factor`, for frames that cost `factor` times as much as
    /// modelled.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let of = |cost: Cycles| Cycles(whole_up(to_f64(cost.0) * factor).max(1));
        Self { least: of(self.least), most: of(self.most) }
    }

    /// Computes the costs of batches from a measured mean cost per frame, in cycles.
    #[must_use]
    pub fn measured(per_frame: f64, core: TscRate, whole: bool) -> Self {
        let frames =
            if whole { BATCH_FRAMES } else { frames_in(LOWER_CLASS, core, per_frame.max(1.0)) };
        let cost = Cycles(whole_up(per_frame * f64::from(frames)).max(1));
        Self { least: cost, most: cost }
    }
}

/// Returns the number of frames that fit into `time` at `per_frame` cycles each, from 1 to
/// [`BATCH_FRAMES`].
fn frames_in(time: Nanos, core: TscRate, per_frame: f64) -> u32 {
    let fit = to_f64(core.to_cycles(time).0) / per_frame.max(1.0);
    (1..=BATCH_FRAMES).rev().find(|frames| f64::from(*frames) <= fit).unwrap_or(1)
}

/// A port that has queue pairs on the worker, or hands frames over to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Latency class of the port. If the worker ignores latency classes, all ports must have the
    /// same class.
    pub class: Priority,
    /// Number of the port's queue pairs on the worker.
    pub units: u32,
    /// Whether the port's queue pairs are on other workers, which hand the port's frames over to
    /// this worker.
    pub elsewhere: bool,
    /// Lowest and highest cost of a batch with the maximum number of the port's frames.
    pub batches: Batches,
    /// Terms of the port's bucket on the worker. `None` if the port has no bucket on the worker.
    pub bucket: Option<Terms>,
}

impl Member {
    fn is_above(&self, class: Priority) -> bool {
        self.elsewhere || self.class < class
    }
}

/// Properties of a worker's core on which the latency bound depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Cycles per second that the worker may spend on frames.
    pub capacity: CyclesPerSecond,
    /// Time between two refills of the worker's buckets.
    pub refill: Nanos,
}

/// Assumption about the cycles that ports of earlier classes get in addition to their purchases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surplus {
    /// The bound assumes that all other ports use the cycles that they purchased. Ports of earlier
    /// classes in mode `minmax` also get their weighted part of the unsold cycles.
    Shared,
    /// The latency bound assumes that all other ports leave their cycles unused. Ports of earlier
    /// classes in mode `minmax` get all cycles that other ports leave unused.
    Left,
}

/// Upper bound on the wait of a frame, and the components of the bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Longest time from a frame's arrival in the ring to the end of its batch.
    pub wait: Nanos,
    /// Number of batches that the port runs up to the batch that contains the frame, inclusive.
    pub rounds: u64,
    /// Cost in cycles of the batch that had begun before the frame arrived.
    pub begun: Cycles,
    /// Cost in cycles of the batches of the port's class, including the port's own batches.
    pub beside: Cycles,
    /// Cycles that ports of earlier classes may spend: full buckets, permitted debt, and the tokens
    /// of one refill.
    pub above: Cycles,
    /// Cycles per second that refills generate for ports of earlier classes while the frame waits.
    pub above_rate: CyclesPerSecond,
}

/// Reason why the wait of a frame has no upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbounded {
    /// A port in an earlier class has no bucket and may run without limit. The field is the index
    /// of the port in the list of ports.
    Free(usize),
    /// The ports of earlier classes may use the whole core.
    Full,
    /// The port gets its turns too rarely to use the cycles that it purchased.
    Slow,
    /// No port of the class has a queue pair on this worker.
    Absent,
}

impl fmt::Display for Unbounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free(_) => "a port that is served before this class has no cycle bucket",
            Self::Full => "ports that are served before this class may use the whole core",
            Self::Slow => "a port of this class gets too few turns to use its purchased cycles",
            Self::Absent => "no port of this class has a queue pair on this worker",
        })
    }
}

/// Returns the longest wait of a frame of `members[of]` until the end of its batch.
///
/// # Errors
/// If a frame's wait has no upper bound, returns the reason why.
pub fn worst_case(
    core: &Core,
    members: &[Member],
    of: usize,
    surplus: Surplus,
) -> Result<Bound, Unbounded> {
    let own = members.get(of).filter(|own| !own.elsewhere).ok_or(Unbounded::Absent)?;
    let above = Above::of(core, members, own, surplus)?;
    let capacity = u128::from(core.capacity.0);
    let left = capacity.checked_sub(above.rate).filter(|&left| left > 0).ok_or(Unbounded::Full)?;
    let most = |member: &Member| u128::from(member.batches.most.0);
    let round: u128 = (members.iter())
        .filter(|member| !member.elsewhere && member.class == own.class)
        .map(|member| u128::from(member.units.max(1)) * most(member))
        .sum();
    let least = u128::from(own.batches.least.0.max(1));
    let mut rounds = 1;
    if let Some(terms) = &own.bucket {
        let rate = u128::from(terms.entitlement.0);
        // `burst` is the cost of the frames that the port may put into its ring at once.
        let burst = u128::from(terms.depth.0).saturating_sub(per(rate, core.refill));
        rounds = burst / least + 1;
        // A round takes round / left seconds. In this time, frames that cost rate × round / left
        // cycles arrive.
        if rate * round > least * left {
            return Err(Unbounded::Slow);
        }
    }
    let lower = members.iter().filter(|m| !m.elsewhere && m.class > own.class).map(most);
    let begun = lower.fold(most(own), u128::max);
    let beside = rounds * round;
    let late = u128::from(core.refill.0) * u128::from(above.late);
    let wait = (begun + beside + above.work) * 1_000_000_000 / left + 1 + late;
    Ok(Bound {
        wait: Nanos(narrow(wait)),
        rounds: narrow(rounds),
        begun: Cycles(narrow(begun)),
        beside: Cycles(narrow(beside)),
        above: Cycles(narrow(above.work)),
        above_rate: CyclesPerSecond(narrow(above.rate)),
    })
}

/// Returns the latency bound of a class, which is the longest bound of its ports, and the index of
/// the port with this bound.
///
/// # Errors
/// Returns [`Unbounded::Absent`] if the class has no port on this worker. Otherwise returns why a
/// port of the class has no bound.
pub fn of_class(
    core: &Core,
    members: &[Member],
    class: Priority,
    surplus: Surplus,
) -> Result<(usize, Bound), Unbounded> {
    let mut worst = None;
    for (at, member) in members.iter().enumerate() {
        if member.class == class && !member.elsewhere {
            let bound = worst_case(core, members, at, surplus)?;
            if worst.is_none_or(|(_, other): (usize, Bound)| bound.wait > other.wait) {
                worst = Some((at, bound));
            }
        }
    }
    worst.ok_or(Unbounded::Absent)
}

/// Work of ports of earlier classes that may delay a frame.
struct Above {
    /// Sum of the cycles in full buckets, of one batch of debt per port, and of the tokens of one
    /// refill.
    work: u128,
    /// Cycles per second that refills generate for ports of earlier classes.
    rate: u128,
    /// Number of refills after which the worker finds the port's frames at the latest.
    late: u32,
}

impl Above {
    fn of(
        core: &Core,
        members: &[Member],
        own: &Member,
        surplus: Surplus,
    ) -> Result<Self, Unbounded> {
        let sold = |member: &Member| member.bucket.map_or(0, |t| u128::from(t.entitlement.0));
        let unsold = u128::from(core.capacity.0).saturating_sub(members.iter().map(sold).sum());
        let shares = |terms: &&Terms| terms.mode == Mode::MinMax;
        let weight = |terms: &Terms| u128::from(terms.weight.get());
        let weights: u128 =
            members.iter().filter_map(|m| m.bucket.as_ref()).filter(shares).map(weight).sum();
        let (mut work, mut rate, mut takes, mut units) = (0, 0, false, 0_u32);
        for (at, member) in members.iter().enumerate() {
            units = units.saturating_add(if member.elsewhere { 0 } else { member.units });
            if !member.is_above(own.class) {
                continue;
            }
            let terms = member.bucket.as_ref().ok_or(Unbounded::Free(at))?;
            work += u128::from(terms.depth.0) + u128::from(member.batches.most.0);
            rate += u128::from(terms.entitlement.0);
            if shares(&terms) {
                takes = true;
                rate += (unsold * weight(terms)).div_ceil(weights.max(1));
            }
        }
        let mut late = 0;
        if takes && surplus == Surplus::Left {
            rate = u128::from(core.capacity.0).saturating_sub(sold(own));
            late = units.div_ceil(GLANCES);
        }
        work += per(rate, core.refill);
        Ok(Self { work, rate, late })
    }
}

/// Returns how many cycles a rate of `rate` cycles per second yields in `time`, rounded up.
const fn per(rate: u128, time: Nanos) -> u128 {
    (rate * time.0 as u128).div_ceil(1_000_000_000)
}

fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_units::Weight;

    const CORE: Core =
        Core { capacity: CyclesPerSecond(1_000_000_000), refill: Nanos::from_micros(50) };

    fn class(n: u64) -> Priority {
        Priority::new(n).unwrap()
    }

    fn member(n: u64, percent: u64) -> Member {
        let batch = Cycles(10_000);
        Member {
            class: class(n),
            units: 1,
            elsewhere: false,
            batches: Batches { least: batch, most: batch },
            bucket: Some(Terms {
                entitlement: CyclesPerSecond(percent * 10_000_000),
                weight: Weight::default(),
                mode: Mode::Strict,
                depth: Cycles(20_000),
            }),
        }
    }

    fn wait_us(members: &[Member], of: usize, surplus: Surplus) -> Result<u64, Unbounded> {
        Ok(worst_case(&CORE, members, of, surplus)?.wait.0 / 1_000)
    }

    #[test]
    fn a_class_waits_for_those_above_while_their_tokens_last() {
        let members = [member(1, 20), member(1, 20), member(2, 10)];
        assert_eq!(wait_us(&members, 0, Surplus::Shared), Ok(50));
        assert_eq!(wait_us(&members, 2, Surplus::Shared), Ok(183));
        assert_eq!(wait_us(&members, 2, Surplus::Left), Ok(183), "nobody above takes idle cycles");
        let bound = worst_case(&CORE, &members, 2, Surplus::Shared).unwrap();
        assert_eq!((bound.rounds, bound.begun, bound.beside), (2, Cycles(10_000), Cycles(20_000)));
        assert_eq!((bound.above, bound.above_rate.0), (Cycles(80_000), 400_000_000));
        assert_eq!(of_class(&CORE, &members, class(2), Surplus::Shared).unwrap(), (2, bound));
        assert_eq!(of_class(&CORE, &members, class(3), Surplus::Left), Err(Unbounded::Absent));
    }

    #[test]
    fn idle_cycles_that_those_above_may_take_count_against_a_class() {
        let mut members = [member(1, 20), member(1, 20), member(2, 10)];
        members[0].bucket.as_mut().unwrap().mode = Mode::MinMax;
        // The first port gets all unsold cycles, which are 50 %.
        let shared = worst_case(&CORE, &members, 2, Surplus::Shared).unwrap();
        assert_eq!(shared.above_rate.0, 900_000_000);
        let left = worst_case(&CORE, &members, 2, Surplus::Left).unwrap();
        assert_eq!(left.above_rate.0, 900_000_000, "all but its own");
        assert!(left.wait > shared.wait, "until they know that it is there");
    }

    #[test]
    fn a_missing_bound_has_a_reason() {
        let free = [Member { bucket: None, ..member(1, 0) }, member(2, 10)];
        assert_eq!(wait_us(&free, 1, Surplus::Shared), Err(Unbounded::Free(0)));
        assert_eq!(wait_us(&free, 0, Surplus::Shared), Ok(20), "one begun below, its own");
        let all = [member(1, 60), member(1, 40), member(2, 0)];
        assert_eq!(wait_us(&all, 2, Surplus::Shared), Err(Unbounded::Full));
        let others = Member { units: 4, bucket: None, ..member(1, 0) };
        assert_eq!(wait_us(&[member(1, 30), others], 0, Surplus::Shared), Err(Unbounded::Slow));
        let handed = [Member { elsewhere: true, ..member(8, 10) }, member(1, 10)];
        let alone = wait_us(&handed[1..], 0, Surplus::Shared).unwrap();
        assert!(wait_us(&handed, 1, Surplus::Shared).unwrap() > alone, "it takes turns with it");
        assert_eq!(wait_us(&handed, 0, Surplus::Shared), Err(Unbounded::Absent));
    }

    #[test]
    fn a_lower_class_has_batches_of_five_microseconds() {
        let core = TscRate::from_hz(2_000_000_000);
        let whole = Batches::measured(1_000.0, core, true);
        assert_eq!(whole.most, Cycles(32_000));
        let lower = Batches::measured(1_000.0, core, false);
        assert_eq!((lower.least, lower.most), (Cycles(10_000), Cycles(10_000)));
        assert_eq!(Batches::measured(90_000.0, core, false).most, Cycles(90_000), "one frame");
        assert_eq!(Batches::measured(100.0, core, false).most, Cycles(3_200));
    }
}
