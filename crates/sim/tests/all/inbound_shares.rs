//! Tests of uplinks that share what arrives among tenants and VMs by weight.

use std::sync::Arc;

use penstock_dataplane::drop::DropReason;
use penstock_dataplane::snapshot::SlowPathLimit;
use penstock_qos::inbound_shares::{InboundShares, Member};
use penstock_sim::{Costs, PortHandle, SinkSpec, World, WorldConfig, tcp_segment};
use penstock_units::{BitsPerSecond, Nanos, TscRate, Weight};

const RATE: BitsPerSecond = BitsPerSecond(100_000_000);
const MS: Nanos = Nanos::from_millis(1);
/// Bytes of one large segment on the link.
const SEGMENT: u64 = 44 * (1_514 + 24);

fn member(port: u16, tenant_weight: u64) -> Member {
    let tenant_weight = Weight::new(tenant_weight).unwrap();
    Member { port, tenant: port, tenant_weight, vm_weight: Weight::ONE }
}

struct Uplink {
    world: World,
    port: PortHandle,
    vms: Vec<PortHandle>,
    shares: Arc<InboundShares>,
}

/// Returns a switch with an uplink, port 0, and VMs of tenants with the weights 3 and 1.
fn uplink(workers: u16) -> Uplink {
    uplink_to(workers, SinkSpec::default())
}

/// Works like [`uplink`], and the first VM empties its ring as `first` says.
fn uplink_to(workers: u16, first: SinkSpec) -> Uplink {
    let config = WorldConfig { workers, ..WorldConfig::default() };
    let mut world =
        World::with_config(&config, TscRate::from_hz(2_000_000_000), Costs::EXAMPLE, 8, 3);
    let add = |world: &mut World, sink| world.add_vm(1, 256, sink).expect("room");
    let port = add(&mut world, SinkSpec::default());
    let vms = vec![add(&mut world, first), add(&mut world, SinkSpec::default())];
    for (vm, tenant) in vms.iter().zip(1..) {
        world.set_policy(*vm, |policy| policy.tenant = Some(tenant));
        world.introduce(*vm);
    }
    world.run_until(MS);
    let shares = Arc::new(InboundShares::new(RATE, &[member(1, 3), member(2, 1)]));
    world.set_policy(port, |policy| {
        policy.tenant = None;
        policy.slow_path = SlowPathLimit::UNLIMITED;
        policy.inbound = Some(Arc::clone(&shares));
    });
    Uplink { world, port, vms, shares }
}

impl Uplink {
    /// Lets a large segment arrive for each of the VMs `to` in each millisecond, until `until`.
    fn flood(&mut self, to: &[u16], ecn: bool, until: Nanos) {
        let mut now = self.world.now();
        while now < until {
            for vm in to {
                let (from, vm) = (World::mac_of(0), World::mac_of(*vm));
                let frame = tcp_segment(from, vm, (44, 1_460), 7, ecn);
                self.world.offer(self.port, frame);
            }
            now += MS;
            self.world.run_until(now);
        }
    }

    /// Returns the segments that each VM received.
    fn segments(&self) -> Vec<u64> {
        self.vms.iter().map(|vm| self.world.port(*vm).tx_tso).collect()
    }
}

#[test]
fn excess_is_refused_before_the_copy_and_counted_at_both_ports() {
    for workers in [1, 2] {
        let mut uplink = uplink(workers);
        uplink.flood(&[1, 2], true, Nanos::from_secs(2));
        let before = uplink.segments();
        uplink.flood(&[1, 2], true, Nanos::from_secs(6));
        let got: Vec<u64> = uplink.segments().iter().zip(before).map(|(a, b)| a - b).collect();
        // In four seconds, the rate passes 738 segments.
        let all = RATE.0 / 8 * 4 / SEGMENT;
        assert!(got[0].abs_diff(all * 3 / 4) <= 4, "{workers} workers: {got:?} of {all}");
        assert!(got[1].abs_diff(all / 4) <= 4, "{workers} workers: {got:?} of {all}");
        let port = uplink.world.port(uplink.port);
        let refused = port.drops[DropReason::InboundShare as usize];
        let at =
            |vm: &PortHandle| uplink.world.port(*vm).tx_drops[DropReason::InboundShare as usize];
        assert!(refused > 5_000, "{refused}");
        assert_eq!(refused, uplink.vms.iter().map(at).sum::<u64>());
        assert_eq!(port.unaccounted(), 0);
    }
}

#[test]
fn a_tenant_that_stops_leaves_its_share_at_once() {
    let mut uplink = uplink(1);
    uplink.flood(&[1, 2], true, Nanos::from_secs(2));
    // The bucket of the first tenant fills within two segments' time of its share.
    uplink.flood(&[2], true, Nanos(2_020_000_000));
    let before = uplink.segments()[1];
    uplink.flood(&[2], true, Nanos(4_020_000_000));
    let got = uplink.segments()[1] - before;
    let all = RATE.0 / 8 * 2 / SEGMENT;
    assert!(got.abs_diff(all) <= 3, "{got} of {all}");
}

#[test]
fn senders_with_ecn_get_marks_and_others_lose_a_part() {
    for ecn in [true, false] {
        let mut uplink = uplink(1);
        uplink.flood(&[1], ecn, Nanos::from_secs(1));
        let vm = uplink.world.port(uplink.vms[0]);
        assert_eq!((vm.tx_marked > 0, vm.tx_trimmed > 0), (ecn, !ecn), "ECN {ecn}");
    }
}

#[test]
fn below_its_rate_an_uplink_loses_nothing() {
    let mut uplink = uplink(1);
    let (mut now, mut sent) = (uplink.world.now(), 0);
    // A segment of 68 kB in 6 ms is 90 Mbit/s.
    while now < Nanos::from_secs(2) {
        let frame = tcp_segment(World::mac_of(0), World::mac_of(2), (44, 1_460), 7, true);
        uplink.world.offer(uplink.port, frame);
        (now, sent) = (now + Nanos(6 * MS.0), sent + 1);
        uplink.world.run_until(now);
    }
    let vm = uplink.world.port(uplink.vms[1]);
    assert_eq!((vm.tx_tso, vm.tx_marked), (sent, 0));
    assert_eq!(uplink.shares.rate(), RATE);
}

#[test]
fn a_vm_whose_ring_is_full_leaves_its_share_to_others() {
    for workers in [1, 2] {
        // The first VM takes a segment in ten seconds, so its ring is full and stays full.
        let mut uplink = uplink_to(workers, SinkSpec { frames_per_second: Some(1) });
        uplink.flood(&[1, 2], true, Nanos::from_secs(3));
        let before = uplink.segments();
        uplink.flood(&[1, 2], true, Nanos::from_secs(5));
        let got: Vec<u64> = uplink.segments().iter().zip(before).map(|(a, b)| a - b).collect();
        let full = uplink.world.port(uplink.vms[0]).tx_drops[DropReason::RingFull as usize];
        assert!(full > 100, "{workers} workers: {full}");
        let all = RATE.0 / 8 * 2 / SEGMENT;
        assert!(got[1].abs_diff(all) <= 6, "{workers} workers: {got:?} of {all}");
    }
}
