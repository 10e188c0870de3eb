//! Live experiment about plans: how long a change of ten tenants takes, and whether guarantees hold
//! meanwhile.
//!
//! # Problem
//!
//! While queues pass from tenants to other tenants, hosts and switches have parts of two bindings.
//! In a queue with too little weight, a tenant has less than its guarantee.
//!
//! # Approach
//!
//! The fabric has ten hosts and four switches: three racks and a core switch. Each of ten tenants
//! has a VM on each host, so every change of a tenant concerns all hosts and switches. A port has
//! six queues. At the beginning, five tenants have a queue. When the other five tenants send, the
//! controller gives the queues to them. After that, the operator runs the command `revert`
//! repeatedly, and each time the controller returns to the previous binding. Each `revert` is one
//! plan, which demotes five tenants and promotes five. All ten tenants always demand more than they
//! receive.
//!
//! # Measured values
//!
//! `plan_s_max` is the longest plan according to the controller's answers. `plan_answer_s_max` is
//! measured from outside: the time from the start of the operator's command to its end. The
//! controller answers when it has carried out all steps of the plan, so the time from outside also
//! contains the start of a program, the request, and the writes to the store. It is an upper bound,
//! and counts as `plan_s_max` if an answer has no length.
//!
//! `dilution_min` is the lowest rate of a tenant in any second, divided by the rate that is due to
//! the tenant ([`super::demand`]).
//!
//! After the plans under TCP, the same number of plans runs under datagrams. TCP needs several
//! round trips until its rate follows a new binding. Datagrams show what the fabric gives to a
//! tenant that always demands more. The values of this part begin with `datagrams_`.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::Value;

use super::demand::{across, clients, due, floods};
use super::diary::{Diary, Log, plan_seconds};
use super::guarantees::{Demand, INTERVAL, KEPT, LINK, hoses, judge, tell_plans};
use super::operator::Operator;
use super::plan::{Control, Plan, Spread, tenant_name};
use super::programs::{Client, Programs};
use super::samples::{Sample, WARM_UP, points, start, used_pct, watch};
use super::world::World;
use crate::evidence::{Claim, Context, Outcome, Picture, Record};
use crate::rig::platform;
use crate::rig::stats::to_f64;
use penstock_guest::bed::Bed;
use penstock_guest::bed::process::await_some;
use penstock_guest::clock;

/// Number of hosts in each of the three racks.
const RACKS: [usize; 3] = [4, 3, 3];
/// Number of tenants, and number of VMs of each tenant.
const TENANTS: usize = 10;
/// Number of tenants that have a queue at a time.
const BOUND: usize = 5;
/// Guarantee of each VM in bits per second. The first rack needs most bandwidth to the core switch:
/// four VMs of each of ten tenants, which is 94 % of the link.
const HOSE: u64 = 1_175_000;
/// Number of connections of a VM.
const COPIES: usize = 4;
/// Number of plans.
const PLANS: u32 = 12;
/// Lowest number of plans that must change ten tenants.
const PLANS_LEAST: f64 = 10.0;
/// Time from the beginning of a plan to the beginning of the next plan.
const GAP: Duration = Duration::from_secs(3);
/// Longest time that a plan of ten tenants may take, in seconds.
const PLAN_SECS: f64 = 0.5;
/// Maximum time until the controller has given queues to tenants.
const LIMIT: Duration = Duration::from_secs(60);

/// A plan that the operator's command `revert` caused.
#[derive(Debug, Clone)]
struct Turn {
    /// Time of the command, counted from the start of the programs.
    at: Duration,
    /// Time from the start of the command to its end.
    answered_in: Duration,
    /// Answer of the controller.
    answer: Value,
    /// Length of the plan in seconds by the controller's record. `None` if there is no record.
    recorded: Option<f64>,
}

impl Turn {
    /// Returns the number of tenants that gained or lost queues. 0 if the plan was rolled back.
    fn changed(&self) -> u64 {
        let number = |key: &str| self.answer[key].as_u64().unwrap_or(0);
        if self.answer["taken_back"] == true { 0 } else { number("promoted") + number("demoted") }
    }

    /// Returns the length of the plan in seconds: recorded by the controller, or from outside.
    fn secs(&self) -> f64 {
        self.recorded.unwrap_or(self.answered_in.as_secs_f64())
    }
}

fn plan() -> Plan {
    Plan {
        racks: RACKS.to_vec(),
        link: LINK,
        queues: BOUND + 1,
        interval: INTERVAL,
        tenants: vec![(TENANTS, HOSE); TENANTS],
        spread: Spread::OnePerHost,
        control: Control::One,
        hold: false,
        page: false,
        spare: false,
    }
}

/// Runs the experiment.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let plan = plan();
    outcome.note("hosts", plan.hosts());
    outcome.note("switches", plan.racks.len() + 1);
    outcome.note("tenants", plan.tenants.len());
    context.progress(0.0, "starting hosts and their VMs");
    let mut world = World::start(&bed, "plans", &plan)?;
    let flows = across(&world.vms, COPIES, context.seed);
    let from = vec![Duration::ZERO; TENANTS];
    let due = due(&world.vms, &flows, &hoses(&plan), plan.racks.len());
    let all = clients(&world.vms, &flows, &from);
    let floods = floods(&world.vms, &flows, &from, &hoses(&plan));
    let demand = Demand { from, due };
    context.progress(0.2, "two bindings");
    two_bindings(context, &bed, &mut world, &all)?;
    context.progress(0.3, "plans");
    let programs = start(&bed, &world, all, context.seed)?;
    plans(&mut outcome, &mut world, programs, &demand)?;
    context.progress(0.7, "plans under datagrams");
    let programs = start(&bed, &world, floods, context.seed)?;
    let mut datagrams = Outcome::default();
    plans(&mut datagrams, &mut world, programs, &demand)?;
    outcome.append("datagrams", datagrams);
    Ok(outcome)
}

/// Runs the plans under the traffic of `programs`, and judges them. The programs end afterwards.
fn plans(
    outcome: &mut Outcome,
    world: &mut World,
    mut programs: Programs,
    demand: &Demand,
) -> anyhow::Result<()> {
    let diary = Diary::start(world.operator())?;
    let reverts = revert_again(world.operator(), programs.began())?;
    let secs = (GAP * (PLANS + 2)).as_secs_f64();
    let samples = watch(world, &mut programs, secs)?;
    let turns = reverts.join().map_err(|_| anyhow::anyhow!("the operator's thread panicked"))??;
    drop(programs);
    tell(outcome, &turns, &samples, demand, &diary.close()?);
    Ok(())
}

/// Returns the names of the tenants that have a queue.
fn bound(operator: &Operator) -> anyhow::Result<Vec<String>> {
    let tenants = operator.ask(&["tenants"])?;
    let all = tenants.as_array().into_iter().flatten();
    let bound = all.into_iter().filter(|tenant| tenant["queue"] == true);
    Ok(bound.filter_map(|tenant| tenant["name"].as_str().map(str::to_owned)).collect())
}

/// Makes the controller give all queues to the five tenants that have none, by traffic of these
/// tenants alone. After this function, the controller's history has both bindings, and the
/// controller's mode is `hold`.
fn two_bindings(
    context: &Context<'_>,
    bed: &Bed,
    world: &mut World,
    all: &[Client],
) -> anyhow::Result<()> {
    let operator = world.operator();
    let first = await_some("a queue for five tenants", LIMIT, || {
        world.check()?;
        Ok(Some(bound(&operator)?).filter(|bound| bound.len() == BOUND))
    })?;
    // In mode `hold`, the scores follow the traffic and no queue changes. So all five tenants have
    // their scores when the controller gives them queues, in one plan.
    world.mode("hold")?;
    let others = |client: &&Client| !first.contains(&tenant_name(world.vms[client.vm].tenant));
    let clients: Vec<Client> = all.iter().filter(others).cloned().collect();
    let mut programs = start(bed, world, clients, context.seed)?;
    while programs.elapsed() < 3 * INTERVAL {
        clock::wait_readable(None, INTERVAL / 4);
        programs.check()?;
        world.check()?;
    }
    world.mode("active")?;
    await_some("a queue for the five other tenants", LIMIT, || {
        programs.check()?;
        world.check()?;
        let second = bound(&operator)?;
        let passed = second.len() == BOUND && second.iter().all(|name| !first.contains(name));
        Ok(passed.then_some(()))
    })?;
    world.mode("hold")
}

/// Starts a thread that runs the command `revert` [`PLANS`] times after the warm-up. `began` is the
/// start of the programs.
fn revert_again(
    operator: Operator,
    began: Instant,
) -> anyhow::Result<JoinHandle<anyhow::Result<Vec<Turn>>>> {
    let revert = move || -> anyhow::Result<Vec<Turn>> {
        let mut turns = Vec::new();
        for nth in 1..=PLANS {
            let due = WARM_UP + GAP * nth;
            while let Some(rest) = due.checked_sub(began.elapsed()).filter(|rest| !rest.is_zero()) {
                clock::wait_readable(None, rest);
            }
            let (at, since) = (began.elapsed(), clock::now());
            let answer = operator.ask(&["revert"])?;
            let answered_in = since.elapsed();
            let recorded = recorded(&answer, answered_in);
            turns.push(Turn { at, answered_in, answer, recorded });
        }
        Ok(turns)
    };
    let thread = std::thread::Builder::new().name("operator".to_owned()).spawn(revert);
    thread.context("starting a thread")
}

/// Returns the length of a plan in seconds from the controller's answer. `None` if the length
/// exceeds the time from outside.
fn recorded(answer: &Value, answered_in: Duration) -> Option<f64> {
    plan_seconds(answer).filter(|secs| *secs <= answered_in.as_secs_f64())
}

fn tell(outcome: &mut Outcome, turns: &[Turn], samples: &[Sample], demand: &Demand, log: &Log) {
    let at = |turn: &Turn| turn.at.saturating_sub(WARM_UP).as_secs_f64();
    let answered = |turn: &Turn| turn.answered_in.as_secs_f64();
    outcome.series("plan, from outside", "s", turns.iter().map(|t| (at(t), answered(t))));
    let recorded = turns.iter().filter_map(|turn| Some((at(turn), turn.recorded?)));
    outcome.series("plan, by the controller", "s", recorded);
    outcome.series("core", "%", points(samples, used_pct));
    let answers = turns.iter().map(|turn| turn.answer.clone());
    outcome.note("answers", answers.collect::<Vec<Value>>());
    let ten = u64::try_from(2 * BOUND).unwrap_or(u64::MAX);
    let whole: Vec<&Turn> = turns.iter().filter(|turn| turn.changed() == ten).collect();
    let counted = to_f64(u64::try_from(whole.len()).unwrap_or(u64::MAX));
    let longest = |of: &dyn Fn(&Turn) -> f64| {
        let secs = whole.iter().copied().map(of);
        secs.fold(f64::NAN, f64::max)
    };
    let what = "plans that changed ten tenants on ten hosts and four switches";
    outcome.claim(Claim::new("plans", what, "").at_least(PLANS_LEAST).measured(counted));
    let what = "the longest plan of ten tenants on ten hosts and four switches";
    let claim = Claim::new("plan_s_max", what, "s").at_most(PLAN_SECS);
    outcome.claim(claim.measured(longest(&Turn::secs)));
    let what = "the longest time from the operator's command to its end";
    let claim = Claim::new("plan_answer_s_max", what, "s");
    outcome.claim(claim.measured(longest(&answered)));
    let least = judge(outcome, samples, demand, log);
    tell_plans(outcome, "plans", samples, log);
    let what = "the least that a tenant had in a second over min(guarantee, demand), while queues \
                change hands";
    let claim = Claim::new("dilution_min", what, "").at_least(KEPT);
    outcome.claim(claim.measured(least));
    let used = samples.iter().map(used_pct).fold(f64::INFINITY, f64::min);
    let what = "how full the racks' links to the core were in any second";
    outcome.claim(Claim::new("core_utilisation_pct", what, "%").measured(used));
}

/// Draws the lengths of the plans, and the use of the core links over time.
pub(crate) fn picture(record: &Record) -> Picture {
    crate::live::picture(record, "time, s")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::plan::tests::placed;
    use super::*;

    fn turn(promoted: u64, millis: u64, recorded: Option<f64>) -> Turn {
        Turn {
            at: WARM_UP + GAP,
            answered_in: Duration::from_millis(millis),
            answer: json!({ "promoted": promoted, "demoted": 5, "taken_back": false }),
            recorded,
        }
    }

    fn claims(turns: &[Turn]) -> Outcome {
        let mut outcome = Outcome::new();
        let demand = Demand { from: Vec::new(), due: Vec::new() };
        tell(&mut outcome, turns, &[], &demand, &Log::default());
        outcome
    }

    fn measured(outcome: &Outcome, id: &str) -> (Option<f64>, Option<bool>) {
        let claim = outcome.claims.iter().find(|claim| claim.id == id).unwrap();
        (claim.measured, claim.holds)
    }

    #[test]
    fn each_tenant_has_a_vm_on_each_host_and_five_have_a_queue_at_a_time() {
        let plan = plan();
        let (places, refused) = placed(&plan);
        assert!(refused.is_empty(), "{refused:?}");
        assert!(places.iter().all(|place| place.len() == plan.hosts()));
        assert_eq!((places.len(), plan.hosts(), plan.racks.len() + 1), (TENANTS, 10, 4));
        assert_eq!(2 * (plan.queues - 1), plan.tenants.len());
    }

    #[test]
    fn the_longest_plan_of_ten_tenants_counts() {
        let mut turns = vec![turn(5, 300, None); 9];
        turns.push(turn(5, 450, None));
        turns.push(turn(4, 9_000, None));
        let outcome = claims(&turns);
        assert_eq!(measured(&outcome, "plans"), (Some(10.0), Some(true)));
        assert_eq!(measured(&outcome, "plan_s_max"), (Some(0.45), Some(true)));
        turns.push(turn(5, 600, None));
        let outcome = claims(&turns);
        assert_eq!(measured(&outcome, "plan_s_max"), (Some(0.6), Some(false)));
    }

    #[test]
    fn the_controllers_record_counts_before_the_time_from_outside() {
        let outcome = claims(&vec![turn(5, 600, Some(0.4)); 10]);
        assert_eq!(measured(&outcome, "plan_s_max"), (Some(0.4), Some(true)));
        assert_eq!(measured(&outcome, "plan_answer_s_max"), (Some(0.6), None));
    }

    #[test]
    fn a_length_that_the_controller_cannot_have_measured_does_not_count() {
        let second = Duration::from_secs(1);
        let answer = |micros: u64| json!({ "plan_us": micros });
        assert_eq!(recorded(&answer(400_000), second), Some(0.4));
        assert_eq!(recorded(&answer(0), second), None, "no plan");
        assert_eq!(recorded(&answer(1_400_000), second), None, "longer than the command");
    }

    #[test]
    fn a_plan_that_was_rolled_back_changed_nothing() {
        let mut back = turn(5, 100, None);
        back.answer["taken_back"] = json!(true);
        let outcome = claims(&vec![back; 12]);
        assert_eq!(measured(&outcome, "plans"), (Some(0.0), Some(false)));
        assert_eq!(measured(&outcome, "plan_s_max"), (None, Some(false)));
    }
}
