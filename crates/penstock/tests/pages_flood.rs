//! Test of a flood of connections to `/metrics`. Some of the test's connections are idle, and the
//! other connections send half a request. The daemon uses only a limited number of file descriptors
//! for the flood. During the flood the API answers, VMs connect, and no thread spins.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a thread's part of a core is a part of real time")]

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, connect, recv, send, socket,
};
use penstock_guest::driver::{DriverConfig, VirtioNet};

#[allow(dead_code, reason = "shared with other tests")]
#[path = "all/support/mod.rs"]
mod support;

use penstock_testing::temp_dir;
use support::{Daemon, PAGES, await_some, await_true};

const CONNECTIONS: usize = 2_000;
/// Limits on the daemon's descriptors. The daemon starts with the soft limit and may raise it to
/// the hard limit.
const DESCRIPTORS: &str = "ulimit -Sn 256 && ulimit -Hn 1024";
/// Largest number of descriptors that the daemon's pages may use.
const FOR_PAGES: usize = 100;
/// Number of half-sent requests that must have ended before the test continues.
const ENDED: usize = 20;
/// Largest part of one core that the control threads may use.
const PART: f64 = 0.2;

fn daemon() -> Option<Daemon> {
    let scratch = temp_dir();
    let socket = |name| scratch.join(format!("{name}.sock"));
    let objects = format!(
        "[[tenant]]\nname = \"t\"\n\
         [[port]]\nname = \"vm1\"\ntenant = \"t\"\nvhost-user.socket = {:?}\n\
         [[port]]\nname = \"vm2\"\ntenant = \"t\"\nvhost-user.socket = {:?}\n",
        socket("vm1"),
        socket("vm2")
    );
    let file = support::configuration(&scratch, &objects);
    std::fs::write(scratch.join("host.toml"), file).unwrap();
    Daemon::start_after(DESCRIPTORS, scratch)
}

fn vm(daemon: &Daemon, name: &str) -> VirtioNet {
    let mut config = DriverConfig::new(daemon.scratch.join(format!("{name}.sock")));
    config.wait = penstock_testing::patience();
    VirtioNet::connect(config).unwrap()
}

/// Connections to the daemon's pages.
struct Flood(Vec<OwnedFd>);

impl Flood {
    fn start(daemon: &Daemon) -> Self {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let wanted = u64::try_from(2 * CONNECTIONS).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, soft.max(wanted), hard.max(wanted)).unwrap();
        let namespace = File::open(format!("/proc/{}/ns/net", daemon.pid())).unwrap();
        let SocketAddr::V4(pages) = PAGES.parse().unwrap() else { panic!("{PAGES}") };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let one = move |_| {
            let one = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
            match connect(one.as_raw_fd(), &SockaddrIn::from(pages)) {
                Ok(()) | Err(Errno::EINPROGRESS) => one,
                Err(error) => panic!("{error}"),
            }
        };
        let all = move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            (0..CONNECTIONS).map(one).collect()
        };
        Self(std::thread::spawn(all).join().unwrap())
    }

    /// Sends the beginning of a request on every second connection.
    fn send_halves(&self) {
        for one in self.0.iter().step_by(2) {
            let _ =
                send(one.as_raw_fd(), b"GET /metrics HTTP/1.1\r\nHost: x\r\n", MsgFlags::empty());
        }
    }

    /// Number of connections with half a request that the daemon has ended.
    fn halves_ended(&self) -> usize {
        let ended = |one: &&OwnedFd| {
            let mut buffer = [0; 64];
            loop {
                match recv(one.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                    Ok(0) | Err(Errno::ECONNRESET) => return true,
                    Ok(_) => {}
                    Err(_) => return false,
                }
            }
        };
        self.0.iter().step_by(2).filter(ended).count()
    }
}

fn descriptors(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

/// Processor time that the daemon's control threads have used, in seconds.
fn control_seconds(daemon: &Daemon) -> f64 {
    let mut ticks = 0_u32;
    for task in std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap() {
        // The thread may have ended since the listing.
        let Ok(stat) = std::fs::read_to_string(task.unwrap().path().join("stat")) else { continue };
        let (name, rest) = stat.rsplit_once(')').unwrap();
        if name.contains("penstock-ctl") {
            let fields: Vec<&str> = rest.split_whitespace().collect();
            ticks += fields[11..13].iter().map(|ticks| ticks.parse::<u32>().unwrap()).sum::<u32>();
        }
    }
    f64::from(ticks) / 100.0
}

#[test]
fn a_flood_of_connections_to_the_pages_costs_nobody_a_descriptor() {
    let Some(daemon) = daemon() else { return };
    let _first = vm(&daemon, "vm1");
    assert!(daemon.page("/metrics").contains("200 OK"));
    let before = descriptors(&daemon);
    let flood = Flood::start(&daemon);
    flood.send_halves();
    let (since, used) = (Instant::now(), control_seconds(&daemon));

    // The API and VMs still work.
    assert!(daemon.ask("port show vm1").ok().contains("up"));
    let second = vm(&daemon, "vm2");
    await_true("the second VM", || daemon.ask("port show vm2").ok().contains("up"));
    let now = descriptors(&daemon);
    assert!(now < before + FOR_PAGES + 30, "{before} descriptors before the flood, {now} in it");

    // The daemon ends incomplete requests, and no thread spins.
    await_true("the end of half-sent requests", || flood.halves_ended() >= ENDED);
    let part = (control_seconds(&daemon) - used) / since.elapsed().as_secs_f64();
    assert!(part < PART, "the control threads used {part} of a core");

    // After the flood, the daemon has released all descriptors.
    drop((flood, second));
    let page = await_some("/metrics after the flood", || Some(daemon.page("/metrics")));
    assert!(page.contains("200 OK"), "{page}");
    await_true("all descriptors back", || descriptors(&daemon) <= before + 2);
}
