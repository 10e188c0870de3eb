//! TCP connections of all VMs, and the queues of the switches, read once per second.
//!
//! # Problem
//!
//! If a tenant with TCP has too little, its connections may lack demand, their windows may be too
//! small for the round trip, or the network may drop their frames. The byte counters of a sample do
//! not tell these causes apart.
//!
//! # Approach
//!
//! The kernel lists the TCP sockets of a network namespace with their windows, round trips and the
//! time for which each was limited (`sock_diag`, as `ss -tin` shows them). The lab asks the kernel
//! in each VM's namespace, and adds up the sockets of the servers, which send the data, by tenant
//! and by the rack of the client. `tc` shows the frames that wait in each queue of the Linux
//! bridges, and the frames that found no room.
//!
//! # Source
//!
//! `linux/inet_diag.h` and `linux/tcp.h` define the messages of `sock_diag`, see `sock_diag(7)`.
//!
//! # Cost
//!
//! A reading takes about 20 ms: a message for each VM, and a program for each port of a bridge. The
//! queues of a core switch that is a Penstock process are not read.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::Command;

use anyhow::{Context as _, bail};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    setsockopt, socket,
};
use nix::sys::time::TimeVal;
use serde_json::{Value, json};

use super::counters::enter;
use super::programs::PORT;
use crate::rig::stats::to_f64;
use penstock_guest::bed::process::ask;
use penstock_guest::clock;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST` and `NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;
/// `TCP_ESTABLISHED`
const ESTABLISHED: u32 = 1;
/// Attribute with the socket's `struct tcp_info`.
const INET_DIAG_INFO: u16 = 2;
/// Length of `struct nlmsghdr` in bytes.
const MESSAGE_HEADER: usize = 16;
/// Length of `struct inet_diag_req_v2` in bytes.
const REQUEST_LENGTH: usize = 56;
/// Length of `struct inet_diag_msg` in bytes.
const SOCKET_LENGTH: usize = 72;
/// Longest time in seconds until the kernel answers.
const ANSWER_SECS: i64 = 2;

/// A VM that is watched.
#[derive(Debug, Clone)]
pub(super) struct Watched {
    pub tenant: usize,
    pub rack: usize,
    pub netns: String,
    pub ip: Ipv4Addr,
}

/// Port of a Linux bridge, by the names of the topology, and its interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BridgePort {
    pub from: String,
    pub to: String,
    pub netns: String,
    pub interface: String,
}

/// Connections of a tenant that send to VMs in one rack. All fields are sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sending {
    pub connections: u64,
    /// Congestion windows.
    pub window_bytes: u64,
    /// Bytes without an acknowledgement.
    pub unacked_bytes: u64,
    /// Bytes that a program has written but TCP has not sent.
    pub unsent_bytes: u64,
    /// Smoothed round trips in microseconds.
    pub rtt_us: u64,
    /// Connections that had too little data to fill their window.
    pub short_of_data: u64,
    /// Connections that wait for an acknowledgement after a retransmission timeout.
    pub timed_out: u64,
    /// Segments that were sent again since the connections' begin.
    pub resent: u64,
    /// Time in microseconds, since the connections' begin, in which they had data to send.
    pub busy_us: u64,
    /// Part of the busy time in which the receiver's window was the limit.
    pub receiver_limited_us: u64,
    /// Part of the busy time in which the sender's buffer was the limit.
    pub buffer_limited_us: u64,
}

/// Frames of a queue of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct QueueFrames {
    /// Frames that wait.
    pub waiting: u64,
    /// Frames that found no room, since the queue exists.
    pub dropped: u64,
}

/// Connections and queues at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Moment {
    /// Time of the reading in milliseconds since 1970.
    pub at_ms: u64,
    /// For each tenant: the connections that send to its VMs in each rack.
    pub sending: Vec<Vec<Sending>>,
    /// Queues of each port, by the names of the nodes from and to which the port sends.
    pub queues: BTreeMap<(String, String), BTreeMap<u64, QueueFrames>>,
}

/// Sockets with which the lab asks the kernel, and the ports of the Linux bridges.
#[derive(Debug)]
pub(super) struct Transport {
    vms: Vec<(Watched, OwnedFd)>,
    ports: Vec<BridgePort>,
    tenants: usize,
    racks: usize,
}

impl Transport {
    /// Opens a socket in the namespace of each VM.
    pub fn open(
        (tenants, racks): (usize, usize),
        vms: Vec<Watched>,
        ports: Vec<BridgePort>,
    ) -> anyhow::Result<Self> {
        // A new thread opens the sockets, because the thread enters namespaces and never leaves
        // them.
        let open = move || -> anyhow::Result<Self> {
            let one = |vm: Watched| -> anyhow::Result<(Watched, OwnedFd)> {
                enter(&vm.netns)?;
                let socket = diag_socket()?;
                Ok((vm, socket))
            };
            let vms = vms.into_iter().map(one).collect::<anyhow::Result<Vec<_>>>()?;
            Ok(Self { vms, ports, tenants, racks })
        };
        let thread = std::thread::Builder::new().name("transport".to_owned()).spawn(open);
        let opened = thread.context("starting a thread")?.join();
        opened.map_err(|_| anyhow::anyhow!("the thread that opens sockets panicked"))?
    }

    /// Reads all connections and queues.
    pub fn read(&self) -> anyhow::Result<Moment> {
        let at_ms = clock::since_1970().0 / 1_000_000;
        let racks: BTreeMap<Ipv4Addr, usize> =
            self.vms.iter().map(|(vm, _)| (vm.ip, vm.rack)).collect();
        let mut sending = vec![vec![Sending::default(); self.racks]; self.tenants];
        for (vm, socket) in &self.vms {
            let add = |port: u16, peer: Ipv4Addr, info: &[u8]| {
                if port == PORT
                    && let Some(rack) = racks.get(&peer)
                {
                    sending[vm.tenant][*rack].add(info);
                }
            };
            list(socket, add).with_context(|| format!("TCP sockets of {}", vm.netns))?;
        }
        let mut queues = BTreeMap::new();
        for BridgePort { from, to, netns, interface } in &self.ports {
            let mut command = Command::new("tc");
            command.args(["-n", netns, "-s", "class", "show", "dev", interface]);
            queues.insert((from.clone(), to.clone()), frames(&ask(&mut command)?));
        }
        Ok(Moment { at_ms, sending, queues })
    }
}

fn diag_socket() -> anyhow::Result<OwnedFd> {
    let (family, flags) = (AddressFamily::Netlink, SockFlag::SOCK_CLOEXEC);
    let fd = socket(family, SockType::Raw, flags, SockProtocol::NetlinkSockDiag)
        .context("opening a socket for sock_diag")?;
    setsockopt(&fd, ReceiveTimeout, &TimeVal::new(ANSWER_SECS, 0))?;
    connect(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    Ok(fd)
}

/// Returns the request for all connected TCP sockets over IPv4.
fn request() -> Vec<u8> {
    let length = MESSAGE_HEADER + REQUEST_LENGTH;
    let mut bytes = u32::try_from(length).unwrap_or(0).to_ne_bytes().to_vec();
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(DUMP.to_ne_bytes());
    // The sequence number and the sender's number.
    bytes.extend([0; 8]);
    bytes.extend([AF_INET, IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0]);
    bytes.extend((1_u32 << ESTABLISHED).to_ne_bytes());
    bytes.resize(length, 0);
    bytes
}

/// Calls `found` with the local port, the peer and the `struct tcp_info` of each connected TCP
/// socket in the namespace of `socket`.
fn list(socket: &OwnedFd, mut found: impl FnMut(u16, Ipv4Addr, &[u8])) -> anyhow::Result<()> {
    let fd = socket.as_raw_fd();
    send(fd, &request(), MsgFlags::empty()).context("asking the kernel")?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = recv(fd, &mut buffer, MsgFlags::empty()).context("the kernel's answer")?;
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            let (kind, body, behind) = message(rest).context("an incomplete message")?;
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => bail!("the kernel refuses to list TCP sockets"),
                _ => {
                    if let Some((port, peer, info)) = connection(body) {
                        found(port, peer, info);
                    }
                }
            }
            rest = behind;
        }
    }
}

/// Returns the type and the body of the first message in `bytes`, and the bytes behind it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(MESSAGE_HEADER..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Returns the local port, the peer and the `struct tcp_info` of a socket.
fn connection(body: &[u8]) -> Option<(u16, Ipv4Addr, &[u8])> {
    let port = u16::from_be_bytes(*body.get(4..)?.first_chunk()?);
    let peer: [u8; 4] = *body.get(24..)?.first_chunk()?;
    let mut rest = body.get(SOCKET_LENGTH..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..length)?;
        if kind == INET_DIAG_INFO {
            return Some((port, peer.into(), value));
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

impl Sending {
    /// Adds a connection with its `struct tcp_info`. A structure of an earlier kernel that lacks
    /// fields is left out.
    fn add(&mut self, info: &[u8]) {
        if let Some(one) = Self::read(info) {
            self.join(&one);
        }
    }

    fn read(info: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?)));
        let long = |at: usize| Some(u64::from_ne_bytes(*info.get(at..)?.first_chunk()?));
        let segment = word(16)?;
        Some(Self {
            connections: 1,
            window_bytes: word(80)? * segment,
            unacked_bytes: word(24)? * segment,
            unsent_bytes: word(144)?,
            rtt_us: word(68)?,
            short_of_data: u64::from(info.get(7)? & 1),
            timed_out: u64::from(*info.get(2)? > 0),
            resent: word(100)?,
            busy_us: long(168)?,
            receiver_limited_us: long(176)?,
            buffer_limited_us: long(184)?,
        })
    }

    fn join(&mut self, other: &Self) {
        self.connections += other.connections;
        self.window_bytes += other.window_bytes;
        self.unacked_bytes += other.unacked_bytes;
        self.unsent_bytes += other.unsent_bytes;
        self.rtt_us += other.rtt_us;
        self.short_of_data += other.short_of_data;
        self.timed_out += other.timed_out;
        self.resent += other.resent;
        self.busy_us += other.busy_us;
        self.receiver_limited_us += other.receiver_limited_us;
        self.buffer_limited_us += other.buffer_limited_us;
    }

    /// Describes the connections at the end of a time of `millis` milliseconds that began with the
    /// connections `before`. Times are parts of the time of all connections.
    fn told(&self, before: &Self, millis: u64) -> Value {
        let all_us = to_f64((1_000 * millis * self.connections).max(1));
        let part = |now: u64, old: u64| to_f64(now.saturating_sub(old)) / all_us;
        let mean_rtt = to_f64(self.rtt_us) / to_f64(self.connections.max(1)) / 1e3;
        json!({
            "connections": self.connections,
            "window_bytes": [before.window_bytes, self.window_bytes],
            "unacked_bytes": [before.unacked_bytes, self.unacked_bytes],
            "unsent_bytes": self.unsent_bytes,
            "rtt_ms_mean": mean_rtt,
            "short_of_data": self.short_of_data,
            "timed_out": self.timed_out,
            "resent": self.resent.saturating_sub(before.resent),
            "busy": part(self.busy_us, before.busy_us),
            "receiver_limited": part(self.receiver_limited_us, before.receiver_limited_us),
            "buffer_limited": part(self.buffer_limited_us, before.buffer_limited_us),
        })
    }
}

/// Returns the frames of each queue in the text of `tc -s class show`.
fn frames(text: &str) -> BTreeMap<u64, QueueFrames> {
    let (mut queue, mut all) = (None, BTreeMap::<u64, QueueFrames>::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words.as_slice(), queue) {
            (["class", "htb", class, ..], _) => {
                let minor = class.strip_prefix("9e50:");
                let minor = minor.and_then(|minor| u64::from_str_radix(minor, 16).ok());
                queue = minor.and_then(|minor| minor.checked_sub(0x10));
            }
            (["Sent", _, "bytes", _, "pkt", "(dropped", dropped, ..], Some(queue)) => {
                let dropped = dropped.trim_end_matches(',').parse().unwrap_or(0);
                all.entry(queue).or_default().dropped = dropped;
            }
            (["backlog", _, frames, ..], Some(queue)) => {
                let waiting = frames.trim_end_matches('p').parse().unwrap_or(0);
                all.entry(queue).or_default().waiting = waiting;
            }
            _ => {}
        }
    }
    all
}

/// Describes the connections of a tenant and its queues between two moments, for the traffic
/// towards a rack and for the traffic back. `queue` returns the number of the tenant's queue at the
/// port from a node to another node.
pub(super) fn told(
    [before, after]: [&Moment; 2],
    (tenant, rack): (usize, usize),
    queue: impl Fn(&str, &str) -> u64,
) -> Value {
    let millis = after.at_ms.saturating_sub(before.at_ms);
    let sum = |moment: &Moment, towards: bool| {
        let mut sum = Sending::default();
        let all = moment.sending.get(tenant).into_iter().flatten().enumerate();
        all.filter(|(to, _)| (*to == rack) == towards).for_each(|(_, of)| sum.join(of));
        sum
    };
    let tcp = |towards| sum(after, towards).told(&sum(before, towards), millis);
    let receiver = format!("rack-{rack}");
    let mut queues = Vec::new();
    for ((from, to), now) in &after.queues {
        let number = queue(from, to);
        let old = before.queues.get(&(from.clone(), to.clone()));
        let of = |all: Option<&BTreeMap<u64, QueueFrames>>| {
            all.and_then(|all| all.get(&number)).copied().unwrap_or_default()
        };
        let (old, now) = (of(old), of(Some(now)));
        queues.push(json!({
            "port": format!("{from} to {to}"),
            "carries": if *to == receiver || *from != receiver && !to.starts_with("rack-") {
                "data"
            } else {
                "acknowledgements"
            },
            "queue": number,
            "waiting": [old.waiting, now.waiting],
            "dropped": now.dropped.saturating_sub(old.dropped),
        }));
    }
    json!({ "tcp": tcp(true), "tcp_back": tcp(false), "queues": queues })
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns the `struct tcp_info` of a connection with a window of 10 segments of 1,000 bytes.
    fn info(rtt_us: u32, busy_us: u64) -> Vec<u8> {
        let mut info = vec![0; 240];
        let mut put = |at: usize, value: u32| {
            info[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        };
        put(16, 1_000);
        put(24, 7);
        put(68, rtt_us);
        put(80, 10);
        put(100, 3);
        put(144, 500);
        (info[2], info[7]) = (1, 0b101);
        for (at, value) in [(168, busy_us), (176, 20_000), (184, 10_000)] {
            info[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        info
    }

    #[test]
    fn connections_are_added_up() {
        let mut sum = Sending::default();
        sum.add(&info(100_000, 600_000));
        sum.add(&info(300_000, 400_000));
        sum.add(&info(1, 1)[..190]);
        let wanted = Sending {
            connections: 2,
            window_bytes: 20_000,
            unacked_bytes: 14_000,
            unsent_bytes: 1_000,
            rtt_us: 400_000,
            short_of_data: 2,
            timed_out: 2,
            resent: 6,
            busy_us: 1_000_000,
            receiver_limited_us: 40_000,
            buffer_limited_us: 20_000,
        };
        assert_eq!(sum, wanted, "the incomplete one is left out");
        let before = Sending { busy_us: 200_000, resent: 5, ..wanted };
        let told = sum.told(&before, 1_000);
        assert_eq!((&told["busy"], &told["resent"]), (&json!(0.4), &json!(1)));
        assert_eq!((&told["rtt_ms_mean"], &told["receiver_limited"]), (&json!(200.0), &json!(0.0)));
    }

    /// The kernel of this machine lists a connection on loopback.
    #[test]
    fn a_connection_is_found() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, peer) = listener.accept().unwrap();
        let port = server.local_addr().unwrap().port();
        let mut found = Vec::new();
        let add = |of: u16, ip: Ipv4Addr, info: &[u8]| {
            if of == port {
                found.push((ip, Sending::read(info)));
            }
        };
        list(&diag_socket().unwrap(), add).unwrap();
        assert_eq!(found.len(), 1, "{peer}");
        assert_eq!(found[0].0, Ipv4Addr::LOCALHOST);
        let read = found[0].1.unwrap();
        assert!(read.window_bytes > 1_000 && read.rtt_us < 1_000_000, "{read:?}");
    }

    #[test]
    fn damaged_messages_are_no_connections() {
        let mut body = vec![0; SOCKET_LENGTH];
        body[4..6].copy_from_slice(&5_001_u16.to_be_bytes());
        body[24..28].copy_from_slice(&[10, 1, 0, 2]);
        for (kind, length) in [(7_u16, 4_usize + 3), (INET_DIAG_INFO, 4 + 8)] {
            body.extend(u16::try_from(length).unwrap().to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.resize(body.len() + (length - 4).next_multiple_of(4), 9);
        }
        let wanted = (5_001, Ipv4Addr::new(10, 1, 0, 2), &[9_u8; 8][..]);
        assert_eq!(connection(&body), Some(wanted));
        assert!((0..body.len()).all(|short| connection(&body[..short]).is_none()));
        assert_eq!(message(&[20, 0, 0]), None);
        let mut whole = 20_u32.to_ne_bytes().to_vec();
        whole.extend(NLMSG_DONE.to_ne_bytes());
        whole.resize(21, 1);
        assert_eq!(message(&whole[..19]), None);
        assert_eq!(message(&whole), Some((NLMSG_DONE, &whole[16..20], &whole[20..])));
    }

    /// What iproute2 6.1 prints.
    const LINES: [&str; 10] = [
        "class htb 9e50:1 root rate 50Mbit ceil 50Mbit burst 1600b cburst 1600b",
        " Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0)",
        " backlog 0b 12p requeues 0",
        "class htb 9e50:11 parent 9e50:1 leaf 9e71: prio 0 rate 5Mbit ceil 50Mbit burst 1600b",
        " Sent 25489066 bytes 16895 pkt (dropped 578, overlimits 0 requeues 0)",
        " backlog 194Kb 449p requeues 0",
        " lended: 16895 borrowed: 0 giants: 0",
        "class htb 9e71:2 root leaf 9e61: prio 0 rate 400Gbit ceil 400Gbit burst 50000000b",
        " Sent 25489066 bytes 16895 pkt (dropped 9, overlimits 0 requeues 0)",
        " backlog 679786b 9p requeues 0",
    ];

    #[test]
    fn queues_have_their_waiting_and_dropped_frames() {
        assert_eq!(
            frames(&LINES.join("\n")),
            [(1, QueueFrames { waiting: 449, dropped: 578 })].into()
        );
    }

    /// Two moments, one second apart, of a tenant t8 that sends in both directions.
    pub fn moments(at_ms: u64) -> [Moment; 2] {
        let of = |at_ms: u64, waiting: u64, dropped: u64| {
            let one = |window_bytes, rtt_us| Sending {
                connections: 2,
                window_bytes,
                rtt_us,
                busy_us: 2_000 * at_ms,
                ..Sending::default()
            };
            let mut sending = vec![vec![Sending::default(); 2]; 8];
            sending[7] = vec![one(90_000, 1_000_000), one(30_000, 1_000_000)];
            let frames = QueueFrames { waiting, dropped };
            let ports = [("core-0", "rack-1"), ("rack-1", "core-0"), ("rack-0", "core-0")];
            let port = |(from, to): (&str, &str)| {
                ((from.to_owned(), to.to_owned()), BTreeMap::from([(0, frames)]))
            };
            Moment { at_ms, sending, queues: ports.map(port).into() }
        };
        [of(at_ms, 3, 100), of(at_ms + 1_000, 400, 130)]
    }

    #[test]
    fn both_directions_and_the_queues_of_a_tenant_are_told() {
        let [before, after] = moments(5_000);
        let told = told([&before, &after], (7, 1), |_, _| 0);
        assert_eq!(told["tcp"]["window_bytes"], json!([30_000, 30_000]));
        assert_eq!(told["tcp_back"]["window_bytes"][1], 90_000);
        let tcp = &told["tcp"];
        assert_eq!((&tcp["busy"], &tcp["rtt_ms_mean"]), (&json!(1.0), &json!(500.0)));
        let queue = |at: usize| {
            let queue = &told["queues"][at];
            (queue["port"].as_str().unwrap(), queue["carries"].as_str().unwrap())
        };
        assert_eq!(queue(0), ("core-0 to rack-1", "data"));
        assert_eq!(queue(1), ("rack-0 to core-0", "data"));
        assert_eq!(queue(2), ("rack-1 to core-0", "acknowledgements"));
        assert_eq!(told["queues"][0]["waiting"], json!([3, 400]));
        assert_eq!(told["queues"][0]["dropped"], 30);
    }
}
