//! Tests of a scheduling thread that gets new lists of vCPUs. The vCPUs are waiting threads of the
//! test process. The test itself reports run times to the scheduling thread's queue.

use std::sync::mpsc::{channel, sync_channel};
use std::thread::JoinHandle;

use penstock_units::Weight;
use penstock_vcpu::{Contract, Mode};

use super::*;
use crate::policy::Policy;
use crate::threads;
use crate::weight::Weigher;

/// A thread that waits until this value is dropped.
struct Waiting {
    identity: Identity,
    end: Option<std::sync::mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    fn start() -> Self {
        let (tell, told) = sync_channel(0);
        let (end, ends) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let tid = u32::try_from(nix::unistd::gettid().as_raw()).unwrap();
            tell.send(tid).unwrap();
            let _ = ends.recv();
        });
        let (pid, tid) = (std::process::id(), told.recv().unwrap());
        let started = threads::started_at(pid, tid).unwrap();
        let identity = Identity { pid, tid, started };
        Self { identity, end: Some(end), thread: Some(thread) }
    }

    fn seat(&self, slot: usize, contract: Contract) -> Seat {
        Seat {
            vm: format!("vm{slot}").into(),
            thread: self.identity,
            slot,
            saved: Policy::DEFAULT,
            contract,
            base_ppm: 1_000_000,
            share_ppm: 333_333,
            weigher: Weigher::Nice,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.end.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Makes the state of a scheduling thread that lends no real-time policy.
pub(super) fn boost(dir: &Path, owner: Identity) -> Boost {
    Boost::new(Parts {
        at: 0,
        cpu: 0,
        table: Arc::new(LeaseTable::create(&dir.join("leases"), owner).unwrap()),
        lending: Arc::new(AtomicBool::new(false)),
        orders: channel().1,
        reports: sync_channel(8).0,
        events: UnixDatagram::unbound().unwrap(),
    })
}

fn credits(boost: &Boost) -> Vec<i64> {
    boost.sitters.iter().map(|sitter| boost.queue.book().credit(sitter.vcpu)).collect()
}

#[test]
fn a_vm_that_comes_or_goes_leaves_the_others_accounts_alone() {
    let dir = penstock_testing::temp_dir();
    let all = [Waiting::start(), Waiting::start(), Waiting::start()];
    let by_credit = Contract::by_credit(Weight::ONE);
    let mut boost = boost(&dir, all[0].identity);
    let periodic = Contract::real_time(Mode::Periodic, Nanos::from_millis(3), Weight::ONE);
    let at = |ms| Nanos::from_millis(ms);
    boost.seat(at(0), vec![all[0].seat(0, periodic), all[1].seat(1, by_credit)]);
    // The first vCPU ran all the time, and the second vCPU waited.
    boost.queue.ran(at(30), boost.sitters[0].vcpu, at(30));
    boost.queue.account(at(30));
    let before = credits(&boost);
    assert!(before[0] < -10_000_000 && before[1] > 10_000_000, "{before:?}");
    let due = boost.queue.next_due(CPU);

    // A third vCPU starts.
    let seats =
        vec![all[1].seat(1, by_credit), all[2].seat(2, by_credit), all[0].seat(0, periodic)];
    boost.seat(at(31), seats);
    assert_eq!(credits(&boost), [before[1], 0, before[0]]);
    assert_eq!(boost.queue.next_due(CPU), due, "nor is its deadline put off");
    // The second and third vCPUs end, and the first vCPU gets new parameters. The first vCPU owes
    // the same time with its new parameters as before.
    let seats = vec![all[0].seat(0, Contract { weight: Weight::new(2).unwrap(), ..by_credit })];
    boost.seat(at(32), seats);
    assert_eq!(credits(&boost), [before[0]]);
    assert_eq!(boost.queue.next_due(CPU), None);
    // The credits that the first vCPU owed to ended vCPUs disappear.
    for epoch in 0..20 {
        boost.queue.ran(at(60 + 30 * epoch), boost.sitters[0].vcpu, at(30));
        boost.queue.account(at(60 + 30 * epoch));
    }
    assert_eq!(credits(&boost), [0]);
}

#[test]
fn one_that_is_blocked_stays_so_when_others_come() {
    let dir = penstock_testing::temp_dir();
    let all = [Waiting::start(), Waiting::start()];
    let by_credit = Contract::by_credit(Weight::ONE);
    let mut boost = boost(&dir, all[0].identity);
    boost.seat(Nanos(0), vec![all[0].seat(0, by_credit)]);
    let vcpu = boost.sitters[0].vcpu;
    boost.queue.blocked(Nanos(0), vcpu);
    boost.sitters[0].blocked = true;
    boost.seat(Nanos(1), vec![all[0].seat(0, by_credit), all[1].seat(1, by_credit)]);
    for epoch in 1..10 {
        boost.queue.account(Nanos::from_millis(30 * epoch));
    }
    let told = credits(&boost);
    assert_eq!(told[0], 0, "it wants nothing, and the other one has all: {told:?}");
}
