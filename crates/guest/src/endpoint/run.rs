//! Runs the endpoint's loop, which moves the frames of all NICs.

use std::io::Write as _;
use std::time::Instant;

use anyhow::Context as _;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::counters::EndpointReport;
use super::netns::OwnNetns;
use super::nic::Nic;
use super::spec::EndpointSpec;
use crate::clock;

pub type EndpointError = anyhow::Error;

/// Time between two checks of sockets and timers, in nanoseconds.
const WATCH_NS: u64 = 10_000_000;
/// Longest sleep of the endpoint's loop, in nanoseconds. The longest sleep bounds the delay that a
/// lost epoll event causes.
const LONGEST_SLEEP_NS: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Signal,
    Socket,
    Call,
    Tap { nic: usize, queue: usize },
}

impl Source {
    fn token(self) -> u64 {
        match self {
            Self::Signal => 0,
            Self::Socket => 1,
            Self::Call => 2,
            Self::Tap { nic, queue } => 3 | (nic as u64) << 8 | (queue as u64) << 40,
        }
    }

    fn from_token(token: u64) -> Self {
        let part = |shift: u32, mask: u64| usize::try_from(token >> shift & mask).unwrap_or(0);
        match token & 0xff {
            0 => Self::Signal,
            1 => Self::Socket,
            2 => Self::Call,
            _ => Self::Tap { nic: part(8, 0xffff_ffff), queue: part(40, 0xff_ffff) },
        }
    }
}

impl EndpointSpec {
    /// Serves the NICs until SIGTERM or SIGINT. Prints `ready` when every NIC has been attached to
    /// its switch once. Passes the counters to `each` at the configured interval and at the end.
    ///
    /// # Errors
    /// Returns an error if a TAP, a namespace or a socket is not available. A switch that does not
    /// run yet is not an error.
    pub fn run(&self, mut each: impl FnMut(&EndpointReport)) -> Result<(), EndpointError> {
        // The signals are blocked before the first thread starts, so that no other thread receives
        // them.
        let mask = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
        mask.thread_block().context("blocking signals")?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .context("making a signal descriptor")?;
        if let Some(core) = self.core {
            let mut cpus = CpuSet::new();
            cpus.set(core)
                .and_then(|()| sched_setaffinity(Pid::from_raw(0), &cpus))
                .with_context(|| format!("pinning to core {core}"))?;
        }
        let mut own = Vec::new();
        if self.create_netns {
            for netns in self.nics.iter().filter_map(|nic| nic.netns.as_deref()) {
                own.extend(OwnNetns::create(netns)?);
            }
        }
        let nics = self.nics.iter().map(Nic::new).collect::<anyhow::Result<Vec<_>>>()?;
        let mut server = Server::new(self, nics, signals)?;
        server.serve(&mut each)
        // `server` is dropped before `own`, so NICs are removed before their namespaces.
    }
}

struct Server<'a> {
    spec: &'a EndpointSpec,
    nics: Vec<Nic>,
    signals: SignalFd,
    epoll: Epoll,
    start: Instant,
    sleeps: u64,
    ready: bool,
    stop: bool,
}

impl<'a> Server<'a> {
    fn new(spec: &'a EndpointSpec, nics: Vec<Nic>, signals: SignalFd) -> anyhow::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("making an epoll")?;
        let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        let add = |fd: std::os::fd::BorrowedFd<'_>, flags, source: Source| {
            epoll.add(fd, EpollEvent::new(flags, source.token())).context("adding to epoll")
        };
        use std::os::fd::AsFd;
        add(signals.as_fd(), EpollFlags::EPOLLIN, Source::Signal)?;
        let mut nics = nics;
        for (i, nic) in nics.iter_mut().enumerate() {
            for (queue, tap) in nic.taps.iter().enumerate() {
                add(tap.as_fd(), edge, Source::Tap { nic: i, queue })?;
            }
            for pair in nic.device.pairs_mut() {
                add(pair.rx.call_fd().as_fd(), edge, Source::Call)?;
                add(pair.tx.call_fd().as_fd(), edge, Source::Call)?;
            }
        }
        let start = clock::now();
        Ok(Self { spec, nics, signals, epoll, start, sleeps: 0, ready: false, stop: false })
    }

    fn now_ns(&self) -> u64 {
        clock::nanos(clock::now().duration_since(self.start))
    }

    fn serve(&mut self, each: &mut impl FnMut(&EndpointReport)) -> anyhow::Result<()> {
        let interval = self.spec.stats_interval_secs.map(secs_ns);
        let mut next_report = interval;
        let mut next_watch = 0;
        let mut last_moved = 0;
        while !self.stop {
            let now = self.now_ns();
            if now >= next_watch {
                next_watch = now + WATCH_NS;
                self.watch(now)?;
            }
            if let (Some(at), Some(step)) = (next_report, interval)
                && now >= at
            {
                next_report = Some(at + step);
                each(&self.report());
            }
            if self.nics.iter_mut().map(|nic| nic.turn(now)).sum::<usize>() > 0 {
                last_moved = now;
                self.look(0)?;
            } else if now - last_moved < self.spec.spin_us * 1000 {
                self.look(0)?;
            } else {
                self.sleep(now, next_report)?;
                // After a wake-up, the loop spins for a while.
                last_moved = self.now_ns();
                next_watch = next_watch.min(last_moved + WATCH_NS);
            }
        }
        each(&self.report());
        Ok(())
    }

    /// Attaches detached NICs to their switches, and detects switches that have disconnected.
    fn watch(&mut self, now: u64) -> anyhow::Result<()> {
        use std::os::fd::AsFd;
        for nic in &mut self.nics {
            nic.check_gone(now);
            if nic.try_attach(now)?
                && let Some(socket) = nic.device.socket()
            {
                // Closing the old socket removed it from epoll.
                let flags = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
                self.epoll
                    .add(socket.as_fd(), EpollEvent::new(flags, Source::Socket.token()))
                    .context("adding a vhost-user socket to epoll")?;
            }
        }
        if !self.ready && self.nics.iter().all(Nic::ever_attached) {
            self.ready = true;
            println!("ready");
            std::io::stdout().flush().context("saying `ready`")?;
        }
        Ok(())
    }

    /// Arms all interrupts and checks the rings again. If the rings are empty, this function waits
    /// for the first event.
    fn sleep(&mut self, now: u64, next_report: Option<u64>) -> anyhow::Result<()> {
        let armed = self.nics.iter_mut().all(Nic::arm);
        if armed {
            let tries = self.nics.iter().filter_map(Nic::next_try_ns);
            let due = tries.chain(next_report).min().unwrap_or(u64::MAX);
            let left = due.saturating_sub(now).min(LONGEST_SLEEP_NS);
            // A sleep has whole milliseconds, and a delayed frame must not leave late.
            let frame = self.nics.iter().filter_map(Nic::next_frame_ns).min();
            let frame = frame.map_or(u64::MAX, |at| at.saturating_sub(now) / 1_000_000);
            self.sleeps += 1;
            self.look(left.div_ceil(1_000_000).min(frame))?;
        }
        self.nics.iter_mut().for_each(Nic::disarm);
        Ok(())
    }

    /// Waits up to `millis` milliseconds for events, and handles the events.
    fn look(&mut self, millis: u64) -> anyhow::Result<()> {
        let mut events = [EpollEvent::empty(); 64];
        let timeout = EpollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX));
        let count = match self.epoll.wait(&mut events, timeout) {
            Ok(count) => count,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(error) => return Err(error).context("waiting for events"),
        };
        for event in &events[..count] {
            match Source::from_token(event.data()) {
                Source::Signal => {
                    while let Ok(Some(_)) = self.signals.read_signal() {
                        self.stop = true;
                    }
                }
                Source::Socket => {
                    let now = self.now_ns();
                    for nic in &mut self.nics {
                        nic.check_gone(now);
                    }
                }
                // The event needs no read, because the loop polls all rings anyway.
                Source::Call => {}
                Source::Tap { nic, queue } => self.nics[nic].readable[queue] = true,
            }
        }
        Ok(())
    }

    fn report(&mut self) -> EndpointReport {
        EndpointReport {
            at_secs: self.start.elapsed().as_secs_f64(),
            sleeps: self.sleeps,
            nics: self.nics.iter_mut().map(Nic::report).collect(),
        }
    }
}

fn secs_ns(secs: f64) -> u64 {
    clock::nanos(std::time::Duration::try_from_secs_f64(secs).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip() {
        let tap = Source::Tap { nic: 70_000, queue: 300 };
        for source in [Source::Signal, Source::Socket, Source::Call, tap] {
            assert_eq!(Source::from_token(source.token()), source);
        }
    }
}
