//! Tests of the simulated cost of a new snapshot.

use penstock_dataplane::snapshot::PortQos;
use penstock_sim::{Costs, SinkSpec, SnapshotCost, World};
use penstock_units::{TscRate, Weight};

const COSTS: Costs = Costs {
    snapshot: SnapshotCost { request: 1_000, port: 100, rank: 10_000, slot: 100_000 },
    ..Costs::EXAMPLE
};

#[test]
fn a_changed_weight_costs_a_simulated_worker_one_port() {
    let mut world = World::new(TscRate::from_hz(2_000_000_000), COSTS, 64, 1);
    let mut add = || world.add_vm(1, 16, SinkSpec::default()).unwrap();
    let vms = [add(), add(), add(), add()];
    let before = world.cycles();
    world.set_qos(vms[2], PortQos { weight: Weight::new(5).unwrap(), ..PortQos::default() });
    assert_eq!(world.cycles() - before, 1_100);
}
