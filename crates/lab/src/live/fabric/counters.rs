//! Byte counters of all VMs and racks of a live fabric, read at one moment.
//!
//! # Problem
//!
//! A sample compares rates of tenants with each other and with the rate of a link. If the counters
//! are read one after the other by programs, the windows of a sample differ by tenths of a second.
//! The programs also take processor time from the hosts that they measure.
//!
//! # Approach
//!
//! The kernel counts the bytes of each VM's network interface, and of each rack's uplink. The lab
//! opens the files with these counters once, and reads all files in one sweep. A sweep of 100 files
//! takes a few milliseconds. If a sweep takes longer than [`SWEEP`], because the thread lost its
//! core, the lab reads again, and uses the shortest of [`TRIES`] sweeps. All counters of a reading
//! have one time, which is the middle of the sweep.
//!
//! A tenant's bytes are those that its frames take on a link, with preamble, gap and frame check
//! sequence ([`FRAME_OVERHEAD`]), as the hosts count them for a tenant's limits. The bytes of a
//! rack's uplink are whole Ethernet frames, as the queues of the Linux bridges count them. Neither
//! counts the VLAN tag.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sched::{CloneFlags, setns};
use penstock_qos::bottleneck::FRAME_OVERHEAD;

use crate::rig::stats::to_f64;
use penstock_guest::clock;

/// Longest time of a sweep that needs no repetition, which is 0.5 % of a sample.
const SWEEP: Duration = Duration::from_millis(5);
/// Maximum number of sweeps for one reading.
const TRIES: usize = 5;
/// Column of the received bytes in `/proc/net/dev`.
const RECEIVED: usize = 0;
/// Column of the sent bytes in `/proc/net/dev`. Eight columns about received frames precede it.
const SENT: usize = 8;

/// The VM of a tenant, in a rack, whose counters are read.
#[derive(Debug, Clone)]
pub(super) struct Counted {
    pub tenant: usize,
    pub rack: usize,
    pub netns: String,
}

/// Open files with the kernel's counters of a VM.
#[derive(Debug)]
struct VmFiles {
    vm: Counted,
    interfaces: File,
    /// `/proc/net/snmp` of the VM, with the segments that TCP sent again.
    snmp: File,
    /// `/proc/net/netstat` of the VM, with the times that TCP waited for an acknowledgement in
    /// vain.
    netstat: File,
}

/// TCP's repairs by the VMs of a tenant in a rack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Repairs {
    /// Segments that TCP sent again (`RetransSegs`).
    pub resent: u64,
    /// Retransmission timeouts (`TCPTimeouts`).
    pub timeouts: u64,
}

/// Open files with the counters of all VMs and racks.
#[derive(Debug, Default)]
pub(super) struct Counters {
    tenants: usize,
    vms: Vec<VmFiles>,
    /// File of each rack's switch.
    racks: Vec<File>,
}

/// Byte counters of all tenants and racks at one moment.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    /// Time of the counters.
    pub at: Instant,
    /// Time of the counters in milliseconds since 1970, by the clock of the controller's events.
    pub at_ms: u64,
    /// Length of the sweep over all files.
    pub took: Duration,
    /// For each tenant: the bytes on a link of what its VMs in each rack received.
    received: Vec<Vec<u64>>,
    /// For each rack: the bytes that the rack sent to the core switch.
    core: Vec<u64>,
    /// For each tenant: TCP's repairs by its VMs in each rack, read directly after the sweep.
    repairs: Vec<Vec<Repairs>>,
}

/// Rates between two readings of the counters, in bits per second.
#[derive(Debug, Clone)]
pub(super) struct Rates {
    /// For each tenant: the rate at which its VMs in each rack received, in bits per second.
    pub tenants: Vec<Vec<f64>>,
    /// Rate at which each rack sent to the core switch, in bits per second.
    pub core: Vec<f64>,
    /// For each tenant: TCP's repairs by its VMs in each rack.
    pub repairs: Vec<Vec<Repairs>>,
}

impl Rates {
    pub fn between(before: &Reading, now: &Reading) -> Self {
        let passed = now.at.saturating_duration_since(before.at).as_secs_f64().max(1e-9);
        let rates = |before: &[u64], now: &[u64]| {
            let rate = |(old, new): (&u64, &u64)| 8.0 * to_f64(new.saturating_sub(*old)) / passed;
            before.iter().zip(now).map(rate).collect::<Vec<f64>>()
        };
        let tenants = before.received.iter().zip(&now.received);
        let repairs = before.repairs.iter().zip(&now.repairs);
        let since = |(old, new): (&Repairs, &Repairs)| Repairs {
            resent: new.resent.saturating_sub(old.resent),
            timeouts: new.timeouts.saturating_sub(old.timeouts),
        };
        Self {
            tenants: tenants.map(|(old, new)| rates(old, new)).collect(),
            core: rates(&before.core, &now.core),
            repairs: repairs.map(|(old, new)| old.iter().zip(new).map(since).collect()).collect(),
        }
    }
}

impl Counters {
    /// Opens the counters of VMs of `tenants` tenants, and of the racks' switches in the network
    /// namespaces `racks`.
    pub fn open(tenants: usize, vms: Vec<Counted>, racks: Vec<String>) -> anyhow::Result<Self> {
        // A new thread opens the files, because the thread enters namespaces and never leaves them.
        let open = move || -> anyhow::Result<Self> {
            let racks = racks.iter().map(|netns| enter(netns).and_then(|()| open("dev")));
            let racks = racks.collect::<anyhow::Result<Vec<File>>>()?;
            let mut opened = Vec::new();
            for vm in vms {
                enter(&vm.netns)?;
                let (interfaces, snmp) = (open("dev")?, open("snmp")?);
                opened.push(VmFiles { vm, interfaces, snmp, netstat: open("netstat")? });
            }
            Ok(Self { tenants, vms: opened, racks })
        };
        let thread = std::thread::Builder::new().name("counters".to_owned()).spawn(open);
        let opened = thread.context("starting a thread")?.join();
        opened.map_err(|_| anyhow::anyhow!("the thread that opens counters panicked"))?
    }

    /// Reads all counters.
    pub fn read(&self) -> anyhow::Result<Reading> {
        let mut best = self.sweep()?;
        for _ in 1..TRIES {
            if best.took <= SWEEP {
                break;
            }
            let again = self.sweep()?;
            if again.took < best.took {
                best = again;
            }
        }
        best.repairs = self.repairs()?;
        Ok(best)
    }

    fn sweep(&self) -> anyhow::Result<Reading> {
        let mut text = vec![0; 16 << 10];
        let mut read = |file: &File, interface: &str, of: Of| -> anyhow::Result<u64> {
            let length = file.read_at(&mut text, 0).context("reading counters")?;
            let text = String::from_utf8_lossy(&text[..length]);
            of(&text, interface).with_context(|| format!("the counters of interface {interface}"))
        };
        let mut received = vec![vec![0; self.racks.len()]; self.tenants];
        let (begin, begin_ms) = (clock::now(), clock::since_1970().0 / 1_000_000);
        let core = self.racks.iter().map(|file| read(file, "uplink", sent));
        let core = core.collect::<anyhow::Result<Vec<u64>>>()?;
        for VmFiles { vm, interfaces, .. } in &self.vms {
            received[vm.tenant][vm.rack] += read(interfaces, "eth0", received_on_a_link)
                .with_context(|| format!("a VM of tenant {}", vm.tenant + 1))?;
        }
        let took = begin.elapsed();
        let half = took / 2;
        let at_ms = begin_ms + u64::try_from(half.as_millis()).unwrap_or(0);
        Ok(Reading { at: begin + half, at_ms, took, received, core, repairs: Vec::new() })
    }

    /// Returns TCP's repairs by each tenant's VMs in each rack.
    fn repairs(&self) -> anyhow::Result<Vec<Vec<Repairs>>> {
        let mut text = vec![0; 16 << 10];
        let mut read = |file: &File, group: &str, name: &str| -> anyhow::Result<u64> {
            let length = file.read_at(&mut text, 0).context("reading counters of TCP")?;
            let text = String::from_utf8_lossy(&text[..length]);
            counter(&text, group, name).with_context(|| format!("the counter {name} of TCP"))
        };
        let mut repairs = vec![vec![Repairs::default(); self.racks.len()]; self.tenants];
        for VmFiles { vm, snmp, netstat, .. } in &self.vms {
            let sum = &mut repairs[vm.tenant][vm.rack];
            sum.resent += read(snmp, "Tcp:", "RetransSegs")?;
            sum.timeouts += read(netstat, "TcpExt:", "TCPTimeouts")?;
        }
        Ok(repairs)
    }
}

/// Returns the counter `name` in the text of `/proc/net/snmp` or `/proc/net/netstat`, in which a
/// line of names precedes the line of numbers of each group.
pub(in crate::live) fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let nth = names.split_whitespace().position(|found| found == name)?;
    numbers.split_whitespace().nth(nth)?.parse().ok()
}

/// Function that finds a number of an interface in the text of `/proc/net/dev`.
type Of = fn(&str, &str) -> Option<u64>;

/// Returns the bytes that an interface sent.
fn sent(text: &str, interface: &str) -> Option<u64> {
    count(text, interface, SENT)
}

/// Returns the bytes on a link of the frames that an interface received.
fn received_on_a_link(text: &str, interface: &str) -> Option<u64> {
    let frames = count(text, interface, RECEIVED + 1)?;
    Some(count(text, interface, RECEIVED)? + u64::from(FRAME_OVERHEAD) * frames)
}

/// Returns the number in a column of the line of `interface`, in the text of `/proc/net/dev`.
fn count(text: &str, interface: &str, column: usize) -> Option<u64> {
    let mut lines = text.lines().map(str::trim_start);
    let line = lines.find_map(|line| line.strip_prefix(interface)?.strip_prefix(':'))?;
    line.split_whitespace().nth(column)?.parse().ok()
}

/// Moves this thread to the network namespace `netns`.
pub(super) fn enter(netns: &str) -> anyhow::Result<()> {
    let path = penstock_guest::endpoint::netns_path(netns);
    let space = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
    setns(&space, CloneFlags::CLONE_NEWNET).with_context(|| format!("entering {netns}"))
}

/// Opens a file with the kernel's counters of this thread's network namespace. The open file can be
/// read repeatedly, and from each thread.
fn open(name: &str) -> anyhow::Result<File> {
    let path = format!("/proc/thread-self/net/{name}");
    File::open(&path).with_context(|| format!("opening {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo:      90       1    0    0    0     0          0         0       90       1    0    0
  eth0: 1514000    1000    0    0    0     0          0         0    66000    1000    0    0
uplink:       7       1    0    0    0     0          0         0  3028000    2000    0    0
";

    #[test]
    fn each_column_is_found_by_its_interface() {
        assert_eq!(count(TEXT, "eth0", RECEIVED), Some(1_514_000));
        assert_eq!(count(TEXT, "uplink", SENT), Some(3_028_000));
        assert_eq!(count(TEXT, "eth", RECEIVED), None, "a part of a name");
        assert_eq!(count(TEXT, "eth1", RECEIVED), None);
        assert_eq!(received_on_a_link(TEXT, "eth0"), Some(1_514_000 + 24_000));
    }

    #[test]
    fn a_counter_of_tcp_is_found_by_its_name() {
        let text =
            "TcpExt: SyncookiesSent TCPTimeouts\nTcpExt: 3 17\nTcp: OutSegs InErrs\nTcp: 5 0\n";
        assert_eq!(counter(text, "TcpExt:", "TCPTimeouts"), Some(17));
        assert_eq!(counter(text, "Tcp:", "OutSegs"), Some(5), "the group is not TcpExt");
        assert_eq!(counter(text, "TcpExt:", "OutSegs"), None, "a counter of another group");
    }

    #[test]
    fn rates_of_tenants_and_of_the_core_have_one_window() {
        let begin = clock::now();
        let reading = |secs: u64, bytes: u64| Reading {
            at: begin + Duration::from_secs(secs),
            at_ms: 0,
            took: Duration::ZERO,
            received: vec![vec![bytes, 0], vec![0, 2 * bytes]],
            core: vec![bytes, 3 * bytes],
            repairs: vec![vec![Repairs { resent: bytes, timeouts: secs }, Repairs::default()]],
        };
        let rates = Rates::between(&reading(0, 1_000), &reading(2, 2_000));
        assert_eq!(rates.tenants, [[4_000.0, 0.0], [0.0, 8_000.0]]);
        assert_eq!(rates.core, [4_000.0, 12_000.0]);
        // Two readings with counters that went back have no negative rate.
        let back = Rates::between(&reading(2, 2_000), &reading(4, 1_000));
        assert_eq!(back.core, [0.0, 0.0]);
    }
}
