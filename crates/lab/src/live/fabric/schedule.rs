//! The schedule of faults of the live chaos run.

use std::time::Duration;

use penstock_sim::Rng;

use super::faults::TAKE_OVER;
use super::guarantees::INTERVAL;

/// Time of the first fault after the warm-up.
const FIRST: Duration = Duration::from_secs(10);
/// Time from a fault to the next one, without the random part.
const GAP: Duration = Duration::from_secs(40);
/// Longest random part of the time between two faults, in milliseconds.
const JITTER_MS: u64 = 4_000;
/// Time that a fault and its recovery may take. A fault for which no such time is left does not
/// happen.
const ROOM: Duration = Duration::from_secs(36);
/// Number of intervals after which a controller compares all switches again, by default.
const VERIFY_EVERY: u32 = 5;

/// A fault of the chaos run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The core switch's process is killed and starts again at once. It keeps its saved decision,
    /// and loses the frames in its queues.
    SwitchReboot,
    /// The leading controller is killed.
    LeaderKill,
    /// The links of a host are down for two seconds.
    HostFlap(usize),
    /// Another program changes a port of the core switch. The number selects the port.
    ForeignChange(usize),
    /// etcd has no space, until an operator compacts and defragments it.
    FullStore,
}

/// A fault and its time, counted from the end of the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Planned {
    pub at: Duration,
    pub fault: Fault,
}

impl Fault {
    pub const fn name(self) -> &'static str {
        match self {
            Self::SwitchReboot => "switch reboot",
            Self::LeaderKill => "leader kill",
            Self::HostFlap(_) => "host flap",
            Self::ForeignChange(_) => "foreign change",
            Self::FullStore => "full store",
        }
    }

    /// Returns the stated recovery time, counted from the end of the fault. The time after a reboot
    /// begins with the switch's first answer.
    pub fn allowed(self) -> Duration {
        match self {
            Self::SwitchReboot => INTERVAL,
            Self::LeaderKill => Duration::from_secs_f64(TAKE_OVER),
            Self::HostFlap(_) | Self::FullStore => 2 * INTERVAL,
            // The next comparison of all switches, and an interval for the repair.
            Self::ForeignChange(_) => (VERIFY_EVERY + 1) * INTERVAL,
        }
    }
}

/// Returns the faults of a run of length `length` in a fabric with `hosts` hosts. Five faults in a
/// row are of different kinds.
pub(super) fn schedule(length: Duration, seed: u64, hosts: usize) -> Vec<Planned> {
    let mut rng = Rng::new(seed).fork(6);
    let mut below = |limit: usize| {
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        usize::try_from(rng.below(limit.max(1))).unwrap_or(0)
    };
    let (mut all, mut round, mut at) = (Vec::new(), Vec::new(), FIRST);
    while at + ROOM <= length {
        if round.is_empty() {
            let (host, port) = (below(hosts), below(2));
            round = vec![
                Fault::SwitchReboot,
                Fault::LeaderKill,
                Fault::HostFlap(host),
                Fault::ForeignChange(port),
                Fault::FullStore,
            ];
        }
        let fault = round.swap_remove(below(round.len()));
        all.push(Planned { at, fault });
        let jitter = u64::try_from(below(usize::try_from(JITTER_MS).unwrap_or(1))).unwrap_or(0);
        at += GAP + Duration::from_millis(jitter);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_minutes_have_each_kind_of_fault_twice_and_depend_on_the_seed() {
        let length = Duration::from_secs(600);
        for seed in 1..50 {
            let all = schedule(length, seed, 10);
            let names =
                ["switch reboot", "leader kill", "host flap", "foreign change", "full store"];
            for name in names {
                let many = all.iter().filter(|planned| planned.fault.name() == name).count();
                assert!(many >= 2, "seed {seed}: {name} {many} times");
            }
            for pair in all.windows(2) {
                assert!(pair[1].at >= pair[0].at + GAP, "seed {seed}");
            }
            assert!(all.iter().all(|planned| planned.at + ROOM <= length), "seed {seed}");
            assert_eq!(all, schedule(length, seed, 10));
        }
        assert_ne!(schedule(length, 1, 10), schedule(length, 2, 10));
    }

    #[test]
    fn a_short_run_has_few_faults() {
        let faults = |secs| schedule(Duration::from_secs(secs), 1, 10).len();
        assert_eq!([faults(5), faults(45), faults(60), faults(100)], [0, 0, 1, 2]);
    }

    #[test]
    fn each_fault_has_room_for_its_stated_recovery_time() {
        let faults = [
            Fault::SwitchReboot,
            Fault::LeaderKill,
            Fault::HostFlap(0),
            Fault::ForeignChange(0),
            Fault::FullStore,
        ];
        assert!(faults.iter().all(|fault| fault.allowed() <= ROOM));
        assert_eq!(Fault::ForeignChange(0).allowed().as_secs(), 24);
    }
}
