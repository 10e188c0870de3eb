//! Tests of a daemon with many ports. The drivers of idle ports are connected and have started
//! their rings, but send no frames. The tests measure memory and processor time of an idle port,
//! and the cost of idle ports for active ports.
//!
//! Every machine can run the test with four ports. The figure for `docs/internals/measurements.md`
//! has 1,000 ports and needs an idle machine:
//!
//! ```text
//! cargo test --release -p penstock --test all many_ports -- --ignored --nocapture
//! ```

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use penstock_guest::driver::{DriverConfig, VirtioNet};
use penstock_guest::load::{Destination, LoadReport, LoadSpec, VmSpec};
use penstock_guest::mac::Mac;
use penstock_testing::temp_dir;

use crate::support;
use crate::support::{Daemon, await_true};

/// Number of ports that send and receive: the first ports.
const ACTIVE: usize = 4;
const KIB: u64 = 1024;
/// Limit of the daemon's anonymous memory for each connected idle port.
const PORT_BYTES_MAX: u64 = 256 * KIB;
/// Limit of the daemon's memory with [`ACTIVE`] ports, without the mappings of guests.
const DAEMON_BYTES_MAX: u64 = 64 * 1024 * KIB;

struct Bed {
    daemon: Daemon,
    ports: usize,
}

impl Bed {
    fn start(ports: usize) -> Option<Self> {
        let scratch = temp_dir();
        let mut objects = String::from("[[tenant]]\nname = \"red\"\nfdb_limit = 4096\n");
        for n in 0..ports {
            let socket = scratch.join(format!("{n}.sock"));
            writeln!(objects, "[[port]]\nname = \"vm{n}\"").unwrap();
            writeln!(objects, "tenant = \"red\"\nvhost-user.socket = {socket:?}").unwrap();
        }
        let text = support::configuration(&scratch, &objects);
        fs::write(scratch.join("host.toml"), text).unwrap();
        Some(Self { daemon: Daemon::start_in(scratch)?, ports })
    }

    fn port_socket(&self, n: usize) -> PathBuf {
        self.daemon.scratch.join(format!("{n}.sock"))
    }

    /// Returns connected drivers that send no frames.
    fn idle_drivers(&self) -> Vec<VirtioNet> {
        let drivers = (ACTIVE..self.ports).map(|n| {
            let mut config = DriverConfig::new(self.port_socket(n));
            (config.ring_size, config.tx_slots) = (64, Some(2));
            (config.rx_buffer_bytes, config.hugepages) = (256, false);
            config.wait = penstock_testing::patience();
            VirtioNet::connect(config).unwrap()
        });
        drivers.collect()
    }

    fn up(&self) -> usize {
        let ports = self.daemon.ask("port list --json").json();
        ports.as_array().unwrap().iter().filter(|port| port["state"] == "up").count()
    }

    /// Sends between two pairs of the active ports at full speed.
    fn load(&self, secs: f64) -> LoadReport {
        let vm = |n: usize| {
            let last = u8::try_from(n + 1).unwrap();
            let mac = Mac([0x52, 0x54, 0, 0, 1, last]);
            let ip = Ipv4Addr::new(10, 0, 0, last);
            let mut vm = VmSpec::new(&format!("vm{n}"), self.port_socket(n), mac, ip);
            vm.to = n.is_multiple_of(2).then(|| Destination::Vm(format!("vm{}", n + 1)));
            vm
        };
        let mut spec = LoadSpec::new((0..ACTIVE).map(vm).collect(), secs);
        (spec.warmup_secs, spec.core, spec.touch) = (0.2, Some(0), true);
        spec.run(|_| ()).unwrap()
    }

    fn worker(&self, counter: &str) -> u64 {
        let stats = self.daemon.ask("stats --json").json();
        stats["workers"][0]["counters"][counter].as_u64().unwrap()
    }

    /// Number of frames that the active ports sent, and the cycles charged for them.
    fn charged(&self) -> (u64, u64) {
        let stats = self.daemon.ask("stats --json").json();
        let ports = stats["ports"].as_array().unwrap();
        let active = ports.iter().take(ACTIVE).map(|port| &port["counters"]);
        let sum = |name| active.clone().map(|c| c[name].as_u64().unwrap()).sum();
        (sum("rx_frames"), sum("cycles"))
    }

    /// A line of the daemon's `status` file in `/proc`, in bytes.
    fn memory(&self, line: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.daemon.pid())).unwrap();
        let value = text.lines().find_map(|l| l.strip_prefix(line)).unwrap();
        value.trim_start_matches(':').split_whitespace().next().unwrap().parse::<u64>().unwrap()
            * KIB
    }

    /// Processor time that all threads of the daemon have used, in microseconds.
    fn cpu_us(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.daemon.pid())).unwrap();
        let ran = |path: PathBuf| -> Option<u64> {
            let text = fs::read_to_string(path.join("schedstat")).ok()?;
            text.split(' ').next()?.parse().ok()
        };
        tasks.filter_map(|task| ran(task.ok()?.path())).sum::<u64>() / 1000
    }

    /// Processor time of the daemon over one second without traffic, in microseconds.
    fn idle_us(&self) -> u64 {
        let before = self.cpu_us();
        #[expect(clippy::disallowed_methods, reason = "the second that is measured")]
        std::thread::sleep(Duration::from_secs(1));
        self.cpu_us() - before
    }

    fn await_rest(&self, connected: usize) {
        await_true("the drivers' ports are up", || self.up() == connected);
        let rest = (self.ports - 8) as u64;
        await_true("silent ports rest", || self.worker("resting") == rest);
    }
}

#[test]
fn an_idle_port_costs_little_memory_and_is_not_polled() {
    let Some(bed) = Bed::start(64) else { return };
    let few = bed.memory("RssAnon");
    assert!(few <= DAEMON_BYTES_MAX, "{few} bytes before a driver connects");
    let drivers = bed.idle_drivers();
    bed.await_rest(drivers.len());
    let each = bed.memory("RssAnon").saturating_sub(few) / drivers.len() as u64;
    assert!(each <= PORT_BYTES_MAX, "{each} bytes for each idle port");
    let report = bed.load(0.3);
    assert!(report.vm("vm1").unwrap().rx_frames > 0 && report.vm("vm3").unwrap().rx_frames > 0);
    assert!(report.vms.iter().all(|vm| vm.rx_bad == 0), "{report:?}");
    bed.daemon.ask("stats --check").ok();
}

/// `RssShmem` is the memory that guests share with the daemon. All memory that is not in `RssShmem`
/// belongs to the daemon, including its code.
#[test]
fn a_daemon_with_four_connected_ports_is_small() {
    let Some(bed) = Bed::start(ACTIVE + 4) else { return };
    let drivers = bed.idle_drivers();
    bed.await_rest(drivers.len());
    let report = bed.load(0.3);
    assert!(report.vms.iter().all(|vm| vm.rx_bad == 0), "{report:?}");
    let own = bed.memory("RssAnon") + bed.memory("RssFile");
    assert!(own <= DAEMON_BYTES_MAX, "{} KiB, {} ports connected", own / KIB, drivers.len());
    println!("{} KiB of its own, {} ports connected", own / KIB, drivers.len());
}

#[test]
#[ignore = "takes a minute and an idle machine"]
fn active_ports_among_a_thousand() {
    let count = |name: &str, otherwise: usize| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let (ports, rounds) = (count("PORTS", 1000), count("ROUNDS", 7));
    let Some(bed) = Bed::start(ports) else { return };
    let bare = bed.memory("RssAnon");
    println!("{ports} ports, none connected: {} KiB", bare / KIB);
    let mut rows: [Vec<(f64, f64)>; 2] = [Vec::new(), Vec::new()];
    let (mut idle, mut each, mut rss) = ([Vec::new(), Vec::new()], 0, 0);
    for _ in 0..rounds {
        for (silent, rows) in rows.iter_mut().enumerate() {
            let drivers = if silent == 1 { bed.idle_drivers() } else { Vec::new() };
            bed.await_rest(drivers.len());
            idle[silent].push(bed.idle_us());
            if silent == 1 {
                each = bed.memory("RssAnon").saturating_sub(bare) / drivers.len() as u64;
                rss = bed.memory("VmRSS");
            }
            let before = bed.charged();
            let report = bed.load(1.0);
            let after = bed.charged();
            let cycles = (after.1 - before.1) as f64 / (after.0 - before.0) as f64;
            let got: f64 = report.vms.iter().map(|vm| vm.rx_frames_per_sec).sum();
            println!(
                "{} silent: {cycles:.1} cycles per frame, {:.3} Mframes/s, generator {:.0} % busy, \
                 waited {:.1} %",
                drivers.len(),
                got / 1e6,
                report.busy_percent,
                report.run_queue_wait_percent
            );
            rows.push((cycles, got));
        }
    }
    bed.daemon.ask("stats --check").ok();
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    // The speed of a shared machine changes within seconds, so each round is compared in itself.
    let ratio = median(rows[0].iter().zip(&rows[1]).map(|(few, many)| many.0 / few.0).collect());
    let [few, many] = rows;
    let of = |rows: &[(f64, f64)]| {
        (median(rows.iter().map(|r| r.0).collect()), median(rows.iter().map(|r| r.1).collect()))
    };
    let (few, many) = (of(&few), of(&many));
    let [idle_few, idle_many] = idle.map(|us| median(us.into_iter().map(|us| us as f64).collect()));
    println!("cycles per frame: {:.1} -> {:.1} ({:+.1} %)", few.0, many.0, percent(few.0, many.0));
    println!("frames per second: {:.0} -> {:.0} ({:+.1} %)", few.1, many.1, percent(few.1, many.1));
    println!("idle daemon: {idle_few:.0} -> {idle_many:.0} us of processor time a second");
    println!("idle port: {} KiB of anonymous memory; daemon {} MiB", each / KIB, rss >> 20);
    assert!(each <= PORT_BYTES_MAX);
    println!("cycles per frame, median of the rounds: {:+.1} %", percent(1.0, ratio));
    assert!(percent(1.0, ratio) < 3.0, "active ports lose cycles to silent ones");
}

fn percent(from: f64, to: f64) -> f64 {
    100.0 * (to - from) / from
}
