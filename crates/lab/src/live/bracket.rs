//! Short measurements between calibrations, for machines with a speed that may change.
//!
//! # Problem
//!
//! On a shared host, the cost of a frame may triple from one second to the next. If the cost of a
//! frame changes, a calibration before the run is wrong during the run. Purchases that are computed
//! from a wrong calibration are wrong, too. With a wrong calibration, a VM that receives its whole
//! purchase may seem to receive only half of the purchase.
//!
//! # Approach
//!
//! Short windows alternate with calibrations: calibrate, measure, calibrate (A B A). A measured
//! window counts as judged if three conditions hold:
//!
//! - The calibrations before and after the window found the same speed of the machine within a few
//!   percent.
//! - Neither the switch's worker nor the traffic generator waited for its core.
//! - The traffic generator was not the bottleneck of the measurement.
//!
//! A window is repeated if the speed changed, a thread waited for its core, or the generator was
//! too slow. [`Rule`] limits the number of repetitions. The calibration after a window is also the
//! calibration before the next window.
//!
//! # Report
//!
//! Each figure reports the numbers of judged, repeated and missing windows, and the reasons for
//! repetitions. If all windows of a case are missing, claims about that case do not hold.
//!
//! # Example
//!
//! Four calibrations find 5.0, 5.1, 2.1 and 2.0 M frames/s, with one window after each of the first
//! three calibrations. The first window is judged with the mean speed of 5.05 M frames/s, and the
//! third window with 2.05 M frames/s. The second window is repeated, because the machine's speed
//! changed from 5.1 to 2.1 M frames/s during the window.
//!
//! # Limits
//!
//! The calibrations do not show a change of the machine's speed that begins and ends within one
//! window. Short windows make an unnoticed change of speed unlikely, and a case's value is the
//! median of several windows.

use serde_json::{Value, json};

use crate::evidence::Claim;
use crate::rig::fleet::{Offer, Window};
use crate::rig::stats::middle;
use penstock_guest::load::Rate;

/// Conditions under which a measured window is judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// Two calibrations agree if their speeds differ by at most this fraction of the smaller speed.
    pub agree: f64,
    /// Maximum number of attempts for each requested window.
    pub tries: u32,
    /// Whether a window is judged even if the worker or the generator waited for its core, or the
    /// generator could not send all due frames.
    pub rough: bool,
}

/// Rule for windows with the lab's own traffic generator. Calibrations with the lab's generator
/// scatter by one percent.
pub(crate) const LOAD: Rule = Rule { agree: 0.04, tries: 6, rough: false };
/// Rule for windows with real programs. The rule for programs tolerates larger differences between
/// calibrations, because TCP settles slowly and its rates scatter.
pub(crate) const PROGRAMS: Rule = Rule { agree: 0.08, tries: 3, rough: false };

/// Largest fraction of a window for which the worker or the generator may wait for its core.
pub(crate) const WAITED: f64 = 0.03;
/// A sender with a fixed rate fell behind if it published less than this fraction of its due
/// frames.
const PUBLISHED: f64 = 0.97;
/// If a sender's ring was full in at least this fraction of the turns, the switch was the
/// bottleneck, not the sender. For a sender with a fixed rate, the required fraction of turns is
/// `RING_FULL` times the fraction of due frames that the sender did not publish.
const RING_FULL: f64 = 0.5;

/// Reason for which a measured window is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The calibrations before and after the window found different speeds.
    SpeedChanged,
    /// The worker or the generator waited for its core.
    WaitedForCore,
    /// The generator could not send all due frames.
    GeneratorShort,
}

impl Doubt {
    const ALL: [Self; 3] = [Self::SpeedChanged, Self::WaitedForCore, Self::GeneratorShort];

    fn name(self) -> &'static str {
        match self {
            Self::SpeedChanged => "speed_changed",
            Self::WaitedForCore => "waited_for_core",
            Self::GeneratorShort => "generator_short",
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Self::SpeedChanged => "the machine's speed changed",
            Self::WaitedForCore => "other programs had the core of the switch or of the load",
            Self::GeneratorShort => "the load generator could not keep up",
        }
    }
}

/// An experiment with two steps, calibration and window, which the function [`judge`] runs
/// alternately.
pub(crate) trait Turns {
    /// Result of a calibration, which includes the measured speed.
    type Speed: Clone;
    type Found;
    fn calibrate(&mut self) -> anyhow::Result<Self::Speed>;
    /// Measures a window. `by` is the result of the calibration immediately before the window.
    fn measure(&mut self, by: &Self::Speed) -> anyhow::Result<Self::Found>;
    /// Returns the speed that a calibration found. The speeds of the two calibrations around a
    /// window must agree.
    fn speed(of: &Self::Speed) -> f64;
    /// Returns the reason why a calibration is unreliable, apart from its speed. Returns `None` if
    /// the calibration is reliable.
    fn doubt_speed(_: &Self::Speed) -> Option<Doubt> {
        None
    }
    /// Returns the reason why a window is unreliable, apart from its calibrations. Returns `None`
    /// if the window is reliable.
    fn doubt(found: &Self::Found) -> Option<Doubt>;
}

/// A judged window, and the calibrations before and after the window.
#[derive(Debug, Clone)]
pub(crate) struct Judged<S, F> {
    /// Result of the calibration immediately before the window.
    pub before: S,
    pub found: F,
    /// Result of the calibration immediately after the window.
    pub after: S,
}

/// Counts of judged, repeated and missing windows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    judged: u32,
    repeated: [u32; Doubt::ALL.len()],
    missing: u32,
    speeds: Vec<f64>,
}

impl Tally {
    pub fn repeated(&self) -> u32 {
        self.repeated.iter().sum()
    }

    /// Subtracts `windows` from the number of missing windows, because the run measures these
    /// windows once more.
    pub fn try_again(&mut self, windows: u32) {
        self.missing = self.missing.saturating_sub(windows);
    }

    /// Adds `windows` to the number of requested windows that yielded no result.
    pub fn give_up(&mut self, windows: u32) {
        self.missing += windows;
    }

    pub fn judged(&self) -> u32 {
        self.judged
    }

    /// Returns a clause for each reason of repetitions, with the number of repetitions.
    pub fn clauses(&self) -> Vec<String> {
        let all = Doubt::ALL.into_iter().zip(self.repeated).filter(|(_, count)| *count > 0);
        let times = |count| if count == 1 { "once".to_owned() } else { format!("{count} times") };
        all.map(|(doubt, count)| format!("{} ({})", doubt.sentence(), times(count))).collect()
    }

    pub fn add(&mut self, other: &Self) {
        self.judged += other.judged;
        self.missing += other.missing;
        self.repeated.iter_mut().zip(other.repeated).for_each(|(all, more)| *all += more);
        self.speeds.extend(&other.speeds);
    }

    /// Returns the counts of windows as claims, in addition to the figure's own claims. The claims
    /// about the counts of windows have no required range.
    pub fn claims(&self) -> [Claim; 3] {
        [
            ("windows_judged", "Windows judged by the calibrations around them.", self.judged),
            (
                "windows_repeated",
                "Windows measured again: the machine's speed changed, the generator was too \
                 slow, or a core was busy.",
                self.repeated(),
            ),
            ("windows_not_had", "Windows given up; their results are not measured.", self.missing),
        ]
        .map(|(id, what, count)| Claim::new(id, what, "windows").measured(f64::from(count)))
    }

    /// Returns the numbers of judged and repeated windows and the reasons for repetitions, as JSON
    /// for the experiment's record. `unit` is the unit of the speed.
    pub fn told(&self, unit: &str) -> Value {
        let mut why = serde_json::Map::new();
        for (doubt, count) in Doubt::ALL.into_iter().zip(self.repeated) {
            why.insert(doubt.name().to_owned(), count.into());
        }
        let least = self.speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.speeds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        json!({
            "windows_judged": self.judged,
            "windows_repeated": self.repeated(),
            "repeated_because": why,
            "windows_not_had": self.missing,
            "speed_unit": unit,
            "speed_least_median_most": [least, middle(&self.speeds), most],
        })
    }
}

impl Rule {
    fn agree(&self, a: f64, b: f64) -> bool {
        let (low, high) = (a.min(b), a.max(b));
        low > 0.0 && high <= (1.0 + self.agree) * low
    }
}

/// Returns the reason why a calibration is unreliable: the reason that [`Turns::doubt_speed`]
/// gives, or a speed of 0, NaN or infinity.
fn doubt_speed<T: Turns>(of: &T::Speed, rule: Rule) -> Option<Doubt> {
    let speed = T::speed(of);
    let none = !speed.is_finite() || speed <= 0.0;
    let said = if rule.rough { None } else { T::doubt_speed(of) };
    said.or(none.then_some(Doubt::SpeedChanged))
}

/// Measures windows until `wanted` windows are judged, or until `rule` allows no further attempt.
pub(crate) fn judge<T: Turns>(
    turns: &mut T,
    (wanted, rule): (u32, Rule),
    tally: &mut Tally,
) -> anyhow::Result<Vec<Judged<T::Speed, T::Found>>> {
    let mut judged = Vec::new();
    let mut missing = wanted;
    let mut before = turns.calibrate()?;
    tally.speeds.push(T::speed(&before));
    for _ in 0..wanted.saturating_mul(rule.tries) {
        if missing == 0 {
            break;
        }
        if let Some(doubt) = doubt_speed::<T>(&before, rule) {
            // Purchases cannot be based on this calibration.
            tally.repeated[doubt as usize] += 1;
            before = turns.calibrate()?;
            tally.speeds.push(T::speed(&before));
            continue;
        }
        let found = turns.measure(&before)?;
        let after = turns.calibrate()?;
        tally.speeds.push(T::speed(&after));
        let said = if rule.rough { None } else { T::doubt(&found) };
        let doubt = said.or_else(|| doubt_speed::<T>(&after, rule)).or_else(|| {
            let same = rule.agree(T::speed(&before), T::speed(&after));
            (!same).then_some(Doubt::SpeedChanged)
        });
        match doubt {
            Some(doubt) => tally.repeated[doubt as usize] += 1,
            None => {
                judged.push(Judged { before, found, after: after.clone() });
                missing -= 1;
            }
        }
        before = after;
    }
    tally.judged += wanted - missing;
    tally.missing += missing;
    Ok(judged)
}

/// Returns the reason why a window is unreliable. `offers` lists the senders' names with their
/// loads.
pub(crate) fn doubt(window: &Window, offers: &[(String, Offer)]) -> Option<Doubt> {
    if window.wait() > WAITED {
        return Some(Doubt::WaitedForCore);
    }
    let short = |(name, offer): &(String, Offer)| {
        let Some(sent) = window.senders.iter().find(|sent| sent.name == *name) else {
            return true;
        };
        let due = match offer.rate {
            Rate::Stop => return false,
            Rate::Max => return sent.full < RING_FULL,
            Rate::Frames(due) => due,
            Rate::Bits(due) => due / (offer.size.mean() * 8.0),
        };
        // If the switch empties a ring a tenth more slowly than it is filled, the ring is full a
        // tenth of the time.
        let missing = 1.0 - sent.offered_pps / due.max(1.0);
        missing > 1.0 - PUBLISHED && sent.full < RING_FULL * missing
    };
    offers.iter().any(short).then_some(Doubt::GeneratorShort)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::fleet::Sent;

    /// A simulated machine whose calibrations find the given speeds in turn. A window's result is
    /// the speed of the calibration before the window.
    struct Machine {
        speeds: std::collections::VecDeque<f64>,
        doubtful: Vec<f64>,
    }

    impl Turns for Machine {
        type Speed = f64;
        type Found = (f64, bool);

        fn calibrate(&mut self) -> anyhow::Result<f64> {
            Ok(self.speeds.pop_front().unwrap_or(1.0))
        }

        fn measure(&mut self, by: &f64) -> anyhow::Result<(f64, bool)> {
            let doubtful = self.doubtful.first() == Some(by);
            Ok((*by, doubtful))
        }

        fn speed(of: &f64) -> f64 {
            *of
        }

        fn doubt(found: &(f64, bool)) -> Option<Doubt> {
            found.1.then_some(Doubt::WaitedForCore)
        }
    }

    fn machine(speeds: &[f64]) -> Machine {
        Machine { speeds: speeds.iter().copied().collect(), doubtful: Vec::new() }
    }

    #[test]
    fn a_window_during_which_the_machine_changed_is_taken_again_and_told() {
        let mut tally = Tally::default();
        let judged = judge(&mut machine(&[5.0, 5.1, 2.1, 2.05]), (2, LOAD), &mut tally).unwrap();
        let around: Vec<_> = judged.iter().map(|j| (j.before, j.after)).collect();
        assert_eq!(around, [(5.0, 5.1), (2.1, 2.05)]);
        let told = tally.told("Mframes/s");
        assert_eq!((&told["windows_judged"], &told["windows_repeated"]), (&2.into(), &1.into()));
        assert_eq!(told["repeated_because"]["speed_changed"], 1);
        assert_eq!(told["speed_least_median_most"][0], 2.05);
    }

    #[test]
    fn a_machine_that_never_rests_yields_nothing_and_says_so() {
        let speeds: Vec<f64> = (0..100).map(|i| f64::from(1 + i % 2)).collect();
        let mut tally = Tally::default();
        let judged = judge(&mut machine(&speeds), (3, LOAD), &mut tally).unwrap();
        assert!(judged.is_empty());
        let told = tally.told("");
        assert_eq!(told["windows_not_had"], 3);
        assert_eq!(tally.repeated(), 3 * LOAD.tries);
        assert_eq!(tally.clauses(), ["the machine's speed changed (18 times)"]);
        let mut rested = Tally::default();
        judge(&mut machine(&[5.0; 4]), (3, LOAD), &mut rested).unwrap();
        assert!(rested.clauses().is_empty());
        tally.try_again(3);
        tally.add(&rested);
        let told = tally.told("");
        assert_eq!(told["windows_not_had"], 0, "three were given up, and had at the second try");
    }

    #[test]
    fn nothing_is_measured_by_a_calibration_that_found_nothing() {
        let mut tally = Tally::default();
        let speeds = [0.0, f64::NAN, 5.0, 5.0];
        let judged = judge(&mut machine(&speeds), (1, LOAD), &mut tally).unwrap();
        assert_eq!(judged.len(), 1);
        assert_eq!(tally.told("")["repeated_because"]["speed_changed"], 2);
    }

    #[test]
    fn a_rough_window_is_judged_although_a_core_was_waited_for() {
        let rough = Rule { agree: 0.5, tries: 1, rough: true };
        let mut machine = machine(&[5.0, 4.0]);
        machine.doubtful.push(5.0);
        let mut tally = Tally::default();
        assert_eq!(judge(&mut machine, (1, rough), &mut tally).unwrap().len(), 1);
        let strict = Rule { rough: false, ..rough };
        let mut machine = super::tests::machine(&[5.0, 4.0]);
        machine.doubtful.push(5.0);
        assert!(judge(&mut machine, (1, strict), &mut tally).unwrap().is_empty());
    }

    #[test]
    fn a_doubtful_window_is_counted_by_its_reason() {
        let mut machine = machine(&[5.0, 4.9, 4.95]);
        machine.doubtful.push(5.0);
        let mut tally = Tally::default();
        let judged = judge(&mut machine, (1, LOAD), &mut tally).unwrap();
        assert!((judged[0].before - 4.9).abs() < 1e-9);
        assert_eq!(tally.told("")["repeated_because"]["waited_for_core"], 1);
    }

    #[test]
    fn the_generator_is_short_where_frames_were_due_and_rings_had_room() {
        let window = |offered_pps, full, wait| Window {
            senders: vec![Sent {
                name: "vm".to_owned(),
                pps: 0.0,
                full,
                offered_pps,
                parts: Vec::new(),
                times: None,
            }],
            worker_wait: wait,
            generator_wait: 0.0,
            idle: 0.0,
            standstill: 0.0,
        };
        let of = |rate| vec![("vm".to_owned(), Offer { size: 512.into(), flows: 1, rate })];
        let paced = of(Rate::Frames(100.0));
        assert_eq!(doubt(&window(99.0, 0.0, 0.0), &paced), None);
        assert_eq!(doubt(&window(60.0, 0.3, 0.0), &paced), None, "the switch took no more");
        assert_eq!(doubt(&window(60.0, 0.1, 0.0), &paced), Some(Doubt::GeneratorShort));
        assert_eq!(doubt(&window(60.0, 0.1, 0.0), &of(Rate::Max)), Some(Doubt::GeneratorShort));
        assert_eq!(doubt(&window(60.0, 0.9, 0.0), &of(Rate::Max)), None);
        assert_eq!(doubt(&window(99.0, 0.9, 0.2), &paced), Some(Doubt::WaitedForCore));
    }
}
