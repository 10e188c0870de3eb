//! Sends UDP datagrams that the kernel hands to the NIC as large segments (UDP GSO).
//!
//! Programs such as QUIC servers send many datagrams with one system call. Common generators do not
//! (iperf3 3.12), so the lab has its own.
//!
//! Between two segments, a flood gives up its core, also if the time is below a millisecond. If
//! several floods on one core polled instead, each would have the core for some milliseconds, and
//! would then send at once all segments that were due while the others had it.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{setsockopt, sockopt};
use penstock_guest::bed::pin;
use penstock_guest::clock;

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
    /// Starts a flood from a network namespace, on a core. `bps` counts the bits of the frames.
    pub fn start(netns: File, core: u32, to: Ipv4Addr, bps: f64) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let bits = 8.0 * f64::from(DATAGRAMS) * f64::from(PAYLOAD + 46);
        let interval = Duration::from_secs_f64(bits / bps);
        let flood = move || {
            setns(netns, CloneFlags::CLONE_NEWNET).context("entering a namespace")?;
            pin(core)?;
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("a flood's port")?;
            setsockopt(&socket, sockopt::UdpGsoSegment, &i32::from(PAYLOAD)).context("UDP GSO")?;
            send(&socket, SocketAddrV4::new(to, DISCARD), interval, &own)
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

fn send(
    socket: &UdpSocket,
    to: SocketAddrV4,
    interval: Duration,
    shared: &Shared,
) -> anyhow::Result<()> {
    let datagrams = vec![0x5a; usize::from(PAYLOAD) * usize::from(DATAGRAMS)];
    let start = clock::now();
    let mut next = start;
    while !shared.stop.load(Relaxed) && clock::now() < start + LONGEST {
        match socket.send_to(&datagrams, to) {
            Ok(_) => {
                shared.sent.fetch_add(DATAGRAMS.into(), Relaxed);
            }
            // The NIC's queue is full, as in any flood.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(error) => return Err(error).context("sending large UDP segments"),
        }
        next += interval;
        let wait = next.saturating_duration_since(clock::now());
        if !wait.is_zero() {
            clock::pause(wait);
        }
    }
    Ok(())
}
