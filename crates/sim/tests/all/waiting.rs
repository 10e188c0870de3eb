//! Tests of rate limits without a depth, above which frames wait in the VM's ring.

use std::sync::Arc;

use penstock_dataplane::drop::DropReason;
use penstock_dataplane::ingress_policer::IngressPolicer;
use penstock_qos::policer::{Limit, Policer, Spec, wait_depth, wait_frames};
use penstock_sim::{Costs, PortHandle, SinkSpec, SourceSpec, World};
use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond, TscRate};

fn world() -> World {
    World::new(TscRate::from_hz(2_000_000_000), Costs::EXAMPLE, 16, 7)
}

fn vm(world: &mut World) -> PortHandle {
    world.add_vm(1, 1_024, SinkSpec::default()).expect("possible")
}

fn limit(world: &mut World, port: PortHandle, limit: Option<Limit>) {
    let own = limit.map(|limit| {
        let spec = Spec::new(limit).expect("possible").per_frame(4).waiting();
        Arc::new(Policer::new(spec))
    });
    let limits = own.map(|own| Arc::new(IngressPolicer { own: vec![own], links: Vec::new() }));
    world.set_policy(port, |policy| policy.ingress_policer = limits);
}

fn bits(cir: u64) -> Limit {
    let cir = BitsPerSecond(cir);
    Limit::SingleRate { cir, cbs: wait_depth(cir), ebs: 0 }
}

/// Creates traffic to VM 0.
fn flood(size: usize, per_second: u64, from: Nanos, until: Nanos) -> SourceSpec {
    let sizes = vec![(size, 1)];
    let (target, flows, loss_ppm) = (World::mac_of(0), 1, 0);
    SourceSpec { target, sizes, frames_per_second: per_second, flows, from, until, loss_ppm }
}

#[test]
fn a_flood_gets_its_rate_and_loses_nothing_in_the_switch() {
    for (size, rate) in
        [(60, 10_000_000), (60, 100_000_000), (1_514, 10_000_000), (1_514, 1_000_000_000)]
    {
        let mut world = world();
        let (to, from) = (vm(&mut world), vm(&mut world));
        world.introduce(to);
        limit(&mut world, from, Some(bits(rate)));
        let allowed = rate / 8 / (size as u64 + 4);
        world.set_source(from, flood(size, 2 * allowed, Nanos(0), Nanos::from_secs(3)));
        let mut before = 0;
        for second in 1..=3 {
            world.run_until(Nanos::from_secs(second));
            let sent = world.port(from).forwarded;
            let permille = (sent - before) * 1_000 / allowed;
            // The first second has the full bucket of 4 ms, and a frame may be in debt.
            assert!((995..=1_008).contains(&permille), "{size} B, {rate} bit/s: {permille}");
            before = sent;
        }
        let port = world.port(from);
        assert_eq!((port.drops, port.police_red), ([0; DropReason::COUNT], 0));
        assert!(port.police_waits > 0 && port.police_green == port.rx_frames);
        assert!(world.unsent(from) > 0, "frames wait in the ring");
    }
}

#[test]
fn frames_per_second_are_exact_and_a_neighbour_does_not_wait() {
    let mut world = world();
    let (to, from, neighbour) = (vm(&mut world), vm(&mut world), vm(&mut world));
    world.introduce(to);
    let rate = PacketsPerSecond(1_000);
    limit(&mut world, from, Some(Limit::Packets { rate, burst: wait_frames(rate) }));
    let end = Nanos::from_secs(2);
    world.set_source(from, flood(60, 50_000, Nanos(0), end));
    world.set_source(neighbour, flood(60, 20_000, Nanos(0), end));
    world.run_until(end);
    let sent = world.port(from).forwarded;
    assert!((1_998..=2_006).contains(&sent), "{sent}");
    let beside = world.port(neighbour);
    assert!(beside.forwarded >= 39_990 && beside.police_waits == 0, "{}", beside.forwarded);
}

#[test]
fn a_new_limit_does_not_inherit_a_debt_and_no_limit_frees_the_port() {
    let mut world = world();
    let (to, from) = (vm(&mut world), vm(&mut world));
    world.introduce(to);
    // After one large batch, the port waits for more than a second.
    limit(&mut world, from, Some(bits(8_000)));
    world.set_source(from, flood(1_514, 10_000, Nanos(0), Nanos::from_secs(4)));
    world.run_until(Nanos::from_secs(1));
    let held = world.port(from).forwarded;
    assert!(held <= 4, "{held}");
    limit(&mut world, from, Some(bits(80_000_000)));
    world.run_until(Nanos::from_secs(2));
    let changed = world.port(from).forwarded - held;
    assert!((6_500..=6_650).contains(&changed), "{changed}");
    limit(&mut world, from, None);
    world.run_until(Nanos::from_secs(3));
    let free = world.port(from).forwarded - held - changed;
    assert!(free >= 9_990, "{free}");
    assert_eq!(world.port(from).unaccounted(), 0);
}
