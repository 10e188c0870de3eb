//! Two guests that flood a third guest and an uplink, in the test's own process.
//!
//! The worker may spend only `capacity` cycles per second, so the worker is the bottleneck even if
//! the machine is busy with other work.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::stat::fstat;
use penstock_guest::driver::{DriverConfig, VirtioNet, VnetHdr};
use penstock_testing::{TempDir, temp_dir};

use crate::support::{self, Daemon, await_some, await_true};

/// Cycles per second that the worker may spend, enough for about ten thousand frames.
pub const CAPACITY: u64 = 15_000_000;
/// Cycles per second of a slow worker. With 4,000,000 cycles per second, a worker needs a third of
/// a second for the frames of a full ring. Because the worker is slow, the ring of a sender is
/// never empty, even on a busy machine.
pub const FEW: u64 = 4_000_000;
/// Ports with one guest each, in the order of their addresses. The guests at the first two ports
/// send.
pub const PORTS: [&str; 4] = ["vm1", "vm2", "sink", "up"];
pub const SINK: u8 = 2;
pub const UP: u8 = 3;
/// Size of a frame in bytes, without the virtio header.
const FRAME: usize = 1500;
const HEADER: usize = 12;
/// Number of frames that a guest sends in one turn.
const BURST: usize = 32;
/// Descriptors of a ring: enough for a guest that loses its core for a while.
const RING: u16 = 1024;

fn objects(scratch: &TempDir, capacity: u64) -> String {
    // The first lines belong to `[worker]`, the last table of the text from `configuration`.
    let mut text = format!(
        "capacity = {capacity}\nschedule = \"hbs\"\n\n[[tenant]]\nname = \"red\"\nvlans = [100]\n"
    );
    for name in PORTS {
        let socket = scratch.join(format!("{name}.sock"));
        let whose = if name == "up" { "link = \"1M\"\n" } else { "tenant = \"red\"\n" };
        text += &format!(
            "\n[[port]]\nname = \"{name}\"\nvhost-user.socket = {socket:?}\n\
             vlan = 100\nvhost-user.offloads = {{ csum = true, tso = false }}\n{whose}"
        );
    }
    for number in [SINK, UP] {
        let port = PORTS[usize::from(number)];
        text += &format!(
            "\n[[fdb]]\ntenant = \"red\"\nvlan = 100\nmac = \"52:54:00:00:07:0{number}\"\n\
             port = \"{port}\"\n"
        );
    }
    text
}

/// Instructions for the thread that runs the guests. The test changes the guests' orders while the
/// guests run.
#[derive(Debug, Default)]
pub struct Orders {
    stop: AtomicBool,
    /// Whether the second VM also sends, in the same way as the first VM.
    pub both: AtomicBool,
    /// Whether the VMs send to the uplink instead of the VM `sink`.
    pub up: AtomicBool,
    /// Whether the receivers leave arrived frames in their rings.
    pub deaf: AtomicBool,
    /// Whether the first VM returns pages of its buffers to the kernel again and again, as a
    /// memory balloon does. The switch gets a page fault for each page that it uses afterwards.
    pub balloons: AtomicBool,
}

/// Cycles, batches and full batches of a port so far.
#[derive(Debug)]
struct Sent {
    cycles: u64,
    batches: u64,
    full: u64,
}

/// Runs one test at a time, because guests and workers poll.
static ONE: Mutex<()> = Mutex::new(());

/// A switch with guests at all its ports. The guests run in their own thread.
pub struct Bed {
    pub daemon: Daemon,
    pub orders: Arc<Orders>,
    guests: Option<JoinHandle<()>>,
    _one: MutexGuard<'static, ()>,
}

impl Bed {
    pub fn start(capacity: u64, both: bool) -> Option<Self> {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = temp_dir();
        let text = support::configuration(&scratch, &objects(&scratch, capacity));
        // On a busy machine, a worker that sleeps wakes late and spends less than its capacity.
        let text = text.replace("idle_backoff_us = 1000", "idle_backoff_us = 0");
        fs::write(scratch.join("host.toml"), text).unwrap();
        let daemon = Daemon::start_in(scratch)?;
        let attach = |name: &str| {
            let socket = daemon.scratch.join(format!("{name}.sock"));
            let mut config = DriverConfig::new(socket);
            (config.ring_size, config.hugepages) = (RING, false);
            config.wait = penstock_testing::patience();
            VirtioNet::connect(config).unwrap()
        };
        let devices: Vec<VirtioNet> = PORTS.into_iter().map(attach).collect();
        let orders = Arc::new(Orders { both: both.into(), ..Orders::default() });
        let theirs = Arc::clone(&orders);
        let guests = std::thread::spawn(move || live(devices, &theirs));
        Some(Self { daemon, orders, guests: Some(guests), _one: one })
    }

    pub fn count(&self, port: &str, name: &str) -> u64 {
        let [count] = self.counts([port], name);
        count
    }

    /// Reads a counter of several ports in one request. The function sends only one request,
    /// because on a busy machine hundreds of frames may pass between two requests.
    pub fn counts<const N: usize>(&self, of: [&str; N], name: &str) -> [u64; N] {
        let stats = self.daemon.ask("stats --json").json();
        let ports = stats["ports"].as_array().unwrap();
        of.map(|port| {
            let of = ports.iter().find(|entry| entry["port"] == port).unwrap();
            of["counters"][name].as_u64().unwrap()
        })
    }

    /// Number of dropped frames of a port for each reason.
    pub fn dropped(&self, port: &str) -> BTreeMap<String, u64> {
        let stats = self.daemon.ask("stats --json").json();
        let ports = stats["ports"].as_array().unwrap();
        let of = ports.iter().find(|entry| entry["port"] == port).unwrap();
        let drops = of["drops"].as_object().unwrap().iter();
        let counts = drops.map(|(reason, count)| (reason.clone(), count.as_u64().unwrap()));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Changes a setting of the running daemon and does not save it to the file.
    pub fn set(&self, what: &str) {
        self.daemon.ask(&format!("port set {what} --no-save")).ok();
    }

    /// Measures which part of the cycles of both VMs the first VM spends after the call. The
    /// measurement counts only while the rings of both VMs contain frames, because the other VM
    /// gets the cycles of a VM without frames.
    pub fn part_of_vm1(&self) -> f64 {
        let read = || self.read_both();
        // Frames and tokens from before the change do not count for the new settings.
        let changed = read();
        let spent = |since: &[Sent; 2], now: &[Sent; 2]| {
            now[0].cycles - since[0].cycles + now[1].cycles - since[1].cycles
        };
        await_true("the guests' frames", || spent(&changed, &read()) >= CAPACITY / 10);
        let mut since = read();
        await_some("a while in which both had frames waiting", || {
            let now = read();
            let all = spent(&since, &now);
            if all < CAPACITY / 2 {
                return None;
            }
            let had_frames = since.iter().zip(&now).all(|(since, now)| {
                10 * (now.full - since.full) >= 9 * (now.batches - since.batches)
            });
            let first = now[0].cycles - since[0].cycles;
            since = now;
            #[expect(clippy::cast_precision_loss, reason = "some millions")]
            had_frames.then_some(first as f64 / all as f64)
        })
    }

    /// Cycles and batches of both VMs, from one request.
    fn read_both(&self) -> [Sent; 2] {
        let stats = self.daemon.ask("stats --json").json();
        let ports = stats["ports"].as_array().unwrap();
        ["vm1", "vm2"].map(|port| {
            let of = ports.iter().find(|entry| entry["port"] == port).unwrap();
            let count = |name: &str| of["counters"][name].as_u64().unwrap();
            Sent { cycles: count("cycles"), batches: count("rx_batches"), full: count("rx_full") }
        })
    }

    /// An answer of `penstock explain` covers the last seconds, so the function repeats the request
    /// until the answer is `limit`. Returns `None` if other work on the machine limits all ports.
    pub fn explained(&self, port: &str, limit: &str) -> Option<serde_json::Value> {
        let mut asked = 0;
        await_some(&format!("{port} to be held by {limit}"), || {
            let told = self.daemon.ask(&format!("explain {port} --over 2 --json"));
            let answer = told.status.success().then(|| told.json())?;
            if answer["limit"] == limit {
                return Some(Some(answer));
            }
            asked += 1;
            if asked % 100 == 0 {
                println!("{port} is held by {}: {}", answer["limit"], answer["why"]);
            }
            (asked > 100 && machine_is_busy()).then(|| {
                penstock_testing::skip(format_args!(
                    "other programs have the processors: {}",
                    answer["why"]
                ));
                None
            })
        })
    }
}

/// Whether the load average exceeds twice the number of processors.
fn machine_is_busy() -> bool {
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    load > 2.0 * f64::from(u32::try_from(cpus).unwrap())
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.orders.stop.store(true, Relaxed);
        let ended = self.guests.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || !matches!(ended, Some(Err(_))), "a guest panicked");
    }
}

/// Runs the guests until the test ends them.
fn live(mut devices: Vec<VirtioNet>, orders: &Orders) {
    let (mut page, mut turns) = (0, 0_u32);
    while !orders.stop.load(Relaxed) {
        let to = if orders.up.load(Relaxed) { UP } else { SINK };
        let senders = if orders.both.load(Relaxed) { 2 } else { 1 };
        let mut moved = 0;
        for (from, device) in (0_u8..).zip(devices.iter_mut().take(senders)) {
            moved += send(device, from, to);
        }
        if !orders.deaf.load(Relaxed) {
            for device in &mut devices {
                moved += device.rx().recv(2 * BURST, |_| ());
            }
        }
        turns = turns.wrapping_add(1);
        if orders.balloons.load(Relaxed) && turns.is_multiple_of(512) {
            give_back(&devices[0], &mut page);
        }
        if moved == 0 {
            std::thread::yield_now();
        }
    }
}

/// Returns page number `page` of the device's memory to the kernel, counted from the end. The
/// buffers are in the second half of the memory. Advances `page`.
fn give_back(device: &VirtioNet, page: &mut i64) {
    const PAGE: i64 = 4096;
    let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    for file in device.memory().files() {
        let pages = fstat(file).unwrap().st_size / PAGE;
        *page = (*page + 1) % (pages / 2);
        fallocate(file, how, (pages - 1 - *page) * PAGE, PAGE).unwrap();
    }
}

fn send(device: &mut VirtioNet, from: u8, to: u8) -> usize {
    let tx = device.tx();
    tx.reclaim(|_| ());
    let mut sent = 0;
    while sent < BURST
        && let Some(slot) = tx.take()
    {
        let frame = &mut tx.slot_mut(slot)[HEADER..HEADER + FRAME];
        frame[..6].copy_from_slice(&[0x52, 0x54, 0, 0, 7, to]);
        frame[6..12].copy_from_slice(&[0x52, 0x54, 0, 0, 7, from]);
        frame[12..14].copy_from_slice(&[0x88, 0xb6]);
        tx.push(slot, &VnetHdr::default(), FRAME).unwrap();
        sent += 1;
    }
    tx.publish();
    sent
}
