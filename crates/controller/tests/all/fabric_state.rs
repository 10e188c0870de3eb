//! Tests the leader's state of the fabric: scores in intervals with and without reports, and stored
//! bindings after an operator has reserved more queues or code points.

use penstock_controller::Stamp;
use penstock_controller::fabric_state::{Fabric, Usage};
use penstock_controller::intent::{TenantRecord, TenantSpec};
use penstock_fabric::dscp::Palette;
use penstock_fabric::queue_binding::{Mode, Settings};
use penstock_fabric::tenant_placement::Policy;
use penstock_fabric::topology::NodeId;

use crate::world::{fabric, tenant, topology, usage};

const MBIT: u64 = 1_000_000;
const NAMES: [&str; 3] = ["a", "b", "c"];

#[test]
fn a_score_follows_by_halves_and_does_not_fall_without_a_report() {
    let mut fabric = fabric(Mode::StaticMap, 2);
    // One of four VMs with 100 Mbit/s each is on each host.
    fabric.add(tenant("red", 4, 100)).unwrap();
    let slot = fabric.slot("red").unwrap();
    let (mut busy, idle) = (usage(&fabric, &[("red", 50)]), usage(&fabric, &[]));
    let scores = |fabric: &mut Fabric, usage: &Usage| {
        fabric.follow(usage);
        (fabric.score(slot) / MBIT, fabric.measured(slot).used_permille)
    };
    // The first interval counts fully.
    assert_eq!(scores(&mut fabric, &busy), (200, 500));
    // The other hosts decide.
    let host = fabric.servers_of(slot).next().unwrap();
    assert!(busy.remove(&host).is_some_and(|used| !used.is_empty()));
    assert_eq!(scores(&mut fabric, &busy), (200, 500));
    // The silent host may still forward traffic.
    let mut silent = idle.clone();
    silent.remove(&host);
    for usage in [&silent, &Usage::new()] {
        assert_eq!(scores(&mut fabric, usage), (200, 0));
    }
    assert_eq!(scores(&mut fabric, &idle), (100, 0));
    // A host without VMs of the tenant does not matter.
    let mut other = idle.clone();
    let is_without = |node: NodeId| fabric.servers_of(slot).all(|server| server != node);
    let bystander = idle.keys().copied().find(|node| is_without(*node)).unwrap();
    other.remove(&bystander);
    assert_eq!(scores(&mut fabric, &other), (50, 0));
    assert_eq!(scores(&mut fabric, &busy), (125, 500));
}

/// A new leader may decide before all hosts have called it.
#[test]
fn the_first_score_counts_fully_also_after_an_interval_without_reports() {
    let mut fabric = fabric(Mode::StaticMap, 2);
    fabric.add(tenant("red", 4, 100)).unwrap();
    let slot = fabric.slot("red").unwrap();
    fabric.follow(&Usage::new());
    assert_eq!(fabric.score(slot), 0);
    let busy = usage(&fabric, &[("red", 50)]);
    fabric.follow(&busy);
    assert_eq!(fabric.score(slot), 200 * MBIT);
}

fn with(mode: Mode, queues: u8, reserved: &[u8]) -> Fabric {
    let palette = Palette::without(reserved).unwrap();
    let settings = Settings { queues, palette, hold: 0, ..Settings::new(mode) };
    Fabric::new(topology(2), 0, Policy::default(), settings).unwrap()
}

fn code_points(fabric: &Fabric) -> [u8; 3] {
    NAMES.map(|name| fabric.dscp(fabric.slot(name).unwrap()))
}

#[test]
fn a_stored_binding_lacks_the_queues_and_code_points_that_were_reserved_since() {
    for mode in [Mode::StaticMap, Mode::PerPortMap] {
        let mut before = with(mode, 4, &[]);
        let add = |name: &str| {
            let within = vec!["rack-0".to_owned()];
            before.add(TenantSpec { within, ..tenant(name, 4, 10) }).unwrap()
        };
        let records: [TenantRecord; 3] = NAMES.map(add);
        let used = usage(&before, &[("a", 10), ("b", 9), ("c", 8)]);
        before.follow(&used);
        before.rebind(|_| true, false);
        let stored = before.binding_record(Stamp { epoch: 1, generation: 1 });
        // The tenants share links, so they have different code points and queues.
        let had = code_points(&before);
        let mut sorted = had;
        sorted.sort_unstable();
        assert_eq!(sorted, [1, 2, 3], "{mode:?}");
        let resumed = |queues, reserved: &[u8]| {
            let mut fabric = with(mode, queues, reserved);
            for record in &records {
                fabric.restore(record.clone()).unwrap();
            }
            fabric.resume(&stored).unwrap();
            code_points(&fabric)
        };
        assert_eq!(resumed(4, &[]), had);
        // In a static map, each later queue gets another code point.
        let keeps = |dscp: u8| if mode == Mode::StaticMap { dscp < 2 } else { dscp != 2 };
        assert_eq!(resumed(4, &[2]), had.map(|dscp| if keeps(dscp) { dscp } else { 0 }));
        let of = |name: &str| before.binding().of(before.slot(name).unwrap()).unwrap();
        let third = |name: &str| of(name).queues.iter().any(|(_, queue)| *queue == 3);
        let kept = NAMES.map(|name| if third(name) { 0 } else { of(name).dscp });
        assert_eq!((resumed(3, &[]), kept.contains(&0)), (kept, true));
    }
}

#[test]
fn limits_of_queue_0_count_only_on_what_other_traffic_leaves() {
    let permille = |other_permille| {
        let settings = Settings { queues: 4, other_permille, ..Settings::new(Mode::StaticMap) };
        let mut fabric = Fabric::new(topology(2), 200, Policy::default(), settings).unwrap();
        fabric.add(tenant("red", 4, 100)).unwrap();
        fabric.reserve_all();
        fabric.headroom_permille(fabric.slot("red").unwrap())
    };
    let (whole, less) = (permille(0), permille(200));
    assert!(whole > 2_000, "{whole}");
    assert!((790..=810).contains(&(1_000 * less / whole)), "{less} of {whole}");
}
