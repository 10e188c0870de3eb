//! Made situations of the live experiment `contracts`: whether `penstock explain` names the true
//! cause of a VM's rate.
//!
//! # Approach
//!
//! In each situation ([`made`]), one thing limits the VM `vm`. The VM sends for some seconds, and
//! then the daemon is asked. The answer is wrong if its first cause is not the made one, if it
//! names another port, or if its text lacks the words that tell the cause from its siblings.

use anyhow::Context as _;
use serde_json::Value;

use super::sold::Model;
use crate::evidence::Outcome;
use crate::rig::fleet::{Offer, Size};
use crate::rig::plan::{Bound, Plan, Policy, Vm};
use crate::rig::{Rig, Span};
use penstock_guest::bed::Bed;
use penstock_guest::load::Rate;

/// Seconds in which the VMs send before the daemon is asked about the last [`OVER`] seconds.
const SECS: f64 = 4.0;
const OVER: &str = "2";
/// Cycles per second of the worker in situations in which the core is full. The load generator
/// must be able to fill it.
const SMALL_CORE: &str = "capacity = \"200M\"\n";

/// A made situation.
struct Made {
    name: &'static str,
    /// Name of the limit, the port that the answer names, and words that it contains.
    cause: [&'static str; 3],
    vm: Vm,
    /// What the VM sends.
    offer: Offer,
    /// What a neighbour sends to another receiver, and its latency class.
    neighbour: Option<(Offer, u8)>,
    /// Further lines for the receiver's port, and the rate in bits per second at which it drains
    /// its ring; 0 means no limit.
    receiver: (&'static str, f64),
    worker: &'static str,
}

const fn greedy(size: u16) -> Offer {
    Offer { size: Size::Of(size), flows: 1, rate: Rate::Max }
}

const fn slow(size: u16) -> Offer {
    Offer { size: Size::Of(size), flows: 1, rate: Rate::Frames(20_000.0) }
}

fn with(more: &str) -> Vm {
    Vm { more: more.to_owned(), ..Vm::sender("vm", "to", Bound::default()) }
}

fn situation(name: &'static str, cause: [&'static str; 3], vm: Vm, offer: Offer) -> Made {
    Made { name, cause, vm, offer, neighbour: None, receiver: ("", 0.0), worker: "" }
}

fn made() -> Vec<Made> {
    let unlimited = || with("");
    let strict = Bound { policy: Policy::Strict, cycles: 20e6, ..Bound::default() };
    let sold = |policy: &str, contract: &str| {
        with(&format!("ingress_policy = \"{policy}\"\ncontract = {{ {contract}, uplink = 0 }}\n"))
    };
    vec![
        situation(
            "police in bits",
            ["own-rate", "", "`cir` of `police`"],
            with("ingress_policy = \"bps\"\npolice = { cir = \"50M\" }\n"),
            greedy(512),
        ),
        situation(
            "police in frames",
            ["own-rate", "", "`pps` of `police`"],
            with("ingress_policy = \"pps\"\npolice = { pps = \"50k\" }\n"),
            greedy(64),
        ),
        situation(
            "largest rate of a contract",
            ["own-rate", "", "`max_rate`"],
            sold("cycles-minmax", "min_rate = \"20M\", max_rate = \"50M\", size = 512"),
            greedy(512),
        ),
        situation(
            "strict cycles",
            ["entitlement", "", "no cycles"],
            Vm::sender("vm", "to", strict),
            greedy(64),
        ),
        situation(
            "shorter frames than were sold",
            ["entitlement", "", "it was sold 1024"],
            sold("cycles-strict", "rate = \"400M\", size = 1024"),
            greedy(64),
        ),
        Made {
            receiver: ("", 20e6),
            ..situation("slow receiver", ["destination", "to", "ring"], unlimited(), greedy(512))
        },
        Made {
            receiver: ("receive = { rate = \"50M\" }\n", 0.0),
            ..situation(
                "limit of the receiver",
                ["destination", "to", "`receive`"],
                unlimited(),
                greedy(512),
            )
        },
        situation("a VM that sends little", ["nothing", "", "no backlog"], unlimited(), slow(64)),
        situation(
            "a buyer that sends little",
            ["nothing", "", "nothing on this host"],
            sold("cycles-strict", "rate = \"100kpps\", size = 512"),
            slow(512),
        ),
    ]
}

/// Situations in which the core is full.
fn made_on_a_full_core() -> Vec<Made> {
    let unlimited = || with("");
    let full = |made: Made, neighbour| Made { neighbour, worker: SMALL_CORE, ..made };
    vec![
        full(
            situation(
                "earlier class",
                ["neighbours", "", "most of all a"],
                unlimited(),
                greedy(64),
            ),
            Some((greedy(64), 1)),
        ),
        full(
            situation(
                "flood of flows",
                ["neighbours", "", "most of all a"],
                unlimited(),
                greedy(64),
            ),
            Some((Offer { flows: 100_000, ..greedy(64) }, 0)),
        ),
        full(situation("a core for one port", ["core", "", "busy"], unlimited(), greedy(64)), None),
    ]
}

/// Returns the number of situations that `penstock explain` explains wrongly. Writes the wrong
/// answers into the outcome.
pub(super) fn wrong(bed: &Bed, model: &Model, outcome: &mut Outcome) -> anyhow::Result<u32> {
    let mut wrong = 0;
    let all: Vec<Made> = made().into_iter().chain(made_on_a_full_core()).collect();
    outcome.note("made_situations", all.len());
    for (number, made) in all.into_iter().enumerate() {
        let name = made.name;
        let answer = explained(bed, model, number, made).context(name)?;
        if let Some(answer) = answer {
            outcome.note(&format!("false_remedy, {name}"), answer);
            wrong += 1;
        }
    }
    Ok(wrong)
}

/// Returns the daemon's answer about a situation, if the answer is wrong.
fn explained(
    bed: &Bed,
    model: &Model,
    number: usize,
    made: Made,
) -> anyhow::Result<Option<String>> {
    let Made { cause, vm, offer, neighbour, receiver, worker, .. } = made;
    let (more, drains) = receiver;
    let to = Vm { more: more.to_owned(), drains, ..Vm::sink("to") };
    let mut vms = vec![vm, to, Vm::sink("far")];
    let mut offers = vec![("vm".to_owned(), offer)];
    if let Some((offer, priority)) = neighbour {
        vms.push(Vm::sender("a", "far", Bound { priority, ..Bound::default() }));
        offers.push(("a".to_owned(), offer));
    }
    let file = model.file.display();
    let worker = format!("{worker}\n[model]\nfile = \"{file}\"\nany_host = true\n");
    let plan = Plan { worker, ..Plan::new("hbs", vms) };
    let mut rig = Rig::ours(bed, &format!("remedy-{number}"), &plan)?;
    let answer = rig.awake(|rig| {
        rig.once(bed, &offers, Span { warm: 0.5, secs: SECS, parts: 1 })?;
        rig.switch.ask(&["explain", "vm", "--over", OVER, "--json"]).context("no Penstock")?
    })?;
    rig.switch.resume()?;
    let answer: Value = serde_json::from_str(&answer).context("reading the answer")?;
    let text = |key: &str| answer[key].as_str().unwrap_or_default();
    let (why, verdict) = (text("why"), text("verdict"));
    Ok(wrong_words(cause, [text("limit"), text("limit_port")], [why, verdict]))
}

/// Returns an answer about a made situation as text, if the answer is wrong. `cause` has the name
/// of the true limit, the port that the answer must name, and words that it must contain. `named`
/// has the limit and the port of the answer.
pub(crate) fn wrong_words(
    cause: [&str; 3],
    named: [&str; 2],
    [why, verdict]: [&str; 2],
) -> Option<String> {
    let ([limit, port, words], [said, of]) = (cause, named);
    let has_words = why.contains(words) || verdict.contains(words);
    let is_right = said == limit && of == port && has_words;
    (!is_right).then(|| format!("{said} {of}: {why} | {verdict}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twelve_situations_have_names_and_causes() {
        let all: Vec<Made> = made().into_iter().chain(made_on_a_full_core()).collect();
        assert_eq!(all.len(), 12);
        let names: std::collections::BTreeSet<&str> = all.iter().map(|made| made.name).collect();
        assert_eq!(names.len(), all.len(), "names are unique");
    }

    #[test]
    fn an_answer_is_wrong_in_its_limit_its_port_or_its_words() {
        let wrong = |named, why| wrong_words(["link", "up", "share"], named, [why, ""]);
        assert_eq!(wrong(["link", "up"], "its share"), None);
        assert_eq!(wrong(["link", "up"], "full").unwrap(), "link up: full | ");
        assert!(wrong(["link", "to"], "its share").is_some());
        assert!(wrong(["core", "up"], "its share").is_some());
    }
}
