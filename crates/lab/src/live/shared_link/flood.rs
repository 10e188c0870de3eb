//! Datagrams that a network namespace sends as fast as its NIC takes them, or at a rate.
//!
//! iperf3 sends several flows from several sockets and spends most of its time on timers. With
//! short datagrams, iperf3 instead of the link would be the bottleneck.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{setsockopt, sockopt};
use penstock_guest::bed::pin;
use penstock_guest::clock;

/// A stream ends by itself after this time.
const LONGEST: Duration = Duration::from_secs(120);
/// Longest time for which a full NIC blocks a sender before the sender checks whether it must end.
const LOOK: Duration = Duration::from_millis(100);
/// Time for which a stream with a rate pauses if no datagram is due.
const TICK: Duration = Duration::from_millis(1);
/// Bytes of all send buffers of a stream. They have room for fewer datagrams than the queue of a
/// TAP device, so a full NIC blocks the sender and drops nothing.
const BUFFER: usize = 128 * 1024;
/// Seconds of a stream's rate that a blocked sender sends later. Older datagrams are never sent.
const LATE_SECS: f64 = 0.01;

/// Datagrams of one namespace.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    /// Payloads of the datagrams in bytes, in turn.
    pub payloads: Vec<usize>,
    /// Destinations of the datagrams, in turn.
    pub to: Vec<SocketAddrV4>,
    /// Number of flows to each destination. Flows differ in the source port.
    pub flows: u16,
    /// Source port of the first flow.
    pub first_port: u16,
    /// Datagrams per second. `None` for as many as the NIC takes.
    pub per_second: Option<f64>,
}

/// A thread that sends a [`Stream`]. The thread ends when the value is dropped.
#[derive(Debug)]
pub(super) struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Flood {
    /// Starts a stream from a network namespace, on a core.
    pub fn start(netns: File, core: u32, stream: Stream) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let flood = move || {
            setns(netns, CloneFlags::CLONE_NEWNET).context("entering a namespace")?;
            pin(core)?;
            send(&stream, &stopped)
        };
        Ok(Self { stop, thread: Some(std::thread::Builder::new().spawn(flood)?) })
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// Returns an error if a datagram could not be sent.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.stop.store(true, Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        ended.unwrap_or(Ok(Ok(()))).unwrap_or_else(|_| Err(anyhow::anyhow!("a flood panicked")))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn send(stream: &Stream, stop: &AtomicBool) -> anyhow::Result<()> {
    let sockets = sockets(stream)?;
    let bytes = vec![0x5a; stream.payloads.iter().copied().max().unwrap_or(0)];
    let start = clock::now();
    let mut pace = stream.per_second.map(|rate| Pace::new(rate, start));
    let flows: Vec<(&UdpSocket, SocketAddrV4)> =
        stream.to.iter().flat_map(|to| sockets.iter().map(move |from| (from, *to))).collect();
    let mut turns = flows.iter().cycle().zip(stream.payloads.iter().cycle());
    while !stop.load(Relaxed) && clock::now() < start + LONGEST {
        if let Some(pace) = &mut pace
            && !pace.is_due(clock::now())
        {
            clock::wait_readable(None, TICK);
            continue;
        }
        let Some(((from, to), payload)) = turns.next() else { break };
        match from.send_to(&bytes[..*payload], *to) {
            Ok(_) => {}
            // The NIC is full.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(error) => return Err(error).context("sending a datagram"),
        }
    }
    Ok(())
}

fn sockets(stream: &Stream) -> anyhow::Result<Vec<UdpSocket>> {
    let buffer = BUFFER / usize::from(stream.flows.max(1));
    let open = |flow: u16| -> anyhow::Result<UdpSocket> {
        let port = stream.first_port + flow;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).context("a flow's port")?;
        setsockopt(&socket, sockopt::SndBuf, &buffer).context("a flow's send buffer")?;
        socket.set_write_timeout(Some(LOOK)).context("a flow's timeout")?;
        Ok(socket)
    };
    (0..stream.flows).map(open).collect()
}

/// Opens UDP sockets in a network namespace. No program reads from the sockets. Without an open
/// socket, the kernel would answer datagrams with "port unreachable".
pub(super) fn deaf(netns: File, ports: Vec<u16>) -> anyhow::Result<Vec<UdpSocket>> {
    let open = move || -> anyhow::Result<Vec<UdpSocket>> {
        setns(netns, CloneFlags::CLONE_NEWNET).context("entering a namespace")?;
        let bind = |port: u16| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
        ports.into_iter().map(|port| bind(port).context("a receiver's port")).collect()
    };
    let opened = std::thread::Builder::new().spawn(open)?.join();
    opened.unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")))
}

/// Times of a stream's datagrams.
#[derive(Debug)]
struct Pace {
    per_second: f64,
    /// Number of datagrams that are due.
    credit: f64,
    last: Instant,
}

impl Pace {
    fn new(per_second: f64, now: Instant) -> Self {
        Self { per_second, credit: 0.0, last: now }
    }

    /// Whether a datagram is due. A datagram that is due counts as sent.
    fn is_due(&mut self, now: Instant) -> bool {
        let secs = now.saturating_duration_since(self.last).as_secs_f64();
        self.last = now;
        let most = (LATE_SECS * self.per_second).max(1.0);
        self.credit = (self.credit + secs * self.per_second).min(most);
        let due = self.credit >= 1.0;
        if due {
            self.credit -= 1.0;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_its_rate_and_a_pause_is_not_made_good() {
        let start = clock::now();
        let mut pace = Pace::new(1_000.0, start);
        let mut sent = |from: u64, to: u64| {
            let at = |micros| start + Duration::from_micros(micros);
            (from..to).step_by(100).filter(|micros| pace.is_due(at(*micros))).count()
        };
        assert!((99..=100).contains(&sent(100, 100_100)));
        // After a pause of a second, the datagrams of 10 ms are due in addition.
        assert!((19..=21).contains(&sent(1_100_100, 1_110_100)));
    }
}
