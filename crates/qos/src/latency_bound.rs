//! How long a frame may have to wait for the end of its batch, by class.
//!
//! **Problem.** A latency class is worth what can be promised for it before anything is measured.
//!
//! **Source.** C2QoS §IV-B.2: `(N1 k1 + N2 k2 + ... + Nn) c`, with `k` left open.
//!
//! **Quantities.** `N` → [`Member::units`]; `c` → [`Batches`], cycles; `k` follows from the tokens:
//! [`Terms::depth`] and [`Terms::entitlement`].
//!
//! **Who has the bound.** A port with a bucket that stays within it: in any time `t` its frames
//! cost no more than its depth, less what a refill brings, and its rate times `t`. It then never
//! waits for tokens. Of a port without a bucket: a frame with less than a batch before it. What
//! others send does not matter.
//!
//! **Rule.** Before the end of its batch come:
//! 1. *begun*: a batch that had begun, of its port or of a lower class;
//! 2. *beside*: as many rounds as its port needs batches for what it may have put into its ring at
//!    once, in each of which every unit of the class has one;
//! 3. *above*: what tokens allow the classes above. When they last had no work and tokens, none had
//!    more than a full bucket. They may spend that, get one batch each into debt, and spend what is
//!    generated from then on and came with the refill then under way. From then until the frame
//!    came they had the core to themselves, so that no more is left of it than if they had begun
//!    when it came.
//!
//! With a part `rho` of the capacity generated for those above, that takes the sum, divided by
//! `1 - rho`. Ports of other workers that hand frames over count as above: their batches come by
//! turns with those here, whatever their class.
//!
//! **What is generated for those above** is what they bought and, if they are `minmax`, a part of
//! what others leave. [`Surplus::Shared`]: the ports that are not above use what they bought; then
//! it is the weight's part of what is not sold. [`Surplus::Left`]: nobody else sends; then it is
//! all but what is generated for the port itself, and they may know of it only when all units were
//! glanced at. Where none above is `minmax` both are the same.
//!
//! **Example** (a test). 1 GHz, batches of 10,000 cycles; two ports in class 1 with 20 % each and
//! one in class 2 with 10 %, depth 20,000, refills every 50 us, all strict. A port of class 1 may
//! have put 10,000 cycles into its ring at once, so two batches: 10 us begun and 2 rounds of 20 us
//! are 50 us. Class 2, 2 batches: 10 us begun, 2 rounds of 10 us, above 2 x (20 + 10 + 10) us: 110
//! us, divided by 0.6: 183 us.
//!
//! **Not in it.** A port without a bucket, of its class or a later one, that uses more than what
//! is not sold: then less is generated than was bought (see [`crate::c2tb`]), and a port within its
//! bucket may wait for tokens after all. Time in which the kernel had the core or control asked for
//! something, the time until a queue pair at rest is woken, and whatever follows the batch: a link,
//! the receiver.
//!
//! **Departures.** The paper's `k` is worked out instead of left open; the batch that had begun and
//! a burst of the port's own are counted.
//!
//! **Cost.** O(ports), when somebody asks.

use core::fmt;

use penstock_units::{Cycles, CyclesPerSecond, Nanos, Priority, TscRate};

use crate::c2tb::{Mode, Terms};
use crate::cost_model::{CostModel, Deployment, FCS, Profile, to_f64, whole_up};

/// Most frames of a batch.
pub const BATCH_FRAMES: u32 = 32;
/// The most that a batch below the first class should take: a whole one of ours takes less at
/// nearly all sizes, so that it costs no throughput.
pub const LOWER_CLASS: Nanos = Nanos::from_micros(5);
/// Units that a worker glances at with each refill.
pub const GLANCES: u32 = 4;

/// What a port's batches cost that are as large as it may have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// The cheapest.
    pub least: Cycles,
    /// The costliest.
    pub most: Cycles,
}

impl Batches {
    /// Of frames of a profile, by the model; `whole`: a port of the worker's first class. The
    /// costliest batch is dearer by how far the measurements spread.
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

    /// The same where frames cost `factor` times what the model says.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let of = |cost: Cycles| Cycles(whole_up(to_f64(cost.0) * factor).max(1));
        Self { least: of(self.least), most: of(self.most) }
    }

    /// Of frames that cost so many cycles in the mean.
    #[must_use]
    pub fn measured(per_frame: f64, core: TscRate, whole: bool) -> Self {
        let frames =
            if whole { BATCH_FRAMES } else { frames_in(LOWER_CLASS, core, per_frame.max(1.0)) };
        let cost = Cycles(whole_up(per_frame * f64::from(frames)).max(1));
        Self { least: cost, most: cost }
    }
}

/// Frames at so many cycles each that take no longer than `time`: at least one, at most a batch.
fn frames_in(time: Nanos, core: TscRate, per_frame: f64) -> u32 {
    let fit = to_f64(core.to_cycles(time).0) / per_frame.max(1.0);
    (1..=BATCH_FRAMES).rev().find(|frames| f64::from(*frames) <= fit).unwrap_or(1)
}

/// A port that has queue pairs on the worker, or hands frames over to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its class; the same for all where classes are not looked at.
    pub class: Priority,
    /// Its queue pairs there.
    pub units: u32,
    /// Whether they are on other workers, and what comes from them is handed over.
    pub elsewhere: bool,
    /// What its batches cost.
    pub batches: Batches,
    /// Its bucket there; `None`: it has none.
    pub bucket: Option<Terms>,
}

impl Member {
    fn is_above(&self, class: Priority) -> bool {
        self.elsewhere || self.class < class
    }
}

/// The worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// What it may spend on frames.
    pub capacity: CyclesPerSecond,
    /// Between two refills.
    pub refill: Nanos,
}

/// What classes above get of what nobody has bought or uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surplus {
    /// Their part of what is not sold: all others use what they bought.
    Shared,
    /// All of it: nobody else sends.
    Left,
}

/// The longest wait, and what it is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// From the ring to the end of the batch.
    pub wait: Nanos,
    /// Batches of its own port up to the frame's, that one included.
    pub rounds: u64,
    /// The batch that had begun.
    pub begun: Cycles,
    /// Batches of its class, its own included.
    pub beside: Cycles,
    /// What those above have in their buckets, get into debt, and got with a refill.
    pub above: Cycles,
    /// What is generated for those above meanwhile.
    pub above_rate: CyclesPerSecond,
}

/// Why there is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbounded {
    /// This member, of those above, has no bucket.
    Free(usize),
    /// Those above may use the whole core.
    Full,
    /// Its turns bring it less than it bought.
    Slow,
    /// There is no such member.
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

/// The longest that a frame of `members[of]` waits for the end of its batch; see the module's text.
///
/// # Errors
/// There is no bound.
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
        // What it may put into its ring at once, and the batches that this makes.
        let burst = u128::from(terms.depth.0).saturating_sub(per(rate, core.refill));
        rounds = burst / least + 1;
        // A round takes round / left seconds; in that time rate x round / left are put in.
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

/// The bound of a class: the longest of its members, and whose it is.
///
/// # Errors
/// One of them has none; [`Unbounded::Absent`]: none is here.
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

/// What may come from those above.
struct Above {
    /// In their buckets, into debt, and with one refill; cycles.
    work: u128,
    /// Generated for them; cycles per second.
    rate: u128,
    /// Refills until a port's tokens are no longer taken for unused.
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

/// What a rate comes to in a time.
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
    fn a_class_waits_for_those_above_as_far_as_their_tokens_go() {
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
        // The 50 % that are not sold are all for the first.
        let shared = worst_case(&CORE, &members, 2, Surplus::Shared).unwrap();
        assert_eq!(shared.above_rate.0, 900_000_000);
        let left = worst_case(&CORE, &members, 2, Surplus::Left).unwrap();
        assert_eq!(left.above_rate.0, 900_000_000, "all but its own");
        assert!(left.wait > shared.wait, "until they know that it is there");
    }

    #[test]
    fn where_there_is_no_bound_it_says_why() {
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
