//! Live experiment about faults: how long a fabric with two controllers needs to recover, and
//! whether guarantees hold meanwhile.
//!
//! # Source
//!
//! QShare §V-D does not describe faults. Faults and limits are those of the simulated figure
//! (`figures/qshare_faults.rs`), and tenants, links and demand are those of the live Fig. 4
//! ([`super::guarantees`]).
//!
//! # Approach
//!
//! Two controllers share an etcd. Ten hosts are in two racks, and the core switch is a Penstock
//! process. All tenants demand more than they receive. Each fault happens under this traffic, some
//! seconds after the warm-up:
//!
//! - *Killed leader*: the leading controller is killed with SIGKILL. The recovery lasts from the
//!   kill until the fabric has recovered under another leader ([`Parts::is_current`]).
//! - *Silent hosts*: the management connections of five random hosts pass nothing for [`SILENCE`].
//!   The hosts forward frames meanwhile. The recovery lasts from the end of the silence until the
//!   fabric has recovered.
//! - *Rebooted switch*: the core switch's process is killed with SIGKILL, and starts again after
//!   [`OFF`] without its frames, weights and maps. The recovery lasts from the switch's first
//!   answer until the fabric has recovered.
//!
//! While the leader is dead or hosts are silent, each tenant must keep its guarantee in each
//! second, as in Fig. 4, and no frame may meet an unmapped code point at the core switch. While the
//! core switch is off, no packet passes, so guarantees do not count then. The switch starts without
//! a map, and hosts mark frames meanwhile. Until the first decision reaches the switch, it must
//! therefore put these frames into queue 0, and counts them as unmapped. Their number is shown.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use penstock_sim::Rng;

use super::demand::{across, clients, due};
use super::diary::Diary;
use super::guarantees::{Demand, INTERVAL, KEPT, RACKS, hoses, judge, plan};
use super::parts::Parts;
use super::plan::{Control, Plan};
use super::programs::{Client, Programs};
use super::samples::{Sample, WARM_UP, points, start, used_pct, watch_until};
use super::world::World;
use crate::evidence::{Axis, Claim, Context, Outcome, Panel, Picture, Record};
use crate::qshare::tenant_sizes;
use crate::rig::platform;
use crate::rig::stats::to_f64;
use penstock_guest::bed::Bed;
use penstock_guest::clock;

/// Number of connections of a VM, as in Fig. 4.
pub(super) const COPIES: usize = 4;
/// Time from the warm-up to the fault.
const CALM: Duration = Duration::from_secs(5);
/// Time for which hosts are silent. Controllers and agents notice the silence after 8 s.
const SILENCE: Duration = Duration::from_secs(24);
/// Time for which the core switch is off: five intervals with the comparison of all switches, and
/// one more.
const OFF: Duration = Duration::from_secs(24);
/// Maximum time until the fabric has recovered. The limit ends a run in which it does not recover.
const RECOVERY_MAX: Duration = Duration::from_secs(120);
/// Maximum time until another controller leads and all hosts have its plans, in seconds.
pub(super) const TAKE_OVER: f64 = 15.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KilledLeader,
    SilentHosts,
    RebootedSwitch,
}

const FAULTS: [(Fault, &str); 3] = [
    (Fault::KilledLeader, "killed_leader"),
    (Fault::SilentHosts, "silent_hosts"),
    (Fault::RebootedSwitch, "rebooted_switch"),
];

/// Times of a fault, counted from the start of the programs.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// Begin of the fault.
    from: Duration,
    /// Time from which the recovery counts.
    ended: Duration,
    recovered: Duration,
}

/// Returns the plan of a network with two controllers, for a seed.
pub(super) fn two_controllers(seed: u64) -> Plan {
    Plan { control: Control::Two, ..plan(&tenant_sizes(seed)) }
}

/// Runs the live experiment about faults.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let plan = two_controllers(context.seed);
    eprintln!("starting two racks: ten hosts, their switches, two controllers, an etcd");
    let mut world = World::start(&bed, "faults", &plan)?;
    let flows = across(&world.vms, COPIES, context.seed);
    let from = vec![Duration::ZERO; plan.tenants.len()];
    let due = due(&world.vms, &flows, &hoses(&plan), RACKS.len());
    let all = clients(&world.vms, &flows, &from);
    let demand = Demand { from, due };
    let runs = context.live.runs.unwrap_or(1);
    let (mut during, mut unmapped) = (Vec::new(), 0);
    let diary = Diary::start(world.operator())?;
    for (number, (fault, name)) in (0_u32..).zip(FAULTS) {
        let mut recoveries = Vec::new();
        for run in 0..runs {
            let done = f64::from(number * runs + run) / f64::from(3 * runs);
            let rng = Rng::new(context.seed).fork(u64::from(number * runs + run));
            let progress = || context.progress(0.1 + 0.9 * done, name);
            let (times, samples) = measure(&bed, &mut world, all.clone(), (fault, rng), progress)?;
            recoveries.push(times.recovered.saturating_sub(times.ended).as_secs_f64());
            tell_run(&mut outcome, &format!("{name}, run {}", run + 1), times, &samples);
            if fault != Fault::RebootedSwitch {
                during.extend(samples.into_iter().filter(|sample| is_within(sample, times)));
            }
        }
        outcome.series(name, "s", (1_u32..).map(f64::from).zip(recoveries.iter().copied()));
        outcome.claim(claim(fault, name, recoveries.into_iter().fold(f64::NAN, f64::max)));
        let met = world.parts().core()?.unmapped()?;
        if fault == Fault::RebootedSwitch {
            outcome.note("unmapped_packets_rebooted_switch", met.saturating_sub(unmapped));
        } else {
            unmapped = met;
        }
    }
    let kept = judge(&mut outcome, &during, &demand, &diary.close()?);
    let statement = "the least that a tenant had in a second over min(guarantee, demand), while \
                     the leader is dead or hosts are silent";
    outcome.claim(Claim::new("kept_min", statement, "").at_least(KEPT).measured(kept));
    let statement = "frames that met an unmapped code point at the core switch before its reboot";
    let claim = Claim::new("unmapped_packets", statement, "frames").at_most(0.0);
    outcome.claim(claim.measured(to_f64(unmapped)));
    Ok(outcome)
}

fn claim(fault: Fault, name: &str, longest: f64) -> Claim {
    let (statement, most) = match fault {
        Fault::KilledLeader => {
            ("from the kill until another controller has all under control", TAKE_OVER)
        }
        Fault::SilentHosts => (
            "from the end of the silence until all hosts and switches are up to date",
            2.0 * INTERVAL.as_secs_f64(),
        ),
        Fault::RebootedSwitch => (
            "from the first answer of the core switch until it has what was decided",
            INTERVAL.as_secs_f64(),
        ),
    };
    Claim::new(&format!("recovery_s_{name}"), statement, "s").at_most(most).measured(longest)
}

/// Whether a sample lies between the begin of a fault and the recovery.
fn is_within(sample: &Sample, times: Times) -> bool {
    sample.from >= times.from && sample.until <= times.recovered
}

/// Adds the core link's use, and the events of a fault, counted from the warm-up.
fn tell_run(outcome: &mut Outcome, run: &str, times: Times, samples: &[Sample]) {
    outcome.series(&format!("{run}: core"), "%", points(samples, used_pct));
    for (at, what) in
        [(times.from, "fault"), (times.ended, "fault ends"), (times.recovered, "recovered")]
    {
        outcome.event(run, at.saturating_sub(WARM_UP).as_secs_f64(), what);
    }
}

/// Measures rates while another thread causes a fault and waits for the recovery.
fn measure(
    bed: &Bed,
    world: &mut World,
    clients: Vec<Client>,
    (fault, rng): (Fault, Rng),
    progress: impl Fn(),
) -> anyhow::Result<(Times, Vec<Sample>)> {
    progress();
    let mut programs = start(bed, world, clients, rng.clone().next_u64())?;
    let actor = act(world.parts(), programs.began(), fault, rng)?;
    let samples = watch_actor(world, &mut programs, &actor, progress)?;
    let times = actor.join().map_err(|_| anyhow::anyhow!("the thread of a fault panicked"))??;
    Ok((times, samples))
}

/// Takes samples until the thread `actor` has ended.
fn watch_actor<T>(
    world: &mut World,
    programs: &mut Programs,
    actor: &JoinHandle<T>,
    progress: impl Fn(),
) -> anyhow::Result<Vec<Sample>> {
    watch_until((world, programs), |_| actor.is_finished(), progress)
}

/// Starts a thread that causes a fault some seconds after the warm-up.
fn act(
    parts: Arc<Parts>,
    began: Instant,
    fault: Fault,
    mut rng: Rng,
) -> anyhow::Result<JoinHandle<anyhow::Result<Times>>> {
    let act = move || -> anyhow::Result<Times> {
        wait_until(began, WARM_UP + CALM);
        let fine = parts.until(RECOVERY_MAX, || parts.is_current(0))?;
        ensure!(fine, "the fabric is not up to date before the fault");
        let from = began.elapsed();
        let mut killed = None;
        let ended = match fault {
            Fault::KilledLeader => {
                killed = Some(parts.kill_leader()?);
                from
            }
            Fault::SilentHosts => {
                let hosts = half(parts.plan.hosts(), &mut rng);
                parts.silence(&hosts, true)?;
                clock::wait_readable(None, SILENCE);
                parts.silence(&hosts, false)?;
                began.elapsed()
            }
            Fault::RebootedSwitch => {
                let answered = parts.core()?.reboot(OFF, true)?;
                answered.saturating_duration_since(began)
            }
        };
        let above = killed.map_or(0, |(_, epoch)| epoch);
        // A fabric that has not recovered within the limit misses its claim.
        parts.until(RECOVERY_MAX, || parts.is_current(above))?;
        let recovered = began.elapsed();
        if let Some((nth, _)) = killed {
            parts.start_controller(nth)?;
        }
        Ok(Times { from, ended, recovered })
    };
    std::thread::Builder::new().name("fault".to_owned()).spawn(act).context("starting a thread")
}

/// Waits until the time `at`, counted from `began`.
pub(super) fn wait_until(began: Instant, at: Duration) {
    while let Some(rest) = at.checked_sub(began.elapsed()).filter(|rest| !rest.is_zero()) {
        clock::wait_readable(None, rest);
    }
}

/// Returns half of the hosts, drawn at random.
fn half(hosts: usize, rng: &mut Rng) -> Vec<usize> {
    let mut chosen = BTreeSet::new();
    while chosen.len() < hosts / 2 {
        let host = rng.below(u64::try_from(hosts).unwrap_or(1));
        chosen.insert(usize::try_from(host).unwrap_or(0));
    }
    chosen.into_iter().collect()
}

/// Draws the recoveries, and the use of the core link with the faults as marks.
pub(crate) fn picture(record: &Record) -> Picture {
    let mut recoveries = Panel::new("recovery", Axis::linear("run"), Axis::linear("s").from(0.0));
    for (_, name) in FAULTS {
        if let Some(series) = record.series(name) {
            recoveries = recoveries.series(name, series);
        }
    }
    let mut picture = Picture::new("recovery after faults, live").panel(recoveries);
    for series in &record.series {
        let Some(run) = series.name.strip_suffix(": core") else { continue };
        let mut panel =
            Panel::new(run, Axis::linear("time, s"), Axis::linear("use of the core, %").from(0.0));
        panel = panel.series("core", series);
        for (at, what) in record.events(run) {
            panel = panel.event(what, at);
        }
        picture = picture.panel(panel);
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::super::counters::Rates;
    use super::super::plan::tests::placed;
    use super::*;

    #[test]
    fn the_tenants_fit_beside_two_controllers() {
        let plan = two_controllers(1);
        assert_eq!(plan.control.names().len(), 2);
        assert!(placed(&plan).1.is_empty());
    }

    #[test]
    fn a_recovery_within_its_limit_holds() {
        let holds = |fault, secs| claim(fault, "x", secs).holds;
        assert_eq!(holds(Fault::KilledLeader, 15.0), Some(true));
        assert_eq!(holds(Fault::SilentHosts, 8.1), Some(false));
        assert_eq!(holds(Fault::RebootedSwitch, 4.0), Some(true));
        assert_eq!(holds(Fault::RebootedSwitch, f64::NAN), Some(false), "not measured");
    }

    #[test]
    fn half_of_the_hosts_are_silent_and_they_depend_on_the_seed() {
        let of = |seed| half(10, &mut Rng::new(seed));
        assert!((1..20).all(|seed| of(seed).len() == 5 && of(seed).iter().all(|host| *host < 10)));
        assert_eq!(of(1), of(1));
        assert!((2..20).any(|seed| of(seed) != of(1)));
    }

    #[test]
    fn only_seconds_between_the_fault_and_the_recovery_count() {
        let at = Duration::from_secs;
        let times = Times { from: at(14), ended: at(14), recovered: at(24) };
        let sample = |from: u64| Sample {
            from: at(from),
            until: at(from + 1),
            at_ms: [0, 0],
            rates: Rates { tenants: Vec::new(), core: Vec::new(), repairs: Vec::new() },
            sweep: Duration::ZERO,
            link: 1.0,
        };
        let within = [13, 14, 23, 24].map(|from| is_within(&sample(from), times));
        assert_eq!(within, [false, true, true, false]);
    }
}
