//! The programs in the tenants' VMs, which are TCP clients and servers of all VMs in one thread.
//!
//! # Problem
//!
//! With one process for each connection, a hundred VMs would need thousands of processes. An
//! experiment with thousands of processes would measure the scheduling of the processes.
//!
//! # Approach
//!
//! One thread opens each socket in its VM's network namespace, and serves all sockets with one
//! epoll. A client requests a number of bytes from one of its servers, over a new connection. The
//! client counts the bytes that arrive. The kernel's TCP sends and acknowledges the bytes. If a
//! connection is refused or breaks, the run fails, because the network must not lose connections.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::sockopt::TcpCongestion;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, connect, setsockopt, socket,
};
use penstock_sim::Rng;
use penstock_sim::fabric::SizeTable;

use penstock_guest::clock;

/// TCP port of the servers, and UDP port of the datagrams.
pub(super) const PORT: u16 = 5_001;
/// Largest number of bytes in one read or write.
const CHUNK: usize = 64 * 1024;
/// Length of a client's request in bytes.
const REQUEST: usize = 8;
/// Payload of a datagram in bytes.
const DATAGRAM: usize = 1_400;
/// Congestion control of all connections, even if the machine has another default. CUBIC (RFC 9438)
/// is Linux's default. BBR, for example, would mistake a policer's rate for the path's capacity for
/// a long time.
const CONGESTION: &str = "cubic";
/// Maximum interval at which the thread sends datagrams that are due, starts clients that are due,
/// and checks whether it must end.
const TICK: Duration = Duration::from_millis(2);
/// Number of bytes that a client requests from a server if the flow must not end.
const ENDLESS: u64 = u64::MAX;

#[derive(Debug, Clone)]
pub(super) struct Place {
    pub netns: String,
    pub ip: Ipv4Addr,
}

#[derive(Debug, Clone)]
pub(super) enum Wants {
    /// The client requests an endless flow from one server.
    All,
    /// The client requests flows with sizes from the table, each from a random server. After each
    /// flow, the client pauses with a probability of one half. A pause between two flows is at most
    /// as long as the given duration.
    Flows(Arc<SizeTable>, Duration),
    /// The client requests flows with sizes from the table, without pauses. The client uses each
    /// server once per round, in a random order.
    Rounds(Arc<SizeTable>),
    /// The client sends datagrams at the given rate in bits per second. Datagrams for which the
    /// VM's queue has no room are lost.
    Datagrams(f64),
}

#[derive(Debug, Clone)]
pub(super) struct Client {
    pub vm: usize,
    /// Indices of the VMs from which the client requests flows.
    pub servers: Vec<usize>,
    pub wants: Wants,
    /// Time at which the client begins, counted from the start of the programs.
    pub from: Duration,
}

/// A TCP flow that has ended, with its size and its start time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    /// Index of the flow's client, and the number of the flow among all flows of the client, from
    /// 0. With the same seed, a client's flows have the same servers and sizes in each run.
    pub number: (usize, u64),
    pub bytes: u64,
    /// Time at which the flow's connection was opened, counted from the start of the programs.
    pub began: Duration,
    pub took: Duration,
}

/// The thread that runs the clients and servers of all VMs. Dropping `Programs` ends the thread.
#[derive(Debug)]
pub(super) struct Programs {
    stop: Arc<AtomicBool>,
    ended: Arc<Mutex<Vec<Ended>>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
    began: Instant,
}

impl Programs {
    /// Starts the thread that runs the TCP clients and servers of all VMs. The clients' start times
    /// count from the call of this function.
    pub fn start(places: Vec<Place>, clients: Vec<Client>, seed: u64) -> anyhow::Result<Self> {
        let (stop, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::default()));
        let (theirs, kept) = (Arc::clone(&stop), Arc::clone(&ended));
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("programs".to_owned()).spawn(move || {
            let mut all = All::new(places, clients, seed, kept)?;
            let _ = tell.send(());
            all.run(&theirs)
        });
        let thread = Some(thread.context("starting a thread")?);
        let mut programs = Self { stop, ended, thread, began: clock::now() };
        if told.recv().is_err() {
            programs.finish()?;
        }
        programs.began = clock::now();
        Ok(programs)
    }

    /// Returns the start of the programs, from which all their times count.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Returns the time since the start of the programs.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns the time from the start of the programs until `at`, or zero if `at` is earlier.
    pub fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.began)
    }

    /// Returns an error with the reason if the programs have stopped.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            return self.finish();
        }
        Ok(())
    }

    /// Returns the flows that ended since the last call.
    pub fn take_ended(&self) -> Vec<Ended> {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.stop.store(true, Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().map_err(|_| anyhow::anyhow!("the programs' thread panicked"))?
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

/// Entry of the clients' schedule: the time at which a client opens its next connection.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Instant,
    client: usize,
}

#[derive(Debug)]
enum Peer {
    Listener(TcpListener),
    /// A server's connection: the TCP stream, and the number of bytes still to send. The number of
    /// bytes is `None` until the client's request has arrived.
    Server(TcpStream, Option<u64>),
    /// A client's connection: the client's index and the flow's number, the requested bytes, the
    /// missing bytes, and the time at which the connection was opened.
    Client {
        stream: TcpStream,
        number: (usize, u64),
        asked: u64,
        left: u64,
        since: Instant,
        sent: bool,
    },
}

/// What a client draws at random. Each client has random numbers of its own, so a client's flows do
/// not depend on the times at which other clients' flows end.
#[derive(Debug)]
struct Draws {
    rng: Rng,
    /// Servers that are left in the client's round ([`Wants::Rounds`]).
    round: Vec<usize>,
    /// Number of flows that the client has requested.
    flows: u64,
}

impl Draws {
    /// Returns the next flow of `client`: the flow's number, its server and its size in bytes.
    fn next(&mut self, client: &Client) -> anyhow::Result<(u64, usize, u64)> {
        let number = self.flows;
        self.flows += 1;
        if let Wants::Rounds(_) = client.wants {
            if self.round.is_empty() {
                self.round.clone_from(&client.servers);
            }
            let left = self.round.len();
            let nth = usize::try_from(self.rng.below(u64::try_from(left)?))?;
            let server = self.round.swap_remove(nth);
            return Ok((number, server, self.size(client)));
        }
        let servers = u64::try_from(client.servers.len())?;
        let server = client.servers[usize::try_from(self.rng.below(servers))?];
        Ok((number, server, self.size(client)))
    }

    fn size(&mut self, client: &Client) -> u64 {
        match &client.wants {
            Wants::Flows(sizes, _) | Wants::Rounds(sizes) => sizes.draw(&mut self.rng),
            Wants::All | Wants::Datagrams(_) => ENDLESS,
        }
    }

    /// Returns the client's pause before its next flow. `None` if the client requests no more
    /// flows.
    fn pause(&mut self, client: &Client) -> Option<Duration> {
        match &client.wants {
            Wants::Flows(_, most) if self.rng.chance_ppm(500_000) => {
                Some(most.mul_f64(self.rng.unit()))
            }
            Wants::Flows(..) | Wants::Rounds(_) => Some(Duration::ZERO),
            Wants::All | Wants::Datagrams(_) => None,
        }
    }
}

#[derive(Debug)]
struct Flood {
    socket: UdpSocket,
    to: SocketAddrV4,
    bps: f64,
    from: Duration,
    sent: f64,
}

#[derive(Debug)]
struct All {
    places: Vec<Place>,
    namespaces: Vec<File>,
    clients: Vec<Client>,
    /// The draws of each client.
    draws: Vec<Draws>,
    epoll: Epoll,
    peers: BTreeMap<u64, Peer>,
    next: u64,
    due: BinaryHeap<Reverse<Due>>,
    floods: Vec<Flood>,
    /// One UDP socket in each VM, which receives datagrams but from which no program reads. Without
    /// an open socket, the kernel would answer each datagram with "port unreachable".
    _deaf: Vec<UdpSocket>,
    ended: Arc<Mutex<Vec<Ended>>>,
    began: Instant,
    buffer: Vec<u8>,
}

impl All {
    fn new(
        places: Vec<Place>,
        clients: Vec<Client>,
        seed: u64,
        ended: Arc<Mutex<Vec<Ended>>>,
    ) -> anyhow::Result<Self> {
        let open = |place: &Place| {
            let path = penstock_guest::endpoint::netns_path(&place.netns);
            File::open(&path).with_context(|| format!("opening {}", path.display()))
        };
        let namespaces = places.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
        let seed = Rng::new(seed);
        let draws = |client: u64| Draws { rng: seed.fork(client), round: Vec::new(), flows: 0 };
        let draws = (0..).take(clients.len()).map(draws).collect();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("making an epoll")?;
        let mut all = Self {
            places,
            namespaces,
            clients,
            draws,
            epoll,
            peers: BTreeMap::new(),
            next: 0,
            due: BinaryHeap::new(),
            floods: Vec::new(),
            _deaf: Vec::new(),
            ended,
            began: clock::now(),
            buffer: vec![0; CHUNK],
        };
        for vm in 0..all.places.len() {
            all.enter(vm)?;
            let address = (Ipv4Addr::UNSPECIFIED, PORT);
            let listener = TcpListener::bind(address).context("a server's port")?;
            listener.set_nonblocking(true)?;
            setsockopt(&listener, TcpCongestion, &OsString::from(CONGESTION))
                .context("choosing CUBIC")?;
            all._deaf.push(UdpSocket::bind(address).context("a server's port")?);
            all.add(Peer::Listener(listener), EpollFlags::EPOLLIN)?;
        }
        all.began = clock::now();
        for client in 0..all.clients.len() {
            all.begin(client)?;
        }
        Ok(all)
    }

    fn begin(&mut self, client: usize) -> anyhow::Result<()> {
        let Client { vm, from, ref wants, ref servers } = self.clients[client];
        if let Wants::Datagrams(bps) = *wants {
            let to = SocketAddrV4::new(self.places[servers[0]].ip, PORT);
            self.enter(vm)?;
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("a client's port")?;
            socket.set_nonblocking(true)?;
            self.floods.push(Flood { socket, to, bps, from, sent: 0.0 });
        } else {
            self.due.push(Reverse(Due { at: self.began + from, client }));
        }
        Ok(())
    }

    /// Moves the thread to the network namespace of `vm`, so that it can open sockets in the
    /// namespace.
    fn enter(&self, vm: usize) -> anyhow::Result<()> {
        setns(&self.namespaces[vm], CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("entering {}", self.places[vm].netns))
    }

    fn add(&mut self, peer: Peer, wants: EpollFlags) -> anyhow::Result<()> {
        let id = self.next;
        self.next += 1;
        let event = EpollEvent::new(wants, id);
        match &peer {
            Peer::Listener(listener) => self.epoll.add(listener, event),
            Peer::Server(stream, _) | Peer::Client { stream, .. } => self.epoll.add(stream, event),
        }
        .context("epoll")?;
        self.peers.insert(id, peer);
        Ok(())
    }

    fn run(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut events = vec![EpollEvent::empty(); 256];
        while !stop.load(Relaxed) {
            self.ask_who_is_due()?;
            self.flood()?;
            let timeout = EpollTimeout::try_from(TICK).unwrap_or(EpollTimeout::ZERO);
            let ready = match self.epoll.wait(&mut events, timeout) {
                Err(Errno::EINTR) => 0,
                other => other.context("epoll")?,
            };
            for event in &events[..ready] {
                self.serve(event.data())?;
            }
        }
        Ok(())
    }

    fn ask_who_is_due(&mut self) -> anyhow::Result<()> {
        let now = clock::now();
        while let Some(Reverse(first)) = self.due.peek() {
            if first.at > now {
                break;
            }
            let client = first.client;
            self.due.pop();
            self.ask(client)?;
        }
        Ok(())
    }

    /// Opens the next connection of `client`, to one of its servers at random.
    fn ask(&mut self, client: usize) -> anyhow::Result<()> {
        let of = &self.clients[client];
        let (number, server, asked) = self.draws[client].next(of)?;
        self.enter(of.vm)?;
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd: OwnedFd = socket(AddressFamily::Inet, SockType::Stream, flags, None)
            .context("a client's socket")?;
        setsockopt(&fd, TcpCongestion, &OsString::from(CONGESTION)).context("choosing CUBIC")?;
        let to = SockaddrIn::from(SocketAddrV4::new(self.places[server].ip, PORT));
        match connect(fd.as_raw_fd(), &to) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(error) => return Err(error).context("connecting to a server"),
        }
        let (stream, since) = (TcpStream::from(fd), clock::now());
        let number = (client, number);
        let peer = Peer::Client { stream, number, asked, left: asked, since, sent: false };
        // The socket becomes writable when the connection is established.
        self.add(peer, EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT)
    }

    fn serve(&mut self, id: u64) -> anyhow::Result<()> {
        let Some(mut peer) = self.peers.remove(&id) else { return Ok(()) };
        let stays = match &mut peer {
            Peer::Listener(listener) => {
                while let Some((stream, _)) = would_block(listener.accept())? {
                    stream.set_nonblocking(true)?;
                    self.add(Peer::Server(stream, None), EpollFlags::EPOLLIN)?;
                }
                true
            }
            Peer::Server(stream, left) => self.send(id, stream, left)?,
            Peer::Client { .. } => self.receive(id, &mut peer)?,
        };
        if stays {
            self.peers.insert(id, peer);
        }
        Ok(())
    }

    /// Reads a client's request from a server's socket, and sends the requested bytes. Returns
    /// `false` if the connection has ended.
    fn send(
        &self,
        id: u64,
        stream: &mut TcpStream,
        left: &mut Option<u64>,
    ) -> anyhow::Result<bool> {
        let Some(left) = left else {
            let mut request = [0; REQUEST];
            // The whole request fits in the first segment.
            match would_block(stream.read(&mut request))? {
                None => return Ok(true),
                Some(0) => return Ok(false),
                Some(read) => anyhow::ensure!(read == REQUEST, "a request of {read} bytes"),
            }
            *left = Some(u64::from_le_bytes(request));
            let mut event = EpollEvent::new(EpollFlags::EPOLLOUT, id);
            self.epoll.modify(&*stream, &mut event).context("epoll")?;
            return Ok(true);
        };
        while *left > 0 {
            let most = usize::try_from(*left).unwrap_or(usize::MAX).min(CHUNK);
            match would_block(stream.write(&self.buffer[..most])) {
                Ok(None) => return Ok(true),
                Ok(Some(written)) if *left != ENDLESS => *left -= u64::try_from(written)?,
                Ok(Some(_)) => {}
                // The client has closed this connection.
                Err(_) => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Sends a client's request to a server, and counts the received bytes. Returns `false` if the
    /// client's flow has ended.
    fn receive(&mut self, id: u64, peer: &mut Peer) -> anyhow::Result<bool> {
        let Peer::Client { stream, number, asked, left, since, sent } = peer else {
            return Ok(true);
        };
        if !*sent {
            if let Some(error) = stream.take_error()? {
                return Err(error).context("connecting to a server");
            }
            match would_block(stream.write(&asked.to_le_bytes()))? {
                None => return Ok(true),
                Some(written) => anyhow::ensure!(written == REQUEST, "a request was cut"),
            }
            *sent = true;
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN, id);
            self.epoll.modify(&*stream, &mut event).context("epoll")?;
            return Ok(true);
        }
        while let Some(read) = would_block(stream.read(&mut self.buffer))? {
            if *asked != ENDLESS {
                *left = left.saturating_sub(u64::try_from(read)?);
            }
            anyhow::ensure!(read > 0 || *left == 0, "a connection broke");
            if *left == 0 {
                let began = since.saturating_duration_since(self.began);
                let number = *number;
                let ended = Ended { number, bytes: *asked, began, took: since.elapsed() };
                self.ended.lock().unwrap_or_else(PoisonError::into_inner).push(ended);
                self.rest(number.0);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Schedules the next flow of `client`, after the client's pause.
    fn rest(&mut self, client: usize) {
        let pause = self.draws[client].pause(&self.clients[client]);
        if let Some(pause) = pause {
            self.due.push(Reverse(Due { at: clock::now() + pause, client }));
        }
    }

    fn flood(&mut self) -> anyhow::Result<()> {
        let elapsed = self.began.elapsed();
        for flood in &mut self.floods {
            let since = elapsed.saturating_sub(flood.from).as_secs_f64();
            let bits = 8.0 * f64::from(u32::try_from(DATAGRAM)?);
            while flood.sent + bits <= since * flood.bps {
                flood.sent += bits;
                match flood.socket.send_to(&self.buffer[..DATAGRAM], flood.to) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        // The VM's queue is full. The remaining datagrams are dropped, not sent
                        // later.
                        flood.sent = since * flood.bps;
                    }
                    Err(error) => return Err(error).context("sending a datagram"),
                }
            }
        }
        Ok(())
    }
}

fn would_block<T>(done: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(wants: Wants) -> Client {
        Client { vm: 0, servers: vec![3, 5, 8], wants, from: Duration::ZERO }
    }

    fn draws(seed: u64) -> Draws {
        Draws { rng: Rng::new(seed), round: Vec::new(), flows: 0 }
    }

    #[test]
    fn a_round_has_each_server_once_and_no_pauses() {
        let sizes = Arc::new(SizeTable::fixed(1_000));
        let (of, mut draws) = (client(Wants::Rounds(sizes)), draws(1));
        for round in 0..20_u64 {
            let mut servers = Vec::new();
            for nth in 0..3 {
                let (number, server, size) = draws.next(&of).unwrap();
                assert_eq!((number, size), (3 * round + nth, 1_000));
                servers.push(server);
            }
            servers.sort_unstable();
            assert_eq!(servers, [3, 5, 8]);
            assert_eq!(draws.pause(&of), Some(Duration::ZERO));
        }
    }

    #[test]
    fn half_of_the_pauses_are_zero_and_an_endless_flow_has_none() {
        let sizes = Arc::new(SizeTable::fixed(1_000));
        let (of, mut draws) = (client(Wants::Flows(sizes, Duration::from_secs(1))), draws(2));
        let pauses: Vec<_> = (0..1_000).map(|_| draws.pause(&of).unwrap()).collect();
        let zero = pauses.iter().filter(|pause| pause.is_zero()).count();
        assert!((400..600).contains(&zero), "{zero}");
        assert!(pauses.iter().all(|pause| *pause <= Duration::from_secs(1)));
        assert_eq!(draws.pause(&client(Wants::All)), None);
        assert_eq!(draws.next(&client(Wants::All)).unwrap().2, ENDLESS);
    }
}
