//! The longest time that a frame may wait for the end of its batch, by class.
//!
//! # Problem
//!
//! A latency class is useful only if a bound can be promised for it before any measurement.
//!
//! # Source
//!
//! C2QoS §IV-B.2 gives `(N1 k1 + N2 k2 + ... + Nn) c`. The paper leaves `k` open.
//!
//! # Quantities
//!
//! `N` is [`Member::units`], `c` is [`Batches`] in cycles, and `k` follows from the tokens:
//! [`Terms::depth`] and [`Terms::entitlement`].
//!
//! # Scope
//!
//! The bound holds for a port with a bucket that stays within it. In any time `t`, the port's
//! frames then cost at most its depth (less one refill) plus its rate times `t`. Such a port never
//! waits for tokens. For a port without a bucket, the bound holds for a frame with less than a
//! batch before it. The traffic of other ports does not matter.
//!
//! # Approach
//!
//! Three kinds of work come before the end of the frame's batch:
//!
//! 1. *Begun*: a batch that had already started, of the frame's own port or of a lower class.
//! 2. *Beside*: rounds in which every unit of the class runs a batch. The number of rounds is the
//!    number of batches that the port needs for all frames that it may put into its ring at once.
//! 3. *Above*: work for which the classes above have tokens. When these classes last had no work
//!    with tokens, none of their buckets was more than full. The ports above may spend these
//!    tokens, go into debt by one batch each, and spend the tokens of one refill and of later
//!    generation. They had the core to themselves until the frame came. No more of their work is
//!    therefore left than if it had started when the frame arrived.
//!
//! If a fraction `rho` of the capacity is generated for the classes above, the wait is the sum
//! divided by `1 - rho`. Ports of other workers that hand frames over count as above, because their
//! batches alternate with local batches regardless of class.
//!
//! Ports above get the cycles that they purchased. If they are `minmax`, they also get a part of
//! the cycles that others leave:
//!
//! - [`Surplus::Shared`]: the ports that are not above use all cycles that they purchased. Ports
//!   above share unsold cycles by weight.
//! - [`Surplus::Left`]: no other port sends. Ports above get all cycles except those generated for
//!   the port itself. The worker may notice the port's frames only after it glanced at all units.
//!
//! Both are equal if no port above is `minmax`.
//!
//! # Example
//!
//! A test has a core of 1 GHz, batches of 10,000 cycles, a depth of 20,000 and refills every 50 µs.
//! Two ports in class 1 have 20 % each, and one in class 2 has 10 %. All are strict. A port of
//! class 1 may put 10,000 cycles into its ring at once, which takes two batches. 10 µs begun and 2
//! rounds of 20 µs give 50 µs.
//!
//! Class 2 also needs two batches. 10 µs begun, 2 rounds of 10 µs and 2 × (20 + 10 + 10) µs above
//! give 110 µs. Divided by 0.6, this is 183 µs.
//!
//! # Limits
//!
//! The bound does not cover the following:
//!
//! - A port without a bucket, in the same or a later class, that uses more than the unsold cycles.
//!   Fewer cycles are then generated than were sold (see [`crate::c2tb`]), and a port within its
//!   bucket may have to wait for tokens.
//! - Time in which the kernel or control had the core.
//! - The time to wake a resting queue pair.
//! - Everything after the batch: the link and the receiver.
//!
//! # Departures
//!
//! The paper's `k` is computed. The bound includes the batch that had begun and a burst of the
//! port's own frames.
//!
//! # Cost
//!
//! A query takes O(ports).

use core::fmt;

use penstock_units::{Cycles, CyclesPerSecond, Nanos, Priority, TscRate};

use crate::c2tb::{Mode, Terms};
use crate::cost_model::{CostModel, Deployment, FCS, Profile, to_f64, whole_up};

/// Maximum number of frames of a batch.
pub const BATCH_FRAMES: u32 = 32;
/// Longest batch of a port below the worker's first class. A full batch is shorter at nearly all
/// frame sizes, so this costs no throughput.
pub const LOWER_CLASS: Nanos = Nanos::from_micros(5);
/// Units that a worker glances at after each refill.
pub const GLANCES: u32 = 4;

/// Cost of a port's largest permitted batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// Cost of the cheapest batch.
    pub least: Cycles,
    /// Cost of the most expensive batch.
    pub most: Cycles,
}

impl Batches {
    /// Computes the costs of a profile's batches from the model. `whole` is true if the port is in
    /// the worker's first class. The most expensive batch includes the spread of the measurements.
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

    /// The costs if frames cost `factor` times what the model says.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let of = |cost: Cycles| Cycles(whole_up(to_f64(cost.0) * factor).max(1));
        Self { least: of(self.least), most: of(self.most) }
    }

    /// Computes the costs from a measured mean cost per frame, in cycles.
    #[must_use]
    pub fn measured(per_frame: f64, core: TscRate, whole: bool) -> Self {
        let frames =
            if whole { BATCH_FRAMES } else { frames_in(LOWER_CLASS, core, per_frame.max(1.0)) };
        let cost = Cycles(whole_up(per_frame * f64::from(frames)).max(1));
        Self { least: cost, most: cost }
    }
}

/// Number of frames, at `per_frame` cycles each, that fit into `time`. The result is 1 to a full
/// batch.
fn frames_in(time: Nanos, core: TscRate, per_frame: f64) -> u32 {
    let fit = to_f64(core.to_cycles(time).0) / per_frame.max(1.0);
    (1..=BATCH_FRAMES).rev().find(|frames| f64::from(*frames) <= fit).unwrap_or(1)
}

/// A port that has queue pairs on the worker, or hands frames over to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Class of the port. Equal for all ports if the worker ignores classes.
    pub class: Priority,
    /// Number of the port's queue pairs on the worker.
    pub units: u32,
    /// Whether the port's queue pairs are on other workers and these workers hand its frames over.
    pub elsewhere: bool,
    /// Cost of the port's batches.
    pub batches: Batches,
    /// Terms of the port's bucket on the worker. `None` without a bucket.
    pub bucket: Option<Terms>,
}

impl Member {
    fn is_above(&self, class: Priority) -> bool {
        self.elsewhere || self.class < class
    }
}

/// Parameters of a worker for the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Cycles per second that the worker may spend on frames.
    pub capacity: CyclesPerSecond,
    /// Time between two refills.
    pub refill: Nanos,
}

/// Part of the unsold or unused cycles that ports above get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surplus {
    /// Ports above get their part of the unsold cycles, because all other ports use their
    /// purchases.
    Shared,
    /// Ports above get all unused cycles, because no other port sends.
    Left,
}

/// The longest wait and its components.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Time from the arrival in the ring to the end of the batch.
    pub wait: Nanos,
    /// Number of batches of the port up to and including the frame's batch.
    pub rounds: u64,
    /// Cost of the batch that had begun.
    pub begun: Cycles,
    /// Cost of the batches of the port's class, including the port's own batches.
    pub beside: Cycles,
    /// Cycles that ports above have in their buckets, may owe, and get with one refill.
    pub above: Cycles,
    /// Cycles per second generated for ports above during the wait.
    pub above_rate: CyclesPerSecond,
}

/// Why there is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbounded {
    /// The port above with this index has no bucket.
    Free(usize),
    /// Ports above may use the whole core.
    Full,
    /// The port's turns bring fewer cycles than it purchased.
    Slow,
    /// There is no such port on the worker.
    Absent,
}

impl fmt::Display for Unbounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free(_) => "a port that goes before it has no cycle bucket",
            Self::Full => "those before it may use the whole core",
            Self::Slow => "its turns within its class bring less than it bought",
            Self::Absent => "it has no queue pair there",
        })
    }
}

/// The longest wait of a frame of `members[of]` until the end of its batch.
///
/// # Errors
/// Returns the reason if there is no bound.
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
        // `burst` is the work that the port may put into its ring at once. The number of batches
        // follows from it.
        let burst = u128::from(terms.depth.0).saturating_sub(per(rate, core.refill));
        rounds = burst / least + 1;
        // A round takes round / left seconds. Meanwhile rate × round / left cycles of frames
        // arrive.
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

/// The bound of a class: the longest bound of its ports, and the index of that port.
///
/// # Errors
/// Returns the reason if a port of the class has no bound, and [`Unbounded::Absent`] if the class
/// has no port here.
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

/// Work that may come from ports above.
struct Above {
    /// Cycles in buckets, cycles of permitted debt, and cycles from one refill.
    work: u128,
    /// Cycles per second generated for the ports above.
    rate: u128,
    /// Number of refills until a port's tokens are no longer considered unused.
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

/// Amount that `rate` per second produces in `time`, rounded up.
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
        // The unsold 50 % all go to the first port.
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
