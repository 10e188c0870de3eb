//! Bursts at an uplink with shares leave no standing backlog, and frames that wait for a limit of
//! the uplink are none. So neither lowers the rate that the tenants share.

use std::sync::Arc;

use penstock_dataplane::batch::BATCH_FRAMES;
use penstock_dataplane::counters::PortCounters;
use penstock_dataplane::ingress_policer::IngressPolicer;
use penstock_dataplane::offload::OffloadCaps;
use penstock_dataplane::port::PortQueue;
use penstock_dataplane::port::memory_queue::{MemoryDriver, MemoryFrame, memory_queue};
use penstock_dataplane::tsc::CycleCounter;
use penstock_dataplane::worker::{Turn, Worker, WorkerConfig};
use penstock_qos::inbound_shares::{InboundShares, Member};
use penstock_qos::policer::{Limit, Policer, Spec};
use penstock_units::{BitsPerSecond, Cycles, PortId, Weight};

use crate::common::{self, access, frame, one_network};
use crate::idle_core::Polled;

const HZ: u64 = 1_000_000_000;
/// Time between two bursts, in cycles.
const GAP: u64 = HZ / 5_000;
const RATE: BitsPerSecond = BitsPerSecond(200_000_000);

/// Virtual core that takes 9.6 us for a full batch.
type Core = common::Core<100>;

/// A worker with an uplink, port 0, and a VM, port 1.
struct Bed {
    worker: Worker<Core>,
    core: Core,
    drivers: Vec<MemoryDriver>,
    shares: Arc<InboundShares>,
}

impl Bed {
    fn new(polled: bool, limit: Option<Arc<IngressPolicer>>) -> Self {
        let core = Core::default();
        let config = WorkerConfig { max_ports: 2, ..WorkerConfig::default() };
        let mut worker = Worker::new(&config, core.clone(), None);
        let (tenant_weight, vm_weight) = (Weight::ONE, Weight::ONE);
        let member = Member { port: 1, tenant: 1, tenant_weight, vm_weight };
        let shares = Arc::new(InboundShares::new(RATE, &[member]));
        let (mut drivers, mut policies) = (Vec::new(), Vec::new());
        for port in 0..2_u16 {
            let (pair, driver) = memory_queue(256, OffloadCaps::ALL);
            let pair: Box<dyn PortQueue> =
                if polled { Box::new(Polled(pair)) } else { Box::new(pair) };
            let counters = Arc::new(PortCounters::default());
            assert!(worker.attach(PortId(port), vec![pair], counters).is_ok());
            drivers.push(driver);
            let mut policy = access(port);
            policy.inbound = (port == 0).then(|| Arc::clone(&shares));
            policy.ingress_policer = limit.clone().filter(|_| port == 0);
            policies.push(policy);
        }
        worker.swap_snapshot(one_network(policies));
        let mut bed = Self { worker, core, drivers, shares };
        // From here on the switch knows where the VM is.
        assert!(bed.drivers[1].send(MemoryFrame::plain(frame(1, 0xff, 60))));
        bed.run(GAP);
        bed
    }

    /// Runs the worker for `cycles` cycles. Returns the number of frames that the VM received.
    fn run(&mut self, cycles: u64) -> usize {
        let now = |bed: &Self| bed.core.0.now().0;
        let (end, mut received) = (now(self) + cycles, 0);
        while now(self) < end {
            if self.worker.turn() == Turn::Idle {
                let next = self.worker.next_due().map_or(now(self) + 1_000, |due| due.0);
                self.core.0.advance_to(Cycles(next.min(end)));
                self.worker.rested();
            }
            while self.drivers[1].receive().is_some() {
                received += 1;
            }
        }
        received
    }
}

/// Each burst is exactly one full batch, and 32 frames of 84 bytes in 200 us are 108 Mbit/s.
#[test]
fn bursts_that_fill_a_batch_leave_no_standing_backlog() {
    for polled in [false, true] {
        let mut bed = Bed::new(polled, None);
        for burst in 0..500 {
            for _ in 0..BATCH_FRAMES {
                assert!(bed.drivers[0].send(MemoryFrame::plain(frame(0, 1, 60))));
            }
            assert_eq!(bed.run(GAP), BATCH_FRAMES, "polled {polled}, burst {burst}");
        }
        assert_eq!(bed.shares.rate(), RATE, "polled {polled}");
    }
}

/// The ring of the uplink is always full, because the limit passes fewer frames than arrive.
#[test]
fn frames_that_wait_for_a_limit_of_the_uplink_are_no_standing_backlog() {
    let limit = Limit::SingleRate { cir: BitsPerSecond(60_000_000), cbs: 10_000, ebs: 0 };
    let own = vec![Arc::new(Policer::new(Spec::new(limit).unwrap().waiting()))];
    let mut bed = Bed::new(false, Some(Arc::new(IngressPolicer { own, links: Vec::new() })));
    let mut received = 0;
    for _ in 0..500 {
        while bed.drivers[0].send(MemoryFrame::plain(frame(0, 1, 60))) {}
        received += bed.run(GAP);
    }
    // In 100 ms, the limit passes 12,500 frames of 60 bytes.
    assert!((12_000..13_500).contains(&received), "{received}");
    assert_eq!(bed.shares.rate(), RATE);
}
