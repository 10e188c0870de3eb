//! Tests of an output with `fair-share` at which each flow of a VM has its own queue: the VM's
//! pings do not wait behind its bulk, and neither shares nor room depend on the number of flows.

use penstock_dataplane::drop::DropReason;
use penstock_dataplane::port::memory_queue::MemoryFrame;
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms, ShareTerms};
use penstock_qos::fair_share::{Bound, Excess};
use penstock_sim::{Costs, SinkSpec, World, udp_frame};
use penstock_units::{BitsPerSecond, Nanos, TscRate, Weight};

const RATE: TscRate = TscRate::from_hz(2_000_000_000);
const STEP: Nanos = Nanos::from_micros(100);
const FRAMES: u32 = 4_096;
/// Flow numbers of the pings and of the bulk of the VM that sends both.
const PING: u16 = 1;
const BULK: u16 = 2;
/// First flow number of the VM that sends many flows.
const MANY: u16 = 1_000;

/// Two VMs with the weights 3 and 1 flood an uplink of 100 Mbit/s, the first one in 1,024 flows.
/// The second one also sends a ping every 5 ms.
#[test]
fn pings_do_not_wait_behind_their_vms_bulk_beside_a_vm_with_many_flows() {
    let terms = QueueTerms {
        order: Order::FairShare,
        pacing: Pacing::Link(BitsPerSecond(100_000_000)),
        bound: Bound { bytes: 8 << 20, wait: Nanos::from_secs(1), excess: Excess::Drop },
        flows: true,
        frames: FRAMES,
        ..QueueTerms::default()
    };
    let mut world = World::new(RATE, Costs::EXAMPLE, 3, 7);
    let up = world.add_vm(1, 1_024, SinkSpec::default()).unwrap();
    world.set_policy(up, |policy| policy.queue = Some(QueueHome::new(terms, 3, 4)));
    world.record(up);
    world.introduce(up);
    let vms = [(0, 3), (1, 1)].map(|(tenant, weight)| {
        let vm = world.add_vm(1, 256, SinkSpec::default()).unwrap();
        let share = ShareTerms { tenant: Weight::new(weight).unwrap(), vm: Weight::ONE };
        world.set_policy(vm, |policy| (policy.tenant, policy.share) = (Some(tenant), share));
        vm
    });
    let mac = World::mac_of;
    let (mut now, mut pings, mut waits, mut wire) = (Nanos::ZERO, 0, Vec::new(), [0_u64; 2]);
    for step in 0..6_000_u16 {
        if step >= 20 {
            let mut offer = |vm: u16, len, flow| {
                let frame = udp_frame(mac(vm + 1), mac(0), len, flow, now.0);
                assert!(world.offer(vms[usize::from(vm)], MemoryFrame::plain(frame)));
            };
            (0..16).for_each(|n| offer(0, 1_514, MANY + (step % 64) * 16 + n));
            (0..8).for_each(|_| offer(1, 1_514, BULK));
            if step % 50 == 0 {
                offer(1, 98, PING);
                pings += 1;
            }
        }
        now += STEP;
        world.run_until(now);
        for arrival in world.take_arrivals(up).into_iter().filter(|arrival| arrival.flow != 0) {
            if arrival.flow == PING {
                waits.push(arrival.at.saturating_sub(Nanos(arrival.sequence)));
            }
            // The first frames of both VMs have the uplink before the shares are even.
            let counts = u64::from(step >= 1_000);
            wire[usize::from(arrival.flow < MANY)] += counts * arrival.wire;
        }
        let queued = vms.map(|vm| world.port(vm).queued);
        assert!(queued.iter().all(|queued| *queued <= u64::from(FRAMES / 2) + 33), "{queued:?}");
    }
    let most = waits.iter().max().unwrap();
    assert!(waits.len() + 1 >= pings && *most < Nanos::from_millis(3), "{most:?} of {pings}");
    // 500 ms of 100 Mbit/s, of which the second VM gets a quarter.
    assert!(wire[0].abs_diff(3 * wire[1]) < 60_000, "{wire:?}");
    assert!(wire[0] + wire[1] > 6_150_000, "{wire:?}");
    for vm in vms {
        let port = world.port(vm);
        let lost = [DropReason::QueueFull, DropReason::EarlySignal];
        let lost: u64 = lost.iter().map(|reason| port.drops[*reason as usize]).sum();
        assert!(lost > 0 && lost == port.dropped(), "{port:?}");
        assert_eq!((port.unaccounted(), port.held_back), (0, 0), "{port:?}");
    }
}
