//! Sends UDP datagrams that the kernel hands to the NIC as large segments (UDP GSO).
//!
//! Programs such as QUIC servers send many datagrams with one system call. Common generators do not
//! (iperf3 3.12), so the lab has its own.
//!
//! Between two segments, a flood gives up its core, also if the time is below a millisecond. If
//! several floods on one core polled instead, each would have the core for some milliseconds, and
//! would then send at once all segments that were due while the others had it.
//!
//! Each segment leaves at a random time of its interval. With equal pauses, the segments of floods
//! with related rates would arrive in the same order again and again. A full ring would then lose
//! mostly the segments of one flood (Floyd and Jacobson, "On Traffic Phase Effects in
//! Packet-Switched Gateways", 1992).

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{setsockopt, sockopt};
use penstock_guest::bed::pin;
use penstock_guest::clock;
use penstock_units::Rng;

/// Payload bytes of a datagram. Its frame has 1,518 bytes, FCS included.
const PAYLOAD: u16 = 1_472;
/// Datagrams of a large segment.
const DATAGRAMS: u16 = 40;
/// Port to which the datagrams go (discard, RFC 863). No program needs to receive them.
pub(crate) const DISCARD: u16 = 9;
/// The flood ends by itself after this time.
const LONGEST: Duration = Duration::from_secs(60);

/// What a flood's thread and its owner tell each other.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Number of datagrams that the kernel has taken.
    sent: AtomicU64,
}

/// A flood of datagrams. It ends when the value is dropped.
#[derive(Debug)]
pub(crate) struct GsoFlood {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl GsoFlood {
    /// Starts a flood from a network namespace, on a core. `bps` counts the bits of the frames. The
    /// seed determines the times of the segments.
    pub fn start(
        netns: File,
        core: u32,
        to: Ipv4Addr,
        (bps, seed): (f64, u64),
    ) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let bits = 8.0 * f64::from(DATAGRAMS) * f64::from(PAYLOAD + 46);
        let interval = Duration::from_secs_f64(bits / bps);
        let flood = move || {
            setns(netns, CloneFlags::CLONE_NEWNET).context("entering a namespace")?;
            pin(core)?;
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("a flood's port")?;
            setsockopt(&socket, sockopt::UdpGsoSegment, &i32::from(PAYLOAD)).context("UDP GSO")?;
            let times = Times { begin: clock::now(), interval, rng: Rng::new(seed) };
            send(&socket, SocketAddrV4::new(to, DISCARD), times, &own)
        };
        Ok(Self { shared, thread: Some(std::thread::Builder::new().spawn(flood)?) })
    }

    /// Returns the number of datagrams that the flood has sent so far.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Relaxed)
    }

    /// Ends the flood.
    ///
    /// # Errors
    ///
    /// Returns an error if the flood could not be sent.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.shared.stop.store(true, Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        ended.unwrap_or(Ok(Ok(()))).unwrap_or_else(|_| Err(anyhow::anyhow!("a flood panicked")))
    }
}

impl Drop for GsoFlood {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Times of a flood's segments: a random time in each interval.
#[derive(Debug)]
struct Times {
    begin: Instant,
    interval: Duration,
    rng: Rng,
}

impl Times {
    fn next(&mut self) -> Instant {
        let time = self.begin + self.interval.mul_f64(self.rng.unit());
        self.begin += self.interval;
        time
    }
}

fn send(
    socket: &UdpSocket,
    to: SocketAddrV4,
    mut times: Times,
    shared: &Shared,
) -> anyhow::Result<()> {
    let datagrams = vec![0x5a; usize::from(PAYLOAD) * usize::from(DATAGRAMS)];
    let start = clock::now();
    while !shared.stop.load(Relaxed) && clock::now() < start + LONGEST {
        let wait = times.next().saturating_duration_since(clock::now());
        if !wait.is_zero() {
            clock::pause(wait);
        }
        match socket.send_to(&datagrams, to) {
            Ok(_) => {
                shared.sent.fetch_add(DATAGRAMS.into(), Relaxed);
            }
            // The NIC's queue is full, as in any flood.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(error) => return Err(error).context("sending large UDP segments"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_of_the_same_rate_keep_it_and_take_turns_in_no_fixed_order() {
        let (begin, interval) = (clock::now(), Duration::from_millis(4));
        let times = |seed| {
            let mut times = Times { begin, interval, rng: Rng::new(seed) };
            (0..1_000).map(|_| times.next()).collect::<Vec<Instant>>()
        };
        let (one, other) = (times(1), times(2));
        for (n, time) in (0_u32..).zip(&one) {
            let slot = begin + n * interval;
            assert!((slot..slot + interval).contains(time), "{n}");
        }
        let first = one.iter().zip(&other).filter(|(one, other)| one < other).count();
        assert!((400..600).contains(&first), "{first} of 1,000");
    }
}
