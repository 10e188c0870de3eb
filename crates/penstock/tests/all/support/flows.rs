//! Namespaces at the ports of a switch, and flows with code points between them.

use std::fs::File;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{setsockopt, sockopt};

use crate::support::{Daemon, await_true};

/// Size of the payload of a UDP datagram, in bytes.
const DATAGRAM: usize = 1_000;

/// A network namespace. The namespace exists while its process runs.
pub struct Namespace(Child);

impl Namespace {
    pub fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sleep", "600"]).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Waits until the process has its own network namespace, and then connects the port to this
    /// namespace by a link.
    pub fn join(&self, daemon: &Daemon, port: &str, address: &str) {
        let own = || std::fs::read_link(format!("/proc/{}/ns/net", self.0.id())).ok();
        let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
        await_true("a network namespace", || own().is_some_and(|own| own != ours));
        let pid = self.0.id();
        daemon
            .inside(&format!(
                "ip link add {port} type veth peer name eth0 netns {pid} && ip link set {port} up"
            ))
            .ok();
        let script = format!("ip addr add {address}/24 dev eth0 && ip link set eth0 up");
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={pid}")).args(["--net", "--", "sh", "-c", &script]);
        assert!(command.status().unwrap().success());
    }

    /// Opens a socket in the namespace.
    pub fn socket(&self, port: u16) -> UdpSocket {
        let namespace = File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap();
        let open = move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            UdpSocket::bind(("0.0.0.0", port)).unwrap()
        };
        std::thread::spawn(open).join().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two flows from one namespace to another. Each flow sends more than its share of the link.
pub struct Flows {
    stop: Arc<AtomicBool>,
    /// Number of bytes that arrived at the receivers, for each of the two flows.
    pub arrived: Arc<[AtomicU64; 2]>,
    threads: Vec<JoinHandle<()>>,
}

impl Flows {
    /// Starts two flows, each to a UDP port of `to` and with a code point.
    pub fn start(from: &Namespace, to: &Namespace, flows: [(u16, u8); 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let arrived: Arc<[AtomicU64; 2]> = Arc::default();
        let mut threads = Vec::new();
        for (flow, (port, dscp)) in flows.into_iter().enumerate() {
            let (sender, receiver) = (from.socket(0), to.socket(port));
            setsockopt(&sender, sockopt::Ipv4Tos, &i32::from(dscp << 2)).unwrap();
            receiver.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let stopped = Arc::clone(&stop);
            threads.push(std::thread::spawn(move || send(&sender, port, &stopped)));
            let (stopped, arrived) = (Arc::clone(&stop), Arc::clone(&arrived));
            threads.push(std::thread::spawn(move || {
                let mut buffer = [0; 2 * DATAGRAM];
                while !stopped.load(Relaxed) {
                    if let Ok(bytes) = receiver.recv(&mut buffer) {
                        arrived[flow].fetch_add(bytes as u64, Relaxed);
                    }
                }
            }));
        }
        Self { stop, arrived, threads }
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Sends datagrams at about 200 Mbit/s until `stop` is true.
fn send(socket: &UdpSocket, port: u16, stop: &AtomicBool) {
    let datagram = [0x5a; DATAGRAM];
    while !stop.load(Relaxed) {
        for _ in 0..25 {
            let _ = socket.send_to(&datagram, ("10.9.0.2", port));
        }
        #[expect(clippy::disallowed_methods, reason = "a rate is of time")]
        std::thread::sleep(Duration::from_millis(1));
    }
}
