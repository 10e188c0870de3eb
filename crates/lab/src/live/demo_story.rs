//! The three sentences that `make demo` prints at its end. The module `demo_story` only formats
//! measurements, and reads no clock.
//!
//! # Problem
//!
//! A user may run the demo on any machine. The printed text must give the results in numbers, and
//! name the causes of disturbed measurements. The demo must exit with status 1 only if the switch
//! broke its promise.
//!
//! # Approach
//!
//! The demo prints three lines for any measurements: one line for each limiting method, and one
//! line about the machine. The printed lines never contain NaN or infinity.
//!
//! # When the switch failed
//!
//! C2QoS promises the victim its whole purchase. The switch broke its promise if the victim kept
//! less than [`PROMISE_PCT`] percent of its purchase, minus the percentage that disturbances
//! explain. Three disturbances count: different calibrations before and after a window, waits for a
//! core, and time that the hypervisor took. The demo can report a broken promise only if there are
//! at least [`ENOUGH`] undisturbed windows. Results from disturbed windows are reported as rough,
//! and never count as a failure.

use super::bracket::Tally;
use super::machine::Machine;
use crate::rig::stats::middle;

/// Minimum number of windows for a meaningful median.
pub(super) const ENOUGH: usize = 3;
/// Percentage of its purchase that the victim must keep under C2QoS.
pub(super) const PROMISE_PCT: f64 = 99.0;
/// Largest credible percentage of its purchase that the victim keeps. If the victim keeps a larger
/// percentage of its purchase, the text says "more than 200 %".
const MOST_PCT: f64 = 200.0;
/// Largest plausible value of a rate in Gbit/s, and of a percentage.
const MOST_OF_ALL: f64 = 1e5;
/// The text mentions waits for a core only if they took at least this percentage of the time.
const WAITED_PCT: f64 = 1.0;

/// The demo's text calls the machine too busy if the switch or the load generator waited for a core
/// for at least this percentage of the time.
const HOPELESS_PCT: f64 = 30.0;

/// Results of the victim in one run of the demo.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// The victim's bandwidth in each window before the flood, in Gbit/s.
    pub before: Vec<f64>,
    /// Results of each window of the flood: the victim's bandwidth in Gbit/s, the percentage of its
    /// purchase that it kept, and the percentage's possible error.
    pub flood: Vec<[f64; 3]>,
    /// Whether the results also include disturbed windows.
    pub rough: bool,
    /// Percentage of the time for which the hypervisor took a core away.
    pub stolen_pct: f64,
}

/// Returns the median of the values from 0 to [`MOST_OF_ALL`], or `None` if no value is in this
/// range.
fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let possible = |value: &f64| (0.0..=MOST_OF_ALL).contains(value);
    let numbers: Vec<f64> = values.into_iter().filter(possible).collect();
    (!numbers.is_empty()).then(|| middle(&numbers))
}

impl Seen {
    /// Returns whether there are at least `enough` windows before the flood, and at least `enough`
    /// windows in the flood.
    pub fn is_enough(&self, enough: usize) -> bool {
        let before = self.before.iter().filter(|gbps| gbps.is_finite());
        let flood = self.flood.iter().filter(|window| window[1].is_finite());
        before.count().min(flood.count()) >= enough
    }

    /// Returns the percentage of its purchase that the victim kept in the flood.
    pub fn kept(&self) -> Option<f64> {
        median(self.flood.iter().map(|window| window[1]))
    }

    /// Returns the possible error of [`Self::kept`], in percentage points.
    pub fn unsure(&self) -> f64 {
        let own = median(self.flood.iter().map(|window| window[2])).unwrap_or(MOST_PCT);
        let stolen = if self.stolen_pct.is_finite() { self.stolen_pct } else { 0.0 };
        (own.max(0.0) + stolen.max(0.0)).min(PROMISE_PCT)
    }

    /// Returns the lowest percentage of its purchase with which the victim's promise is kept.
    /// Returns `None` if fewer than [`ENOUGH`] windows are judged, or if the results also include
    /// disturbed windows.
    pub fn least_kept(&self) -> Option<f64> {
        let judged = !self.rough && self.is_enough(ENOUGH);
        judged.then(|| ((PROMISE_PCT - self.unsure()) * 10.0).floor() / 10.0)
    }

    /// Returns whether the switch broke its promise to the victim.
    pub fn failed(&self) -> bool {
        matches!((self.least_kept(), self.kept()), (Some(least), Some(kept)) if kept < least)
    }

    /// Returns the sentence about the victim. `promised` says whether the limiting method promises
    /// the victim its purchase.
    fn sentence(&self, limits: &str, promised: bool) -> String {
        let Some(kept) = self.kept() else {
            return format!("Under {limits} the victim could not be measured.");
        };
        let about = if self.rough { "about " } else { "" };
        let part = if kept > MOST_PCT {
            format!("kept more than {MOST_PCT:.0} % of what it bought")
        } else if kept < 99.5 {
            format!("lost {about}{:.0} % of what it bought", (100.0 - kept).max(1.0))
        } else {
            format!("kept {about}{kept:.0} % of what it bought")
        };
        // The purchase is calculated from the two printed medians, so that the numbers in the
        // sentence agree. The median of the windows' purchases may differ.
        let got = median(self.flood.iter().map(|window| window[0]));
        let rates = match got.map(|got| (got, 100.0 * got / kept)) {
            Some((got, due)) if due.is_finite() => {
                format!(" ({} of {} Gbit/s)", gbps(got), gbps(due))
            }
            _ => String::new(),
        };
        let failed = if promised && self.failed() {
            format!(
                ": the switch failed, for the machine's disturbances explain {:.0} % at most",
                self.unsure().ceil()
            )
        } else {
            String::new()
        };
        format!("Under {limits} the victim {part} when its neighbour flooded{rates}{failed}.")
    }
}

/// Formats a rate in Gbit/s with two decimals, or with three decimals below 0.1 Gbit/s.
fn gbps(value: f64) -> String {
    if value < 0.1 { format!("{value:.3}") } else { format!("{value:.2}") }
}

/// State of the machine during the whole run.
#[derive(Debug, Clone, Default)]
pub(super) struct Conditions {
    /// Counts of judged and repeated windows, with the reasons for repetitions.
    pub tally: Tally,
    /// For each window: the fractions of its time for which the switch and the load waited for a
    /// core.
    pub waits: Vec<[f64; 2]>,
    /// Time that other programs, the hypervisor and the CPU limit took from the cores.
    pub machine: Machine,
    /// Whether the switch and the load share one core.
    pub one_core: bool,
}

impl Conditions {
    /// Returns a sentence that says how quiet the machine was during the measurements. `rough` says
    /// that some numbers are rough or missing.
    fn sentence(&self, rough: bool) -> String {
        let repeated = self.tally.repeated();
        if !rough && repeated == 0 && !self.one_core {
            return format!(
                "The machine was quiet: none of the {} windows had to be measured again.",
                self.tally.judged()
            );
        }
        let mut clauses = Vec::new();
        if self.one_core {
            clauses.push("switch and load share one core".to_owned());
        }
        let mut worst = 0.0;
        for (who, nth) in [("switch", 0), ("load", 1)] {
            let shares = self.waits.iter().map(|wait| wait[nth]).filter(|w| w.is_finite());
            let shares = shares.map(|share| share.clamp(0.0, 1.0));
            let (sum, windows) = shares.fold((0.0, 0.0), |(sum, n), wait| (sum + wait, n + 1.0));
            let pct = 100.0 * sum / f64::max(windows, 1.0);
            worst = f64::max(worst, pct);
            if pct >= WAITED_PCT {
                clauses.push(format!("the {who} waited for its core {pct:.0} % of the time"));
            }
        }
        clauses.extend(self.machine.clauses());
        if clauses.is_empty() {
            clauses = self.tally.clauses();
        }
        let again = match repeated {
            0 => String::new(),
            1 => "1 window was measured again".to_owned(),
            n => format!("{n} windows were measured again"),
        };
        let said = match (rough, again.is_empty()) {
            (true, _) if worst >= HOPELESS_PCT => {
                "The machine was too busy to tell the two ways of limiting apart"
            }
            (true, _) => "The machine was disturbed, so the numbers are rough",
            (false, true) => "The machine was not the best",
            (false, false) => "The machine was disturbed",
        };
        let again = if again.is_empty() { again } else { format!(", and {again}") };
        let why = match clauses.is_empty() {
            true => String::new(),
            false => format!(": {}", clauses.join("; ")),
        };
        format!("{said}{again}{why}.")
    }
}

pub(super) fn story(bps: &Seen, c2qos: &Seen, conditions: &Conditions) -> [String; 3] {
    let measured = |seen: &Seen| seen.kept().is_some();
    let rough = [bps, c2qos].into_iter().any(|seen| seen.rough || !measured(seen));
    [
        bps.sentence("bit-rate limits", false),
        c2qos.sentence("C2QoS", true),
        conditions.sentence(rough),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::bracket::{Doubt, Rule, Turns, judge};
    use penstock_sim::Rng;

    fn seen(before: f64, flood: f64, kept: f64) -> Seen {
        Seen { before: vec![before; 6], flood: vec![[flood, kept, 1.0]; 6], ..Seen::default() }
    }

    /// Windows of a simulated machine. A window with a reason for doubt is measured again.
    struct Windows(Vec<Option<Doubt>>);

    impl Turns for Windows {
        type Speed = f64;
        type Found = Option<Doubt>;

        fn calibrate(&mut self) -> anyhow::Result<f64> {
            Ok(1.0)
        }

        fn measure(&mut self, _: &f64) -> anyhow::Result<Option<Doubt>> {
            Ok(self.0.pop().flatten())
        }

        fn speed(of: &f64) -> f64 {
            *of
        }

        fn doubt(found: &Option<Doubt>) -> Option<Doubt> {
            *found
        }
    }

    fn tally(doubts: Vec<Option<Doubt>>) -> Tally {
        let (wanted, mut tally) = (u32::try_from(doubts.len()).unwrap(), Tally::default());
        let rule = Rule { agree: 0.04, tries: 1, rough: false };
        judge(&mut Windows(doubts), (wanted, rule), &mut tally).unwrap();
        tally
    }

    #[test]
    fn on_a_quiet_machine_the_numbers_are_the_story() {
        let quiet = Conditions { tally: tally(vec![None; 24]), ..Conditions::default() };
        let (bps, c2qos) = (seen(1.2, 0.79, 66.0), seen(1.2, 1.21, 104.2));
        assert_eq!(
            story(&bps, &c2qos, &quiet),
            [
                "Under bit-rate limits the victim lost 34 % of what it bought when its neighbour \
                 flooded (0.79 of 1.20 Gbit/s).",
                "Under C2QoS the victim kept 104 % of what it bought when its neighbour flooded \
                 (1.21 of 1.16 Gbit/s).",
                "The machine was quiet: none of the 24 windows had to be measured again.",
            ]
        );
        assert!(!c2qos.failed());
    }

    /// The sentence about the victim must state a loss and two rates that agree. The purchase
    /// differs from window to window on a busy machine.
    #[test]
    fn the_numbers_of_a_sentence_agree() {
        let flood = vec![[2.84, 91.0, 5.0], [2.2, 78.0, 5.0], [3.1, 111.0, 5.0]];
        let seen = Seen { flood, rough: true, ..seen(3.0, 2.8, 91.0) };
        let [line, ..] = story(&seen, &seen, &Conditions::default());
        assert!(
            line.contains("lost about 9 %") && line.contains("(2.84 of 3.12 Gbit/s)"),
            "{line}"
        );
    }

    #[test]
    fn a_switch_that_broke_its_promise_on_a_quiet_machine_failed() {
        let broken = seen(1.2, 0.8, 70.0);
        assert!(broken.failed());
        let [_, line, _] = story(&seen(1.2, 0.8, 70.0), &broken, &Conditions::default());
        assert!(line.contains("lost 30 %") && line.contains("the switch failed"), "{line}");
        let [line, ..] = story(&broken, &broken, &Conditions::default());
        assert!(!line.contains("failed"), "bit-rate limits promise the victim nothing: {line}");
    }

    #[test]
    fn what_disturbances_explain_is_no_failure() {
        let flood = vec![[1.0, 93.0, 6.5]; 6];
        let near = Seen { flood, ..seen(1.2, 1.0, 93.0) };
        assert!(!near.failed(), "calibrations 6.5 % apart explain 6 %");
        assert!(Seen { stolen_pct: 5.0, ..seen(1.2, 1.1, 94.0) }.least_kept().unwrap() <= 93.0);
        assert!(!Seen { rough: true, ..seen(1.2, 0.1, 10.0) }.failed(), "rough fails nobody");
        let few = Seen { flood: vec![[0.5, 40.0, 1.0]; ENOUGH - 1], ..seen(1.2, 0.5, 40.0) };
        assert!(!few.failed() && few.least_kept().is_none(), "two windows are not enough");
    }

    #[test]
    fn the_disturber_is_named_with_how_much() {
        let doubts = vec![Some(Doubt::WaitedForCore), Some(Doubt::WaitedForCore), None];
        let conditions = Conditions {
            tally: tally(doubts),
            waits: vec![[0.3, 0.0], [0.1, 0.02], [0.2, f64::NAN]],
            machine: Machine {
                others_pct: 33.2,
                busiest: Some(("rustc".to_owned(), 34.0)),
                ..Machine::default()
            },
            one_core: false,
        };
        let rough = Seen { rough: true, ..seen(1.0, 0.7, 68.0) };
        let [bps, _, machine] = story(&rough, &seen(1.0, 1.0, 100.0), &conditions);
        assert!(bps.contains("lost about 32 %"), "{bps}");
        assert_eq!(
            machine,
            "The machine was disturbed, so the numbers are rough, and 2 windows were measured \
             again: the switch waited for its core 20 % of the time; the load waited for its core \
             1 % of the time; other programs used 33 % of the cores of switch and load (most of \
             all rustc, 34 % of a core)."
        );
    }

    #[test]
    fn numbers_of_a_hopeless_machine_are_told_as_that() {
        let conditions =
            Conditions { waits: vec![[0.5, 0.5]; 6], one_core: true, ..Conditions::default() };
        let rough = Seen { rough: true, ..seen(0.13, 0.12, 97.0) };
        let [.., machine] = story(&rough, &rough, &conditions);
        assert!(machine.starts_with(
            "The machine was too busy to tell the two ways of limiting apart: switch and load \
             share one core; the switch waited for its core 50 % of the time"
        ));
    }

    #[test]
    fn nothing_measured_is_a_story_as_well() {
        let doubts = vec![Some(Doubt::SpeedChanged), Some(Doubt::GeneratorShort)];
        let conditions = Conditions { tally: tally(doubts), ..Conditions::default() };
        let lines = story(&Seen::default(), &Seen::default(), &conditions);
        assert_eq!(lines[1], "Under C2QoS the victim could not be measured.");
        assert!(lines[2].contains("rough") && lines[2].contains("speed changed (once)"));
        assert!(!Seen::default().failed());
    }

    /// Returns a random number for tests, which may be NaN or infinite.
    fn anything(rng: &mut Rng) -> f64 {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e300, 1e-300, f64::MIN];
        match rng.below(3) {
            0 => odd[usize::try_from(rng.below(8)).unwrap()],
            1 => 200.0 * rng.unit(),
            _ => rng.unit(),
        }
    }

    #[test]
    fn any_mix_of_disturbed_windows_makes_three_lines_without_a_number_that_is_none() {
        for seed in 0..3_000 {
            let mut rng = Rng::new(seed);
            let some = |rng: &mut Rng| {
                let count = rng.below(8);
                (0..count).map(|_| anything(rng)).collect::<Vec<_>>()
            };
            let life = |rng: &mut Rng| Seen {
                before: some(rng),
                flood: some(rng).into_iter().map(|v| [v, anything(rng), anything(rng)]).collect(),
                rough: rng.below(2) == 0,
                stolen_pct: anything(rng),
            };
            let (bps, c2qos) = (life(&mut rng), life(&mut rng));
            let kinds = [None, Some(Doubt::SpeedChanged), Some(Doubt::WaitedForCore)];
            let doubts = (0..rng.below(9)).map(|_| kinds[usize::try_from(rng.below(3)).unwrap()]);
            let conditions = Conditions {
                tally: tally(doubts.collect()),
                waits: (0..rng.below(4))
                    .map(|_| [anything(&mut rng), anything(&mut rng)])
                    .collect(),
                machine: Machine {
                    others_pct: anything(&mut rng),
                    programs_pct: anything(&mut rng),
                    busiest: Some(("x".to_owned(), anything(&mut rng))),
                    stolen_pct: anything(&mut rng),
                    throttled_pct: anything(&mut rng),
                },
                one_core: rng.below(2) == 0,
            };
            for line in story(&bps, &c2qos, &conditions) {
                let words = line.to_lowercase();
                assert!(!words.contains("nan") && !words.contains("inf "), "seed {seed}: {line}");
                assert!(line.ends_with('.') && line.len() < 600, "seed {seed}: {line}");
            }
            assert!((0.0..=PROMISE_PCT).contains(&c2qos.unsure()), "seed {seed}");
            if let Some(kept) = c2qos.kept() {
                assert!(kept.is_finite());
            }
            if c2qos.rough {
                assert!(!c2qos.failed(), "seed {seed}");
            }
        }
    }
}
