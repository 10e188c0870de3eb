//! This figure measures how much of a day's changes stays in etcd.
//!
//! # Problem
//!
//! The controller stores each change of queues. etcd keeps earlier values until they are compacted,
//! and accepts no writes if its file reaches the quota (2 GB by default).
//!
//! # Source
//!
//! QShare §V-D: an interval lasts some seconds. The QShare paper does not describe how its
//! controller stores bindings.
//!
//! # Approach
//!
//! The code with which the controller's leader stores bindings writes to a real etcd on this
//! machine. 18,000 tenants are placed in the fabric of `fabric-agents`. Each tenant whose VMs are
//! on several servers has queues on all ports of its tree. In each interval, 180 tenants (1 %) get
//! other queues and another code point. The binding is stored when it is decided, and again when it
//! is executed, as the leader does. The decisions are random, because their contents do not matter
//! to the store.
//!
//! The intervals follow each other without a pause. The leader compacts etcd's history by time. The
//! figure therefore passes a time that advances by 4 s with each interval.
//!
//! # What `history_mb_day` means
//!
//! A day has 21,600 intervals and 3.9 million changes of a tenant's queues. A change takes at least
//! some ten bytes for the name alone, so a day's changes never fit into 50 MB. The claim is about
//! what *remains*: the growth of etcd's space in use, after compaction, in a day. The figure
//! compares the space in use at equal points of the cycle in which snapshots replace the journal,
//! and extrapolates the growth to a day. At such a point, a snapshot has replaced the journal, and
//! the history no longer needs the snapshot before. The first such point does not count.
//!
//! # Comparison
//!
//! - The space in use grows by at most 50 MB a day.
//! - etcd's file is never larger than 200 MB, a tenth of the default quota.
//! - At the end, a successor reads the binding that was stored last.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::bail;
use penstock_controller::Stamp;
use penstock_controller::intent::{BindingRecord, LEADER, MODE, Names};
use penstock_controller::leader::{
    BindingToStore, HISTORY_MAX, Horizon, Settings, StoredBindings, Writer,
};
use penstock_controller::store::{Etcd, EtcdConfig, Store, Transaction, Write};
use penstock_fabric::queue_binding::{Bound, Port};
use penstock_fabric::topology::{LinkId, Topology};
use penstock_sim::Rng;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};

use super::fabric_bed::{TENANT_QUEUES, fabric, tenant};
use crate::evidence::stats::{count, percentile};
use crate::evidence::{Axis, Claim, Context, Experiment, Outcome, Panel, Picture, Record, points};
use crate::rig::etcd::{EtcdServer, EtcdSize};
use penstock_guest::clock;

pub const EXPERIMENT: Experiment = Experiment {
    name: "fabric-store",
    source: "QShare §V-D",
    about: "what a day of changed queues leaves in etcd, with 18,000 tenants",
    sim: None,
    live: Some(live),
    picture,
};

const FULL: Size = Size { k: 36, tenants: 18_000, changed: 180, points: 6 };
/// Length of an interval of the controller.
const INTERVAL: Duration = Duration::from_secs(4);
/// Number of intervals in a day.
const DAY: f64 = 21_600.0;
/// Number of intervals between two readings of etcd's size.
const READ_EVERY: usize = 10;
/// Number of code points that tenants may have.
const CODE_POINTS: u64 = 63;

struct Size {
    k: u32,
    tenants: usize,
    /// Number of tenants that get other queues in an interval.
    changed: usize,
    /// Number of points at which the space in use is compared.
    points: usize,
}

/// Results of a run.
#[derive(Debug, Default)]
struct Found {
    /// Number of tenants with queues.
    bound: usize,
    /// Size of etcd at equal points of the cycle, by interval.
    points: Vec<(usize, EtcdSize)>,
    /// Size of etcd during the run, by interval.
    sizes: Vec<(usize, EtcdSize)>,
    /// Time in milliseconds that the store needed in each interval.
    stored_ms: Vec<f64>,
    /// True if a successor reads the binding that was stored last.
    whole: bool,
}

fn live(ctx: &Context<'_>) -> anyhow::Result<Outcome> {
    let unique = format!("penstock-store-{}-{}", std::process::id(), ctx.seed);
    let folder = std::env::temp_dir().join(unique);
    std::fs::create_dir_all(&folder)?;
    let found = EtcdServer::start(ctx.guard()?, &folder).and_then(|server| {
        let here = Builder::new_current_thread().enable_all().build()?;
        here.block_on(async {
            let store = Etcd::new(&EtcdConfig::new(vec![server.endpoint()]))?;
            let progress = |part: f64, what: &str| ctx.progress(part, what);
            run(&store, &FULL, ctx.seed, || server.size(), progress).await
        })
    });
    // Errors are ignored. The files then remain in the directory for temporary files.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(report(&found?))
}

/// Tenants with their links, and their present queues.
struct Load {
    topology: Topology,
    tenants: Vec<(String, Vec<LinkId>)>,
    now: BTreeMap<String, Bound>,
}

impl Load {
    fn new(size: &Size, rng: &mut Rng) -> anyhow::Result<Self> {
        let mut fabric = fabric(size.k)?;
        for number in 0..size.tenants {
            fabric.add(tenant(number, rng)?)?;
        }
        let links = |slot| fabric.links(slot).iter().map(|(link, _)| *link).collect::<Vec<_>>();
        let all = fabric.tenants().map(|(name, slot, _)| (name.to_owned(), links(slot)));
        // A tenant on one server needs no queues.
        let tenants: Vec<_> = all.filter(|(_, links)| !links.is_empty()).collect();
        let mut load = Self { topology: fabric.topology().clone(), tenants, now: BTreeMap::new() };
        for number in 0..load.tenants.len() {
            load.rebind(number, 0, rng)?;
        }
        Ok(load)
    }

    /// Gives a tenant other queues.
    fn rebind(&mut self, number: usize, since: u64, rng: &mut Rng) -> anyhow::Result<()> {
        let (name, links) = &self.tenants[number];
        let mut queues = Vec::new();
        for link in links {
            for up in [false, true] {
                let queue = u8::try_from(1 + rng.below(TENANT_QUEUES.into()))?;
                queues.push((Port { link: *link, up }, queue));
            }
        }
        queues.sort_unstable();
        let dscp = u8::try_from(1 + rng.below(CODE_POINTS))?;
        self.now.insert(name.clone(), Bound { dscp, queues, since });
        Ok(())
    }

    /// Gives `changed` tenants other queues. Returns the names of these tenants.
    fn change(
        &mut self,
        changed: usize,
        since: u64,
        rng: &mut Rng,
    ) -> anyhow::Result<BTreeSet<String>> {
        let all = u64::try_from(self.tenants.len())?;
        let mut chosen = BTreeSet::new();
        while chosen.len() < changed.min(self.tenants.len()) {
            chosen.insert(usize::try_from(rng.below(all))?);
        }
        let mut names = BTreeSet::new();
        for number in chosen {
            self.rebind(number, since, rng)?;
            names.insert(self.tenants[number].0.clone());
        }
        Ok(names)
    }

    fn holds(&self, record: &BindingRecord) -> bool {
        let names = Names(&self.topology);
        let read = |tenant: &String, bound: Option<Bound>| self.now.get(tenant) == bound.as_ref();
        let same = record.bound.iter().all(|b| read(&b.tenant, b.bound(names).ok()));
        same && record.bound.len() == self.now.len()
    }
}

async fn run(
    store: &dyn Store,
    size: &Size,
    seed: u64,
    read: impl Fn() -> anyhow::Result<EtcdSize>,
    progress: impl Fn(f64, &str),
) -> anyhow::Result<Found> {
    let mut rng = Rng::new(seed);
    progress(0.0, "placing tenants");
    let mut load = Load::new(size, &mut rng)?;
    let lease = store.lease(Duration::from_secs(3_600)).await?;
    let leadership = store.campaign(LEADER, "lab", lease).await?;
    let (mut horizon, mut stored) = (Horizon::default(), StoredBindings::default());
    let mut found = Found { bound: load.now.len(), ..Found::default() };
    let (mut now, mut interval) = (Instant::now(), 0_usize);
    // The first point does not count.
    while found.points.len() <= size.points {
        let generation = u64::try_from(interval)? + 1;
        let moving = match interval {
            0 => BTreeSet::new(),
            _ => load.change(size.changed, generation, &mut rng)?,
        };
        let stamp = Stamp { epoch: leadership.created.0, generation };
        let begin = clock::now();
        let mut writer = Writer::new(store, &leadership, &mut horizon);
        for done in [false, true] {
            stored.set_moving(if done { BTreeSet::new() } else { moving.clone() });
            let (tenants, topology) = (load.now.clone(), &load.topology);
            let binding = BindingToStore { stamp, interval: generation, tenants, topology };
            stored.put(&mut writer, binding).await?;
        }
        stored.put_done(&mut writer, stamp).await?;
        found.stored_ms.push((clock::now() - begin).as_secs_f64() * 1e3);
        writer.forget(now, Settings::default().history).await;
        now += INTERVAL;
        if interval.is_multiple_of(READ_EVERY) {
            found.sizes.push((interval, read()?));
        }
        if stored.changes() == HISTORY_MAX + 1 {
            found.points.push((interval, settled(store, &read).await?));
            progress(0.3 + 0.7 * count(found.points.len()) / count(size.points + 1), "intervals");
        }
        interval += 1;
    }
    let (_, record) = StoredBindings::load(store).await?;
    found.whole = record.is_some_and(|record| load.holds(&record));
    Ok(found)
}

/// Compacts the whole history, and returns etcd's size when the space in use has settled. etcd
/// frees space only with later writes, so the function writes a small value from time to time.
async fn settled(
    store: &dyn Store,
    read: &impl Fn() -> anyhow::Result<EtcdSize>,
) -> anyhow::Result<EtcdSize> {
    const PAUSE: Duration = Duration::from_millis(150);
    const PAGES: f64 = 4.0 * 4_096.0;
    let last = store.list(MODE).await?.revision;
    store.compact(last).await?;
    let (mut before, mut same) = (read()?, 0);
    for _ in 0..200 {
        let write = Write::Put { key: "lab/settle".to_owned(), value: vec![0], lease: None };
        store.commit(Transaction { compare: Vec::new(), writes: vec![write] }).await?;
        sleep(PAUSE).await;
        let now = read()?;
        same = if (now.in_use - before.in_use).abs() < PAGES { same + 1 } else { 0 };
        before = now;
        if same == 4 {
            return Ok(now);
        }
    }
    bail!("etcd's space in use does not settle after a compaction")
}

/// Returns the growth of the space in use in MB a day, from the second point to the last point.
fn growth(points: &[(usize, EtcdSize)]) -> f64 {
    let (Some((from, first)), Some((to, last))) = (points.get(1), points.last()) else {
        return f64::NAN;
    };
    (last.in_use - first.in_use) / count(to - from) * DAY / 1e6
}

fn report(found: &Found) -> Outcome {
    let mut outcome = Outcome::new();
    let sizes = || found.sizes.iter().map(|(interval, size)| (count(*interval), *size));
    outcome.series("in_use_mb", "MB", sizes().map(|(at, size)| (at, size.in_use / 1e6)));
    outcome.series("file_mb", "MB", sizes().map(|(at, size)| (at, size.file / 1e6)));
    let points = found.points.iter().map(|(at, size)| (count(*at), size.in_use / 1e6));
    outcome.series("compared_mb", "MB", points);
    let most = |of: fn(&EtcdSize) -> f64| sizes().map(|(_, size)| of(&size)).fold(0.0, f64::max);
    let written = match (found.sizes.first(), found.sizes.last()) {
        (Some((from, first)), Some((to, last))) if to > from => {
            (last.received - first.received) / count(to - from) * DAY / 1e6
        }
        _ => f64::NAN,
    };
    outcome.note("tenants_with_queues", found.bound);
    outcome.note("intervals", found.stored_ms.len());
    outcome.note("written_mb_day", written);
    outcome.note("in_use_mb_max", most(|size| size.in_use) / 1e6);
    outcome.note("stored_ms_median", percentile(&found.stored_ms, 50.0));
    outcome.note("stored_ms_max", percentile(&found.stored_ms, 100.0));
    let what = "growth of etcd's space in use in a day, after compaction (extrapolated)";
    let claim = Claim::new("history_mb_day", what, "MB");
    outcome.claim(claim.at_most(50.0).measured(growth(&found.points)));
    let claim = Claim::new("file_mb", "size of etcd's file (largest)", "MB");
    outcome.claim(claim.at_most(200.0).measured(most(|size| size.file) / 1e6));
    let statement = "a successor reads the binding that was stored last";
    outcome.claim(Claim::truth("whole", statement, found.whole));
    outcome
}

fn picture(record: &Record) -> Picture {
    let line = |panel: Panel, label: &str, name: &str| {
        let of = record.series(name).map(points).into_iter().flatten();
        panel.line(label, of.collect::<Vec<_>>())
    };
    let panel = Panel::new("etcd", Axis::linear("interval"), Axis::linear("MB").from(0.0));
    let panel = line(panel, "file", "file_mb");
    let panel = line(panel, "in use", "in_use_mb");
    let panel = line(panel, "compared points", "compared_mb");
    Picture::new("what 18,000 tenants leave in etcd").panel(panel)
}

#[cfg(test)]
mod tests {
    use penstock_controller::store::Embedded;

    use super::*;

    #[test]
    fn a_small_fabric_stores_its_changes_and_a_successor_reads_them() -> anyhow::Result<()> {
        let folder = penstock_testing::temp_dir();
        let small = Size { k: 8, tenants: 200, changed: 2, points: 0 };
        let here = Builder::new_current_thread().enable_all().build()?;
        let found = here.block_on(async {
            let store = Embedded::open(&folder.join("controller.redb")).await?;
            run(&store, &small, 1, || Ok(EtcdSize::default()), |_, _| {}).await
        })?;
        drop(here);
        assert!(found.whole && found.bound > 50, "{found:?}");
        assert_eq!(found.points.len(), 1);
        assert_eq!(found.stored_ms.len(), HISTORY_MAX + 2, "a snapshot and the changes");
        Ok(())
    }

    #[test]
    fn growth_is_extrapolated_to_a_day_without_the_first_point() {
        let at =
            |interval, mb: f64| (interval, EtcdSize { in_use: mb * 1e6, ..EtcdSize::default() });
        let day = growth(&[at(17, 1.0), at(500, 10.0), at(1_000, 10.5), at(2_660, 11.0)]);
        assert!((day - 10.0).abs() < 0.01, "{day}");
        assert!(growth(&[at(17, 1.0)]).is_nan());
        assert!(growth(&[at(17, 1.0), at(500, 10.0)]).is_nan());
    }
}
