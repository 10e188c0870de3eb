//! The network interface of an AF_XDP port: the interface's settings, and whether the interface is
//! up.
//!
//! # Problem
//! If an interface is down, frames wait in the interface's tx ring, and the interface sends the
//! frames late. To check the interface, the worker would need a system call, which the worker must
//! not make.
//!
//! # Approach
//! A thread listens to the kernel's messages about interfaces (rtnetlink) and updates two words
//! that the worker reads. The two shared words say whether the interface passes frames, and how
//! long a frame may be. An XDP program cannot see that the interface removed VLAN tags from frames
//! or merged small frames into large frames. The port switches off the interface's VLAN tag removal
//! and frame merging, and restores these settings when the port ends.
#![allow(unsafe_code, reason = "ethtool ioctls and the promiscuous mode need raw pointers")]

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

/// Maximum number of bytes of a frame in addition to the MTU: Ethernet header and VLAN tag.
pub(super) const OVERHEAD: u32 = 14 + 4;
/// Multicast group `RTMGRP_LINK`.
const LINKS: u32 = 1;

const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const ETH_FLAG_LRO: u32 = 1 << 15;

/// State of a network interface, which the watching thread shares with the worker.
#[derive(Debug, Default)]
pub(super) struct LinkState {
    up: AtomicBool,
    gone: AtomicBool,
    frame_max: AtomicU32,
}

impl LinkState {
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Whether the interface was deleted. The queues of a deleted interface never work again.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Maximum length in bytes of a frame that the port may send.
    #[inline]
    pub(super) fn frame_max(&self) -> u32 {
        self.frame_max.load(Ordering::Relaxed)
    }

    /// Makes a constant interface state, which no thread updates.
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

/// The thread that watches a network interface. The thread that watches the interface ends when the
/// `Follower` is dropped.
#[derive(Debug)]
pub(super) struct Follower {
    state: Arc<LinkState>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts to watch the interface with index `index` in the namespace of the calling thread.
    /// [`LinkState::frame_max`] never exceeds `chunk` bytes.
    pub(super) fn start(interface: Interface, index: i32, chunk: u32) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let news =
            socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        bind(news.as_raw_fd(), &NetlinkAddr::new(0, LINKS))?;
        let state = Arc::new(LinkState::default());
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?);
        // The state is read after the socket is bound, so that every later change arrives as a
        // message.
        look(&interface, index, chunk, &state);
        let (shown, stopped) = (Arc::clone(&state), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("penstock-link".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = confine(Role::Link) {
                tracing::error!(
                    %error,
                    "the link state is not watched: the thread cannot give up its privileges"
                );
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
        // The write cannot fail, because the counter is far from its maximum.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for kernel messages about interfaces. Returns false if the thread that watches the
/// interface must end.
fn wait(news: &OwnedFd, stop: &EventFd) -> bool {
    let mut fds = [
        PollFd::new(news.as_fd(), PollFlags::POLLIN),
        PollFd::new(stop.as_fd(), PollFlags::POLLIN),
    ];
    // An interrupted wait only causes one more read of the state.
    let _ = poll(&mut fds, PollTimeout::NONE);
    if fds[1].any().unwrap_or(true) {
        return false;
    }
    // The messages' content is ignored, and the state is read afterwards. So lost messages
    // (`ENOBUFS`) do no harm.
    let mut bytes = [0; 4096];
    while recv(news.as_raw_fd(), &mut bytes, MsgFlags::empty()).is_ok() {}
    true
}

/// Reads the interface's state into `state`. An interface with the same name and another index is a
/// different interface.
fn look(interface: &Interface, index: i32, chunk: u32, state: &LinkState) {
    let there = interface.index().is_ok_and(|i| i == index);
    let mtu = interface.mtu().unwrap_or(0);
    state.gone.store(!there, Ordering::Relaxed);
    state.set(there && interface.is_running(), mtu.saturating_add(OVERHEAD).min(chunk));
}

/// Settings of an interface that the port has changed. When `Settings` is dropped, the interface
/// gets its original settings back.
#[derive(Debug)]
pub(super) struct Settings {
    interface: Interface,
    flags: Option<u32>,
    gro: bool,
}

impl Settings {
    /// Switches off the interface's removal of VLAN tags and merging of frames. If the interface
    /// refuses a change, the setting stays unchanged.
    pub(super) fn prepare(interface: Interface, generic: bool) -> Self {
        let mut settings = Self { interface, flags: None, gro: false };
        let unwanted = ETH_FLAG_RXVLAN | ETH_FLAG_LRO;
        if let Ok(flags) = settings.get(ETHTOOL_GFLAGS)
            && flags & unwanted != 0
            && settings.set(ETHTOOL_SFLAGS, flags & !unwanted).is_ok()
        {
            settings.flags = Some(flags);
        }
        // In the driver the program runs before frames are merged; in the stack it runs after they
        // are merged.
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
        // Errors are ignored, because the interface may be deleted, or belong to another program by
        // now.
        if let Some(flags) = self.flags {
            let _ = self.set(ETHTOOL_SFLAGS, flags);
        }
        if self.gro {
            let _ = self.set(ETHTOOL_SGRO, 1);
        }
    }
}

/// Whether the frames of the interface come from a network stack of this kernel. A network stack of
/// this kernel leaves checksums incomplete.
pub(super) fn is_software(interface: &Interface) -> bool {
    // The words are the command, 160 bytes of names that begin with the driver's name, and numbers.
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

/// Number of receive queues of the interface. Returns `None` if the interface does not report its
/// number of receive queues.
pub(super) fn receive_queues(interface: &Interface) -> Option<u32> {
    // The words are the command, four maxima, and the present numbers: rx, tx, other, combined.
    let mut channels = [0; 9];
    channels[0] = ETHTOOL_GCHANNELS;
    interface.ethtool(&mut channels).ok()?;
    Some(channels[5].saturating_add(channels[8])).filter(|&n| n > 0)
}

/// Puts the interface into promiscuous mode for as long as the returned socket lives. Without
/// promiscuous mode, a NIC's filter only accepts the NIC's own address, and not the addresses of
/// the VMs at the switch.
pub(super) fn promiscuous(index: i32) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    // A socket with protocol 0 receives no frames.
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
    // SAFETY: the kernel reads the structure, whose size is passed. WHY: nix lacks the option.
    if unsafe { libc::setsockopt(fd, level, option, at, size) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}
