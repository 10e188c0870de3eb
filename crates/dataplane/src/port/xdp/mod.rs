//! AF_XDP ports. An AF_XDP port takes the frames of an existing interface (a NIC, a veth) before
//! the kernel's network stack can take them.
//!
//! # Problem
//! A packet socket (AF_PACKET) costs a system call and a copy for each frame.
//!
//! # Approach
//! The kernel writes received frames into memory of the port and reports the frames in a ring. To
//! send frames, the kernel reads the port's memory. With zero-copy, the NIC itself writes and reads
//! the frames. Each queue of an AF_XDP port is a [`PortQueue`] with its own memory. If the kernel
//! or the driver refuses AF_XDP, [`PortError::is_refusal`] is true. An interface that refuses
//! AF_XDP can still be attached by [`super::packet`].
//!
//! | Module | Content |
//! |---|---|
//! | `mapping`, `umem` | the memory of the frames |
//! | `pool` | place of each buffer: kernel or port |
//! | `ring` | the four rings |
//! | `program` | the XDP program |
//! | `socket` | a bound socket with memory and rings |
//! | `link` | the interface: up or down, its settings |
//! | `open_checksum` | completes checksums that a sender in this kernel left incomplete |
//! | `queue` | the port's queue |
//!
//! # What XDP does not see
//! A frame arrives at an AF_XDP socket without the kernel's metadata. A VLAN tag that the NIC
//! removed would be lost, so the port configures the NIC to keep tags (`rxvlan off`) and not to
//! merge frames. The kernel at the other end of a veth leaves checksums incomplete. The module
//! `open_checksum` completes the checksums of TCP and UDP.
//!
//! The kernel at the other end of a veth also passes VLAN tags as metadata beside the frames. The
//! port's end of the veth has no setting for VLAN tags from the other end. The operator must run
//! `ethtool -K PEER txvlan off` for the other end. If the XDP program is attached natively, the
//! veth's other end stops sending large segments. If the XDP program is attached in the stack, the
//! veth's other end also needs `gso off tso off`.
//!
//! Frames of queues that the port does not serve go to the kernel.
//!
//! # Source
//! The source is the kernel's documentation of AF_XDP. The numbered datapath rules 1 to 6
//! (`docs/internals/datapath-rules.md`) apply to AF_XDP ports.

mod link;
mod mapping;
mod open_checksum;
mod pool;
mod program;
mod queue;
mod ring;
mod socket;
pub mod stepped;
mod umem;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use nix::poll::{PollTimeout, poll};

use self::link::{Follower, OVERHEAD, Settings, is_software, promiscuous, receive_queues};
use self::program::{Mode, Program};
use self::queue::XdpQueue;
use super::vnet_socket::{Interface, in_netns};
use super::{AttachState, AttachStatus, PortError, PortQueue};
use crate::unit::QUEUES_MAX;

/// Number of attempts, 10 ms apart, to get an XDP hook or a queue that a previous owner may still
/// have.
const TRIES: u32 = 100;

/// Whether the NIC may write frames directly into the port's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Zero-copy if the driver supports it; otherwise the kernel copies frames.
    #[default]
    Auto,
    /// The kernel always copies frames, even if the driver supports zero-copy.
    Never,
}

#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// Name of an existing network interface, at most 15 bytes.
    pub interface: String,
    /// Network namespace of the interface: a name under `/run/netns` or a path. `None` means the
    /// daemon's own namespace.
    pub netns: Option<PathBuf>,
    /// Number of the interface's queues that the port serves, 1 to 8, beginning with queue 0.
    pub queues: u16,
    pub zero_copy: ZeroCopy,
}

/// Control side of an AF_XDP port. When `Xdp` is dropped, the interface gets its original settings
/// back.
#[derive(Debug)]
pub struct Xdp {
    // This field is dropped first, so that no frame is redirected to a socket without a reader.
    program: Program,
    follower: Follower,
    _settings: Settings,
    _promiscuous: OwnedFd,
    queues: u16,
    /// Number of the port's queues without zero-copy.
    copied: u16,
    /// Number of the interface's queues that the port does not serve.
    others: u32,
    name: String,
}

impl Xdp {
    /// Opens the network interface, brings the interface up and receives its frames.
    ///
    /// # Errors
    /// Returns a [`PortError`] if the interface or namespace does not exist, or if the interface
    /// has too few queues. Returns an error also if another program or socket uses the interface.
    /// [`PortError::is_refusal`] is true if the kernel or the driver refuses XDP.
    pub fn open(config: &XdpConfig) -> Result<(Self, Vec<Box<dyn PortQueue>>), PortError> {
        let name = config.interface.as_str();
        if !(1..=QUEUES_MAX).contains(&usize::from(config.queues)) {
            return Err(too_many(name, QUEUES_MAX as u64));
        }
        in_netns(config.netns.as_deref(), name, || open(config))
    }

    /// Whether the port's interface was deleted. If an interface is created again under the same
    /// name, its port must be attached again.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.follower.state().is_gone()
    }

    #[must_use]
    pub fn status(&self) -> AttachStatus {
        let link = self.follower.state();
        let error = if link.is_gone() {
            Some(format!("{}: the interface is gone; create the interface again", self.name))
        } else if self.others > 0 {
            Some(format!(
                "{}: frames of {} more queues go to the kernel; set `queues`, or `ethtool -L`",
                self.name, self.others
            ))
        } else {
            None
        };
        let copies = if self.copied == 0 { "zero-copy" } else { "copy" };
        AttachStatus {
            state: match (link.is_gone(), link.is_up()) {
                (true, _) => AttachState::Error,
                (false, true) => AttachState::Up,
                (false, false) => AttachState::Down,
            },
            error,
            features: vec![copies, self.program.mode().name(), "need-wakeup"],
            ring_sizes: [socket::RECEIVE, socket::TX_RING].repeat(usize::from(self.queues)),
            queues_up: if link.is_up() { self.queues } else { 0 },
        }
    }
}

/// The part of [`Xdp::open`] that runs inside the interface's namespace.
fn open(config: &XdpConfig) -> Result<(Xdp, Vec<Box<dyn PortQueue>>), PortError> {
    let name = config.interface.as_str();
    let rights = "run as root or with CAP_NET_ADMIN and CAP_NET_RAW";
    let interface = Interface::new(name, None)?;
    let index = interface.index().map_err(|e| {
        PortError::system(
            name,
            "find the interface",
            "create the interface, or correct `interface`",
            e,
        )
    })?;
    let there = receive_queues(&interface);
    if let Some(there) = there.filter(|&there| there < u32::from(config.queues)) {
        return Err(too_many(name, there.into()));
    }
    let shift = buffer_shift(name, interface.mtu().unwrap_or(1500))?;
    interface.set_up().map_err(|e| PortError::system(name, "bring it up", rights, e))?;
    let promiscuous = promiscuous(index)
        .map_err(|e| PortError::system(name, "make it promiscuous", rights, e))?;
    let number = index.unsigned_abs();
    let program = Program::attach(name, number, config.queues.into())?;
    let generic = program.mode() == Mode::Generic;
    let software = generic || is_software(&interface);
    let settings = Settings::prepare(Interface::new(name, None)?, generic);
    let follower = Follower::start(interface, index, 1 << shift)
        .map_err(|e| PortError::system(name, "follow the interface", "", e))?;
    let zero_copy = config.zero_copy == ZeroCopy::Auto && !generic;
    let (mut queues, mut copied) = (Vec::<Box<dyn PortQueue>>::new(), 0);
    for queue in 0..u32::from(config.queues) {
        let place = socket::Place { name, interface: number, queue, zero_copy, shift };
        let opened = socket::open(place)?;
        program.serve(queue, opened.socket.as_fd()).map_err(|e| {
            refused(name, "enter a socket into the XDP map", "see the kernel's log", e)
        })?;
        copied += u16::from(!opened.zero_copy);
        queues.push(Box::new(XdpQueue::new(opened, follower.state().clone(), software)));
    }
    let xdp = Xdp {
        program,
        follower,
        _settings: settings,
        _promiscuous: promiscuous,
        queues: config.queues,
        copied,
        others: there.unwrap_or(0).saturating_sub(config.queues.into()),
        name: name.to_owned(),
    };
    Ok((xdp, queues))
}

fn too_many(name: &str, limit: u64) -> PortError {
    PortError::Limit { object: name.to_owned(), problem: "number of queues", limit }
}

/// Binary logarithm of the size in bytes of buffers for frames of MTU `mtu`. A frame buffer has a
/// size of 2 KiB or one page.
fn buffer_shift(name: &str, mtu: u32) -> Result<u32, PortError> {
    let need = mtu.saturating_add(OVERHEAD).saturating_add(umem::HEADROOM);
    match need {
        ..=2048 => Ok(11),
        2049..=4096 => Ok(12),
        _ => Err(refused(
            name,
            "fit frames of the interface's MTU into a page",
            "lower the MTU to 3822 or less",
            io::Error::from_raw_os_error(libc::ERANGE),
        )),
    }
}

/// Turns the kernel's refusal of a call into a [`PortError`].
fn refused(name: &str, call: &'static str, remedy: &'static str, source: io::Error) -> PortError {
    PortError::system(name, call, remedy, source)
}

/// Repeats `attempt` for up to a second while the kernel answers `EBUSY`. The kernel releases
/// programs and queues a moment after their owner has ended.
fn patience<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut tries = 0;
    loop {
        match attempt() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && tries < TRIES => tries += 1,
            done => return done,
        }
        let _ = poll(&mut [], PollTimeout::from(10_u8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_as_long_as_the_mtu_wants() {
        let shift = |mtu| buffer_shift("eth0", mtu);
        assert_eq!((shift(1500).unwrap(), shift(1774).unwrap()), (11, 11));
        assert_eq!((shift(1775).unwrap(), shift(3822).unwrap()), (12, 12));
        let error = shift(3823).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("lower the MTU"), "{error}");
        assert!(shift(u32::MAX).is_err());
    }

    #[test]
    fn what_another_way_may_have_is_told_from_what_none_has() {
        let refusal =
            |errno| refused("eth0", "attach", "", io::Error::from_raw_os_error(errno)).is_refusal();
        assert!([libc::EPERM, libc::EOPNOTSUPP, libc::ENOSYS, 524].into_iter().all(refusal));
        let foreign = [libc::EBUSY, libc::EEXIST, libc::ENODEV, libc::ENXIO, libc::ENOENT];
        assert!(!foreign.into_iter().any(refusal) && !too_many("eth0", 8).is_refusal());
    }

    #[test]
    fn only_what_another_has_is_tried_again() {
        let mut tries = 0;
        let taken: io::Result<()> = patience(|| {
            tries += 1;
            let errno = if tries < 3 { libc::EBUSY } else { libc::EPERM };
            Err(io::Error::from_raw_os_error(errno))
        });
        assert_eq!((taken.unwrap_err().raw_os_error(), tries), (Some(libc::EPERM), 3));
    }
}
