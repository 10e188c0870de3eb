//! A window between two calibrations: figures on a machine whose speed changes.
//!
//! # Problem
//!
//! On a shared host, the cost of a frame may become three times as high from one second to the
//! next. A calibration before a run is then wrong in the run, and so is a sale based on it. A
//! victim that has its whole purchase seems to have lost half of it.
//!
//! # Approach
//!
//! Short windows alternate with calibrations: calibrate, measure, calibrate (A B A). A window is
//! judged by the two calibrations around it if three conditions hold. Both found the same speed
//! within a few percent. Neither the worker nor the generator waited for its core. The generator
//! was not the bottleneck. Otherwise the window is repeated, at most a few times as often as wanted
//! ([`Rule`]). The second calibration of a window is the first of the next.
//!
//! # Report
//!
//! Each figure reports how many windows were judged, how many were repeated and why, and how many
//! are missing. A missing window is not measured, and no claim on it holds.
//!
//! # Example
//!
//! Calibrations of 5.0, 5.1, 2.1, 2.0 M frames/s surround three windows. The first and the third
//! are judged, by 5.05 and 2.05. The second is not, because the machine changed during it.
//!
//! # Limits
//!
//! A machine that changes and changes back within one window is not noticed. Therefore windows are
//! short, and a case's value is the median of several.

use serde_json::{Value, json};

use crate::evidence::Claim;
use crate::rig::fleet::{Offer, Window};
use crate::rig::stats::middle;
use penstock_guest::load::Rate;

/// Conditions under which a window is judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// Largest relative difference of two calibrations that agree: the larger one over the smaller,
    /// minus 1.
    pub agree: f64,
    /// Largest number of windows taken for each wanted window.
    pub tries: u32,
    /// Whether a window is judged although worker or generator waited for a core, or the generator
    /// could not send what was due.
    pub rough: bool,
}

/// Rule for the lab's own load. Its calibrations scatter by one percent.
pub(crate) const LOAD: Rule = Rule { agree: 0.04, tries: 6, rough: false };
/// Rule for real programs. TCP is slow to settle, and its rates scatter.
pub(crate) const PROGRAMS: Rule = Rule { agree: 0.08, tries: 3, rough: false };

/// Largest share of a window for which worker or generator may wait for its core.
pub(crate) const WAITED: f64 = 0.03;
/// A sender was held up if it published less than this part of the frames that were due.
const PUBLISHED: f64 = 0.97;
/// The switch held up a sender of the highest rate if the ring was full in at least this share of
/// the turns. For a paced sender, this share is multiplied by the missing part of the due frames.
const RING_FULL: f64 = 0.5;

/// The reason why a window was repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The calibrations around the window differ.
    SpeedChanged,
    /// Worker or generator did not have its core.
    WaitedForCore,
    /// The generator could not send what was due.
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

/// Calibrations and windows that alternate.
pub(crate) trait Turns {
    /// Result of a calibration.
    type Speed: Clone;
    /// Result of a window.
    type Found;
    fn calibrate(&mut self) -> anyhow::Result<Self::Speed>;
    /// Measures a window, using the calibration right before it.
    fn measure(&mut self, by: &Self::Speed) -> anyhow::Result<Self::Found>;
    /// The number in which two calibrations must agree.
    fn speed(of: &Self::Speed) -> f64;
    /// The reason why a calibration is unreliable on its own. `None` if it is reliable.
    fn doubt_speed(_: &Self::Speed) -> Option<Doubt> {
        None
    }
    /// The reason why a window is unreliable on its own. `None` if it is reliable.
    fn doubt(found: &Self::Found) -> Option<Doubt>;
}

/// A judged window, and the calibrations around it.
#[derive(Debug, Clone)]
pub(crate) struct Judged<S, F> {
    /// The calibration right before.
    pub before: S,
    pub found: F,
    /// The calibration right after.
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

    /// Removes `windows` from the windows that were given up, because they are tried once more.
    pub fn try_again(&mut self, windows: u32) {
        self.missing = self.missing.saturating_sub(windows);
    }

    /// Gives up `windows` of the wanted windows.
    pub fn give_up(&mut self, windows: u32) {
        self.missing += windows;
    }

    pub fn judged(&self) -> u32 {
        self.judged
    }

    /// Why windows were repeated: for each reason a clause with the count.
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

    /// Claims that are shown beside the claims of a figure. They have no band, so they promise
    /// nothing.
    pub fn claims(&self) -> [Claim; 3] {
        [
            ("windows_judged", "Windows judged by the calibrations around them.", self.judged),
            (
                "windows_repeated",
                "Windows taken again: the machine changed during them, or the generator or a \
                 wait for a core was in the way.",
                self.repeated(),
            ),
            (
                "windows_not_had",
                "Windows given up after that; what they were to show is not measured.",
                self.missing,
            ),
        ]
        .map(|(id, what, count)| Claim::new(id, what, "windows").measured(f64::from(count)))
    }

    /// The report for the outcome. `unit` is the unit of the speed.
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

/// The reason why a calibration is unreliable: its own doubt, or a speed of 0 or NaN.
fn doubt_speed<T: Turns>(of: &T::Speed, rule: Rule) -> Option<Doubt> {
    let speed = T::speed(of);
    let none = !speed.is_finite() || speed <= 0.0;
    let said = if rule.rough { None } else { T::doubt_speed(of) };
    said.or(none.then_some(Doubt::SpeedChanged))
}

/// Takes windows until `wanted` are judged.
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
            // This calibration cannot be the basis of a sale.
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

/// The reason why a window is unreliable. `offers` has the window's offers by name.
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
            Rate::Bits(due) => due / (f64::from(offer.size) * 8.0),
        };
        // If a ring empties a tenth more slowly than it is filled, it is full a tenth of the time.
        let missing = 1.0 - sent.offered_pps / due.max(1.0);
        missing > 1.0 - PUBLISHED && sent.full < RING_FULL * missing
    };
    offers.iter().any(short).then_some(Doubt::GeneratorShort)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::fleet::Sent;

    /// A simulated machine with given speeds. A window finds the speed before it.
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
        let of = |rate| vec![("vm".to_owned(), Offer { size: 512, flows: 1, rate })];
        let paced = of(Rate::Frames(100.0));
        assert_eq!(doubt(&window(99.0, 0.0, 0.0), &paced), None);
        assert_eq!(doubt(&window(60.0, 0.3, 0.0), &paced), None, "the switch took no more");
        assert_eq!(doubt(&window(60.0, 0.1, 0.0), &paced), Some(Doubt::GeneratorShort));
        assert_eq!(doubt(&window(60.0, 0.1, 0.0), &of(Rate::Max)), Some(Doubt::GeneratorShort));
        assert_eq!(doubt(&window(60.0, 0.9, 0.0), &of(Rate::Max)), None);
        assert_eq!(doubt(&window(99.0, 0.9, 0.2), &paced), Some(Doubt::WaitedForCore));
    }
}
