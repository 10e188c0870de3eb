//! The interface below an AF_XDP port: what it must be like, and whether it is up.
//!
//! **Problem.** Frames put into the tx ring of an interface that is down wait there and are sent
//! late; the worker may make no system call to ask. **Rule.** A thread listens to the kernel's
//! news of interfaces (rtnetlink) and keeps two words that the worker reads: whether frames can
//! pass, and how long they may be. What the interface does for an ordinary stack and an XDP
//! program cannot see (tags taken out of frames, frames merged into large ones) is switched off
//! while the port is there, and put back as it was.
#![allow(unsafe_code, reason = "ethtool's ioctls, the promiscuous mode")]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

use super::super::vnet_socket::Interface;
use crate::confine::{Role, confine};

/// Bytes in front of an MTU: Ethernet and a VLAN tag.
pub(super) const OVERHEAD: u32 = 14 + 4;
/// `RTMGRP_LINK`.
const LINKS: u32 = 1;

const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const ETH_FLAG_LRO: u32 = 1 << 15;

/// What the worker is told of the interface.
#[derive(Debug, Default)]
pub(super) struct LinkState {
    up: AtomicBool,
    gone: AtomicBool,
    frame_max: AtomicU32,
}

impl LinkState {
    /// Whether frames can pass.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Whether the interface was deleted: nothing brings its queues back.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// The longest frame that may be sent, in bytes.
    #[inline]
    pub(super) fn frame_max(&self) -> u32 {
        self.frame_max.load(Ordering::Relaxed)
    }

    /// A state that does not change by itself.
    pub(super) fn fixed(up: bool, frame_max: u32) -> Arc<Self> {
        let state = Self::default();
        state.set(up, frame_max);
        Arc::new(state)
    }

    pub(super) fn set(&self, up: bool, frame_max: u32) {
        self.frame_max.store(frame_max, Ordering::Relaxed);
        self.up.store(up, Ordering::Relaxed);
    }
}

/// The thread that follows an interface; dropped, it ends.
#[derive(Debug)]
pub(super) struct Follower {
    state: Arc<LinkState>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Follows the interface with this index in the namespace of the calling thread; frames are
    /// never longer than `chunk` bytes.
    pub(super) fn start(interface: Interface, index: i32, chunk: u32) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let news =
            socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        bind(news.as_raw_fd(), &NetlinkAddr::new(0, LINKS))?;
        let state = Arc::new(LinkState::default());
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?);
        // After the socket is bound: what changes from now on is news.
        look(&interface, index, chunk, &state);
        let (shown, stopped) = (Arc::clone(&state), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("penstock-link".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = confine(Role::Link) {
                tracing::error!(%error, "the link state cannot be watched: privileges are kept");
                return;
            }
            while wait(&news, &stopped) {
                look(&interface, index, chunk, &shown);
            }
        })?;
        Ok(Self { state, stop, thread: Some(thread) })
    }

    pub(super) fn state(&self) -> &Arc<LinkState> {
        &self.state
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // It cannot fail: the counter is far from its end.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for news; false: the port ends.
fn wait(news: &OwnedFd, stop: &EventFd) -> bool {
    let mut fds = [
        PollFd::new(news.as_fd(), PollFlags::POLLIN),
        PollFd::new(stop.as_fd(), PollFlags::POLLIN),
    ];
    // An interrupted wait is one look too many.
    let _ = poll(&mut fds, PollTimeout::NONE);
    if fds[1].any().unwrap_or(true) {
        return false;
    }
    // What the news say is asked for afterwards, so news that were lost (`ENOBUFS`) do no harm.
    let mut bytes = [0; 4096];
    while recv(news.as_raw_fd(), &mut bytes, MsgFlags::empty()).is_ok() {}
    true
}

/// Asks for the interface's state. One of the same name and another index is another interface.
fn look(interface: &Interface, index: i32, chunk: u32, state: &LinkState) {
    let there = interface.index().is_ok_and(|i| i == index);
    let mtu = interface.mtu().unwrap_or(0);
    state.gone.store(!there, Ordering::Relaxed);
    state.set(there && interface.is_running(), mtu.saturating_add(OVERHEAD).min(chunk));
}

/// Settings of an interface that were changed; dropped, they are as they were.
#[derive(Debug)]
pub(super) struct Settings {
    interface: Interface,
    flags: Option<u32>,
    gro: bool,
}

impl Settings {
    /// Has the interface leave tags in frames and merge none. An interface that cannot be told
    /// keeps its ways.
    pub(super) fn prepare(interface: Interface, generic: bool) -> Self {
        let mut settings = Self { interface, flags: None, gro: false };
        let unwanted = ETH_FLAG_RXVLAN | ETH_FLAG_LRO;
        if let Ok(flags) = settings.get(ETHTOOL_GFLAGS)
            && flags & unwanted != 0
            && settings.set(ETHTOOL_SFLAGS, flags & !unwanted).is_ok()
        {
            settings.flags = Some(flags);
        }
        // In the driver the program comes before the merging, in the stack after it.
        if generic && settings.get(ETHTOOL_GGRO).is_ok_and(|on| on != 0) {
            settings.gro = settings.set(ETHTOOL_SGRO, 0).is_ok();
        }
        settings
    }

    fn get(&self, command: u32) -> io::Result<u32> {
        let mut value = [command, 0];
        self.interface.ethtool(&mut value)?;
        Ok(value[1])
    }

    fn set(&self, command: u32, value: u32) -> io::Result<()> {
        self.interface.ethtool(&mut [command, value])
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        // The interface may be gone, or another's by now.
        if let Some(flags) = self.flags {
            let _ = self.set(ETHTOOL_SFLAGS, flags);
        }
        if self.gro {
            let _ = self.set(ETHTOOL_SGRO, 1);
        }
    }
}

/// Whether frames come to the interface from a stack of this kernel, which leaves checksums open.
pub(super) fn is_software(interface: &Interface) -> bool {
    // The command, 160 bytes of names of which the driver's is first, and numbers behind them.
    let mut words = [0; 49];
    words[0] = ETHTOOL_GDRVINFO;
    let driver = |words: &[u32]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>();
    interface.ethtool(&mut words).is_ok_and(|()| {
        let name = driver(&words[1..9]);
        ["veth", "tun", "bridge"].iter().any(|known| {
            name.strip_prefix(known.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
        })
    })
}

/// Queues that the interface receives into; `None` if it does not tell.
pub(super) fn receive_queues(interface: &Interface) -> Option<u32> {
    // The command, four maxima, then the numbers in use: rx, tx, other, combined.
    let mut channels = [0; 9];
    channels[0] = ETHTOOL_GCHANNELS;
    interface.ethtool(&mut channels).ok()?;
    Some(channels[5].saturating_add(channels[8])).filter(|&n| n > 0)
}

/// Puts the interface into promiscuous mode for as long as the socket lives: a NIC's filter knows
/// only its own address, not those of the virtual machines behind us.
pub(super) fn promiscuous(index: i32) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    // With protocol 0 no frame comes to it.
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
    let membership = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: u16::try_from(libc::PACKET_MR_PROMISC).unwrap_or(1),
        mr_alen: 0,
        mr_address: [0; 8],
    };
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP);
    let (at, fd) = ((&raw const membership).cast(), socket.as_raw_fd());
    let size = libc::socklen_t::try_from(size_of_val(&membership)).unwrap_or(0);
    // SAFETY: the kernel reads the structure, of the size given. WHY: nix lacks the option.
    if unsafe { libc::setsockopt(fd, level, option, at, size) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}
