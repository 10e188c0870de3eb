//! `penstock calibrate --verify`: sells contracts by a cost model on throw-away ports, and measures
//! what they get.
//!
//! # Approach
//!
//! Every combination of ring type and rules has its own switch, as in [`super::measure`]. The
//! switch loads the model and does not learn. For each case, the sender's port gets a contract
//! worth [`SHARE`] of the core, with strict cycles, and the sender offers more. The receiver counts
//! the delivered frames, and the load generator's own clock gives the time, because asking the
//! switch for its counters would take the generator's core.
//!
//! If the sender's ring was empty for a part of the window ([`STARVED`]), the generator is too slow
//! to judge the contract, and the case is left out with a note. A case is also left out if the
//! cores are not as far apart as at the calibration, because a hypervisor moved the processors. A
//! case outside its band is measured again, at most [`Times::tries`] times, and the median counts.
//! Several VMs buy contracts for different traffic at the same time, which together are worth
//! [`SHARE`] of the core.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use penstock_control::config::model_text;
use penstock_guest::bed::Bed;
use penstock_guest::bed::distance::{Kept, alike};
use penstock_guest::bed::outside::{ENDS, Outside, Through};
use penstock_guest::clock;
use penstock_guest::load::{Rate, SizeMix};
use penstock_qos::cost_model::{
    Action, CostModel, Deployment, Flows, Profile, RULES, RingKind, SIZES, SizeMix as Sizes,
    Spread, Verification, Verified, Work,
};

use crate::table::to_f64;

use super::measure::{BURST, CalibrateArgs, MANY_FLOWS, rule_tables};
use super::rig::{Delivered, Load, Rig, Setting, Times};
use super::ways::{WAYS, hops, netns};

/// Part of the core's cycles that a contract is worth. The generator must offer more than the
/// contract, and it is slower than the switch.
const SHARE: f64 = 0.2;
/// A case is left out if the sender's ring was empty in more than this part of the looks.
const STARVED: f64 = 0.02;
/// Numbers of senders of the cases with several VMs.
const SENDERS: [usize; 4] = [2, 4, 8, 16];
/// Frame sizes of several senders, in turn; `None` means IMIX.
const MIXED: [Option<u16>; 5] = [Some(64), None, Some(512), Some(1024), Some(1500)];
/// Keys of the sender's port. Each case sets a contract of its own.
const SENDER: &str =
    "ingress_policy = \"cycles-strict\"\ncontract = { rate = \"1kpps\", size = 64 }";

/// Key of the receiver's port if it waits for interrupts.
const INTERRUPTS: &str = "vhost-user.interrupts = true";

/// The traffic of one contract.
#[derive(Debug, Clone)]
struct Case {
    ring: RingKind,
    flows: Flows,
    rules: u32,
    /// One size, or IMIX.
    size: Option<u16>,
    /// Way out of the host that all frames take; `None` if the frames go to a VM.
    way: Option<(Through, Action)>,
    /// Whether the receiving VM waits for interrupts.
    interrupts: bool,
}

impl Case {
    const PLAIN: Self = Self {
        ring: RingKind::Split,
        flows: Flows::Single,
        rules: 1,
        size: None,
        way: None,
        interrupts: false,
    };

    fn name(&self) -> String {
        let size = self.size.map_or_else(|| "imix".to_owned(), |size| format!("{size} bytes"));
        let way = match self.way {
            Some((way, _)) => format!(" to {}", way.name()),
            None if self.interrupts => " to a VM with interrupts".to_owned(),
            None => String::new(),
        };
        let flows = match self.flows {
            Flows::Single => "single flow",
            Flows::Multiple => "many flows",
        };
        let rules =
            if self.rules == 1 { "1 rule".to_owned() } else { format!("{} rules", self.rules) };
        format!("{size}{way}, {flows}, {rules}, {} ring", self.ring)
    }

    fn action(&self) -> Option<Action> {
        let interrupts = self.interrupts.then_some(Action::ToInterrupt);
        self.way.map(|(_, action)| action).or(interrupts)
    }

    fn profile(&self) -> anyhow::Result<Profile> {
        Ok(Profile {
            sizes: self.size.map_or_else(|| Ok(Sizes::imix()), Sizes::fixed)?,
            flows: self.flows,
            rules: self.rules,
            ring: self.ring,
            actions: self.action().map(Work::from).into_iter().collect(),
        })
    }

    fn load(&self) -> Load {
        let sizes = self.size.map_or_else(SizeMix::imix, SizeMix::fixed);
        let flows = if self.flows == Flows::Single { 1 } else { MANY_FLOWS };
        Load { sizes, flows, rate: Rate::Max, burst: BURST }
    }

    /// Returns the contract as the value of a key, for a rate in frames per second.
    fn contract(&self, frames: u64) -> String {
        let size = self.size.map_or_else(|| "imix".to_owned(), |size| size.to_string());
        let uplink = if self.way.is_some() { 100 } else { 0 };
        format!(
            "contract={{rate=\"{frames}pps\",size=\"{size}\",flows=\"{}\",ring=\"{}\",\
             uplink={uplink}}}",
            self.flows, self.ring
        )
    }
}

/// Verifies `model` and returns the result, and sentences for the user about cases left out.
///
/// # Errors
/// Returns an error if a switch cannot be started or fails.
pub fn run(
    args: &CalibrateArgs,
    model: &CostModel,
    bed: &Bed,
) -> anyhow::Result<(Verification, Vec<String>)> {
    let file = bed.dir().join("verified.toml");
    std::fs::write(&file, model_text(model)).context("writing the model")?;
    let then = model.parts().about.core_distance_ns.map(f64::from);
    let kept = then.map(|nanos| Kept::at(nanos, args.patience()));
    let times = Times { kept, ..args.times() };
    let mut seller = Seller { model, times, cases: Vec::new(), notes: Vec::new() };
    for ring in [RingKind::Split, RingKind::Packed] {
        for rules in RULES {
            let setting = setting(format!("sold-{ring}-{rules}"), ring, rule_tables(rules), &file);
            let mut rig = Rig::start(bed, &setting)?;
            for flows in Flows::ALL {
                for size in SIZES {
                    let case = Case { ring, flows, rules, size: Some(size), ..Case::PLAIN };
                    seller.sell(bed, &mut rig, &case)?;
                }
            }
            if (ring, rules) == (RingKind::Split, 1) {
                seller.sell(bed, &mut rig, &Case::PLAIN)?;
            }
            eprintln!("penstock calibrate: verified {} contracts", seller.cases.len());
        }
    }
    for senders in SENDERS {
        let of = setting(format!("sold-{senders}"), RingKind::Split, rule_tables(1), &file);
        let mut rig = Rig::start(bed, &Setting { senders, ..of })?;
        let case = |size| Case { size, ..Case::PLAIN };
        let cases: Vec<Case> = MIXED.into_iter().map(case).cycle().take(senders).collect();
        seller.sell_all(bed, &mut rig, &cases)?;
    }
    eprintln!("penstock calibrate: verified {} contracts", seller.cases.len());
    if model.parts().actions.contains_key(&Action::ToInterrupt) {
        let of = setting("sold-interrupts".to_owned(), RingKind::Split, rule_tables(1), &file);
        let of = Setting { interrupts: true, keys: [SENDER, INTERRUPTS, ""], ..of };
        let mut rig = Rig::start(bed, &of)?;
        for size in [64, 1500] {
            let case = Case { size: Some(size), interrupts: true, ..Case::PLAIN };
            seller.sell(bed, &mut rig, &case)?;
        }
    }
    for (way, out, _) in WAYS {
        if !model.parts().actions.contains_key(&out) {
            continue;
        }
        if let Err(error) = seller.sell_way(bed, (way, out), &file) {
            let name = way.name();
            seller.notes.push(format!("contracts to {name} ports were not verified: {error:#}"));
        }
    }
    Ok((Verification { date: clock::utc(), cases: seller.cases }, seller.notes))
}

fn setting(name: String, ring: RingKind, rules: String, model: &Path) -> Setting {
    let head = format!(
        "schedule = \"hbs\"\n\n[model]\nfile = \"{}\"\nlearn = false\nany_host = true\n",
        model.display()
    );
    Setting { head, keys: [SENDER, "", ""], sold: 0.0, ..Setting::plain(name, ring, rules) }
}

struct Seller<'a> {
    model: &'a CostModel,
    times: Times,
    cases: Vec<Verified>,
    notes: Vec<String>,
}

impl Seller<'_> {
    /// Sells one contract and measures what it gets.
    fn sell(&mut self, bed: &Bed, rig: &mut Rig, case: &Case) -> anyhow::Result<()> {
        self.sell_all(bed, rig, std::slice::from_ref(case))
    }

    /// Sells a contract to each sender, worth [`SHARE`] of the core together, and measures what
    /// they get. A contract outside its band is measured again together with the others.
    fn sell_all(&mut self, bed: &Bed, rig: &mut Rig, cases: &[Case]) -> anyhow::Result<()> {
        let vms = u32::try_from(cases.len() + 1)?;
        let at = Deployment { vms, ..Deployment::SINGLE };
        let mut sold = Vec::new();
        for (number, case) in (1_u32..).zip(cases) {
            let profile = case.profile()?;
            let cost = self.model.per_frame(&profile, at).max(1.0);
            let share = SHARE / f64::from(vms - 1);
            let bought = frames(share * bed.tsc_hz() / cost);
            rig.change(&format!("v{number}"), &case.contract(bought))?;
            let name = match cases {
                [_] => case.name(),
                _ => format!("{}, VM {number} of {}", case.name(), vms - 1),
            };
            let band = Verified::band(self.model.uncertainty(&profile));
            sold.push(Verified { name, bought: to_f64(bought), delivered: 0.0, band });
        }
        let loads: Vec<Load> = cases.iter().map(Case::load).collect();
        let loads: Vec<&Load> = loads.iter().collect();
        let mut seen: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
        for tries_left in (0..self.times.tries).rev() {
            let delivered = rig.deliver(bed, &loads, self.times)?;
            if let Some(why) = self.unfit(&delivered) {
                if tries_left > 0 {
                    continue;
                }
                let name = &sold.first().context("no contract")?.name;
                self.notes.push(format!("{name}: not verified, because {why}"));
                return Ok(());
            }
            for ((of, seen), sold) in delivered.iter().zip(&mut seen).zip(&mut sold) {
                seen.push(of.rate);
                let spread = Spread::of(seen).context("no contract was measured")?;
                sold.delivered = spread.median;
            }
            if sold.iter().all(Verified::holds) {
                break;
            }
        }
        self.cases.append(&mut sold);
        Ok(())
    }

    /// Returns why a window says nothing about the model; `None` if it says something.
    fn unfit(&self, delivered: &[Delivered]) -> Option<String> {
        if delivered.iter().any(|of| of.starved > STARVED) {
            return Some("the load generator sends less than was bought".to_owned());
        }
        let apart = delivered.first()?.apart;
        let then = f64::from(self.model.parts().about.core_distance_ns?);
        match apart.nanos() {
            None if apart.moved() => Some("a hypervisor moved the processors".to_owned()),
            Some(now) if !alike(now, then) => Some(format!(
                "a cache line takes {now:.0} ns between the cores and back, and took {then:.0} ns \
                 at the calibration: a hypervisor moved the processors"
            )),
            _ => None,
        }
    }

    /// Sells contracts for frames that leave through interfaces of one type.
    fn sell_way(&mut self, bed: &Bed, way: (Through, Action), model: &Path) -> anyhow::Result<()> {
        let outside = Outside::create(bed.guard(), way.0, netns("v", way.0), &ENDS)?;
        let hops = hops(&outside);
        let setting = setting(format!("sold-{}", way.0.name()), RingKind::Split, hops, model);
        let mut rig = Rig::start_with(bed, &setting, || outside.join())?;
        for size in [64, 1500] {
            self.sell(bed, &mut rig, &Case { size: Some(size), way: Some(way), ..Case::PLAIN })?;
        }
        Ok(())
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below a billion")]
fn frames(rate: f64) -> u64 {
    rate.max(1.0) as u64
}

/// Returns the result as text for the user: the verdict, and every contract outside its band.
#[must_use]
pub fn summary(verified: &Verification, notes: &[String]) -> String {
    let mut text = format!("{verified}\n");
    for case in verified.cases.iter().filter(|case| !case.holds()) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}: bought {:.0} frames/s, got {:.0}, which is {:+.1} % (band ±{:.1} %)",
            case.name,
            case.bought,
            case.delivered,
            100.0 * case.deviation(),
            100.0 * case.band
        );
    }
    for note in notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_a_contract_that_a_configuration_accepts() {
        let case = Case { flows: Flows::Multiple, size: Some(1024), ..Case::PLAIN };
        let key = case.contract(250_000);
        assert_eq!(
            key,
            "contract={rate=\"250000pps\",size=\"1024\",flows=\"multiple\",ring=\"split\",uplink=0}"
        );
        assert_eq!(case.name(), "1024 bytes, many flows, 1 rule, split ring");
        let way = Some((Through::Xdp, Action::ToXdp));
        let case = Case { way, ..Case::PLAIN };
        assert_eq!(case.name(), "imix to xdp, single flow, 1 rule, split ring");
        assert!(case.contract(1).contains("uplink=100"));
        assert_eq!(case.profile().unwrap().actions, [Work::from(Action::ToXdp)]);
        let case = Case { size: Some(64), interrupts: true, ..Case::PLAIN };
        assert_eq!(
            case.name(),
            "64 bytes to a VM with interrupts, single flow, 1 rule, split ring"
        );
        assert!(case.contract(1).contains("uplink=0"));
        assert_eq!(case.profile().unwrap().actions, [Work::from(Action::ToInterrupt)]);
    }
}
