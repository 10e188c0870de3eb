//! Sets up three network namespaces in a row, `sender` - `switch` - `sink`, with UDP traffic.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{setsockopt, sockopt};
use penstock_testing::patience;

/// Name of the switch's only port, which leads to the sink.
pub const PORT: &str = "v0";
/// IPv4 and IPv6 address of the sink.
pub const SINK: [&str; 2] = ["10.2.0.1", "fd02::1"];
/// Size of the payload of each datagram, in bytes.
pub const PAYLOAD: usize = 1_400;

/// Network namespaces of one test. Dropping the [`Net`] removes the network namespaces.
pub struct Net {
    tag: String,
}

/// Returns true if the test runs as root. If the test does not run as root, records a skip.
pub fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        penstock_testing::skip("network namespaces need root");
    }
    root
}

/// Runs a command line, which must succeed, and returns its output.
pub fn sh(line: &str) -> String {
    let out = Command::new("sh").args(["-ec", line]).output().expect("sh runs");
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{line}: {errors}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

impl Net {
    /// Sets up the links, addresses, bridges and neighbours of the namespaces. The bridges flood no
    /// frames, so the switch sends only the test's frames to the sink.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let net = Self { tag: format!("pen{}-{number}", std::process::id()) };
        let [a, s, r] = ["sender", "switch", "sink"].map(|role| net.ns(role));
        sh(&format!(
            "ip netns add {a}; ip netns add {s}; ip netns add {r}
             ip netns exec {s} sh -c 'cd /proc/sys/net/ipv6/conf
                 echo 1 >all/disable_ipv6; echo 1 >default/disable_ipv6'
             ip -n {a} link add a0 address 02:00:00:00:00:01 type veth peer name s0 netns {s}
             ip -n {r} link add r0 address 02:00:00:00:00:02 type veth peer name v0 netns {s}
             ip -n {s} link add br0 type bridge mcast_snooping 0
             for port in s0 v0; do ip -n {s} link set dev $port master br0 up; done
             ip -n {s} link set dev v0 type bridge_slave \
                 learning off flood off mcast_flood off bcast_flood off
             bridge -n {s} fdb add 02:00:00:00:00:02 dev v0 master static
             ip -n {s} link set dev br0 up
             ip -n {a} link set dev a0 up; ip -n {r} link set dev r0 up
             ip -n {a} addr add 10.2.0.2/24 dev a0; ip -n {a} addr add fd02::2/64 dev a0 nodad
             ip -n {r} addr add 10.2.0.1/24 dev r0; ip -n {r} addr add fd02::1/64 dev r0 nodad
             for ip in 10.2.0.1 fd02::1; do
                 ip -n {a} neigh replace $ip dev a0 lladdr 02:00:00:00:00:02 nud permanent; done
             tc -n {a} qdisc add dev a0 root tbf rate 300mbit burst 20kb limit 4mb"
        ));
        net
    }

    /// Returns the name of the network namespace for `role`.
    pub fn ns(&self, role: &str) -> String {
        format!("{}-{role}", self.tag)
    }

    /// Returns the directory of the locks that all controllers of a machine share.
    pub fn locks(&self) -> PathBuf {
        std::env::temp_dir().join(&self.tag)
    }

    /// Runs `work` in a thread inside a network namespace.
    pub fn inside<T: Send + 'static>(
        &self,
        role: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let file = File::open(format!("/run/netns/{}", self.ns(role))).expect("namespace");
        thread::spawn(move || {
            setns(file, CloneFlags::CLONE_NEWNET).expect("root may enter a namespace");
            work()
        })
    }

    /// Starts to send datagrams to the sink. The sender continues until the caller stops it.
    pub fn send(&self, to: &str, port: u16, dscp: u8, window: Window) -> Flow {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let to = SocketAddr::new(to.parse().expect("address"), port);
        let shared = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = self.inside("sender", move || send(to, dscp, &window, &shared.0, &shared.1));
        Flow { stop, sent, thread: Some(thread) }
    }

    /// Listens on the UDP ports `ports` at both addresses of the sink.
    pub fn sink(&self, ports: &[u16]) -> Sink {
        let all: Vec<SocketAddr> = ports
            .iter()
            .flat_map(|port| SINK.map(|ip| SocketAddr::new(ip.parse().expect("address"), *port)))
            .collect();
        let bound = self.inside("sink", move || {
            let sockets = all.iter().map(|to| UdpSocket::bind(to).expect("free port"));
            let sockets: Vec<UdpSocket> = sockets.collect();
            for socket in &sockets {
                socket.set_nonblocking(true).expect("a socket");
                setsockopt(socket, sockopt::RcvBufForce, &(8 << 20)).expect("root may");
            }
            sockets
        });
        let sockets = bound.join().expect("bound");
        Sink { frames: vec![0; ports.len()], bytes: vec![0; ports.len()], sockets }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for role in ["sender", "switch", "sink"] {
            let _ = Command::new("ip").args(["netns", "del", &self.ns(role)]).status();
        }
        let _ = std::fs::remove_dir_all(self.locks());
    }
}

/// Rule that says whether a sender waits for the receiver.
#[derive(Clone)]
pub enum Window {
    /// The sender does not wait for the receiver.
    Open,
    /// Maximum number of datagrams in transit, and counter of received datagrams. If the maximum is
    /// in transit, the sender waits.
    Ahead(u64, Arc<AtomicU64>),
}

fn send(to: SocketAddr, dscp: u8, window: &Window, stop: &AtomicBool, sent: &AtomicU64) {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).expect("bound");
    let class = i32::from(dscp) << 2;
    if to.is_ipv4() {
        setsockopt(&socket, sockopt::Ipv4Tos, &class).expect("TOS");
    } else {
        setsockopt(&socket, sockopt::Ipv6TClass, &class).expect("traffic class");
    }
    socket.connect(to).expect("a route");
    while !stop.load(Ordering::Relaxed) {
        if let Window::Ahead(most, arrived) = window
            && sent.load(Ordering::Relaxed) >= arrived.load(Ordering::Relaxed) + most
        {
            thread::yield_now();
            continue;
        }
        // At the end of the test, ICMP may refuse the sink's port. A refusal is no error.
        if socket.send(&[0; PAYLOAD]).is_ok() {
            sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Running sender of datagrams. Dropping the [`Flow`] stops the sender of datagrams.
pub struct Flow {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flow {
    /// Stops the sender, and returns the number of datagrams that it has sent.
    pub fn stop(mut self) -> u64 {
        self.join();
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns the number of datagrams that the sender has sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn join(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.join();
    }
}

/// Counts received datagrams by UDP port.
pub struct Sink {
    /// Two sockets per UDP port, one for IPv4 and one for IPv6.
    sockets: Vec<UdpSocket>,
    /// Number of datagrams received on each UDP port.
    pub frames: Vec<u64>,
    /// Number of bytes received on each UDP port, including Ethernet headers.
    pub bytes: Vec<u64>,
}

impl Sink {
    /// Waits for datagrams and receives them. Returns false if no datagram arrived within the time
    /// `wait`.
    pub fn take(&mut self, wait: Duration) -> bool {
        let mut fds: Vec<PollFd<'_>> =
            self.sockets.iter().map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN)).collect();
        let wait = PollTimeout::try_from(wait).expect("some seconds");
        if poll(&mut fds, wait).expect("poll") == 0 {
            return false;
        }
        let mut buffer = [0; PAYLOAD + 1];
        for (n, socket) in self.sockets.iter().enumerate() {
            loop {
                match socket.recv(&mut buffer) {
                    Ok(long) => {
                        let headers = if n % 2 == 0 { 42 } else { 62 };
                        self.frames[n / 2] += 1;
                        self.bytes[n / 2] += u64::try_from(long + headers).expect("small");
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("sink: {error}"),
                }
            }
        }
        true
    }

    /// Receives until `more` further bytes have arrived on all UDP ports together. Returns the
    /// number of bytes received on each UDP port.
    pub fn take_bytes(&mut self, more: u64) -> Vec<u64> {
        let before = self.bytes.clone();
        let until = before.iter().sum::<u64>() + more;
        while self.bytes.iter().sum::<u64>() < until {
            assert!(self.take(patience()), "nothing arrives");
        }
        self.bytes.iter().zip(&before).map(|(after, before)| after - before).collect()
    }

    /// Receives datagrams in a thread. The thread ends when the requested number of datagrams has
    /// arrived, or no datagram has arrived for a second. The thread returns the number of received
    /// datagrams.
    pub fn count(mut self, arrived: Arc<AtomicU64>) -> (mpsc::Sender<u64>, JoinHandle<u64>) {
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut until = u64::MAX;
            loop {
                let came = self.take(Duration::from_secs(1));
                let all = self.frames.iter().sum();
                arrived.store(all, Ordering::Relaxed);
                until = told.try_recv().unwrap_or(until);
                if all >= until || (!came && until < u64::MAX) {
                    return all;
                }
            }
        });
        (tell, thread)
    }
}
