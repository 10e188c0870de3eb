//! AF_PACKET ports, which send and receive all frames of an existing interface (a NIC, a veth).
//!
//! An AF_PACKET port is the fallback if the kernel refuses AF_XDP. An AF_PACKET port needs a system
//! call for each frame. Each frame has a virtio-net header, so that the port can use the
//! interface's segmentation and checksum offloads. The port puts the interface into promiscuous
//! mode. The port does not receive the frames that it sends. The kernel removes VLAN tags from
//! received frames, and the port inserts the tags again.
#![allow(unsafe_code, reason = "AF_PACKET socket options and messages have no safe Rust wrapper")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use penstock_units::Cycles;

use super::vnet_socket::{ERRORS_MAX, FramePieces, Interface, PollSpacing, last_error, piece};
use super::{AttachStatus, Pending, PortError, PortQueue, TxOutcome, helper};
use crate::batch::{Batch, FRAME_MAX, FRAME_MIN};
use crate::offload::{Offload, OffloadCaps, VNET_HDR_LEN};

const PACKET_AUXDATA: libc::c_int = 8;
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
/// Value of the flag `VIRTIO_NET_HDR_GSO_ECN`, which marks a large TCP segment with the TCP flag
/// CWR.
const GSO_ECN: u8 = 0x80;
/// Bytes of the virtio-net header that AF_PACKET puts in front of a frame.
const HEADER: usize = 10;
/// Bytes of room in front of a frame for the VLAN tag that the kernel removed.
const TAG: usize = 4;
/// Number of the interface of a packet socket whose interface was deleted.
const NO_INTERFACE: libc::c_int = -1;
/// Size in bytes of the socket's receive buffer, which has room for the frames of some 3 ms at 10
/// Gbit/s.
const RECEIVE_BUFFER: libc::c_int = 4 << 20;
/// Size in bytes of the socket's send buffer, for frames that the port sent and the kernel has not
/// transmitted yet. If frames in queues of the interface (a bridge with `tc`) filled the send
/// buffer, the port would drop frames of all tenants. The interface's queues have their own limits,
/// and the send buffer is larger than the sum of these limits.
const SEND_BUFFER: libc::c_int = 16 << 20;

#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// Name of an existing network interface, at most 15 bytes.
    pub interface: String,
    /// Network namespace of the interface: a name under `/run/netns` or a path. If `netns` is
    /// `None`, the interface is in the daemon's own namespace.
    pub netns: Option<PathBuf>,
    /// Offloads that the network interface performs for frames that the port sends.
    pub offloads: OffloadCaps,
}

/// Control side of an AF_PACKET port.
#[derive(Debug)]
pub struct Packet {
    interface: Interface,
    offloads: OffloadCaps,
    /// Second descriptor of the queue's socket, for [`Self::is_gone`].
    socket: OwnedFd,
}

impl Packet {
    /// Opens the network interface and brings the interface up.
    ///
    /// # Errors
    /// Returns a [`PortError`] if the interface or namespace does not exist, or if the permission
    /// is missing.
    pub fn open(config: &PacketConfig) -> Result<(Self, Vec<Box<dyn PortQueue>>), PortError> {
        let name = config.interface.as_str();
        let netns = config.netns.as_deref();
        let interface = Interface::new(name, netns)?;
        let socket = open_socket(&interface, name, netns)?;
        interface
            .set_up()
            .map_err(|e| PortError::system(name, "bring the interface up", "run as root", e))?;
        let copy = socket
            .try_clone()
            .map_err(|e| PortError::system(name, "copy a descriptor", "raise LimitNOFILE", e))?;
        // No option of a packet socket tells whether the kernel takes large segments of UDP (6.2).
        let offloads = OffloadCaps { uso: false, ..config.offloads };
        let queue = PacketQueue {
            socket,
            caps: offloads,
            spacing: PollSpacing::default(),
            now: Cycles::ZERO,
            pieces: Box::new(FramePieces::new()),
        };
        Ok((Self { interface, offloads, socket: copy }, vec![Box::new(queue)]))
    }

    /// Whether the interface was deleted, or its namespace made again, so that the port must be
    /// attached again. The kernel unbinds the socket from a deleted interface, and does not bind it
    /// to a later interface of the same name.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        if self.interface.has_new_netns() {
            return true;
        }
        // SAFETY: all-zero is a valid `sockaddr_ll`. WHY: there is no constructor.
        let mut address: libc::sockaddr_ll = unsafe { core::mem::zeroed() };
        let mut len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
        // SAFETY: the call writes at most `len` bytes to the address. WHY: nix's form turns the
        // number -1 into another number.
        let done = unsafe {
            let at = (&raw mut address).cast();
            libc::getsockname(self.socket.as_raw_fd(), at, &raw mut len)
        };
        done == 0 && address.sll_ifindex == NO_INTERFACE
    }

    #[must_use]
    pub fn status(&self) -> AttachStatus {
        if self.is_gone() {
            return self.interface.gone();
        }
        self.interface.status(self.offloads, 1)
    }
}

fn open_socket(
    interface: &Interface,
    name: &str,
    netns: Option<&Path>,
) -> Result<OwnedFd, PortError> {
    let check = |call, remedy, done: libc::c_int| {
        if done < 0 {
            let e = std::io::Error::from_raw_os_error(last_error());
            return Err(PortError::system(name, call, remedy, e));
        }
        Ok(done)
    };
    let index = interface.index().map_err(|e| {
        PortError::system(
            name,
            "find the interface",
            "create the interface, or correct `interface`",
            e,
        )
    })?;
    let socket = helper::descriptor(netns, name, helper::Kind::Packet)?;
    let set = |level, option, value: libc::c_int| {
        let len = u32::try_from(size_of_val(&value)).unwrap_or(4);
        // SAFETY: the option takes an int. WHY: nix does not know these options.
        unsafe {
            let at = (&raw const value).cast();
            libc::setsockopt(socket.as_raw_fd(), level, option, at, len)
        }
    };
    let old = "a kernel of 4.20 or later is needed";
    check("ask for offload headers", old, set(libc::SOL_PACKET, PACKET_VNET_HDR, 1))?;
    check("ask for VLAN tags", old, set(libc::SOL_PACKET, PACKET_AUXDATA, 1))?;
    check("ignore own frames", old, set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1))?;
    // For an unprivileged process, the kernel limits the size to its own maximum, which suffices.
    if set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER) < 0 {
        let _ = set(libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER);
    }
    if set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER) < 0 {
        let _ = set(libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER);
    }
    bind(&socket, index).map_err(|e| {
        PortError::system(
            name,
            "bind to the interface",
            "check that the interface exists and is up",
            e,
        )
    })?;
    Ok(socket)
}

fn bind(socket: &OwnedFd, index: i32) -> std::io::Result<()> {
    // SAFETY: all-zero is a valid `sockaddr_ll` and `packet_mreq`. WHY: there are no constructors.
    let (mut address, mut membership): (libc::sockaddr_ll, libc::packet_mreq) =
        unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    address.sll_family = libc::sa_family_t::try_from(libc::AF_PACKET).unwrap_or(17);
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).unwrap_or(3).to_be();
    address.sll_ifindex = index;
    membership.mr_ifindex = index;
    membership.mr_type = u16::try_from(libc::PACKET_MR_PROMISC).unwrap_or(1);
    let size = |n: usize| libc::socklen_t::try_from(n).unwrap_or(0);
    // SAFETY: both calls read a structure of the given size. WHY: nix lacks both calls.
    unsafe {
        let fd = socket.as_raw_fd();
        let at = (&raw const address).cast();
        if libc::bind(fd, at, size(size_of_val(&address))) < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP);
        let at = (&raw const membership).cast();
        if libc::setsockopt(fd, level, option, at, size(size_of_val(&membership))) < 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The single queue of an AF_PACKET port.
struct PacketQueue {
    socket: OwnedFd,
    caps: OffloadCaps,
    spacing: PollSpacing,
    now: Cycles,
    pieces: Box<FramePieces>,
}

// SAFETY: the pointers of the pieces are used only inside one call of `tx_burst`.
// WHY: `iovec` holds raw pointers, which makes the type !Send.
unsafe impl Send for PacketQueue {}

/// Buffer for one socket control message with a `tpacket_auxdata`, aligned as the kernel requires.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Length and VLAN tag of a frame that one `recvmsg` call received.
struct Received {
    bytes: usize,
    tag: Option<[u8; TAG]>,
}

impl PacketQueue {
    /// Reads one frame into `frame`, and the frame's virtio-net header into `header`.
    fn receive(&self, header: &mut [u8; VNET_HDR_LEN], frame: &mut [u8]) -> Option<Received> {
        let mut pieces =
            [piece(header.as_mut_ptr(), HEADER), piece(frame.as_mut_ptr(), frame.len())];
        let mut control = Control([0; 64]);
        // SAFETY: all-zero is a valid `msghdr`. WHY: there is no constructor.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = 2;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len();
        // SAFETY: every pointer in `message` points to a buffer of this call that is writable for
        // the length beside it.
        // WHY: nix's form allocates per call.
        let n = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &mut message, 0) };
        let bytes = usize::try_from(n).ok()?;
        // A truncated frame counts as empty.
        let whole = message.msg_flags & libc::MSG_TRUNC == 0;
        Some(Received { bytes: if whole { bytes } else { 0 }, tag: tag_of(&message) })
    }
}

/// The VLAN tag that the kernel removed from the received frame. `None` if the frame had no tag.
fn tag_of(message: &libc::msghdr) -> Option<[u8; TAG]> {
    // SAFETY: the kernel filled the control buffer and its length. CMSG_FIRSTHDR checks that a
    // header fits, and cmsg_len says whether the data does. WHY: these are C macros.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(message);
        if first.is_null()
            || (*first).cmsg_level != libc::SOL_PACKET
            || (*first).cmsg_type != PACKET_AUXDATA
            || (*first).cmsg_len < libc::CMSG_LEN(20) as usize
        {
            return None;
        }
        let data = libc::CMSG_DATA(first);
        let status = data.cast::<u32>().read_unaligned();
        let tci = data.add(16).cast::<u16>().read_unaligned().to_be_bytes();
        // A provider's tag (802.1ad) must not become a customer's tag with the same number.
        let tpid = match status & TP_STATUS_VLAN_TPID_VALID {
            0 => 0x8100,
            _ => data.add(18).cast::<u16>().read_unaligned(),
        };
        let tpid = tpid.to_be_bytes();
        (status & TP_STATUS_VLAN_VALID != 0).then_some([tpid[0], tpid[1], tci[0], tci[1]])
    }
}

impl PortQueue for PacketQueue {
    fn pending(&mut self, now: Cycles) -> Pending {
        self.now = now;
        if self.spacing.is_due(now) { Pending::Unknown } else { Pending::No }
    }

    fn rx_burst(&mut self, batch: &mut Batch) {
        let mut found = false;
        // Reads that return no usable frame take no room in the batch, so the number of such reads
        // has its own limit.
        while batch.has_room() && batch.errors < ERRORS_MAX {
            let mut header = [0; VNET_HDR_LEN];
            let Some(space) = batch.arena_space(TAG + FRAME_MAX) else { break };
            let received = match self.receive(&mut header, &mut space[TAG..]) {
                Some(received) => received,
                // A virtio-net header cannot describe the frame, so the kernel has dropped the
                // frame.
                None if last_error() == libc::EINVAL => Received { bytes: 0, tag: None },
                None => break,
            };
            found = true;
            let Some(len) = received.bytes.checked_sub(HEADER).filter(|&n| n >= FRAME_MIN) else {
                batch.errors += 1;
                continue;
            };
            let mut offload = Offload::from_wire(&header);
            // This bit is for hardware that would repeat CWR in each segment (RFC 3168 §6.1.2). No
            // such offload was negotiated, so the frame continues as an ordinary large segment.
            offload.gso_type &= !GSO_ECN;
            if let Some(tag) = received.tag {
                space.copy_within(TAG..TAG + 12, 0);
                space[12..16].copy_from_slice(&tag);
                if offload.needs_csum() {
                    offload.csum_start = offload.csum_start.saturating_add(4);
                }
                batch.push_arena(len + TAG, offload);
            } else {
                batch.push_arena_from(TAG, len, offload);
            }
        }
        self.spacing.polled(self.now, found);
    }

    fn tx_ready(&self) -> bool {
        true
    }

    fn caps(&self) -> OffloadCaps {
        self.caps
    }

    fn tx_burst(&mut self, batch: &Batch, frames: &[u8]) -> TxOutcome {
        self.pieces.write(batch, frames, self.socket.as_fd(), HEADER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of [`tag_of`] for a `tpacket_auxdata` control message with fields `status`, `tci`
    /// and `tpid`.
    fn said(status: u32, tci: u16, tpid: u16) -> Option<[u8; TAG]> {
        let mut control = Control([0; 64]);
        // SAFETY: all-zero is a valid `msghdr`; the control buffer has room for one message of 20
        // bytes. WHY: these are C macros.
        unsafe {
            let mut message: libc::msghdr = core::mem::zeroed();
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = control.0.len();
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            (*first).cmsg_level = libc::SOL_PACKET;
            (*first).cmsg_type = PACKET_AUXDATA;
            (*first).cmsg_len = libc::CMSG_LEN(20) as usize;
            let data = libc::CMSG_DATA(first);
            data.cast::<u32>().write_unaligned(status);
            data.add(16).cast::<u16>().write_unaligned(tci);
            data.add(18).cast::<u16>().write_unaligned(tpid);
            tag_of(&message)
        }
    }

    #[test]
    fn a_removed_tag_is_restored_with_its_protocol() {
        let both = TP_STATUS_VLAN_VALID | TP_STATUS_VLAN_TPID_VALID;
        assert_eq!(said(0, 5, 0x8100), None);
        assert_eq!(said(both, 0x2005, 0x8100), Some([0x81, 0, 0x20, 5]));
        assert_eq!(said(both, 5, 0x88a8), Some([0x88, 0xa8, 0, 5]), "a provider's tag");
        assert_eq!(said(TP_STATUS_VLAN_VALID, 5, 0), Some([0x81, 0, 0, 5]), "an old kernel");
    }
}
