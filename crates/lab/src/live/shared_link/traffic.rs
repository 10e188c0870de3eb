//! Traffic of four tenants that share a link, and what arrives at the far end of the link.
//!
//! # Approach
//!
//! Two tenants send TCP with one and with 32 flows, from programs whose kernel makes large segments
//! (TSO). Two tenants send 64-byte frames with one and with 32 flows, twice as many as are due. The
//! same traffic crosses a Penstock switch or a queueing discipline of the kernel ([`Road`]).
//!
//! What arrives is counted by the receiving kernel: payload bytes of each TCP connection (`ss`),
//! and datagrams that a full socket buffer dropped (`/proc/net/udp`). No program reads the
//! datagrams, so nearly all of them are dropped there, and the counting costs no processor time.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use anyhow::Context as _;
use penstock_units::Rng;

use super::flood::{Flood, Stream, deaf};
use penstock_guest::bed::Bed;
use penstock_guest::bed::process::await_some;

/// Weights of the tenants.
pub(super) const WEIGHTS: [u32; TENANTS] = [3, 1, 1, 7];
pub(super) const TENANTS: usize = 4;
/// Rate of the shared link in bits per second, preamble and gap included. A single core carries all
/// senders, endpoints and receivers. At 40 Mbit/s, 64-byte frames of namespaces took all of it.
pub(super) const LINK: u32 = 20_000_000;
/// Rate of a flood over the rate that is due to its tenant. A flood without a rate takes the time
/// of the core from the TCP programs, whose tenants then want less than is due to them.
const DEMAND: f64 = 2.0;
/// Port of the first tenant's TCP server. The next tenants have the next ports.
const SERVER: u16 = 5_300;
/// UDP port to which the first tenant's datagrams go.
const DATAGRAMS: u16 = 5_400;
/// Payload of a datagram in a 64-byte frame.
const SMALL: usize = 18;
/// Bytes of a 64-byte frame on the wire, with preamble and gap.
const SMALL_WIRE: f64 = 84.0;
/// Payload bytes of a full TCP segment with time stamps, and bytes of its frame on the wire.
const SEGMENT: (f64, f64) = (1_448.0, 1_538.0);
/// Maximum time until a server listens, and until a TCP program sends.
const START_LIMIT: Duration = Duration::from_secs(20);
/// A TCP program sends when its server received this many bytes. The control connection of iperf3
/// has fewer.
const STARTED: f64 = 65_536.0;
/// CUBIC (RFC 9438) is Linux's default, even if the machine has another default.
const CONGESTION: &str = "cubic";

/// Traffic of a tenant, with its number of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tcp(u16),
    Flood(u16),
}

/// Returns the tenants' kinds of traffic. In the four turns, each tenant has each kind once.
pub(super) fn kinds(turn: usize) -> [Kind; TENANTS] {
    let mut kinds = [Kind::Tcp(1), Kind::Flood(1), Kind::Tcp(32), Kind::Flood(32)];
    kinds.rotate_right(turn % TENANTS);
    kinds
}

/// A way from the tenants' network namespaces over the shared link to one network namespace.
pub(super) trait Road {
    /// Opens the network namespace from which a tenant sends.
    fn source(&self, tenant: usize) -> anyhow::Result<File>;
    /// Opens the network namespace at the far end of the link.
    fn target(&self) -> anyhow::Result<File>;
    /// Returns the address to which a tenant sends.
    fn address(&self, tenant: usize) -> Ipv4Addr;
    /// Starts a program in the tenant's namespace, and returns the program's number.
    fn send(&mut self, tenant: usize, program: &str, words: &[&str]) -> anyhow::Result<usize>;
    /// Starts a server at the far end of the link.
    fn serve(&mut self, program: &str, words: &[&str]) -> anyhow::Result<()>;
    /// Runs a program at the far end of the link, and returns its output.
    fn ask(&self, program: &str, words: &[&str]) -> anyhow::Result<String>;
    /// Waits until a program ends, and returns its output.
    fn await_program(&mut self, program: usize, limit: Duration) -> anyhow::Result<String>;
}

/// Frames that arrived at the far end of the link, and their bytes on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Arrived {
    pub frames: f64,
    pub wire_bytes: f64,
}

/// Running traffic of all tenants. The floods end when the value is dropped, and the TCP programs
/// when the road is dropped.
#[derive(Debug)]
pub(super) struct Traffic {
    kinds: [Kind; TENANTS],
    floods: Vec<Flood>,
    _deaf: Vec<UdpSocket>,
}

impl Traffic {
    /// Starts the traffic. The TCP programs end by themselves after `secs` seconds. The seed
    /// determines the order in which the floods start, and their source ports. The floods start
    /// when all TCP programs send, because a single queue that is full would refuse connections.
    /// For the same reason, TCP with few flows starts before TCP with many flows.
    pub fn start(
        bed: &Bed,
        road: &mut dyn Road,
        kinds: [Kind; TENANTS],
        (secs, seed): (f64, u64),
    ) -> anyhow::Result<Self> {
        let mut rng = Rng::new(seed);
        let ports = (DATAGRAMS..).take(TENANTS).collect();
        let deaf = deaf(road.target()?, ports)?;
        let order = shuffled(TENANTS, &mut rng);
        let mut streams: Vec<(u16, usize)> = Vec::new();
        for &tenant in &order {
            if let Kind::Tcp(flows) = kinds[tenant] {
                streams.push((flows, tenant));
            }
        }
        streams.sort_unstable();
        for (flows, tenant) in streams {
            tcp(road, tenant, flows, secs)?;
        }
        let mut floods = Vec::new();
        for &tenant in &order {
            let Kind::Flood(flows) = kinds[tenant] else { continue };
            let number = u16::try_from(tenant)?;
            let stream = Stream {
                payloads: vec![SMALL],
                to: vec![SocketAddrV4::new(road.address(tenant), DATAGRAMS + number)],
                flows,
                first_port: 20_000 + 5_000 * number + u16::try_from(rng.below(4_000))?,
                per_second: Some(flood_rate(tenant)),
            };
            floods.push(Flood::start(road.source(tenant)?, bed.generator_core(), stream)?);
        }
        Ok(Self { kinds, floods, _deaf: deaf })
    }

    /// Ends the floods.
    ///
    /// # Errors
    /// Returns an error if a flood could not be sent.
    pub fn end(self) -> anyhow::Result<()> {
        self.floods.into_iter().try_for_each(Flood::end)
    }

    /// Returns what has arrived from each tenant so far.
    pub fn arrived(&self, road: &dyn Road) -> anyhow::Result<[Arrived; TENANTS]> {
        let sockets = road.ask("cat", &["/proc/net/udp"])?;
        let mut all = [Arrived::default(); TENANTS];
        for ((tenant, kind), arrived) in (0_u16..).zip(self.kinds).zip(&mut all) {
            *arrived = match kind {
                Kind::Tcp(_) => {
                    let frames = tcp_bytes(road, tenant)? / SEGMENT.0;
                    Arrived { frames, wire_bytes: frames * SEGMENT.1 }
                }
                Kind::Flood(_) => {
                    let frames = dropped_datagrams(&sockets, DATAGRAMS + tenant)
                        .with_context(|| format!("no socket of tenant {tenant}"))?;
                    Arrived { frames, wire_bytes: frames * SMALL_WIRE }
                }
            };
        }
        Ok(all)
    }
}

/// Returns the frames per second of a tenant's flood.
fn flood_rate(tenant: usize) -> f64 {
    let part = f64::from(WEIGHTS[tenant]) / f64::from(WEIGHTS.iter().sum::<u32>());
    DEMAND * part * f64::from(LINK) / (8.0 * SMALL_WIRE)
}

fn tcp(road: &mut dyn Road, tenant: usize, flows: u16, secs: f64) -> anyhow::Result<()> {
    let number = SERVER + u16::try_from(tenant)?;
    let port = number.to_string();
    road.serve("iperf3", &["-s", "-p", &port])?;
    await_listener(&*road, &port)?;
    let (to, flows) = (road.address(tenant).to_string(), flows.to_string());
    let secs = format!("{:.0}", secs.ceil());
    let words = ["-c", &to, "-p", &port, "-t", &secs, "-P", &flows, "-C", CONGESTION];
    road.send(tenant, "iperf3", &words)?;
    await_some(&format!("TCP stream of tenant {tenant}"), START_LIMIT, || {
        Ok((tcp_bytes(&*road, number - SERVER)? > STARTED).then_some(()))
    })
}

/// Waits until a server listens. For iperf3, a connection that only tests the server is a client,
/// and iperf3 refuses a second client until it has seen the end of the first. That end may wait in
/// a queue of the link.
fn await_listener(road: &dyn Road, port: &str) -> anyhow::Result<()> {
    await_some(&format!("server at port {port}"), START_LIMIT, || {
        let told = road.ask("ss", &["-tlnH", "sport", "=", &format!(":{port}")])?;
        Ok((!told.trim().is_empty()).then_some(()))
    })
}

/// Returns the payload bytes that a tenant's server has received.
fn tcp_bytes(road: &dyn Road, tenant: u16) -> anyhow::Result<f64> {
    let port = format!(":{}", SERVER + tenant);
    let words = ["-tinH", "state", "established", "sport", "=", &port];
    Ok(received_bytes(&road.ask("ss", &words)?))
}

/// Returns the numbers from 0 to `count` - 1 in random order.
pub(super) fn shuffled(count: usize, rng: &mut Rng) -> Vec<usize> {
    let mut left: Vec<usize> = (0..count).collect();
    let mut order = Vec::with_capacity(count);
    while !left.is_empty() {
        let at = usize::try_from(rng.below(left.len() as u64)).unwrap_or(0);
        order.push(left.swap_remove(at));
    }
    order
}

/// Returns the sum of the bytes that the connections in the output of `ss -ti` received.
fn received_bytes(told: &str) -> f64 {
    let words = told.split_whitespace();
    let bytes = words.filter_map(|word| word.strip_prefix("bytes_received:")?.parse::<f64>().ok());
    bytes.sum()
}

/// Returns the number of datagrams that the socket of `port` dropped, from the text of
/// `/proc/net/udp`. Returns `None` if the text has no such socket.
fn dropped_datagrams(told: &str, port: u16) -> Option<f64> {
    let end = format!(":{port:04X}");
    told.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_it = words.nth(1)?.ends_with(&end);
        is_it.then(|| words.last()?.parse::<f64>().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_each_kind_once() {
        for tenant in 0..TENANTS {
            let of: Vec<Kind> = (0..TENANTS).map(|turn| kinds(turn)[tenant]).collect();
            let all = kinds(0);
            assert!(all.iter().all(|kind| of.contains(kind)), "{of:?}");
        }
    }

    #[test]
    fn a_flood_wants_twice_what_is_due() {
        let due = f64::from(LINK) * 7.0 / 12.0 / 672.0;
        assert!((flood_rate(3) / due - 2.0).abs() < 1e-9);
    }

    #[test]
    fn an_order_has_every_number_once_and_depends_on_the_seed() {
        let orders: Vec<Vec<usize>> =
            (1..=9).map(|seed| shuffled(8, &mut Rng::new(seed))).collect();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..8).collect::<Vec<_>>());
        }
        assert!(orders.iter().any(|order| *order != orders[0]));
    }

    #[test]
    fn the_receiving_kernel_is_understood() {
        let told = "0 0 [::ffff:10.0.5.1]:5300 [::ffff:10.0.1.1]:60914\n\t cubic rto:204 \
                    bytes_received:131109 segs_in:8\n0 0 [::ffff:10.0.5.1]:5300 \
                    [::ffff:10.0.1.1]:60906\n\t cubic bytes_sent:4 bytes_acked:4 \
                    bytes_received:184 segs_out:6\n";
        assert!((received_bytes(told) - 131_293.0).abs() < 1e-9);
        assert!(received_bytes("").abs() < 1e-9);
        let told = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt  \
                    uid  timeout inode ref pointer drops\n\
                    1405: 00000000:1518 00000000:0000 07 00000000:00034200 00:00000000 00000000 \
                    0 0 21234 2 0000000012345678 77123\n";
        assert_eq!(dropped_datagrams(told, 0x1518), Some(77_123.0));
        assert_eq!(dropped_datagrams(told, 0x1519), None);
    }
}
