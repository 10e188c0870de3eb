//! This figure measures how long a fabric needs after a fault, in simulated time. The live form is
//! in `live/fabric/faults.rs`.
//!
//! # Problem
//!
//! Controllers, hosts and switches fail. Guarantees must hold without a controller, and queues must
//! follow the load again soon after the fault has ended.
//!
//! # Source
//!
//! QShare §V-D does not describe faults. The figure's faults and limits are Penstock's own.
//!
//! # Approach
//!
//! Two real controllers share a store and control a simulated fabric of ten hosts and three
//! switches (`qshare_faults_bed`). Ten tenants reserve 60 % of the links between the racks, and
//! change their demand at random. Each run of a fault begins with some intervals without faults,
//! and the fault begins at a random time in an interval:
//!
//! - *Killed leader*: the leading controller ends without giving up its lease. The recovery lasts
//!   from the kill until another controller leads, all hosts carry out its plans, and all switches
//!   are up to date.
//! - *Silent hosts*: five random hosts neither read nor send for 20 to 60 s, with their sessions
//!   open. The recovery lasts from the first answer until all hosts and switches are up to date.
//! - *Rebooted switch*: a random switch does not answer for 24 to 90 s, and then answers without
//!   weights and maps. The recovery lasts from the first answer until the switch's ports keep all
//!   guarantees and the switch is up to date.
//!
//! A switch that restarts without being unreachable for five intervals may stay unnoticed until the
//! next comparison of all switches. The value `recovery_s_short_restart` shows this case without a
//! band.
//!
//! While the leader is dead or hosts are silent, the figure computes from the switches' weights and
//! maps and from the hosts' code points which share of its guarantee each tenant keeps on each
//! port. The states count if they do not change for 0.3 s, which excludes the steps of a plan.
//!
//! # Comparison
//!
//! - After a killed leader, the fabric recovers within 15 s.
//! - After silent hosts, the fabric recovers within two intervals (8 s).
//! - After a reboot, a switch recovers within one interval (4 s).
//! - Meanwhile, each tenant keeps at least 0.98 of its guarantee.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use penstock_sim::Rng;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};

use super::qshare_faults_bed::{Bed, INTERVAL};
use crate::evidence::stats::count;
use crate::evidence::{
    Axis, Claim, Context, Experiment, Mode, Outcome, Panel, Picture, Record, points,
};
use crate::live;

pub const EXPERIMENT: Experiment = Experiment {
    name: "qshare-faults",
    source: "QShare §V-D",
    about: "recovery after a killed leader, silent hosts and a rebooted switch",
    sim: Some(sim),
    live: Some(live::qshare_faults),
    picture,
};

/// Number of runs of each fault.
const RUNS: usize = 3;
/// Time between two looks at the fabric.
const LOOK: Duration = Duration::from_millis(100);
/// Number of looks after which a state counts as stable.
const STABLE: usize = 3;
/// Time limit for a recovery. The limit ends a run in which the fabric does not recover.
const RECOVERY_MAX: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug)]
enum Fault {
    KilledLeader,
    SilentHosts,
    RebootedSwitch,
    ShortRestart,
}

const FAULTS: [(Fault, &str); 4] = [
    (Fault::KilledLeader, "killed_leader"),
    (Fault::SilentHosts, "silent_hosts"),
    (Fault::RebootedSwitch, "rebooted_switch"),
    (Fault::ShortRestart, "short_restart"),
];

/// Results of one run with a fault.
#[derive(Debug)]
struct Recovery {
    seconds: f64,
    /// Smallest share of a guarantee while the leader was dead or hosts were silent. Infinite for
    /// other faults.
    kept: f64,
}

fn sim(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let unique = format!("penstock-faults-{}-{}", std::process::id(), ctx.seed);
    let folder = std::env::temp_dir().join(unique);
    std::fs::create_dir_all(&folder)?;
    let mut outcome = Outcome::new();
    let mut kept = f64::INFINITY;
    for (number, (fault, name)) in FAULTS.into_iter().enumerate() {
        ctx.progress(count(number) / count(FAULTS.len()), name);
        let runs = (0..RUNS).map(|run| {
            let rng = Rng::new(ctx.seed).fork(u64::try_from(number * RUNS + run)?);
            recovery(fault, &folder, rng)
        });
        let runs = runs.collect::<anyhow::Result<Vec<_>>>()?;
        kept = runs.iter().map(|run| run.kept).fold(kept, f64::min);
        let seconds = runs.iter().map(|run| run.seconds);
        outcome.series(name, "s", (1..).map(count).zip(seconds.clone()));
        outcome.claim(claim(fault, name, seconds.fold(0.0, f64::max)));
    }
    let statement = "smallest share of a guarantee while the leader is dead or hosts are silent";
    outcome.claim(Claim::new("kept_min", statement, "").at_least(0.98).measured(kept));
    // Errors are ignored. The files then remain in the directory for temporary files.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(outcome)
}

fn claim(fault: Fault, name: &str, longest: f64) -> Claim {
    let statement = match fault {
        Fault::KilledLeader => "from the kill until another controller has all under control",
        Fault::SilentHosts => "from the first answer of silent hosts until all is up to date",
        Fault::RebootedSwitch => "from the first answer of a switch until it keeps all guarantees",
        Fault::ShortRestart => "the same for a switch that restarts at once",
    };
    let claim = Claim::new(&format!("recovery_s_{name}"), statement, "s");
    let claim = match fault {
        Fault::KilledLeader => claim.at_most(15.0),
        Fault::SilentHosts => claim.at_most(2.0 * INTERVAL.as_secs_f64()),
        Fault::RebootedSwitch => claim.at_most(INTERVAL.as_secs_f64()),
        Fault::ShortRestart => claim,
    };
    claim.measured(longest)
}

/// Runs one fault in a fresh fabric.
fn recovery(fault: Fault, folder: &Path, mut rng: Rng) -> anyhow::Result<Recovery> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(async {
        let bed = Bed::new(folder, &mut rng).await?;
        let begin = Instant::now();
        while !bed.is_current(0).await? {
            ensure!(begin.elapsed() < RECOVERY_MAX, "the fabric does not start");
            sleep(LOOK).await;
        }
        let millis = u64::try_from(INTERVAL.as_millis())?;
        sleep(Duration::from_millis(5 * millis + rng.below(millis))).await;
        match fault {
            Fault::KilledLeader => {
                bed.kill();
                until(&bed, true, async || bed.is_current(1).await).await
            }
            Fault::SilentHosts => silent_hosts(&bed, &mut rng).await,
            Fault::RebootedSwitch => {
                let all = bed.switches();
                let switch = all[usize::try_from(rng.below(all.len() as u64))?];
                bed.power(switch, false);
                sleep(seconds(&mut rng, 24, 90)).await;
                bed.power(switch, true);
                until(&bed, false, async || {
                    Ok(bed.kept(&[switch]) >= 0.98 && bed.is_current(0).await?)
                })
                .await
            }
            Fault::ShortRestart => {
                let all = bed.switches();
                let switch = all[usize::try_from(rng.below(all.len() as u64))?];
                bed.power(switch, true);
                until(&bed, false, async || Ok(bed.kept(&[switch]) >= 0.98)).await
            }
        }
    })
}

async fn silent_hosts(bed: &Bed, rng: &mut Rng) -> anyhow::Result<Recovery> {
    let mut hosts = BTreeSet::new();
    while hosts.len() < bed.hosts() / 2 {
        hosts.insert(usize::try_from(rng.below(bed.hosts() as u64))?);
    }
    bed.silence(&hosts, true);
    let end = Instant::now() + seconds(rng, 20, 60);
    let silence = until(bed, true, async || Ok(Instant::now() >= end)).await?;
    bed.silence(&hosts, false);
    let answers = until(bed, true, async || bed.is_current(0).await).await?;
    Ok(Recovery { kept: silence.kept.min(answers.kept), ..answers })
}

fn seconds(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(from * 1_000 + rng.below((to - from) * 1_000))
}

/// Waits until `done` is true. If `watches` is true, also returns the smallest share of a guarantee
/// in stable states until then.
async fn until(
    bed: &Bed,
    watches: bool,
    done: impl AsyncFn() -> anyhow::Result<bool>,
) -> anyhow::Result<Recovery> {
    let (begin, all) = (Instant::now(), bed.switches());
    let (mut kept, mut state, mut same) = (f64::INFINITY, bed.state(), 0);
    while !done().await? {
        ensure!(begin.elapsed() < RECOVERY_MAX, "the fabric does not recover");
        sleep(LOOK).await;
        let now = bed.state();
        same = if now == state { same + 1 } else { 0 };
        state = now;
        if watches && same >= STABLE {
            kept = kept.min(bed.kept(&all));
        }
    }
    Ok(Recovery { seconds: begin.elapsed().as_secs_f64(), kept })
}

fn picture(record: &Record) -> Picture {
    if record.mode == Mode::Live {
        return live::qshare_faults_picture(record);
    }
    let panel = Panel::new("recovery", Axis::linear("run"), Axis::linear("s").from(0.0));
    let panel = FAULTS.iter().fold(panel, |panel, (_, name)| {
        let of = record.series(name).map(points).into_iter().flatten();
        panel.line(*name, of.collect::<Vec<_>>())
    });
    Picture::new("recovery after faults").panel(panel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fabric_recovers_from_each_fault_and_guarantees_hold_meanwhile() -> anyhow::Result<()> {
        let folder = penstock_testing::temp_dir();
        for (number, (fault, name)) in FAULTS.into_iter().enumerate() {
            let rng = Rng::new(3).fork(u64::try_from(number)?);
            let found = recovery(fault, &folder, rng)?;
            assert!(!claim(fault, name, found.seconds).is_missed(), "{name}: {found:?}");
            assert!(found.kept >= 0.98, "{name}: {found:?}");
            if matches!(fault, Fault::KilledLeader) {
                assert!(found.seconds > 5.0, "the lease cannot end before: {found:?}");
                assert!(found.kept.is_finite(), "nothing was watched");
            }
        }
        Ok(())
    }
}
