//! TAP ports, which connect the switch to the kernel's network stack of the host or of a namespace.
//!
//! A TAP port needs a system call for each frame. Each frame has a virtio-net header, so that
//! unfinished checksums and 64 KiB TCP segments can pass through the switch. A TAP port may have
//! several queues. If no frames arrive, the TAP port polls less often. The port creates the TAP
//! interface if the interface does not exist. An interface that the port created exists as long as
//! the port.
#![allow(unsafe_code, reason = "TUN ioctls and vectored reads need raw pointers")]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use penstock_units::Cycles;

use super::kept::{Carrier, Files, Kept, KeptTap, State};
use super::vnet_socket::{ERRORS_MAX, FramePieces, Interface, PollSpacing, last_error, piece};
use super::{AttachStatus, Pending, PortError, PortQueue, TxOutcome, helper};
use crate::batch::{Batch, FRAME_MAX, FRAME_MIN};
use crate::offload::{Offload, OffloadCaps, VNET_HDR_LEN};
use crate::unit::QUEUES_MAX;

const TUN_F_CSUM: libc::c_uint = 1;
const TUN_F_TSO4: libc::c_uint = 2;
const TUN_F_TSO6: libc::c_uint = 4;
/// `TUN_F_USO4` and `TUN_F_USO6`, which Linux 6.2 and later know.
const TUN_F_USO: libc::c_uint = 0x60;

#[derive(Clone, Debug)]
pub struct TapConfig {
    /// Name of the TAP interface, at most 15 bytes.
    pub interface: String,
    /// Network namespace of the interface: a name under `/run/netns` or a path. `None` means the
    /// daemon's own namespace.
    pub netns: Option<PathBuf>,
    /// Number of queues of the TAP interface, 1 to 8.
    pub queues: u16,
    /// Offloads that the kernel's network stack performs, in both directions.
    pub offloads: OffloadCaps,
    /// MTU in bytes that the port sets at the interface. If `mtu` is `None`, the interface keeps
    /// its MTU.
    pub mtu: Option<u32>,
}

/// Control side of a TAP port.
#[derive(Debug)]
pub struct Tap {
    interface: Interface,
    kept: KeptTap,
    offloads: OffloadCaps,
    /// Second descriptors of the queues, for [`Self::keep`].
    files: Mutex<Vec<File>>,
    /// Carrier of the kept queues until [`Self::take_over`].
    carrier: Mutex<Option<Carrier>>,
}

impl Tap {
    /// Creates or opens the TAP interface and brings the interface up.
    ///
    /// # Errors
    /// Returns a [`PortError`] if the permission is missing, if the interface is in use or is not a
    /// TAP, or if the namespace does not exist.
    pub fn open(config: &TapConfig) -> Result<(Self, Vec<Box<dyn PortQueue>>), PortError> {
        Self::open_from(config, None)
    }

    /// Like [`Self::open`], but with the queues that the former process kept. If the kept queues
    /// belong to another interface or have another number, they are closed.
    ///
    /// # Errors
    /// Returns a [`PortError`] as [`Self::open`] does.
    pub fn open_from(
        config: &TapConfig,
        kept: Option<Kept>,
    ) -> Result<(Self, Vec<Box<dyn PortQueue>>), PortError> {
        let name = config.interface.as_str();
        if !(1..=QUEUES_MAX).contains(&usize::from(config.queues)) {
            let (problem, limit) = ("number of queues", QUEUES_MAX as u64);
            return Err(PortError::Limit { object: name.to_owned(), problem, limit });
        }
        // The namespace of the kept interface may be gone.
        let kept = kept.and_then(|mut kept| {
            let carrier = kept.take_carrier();
            Some((open_queues(config, kept_queues(config, kept)?).ok()?, carrier))
        });
        let ((interface, files), carrier) = match kept {
            Some(kept) => kept,
            None => (open_queues(config, Vec::new())?, None),
        };
        let failed = |e| PortError::system(name, "copy a descriptor", "raise LimitNOFILE", e);
        let copies = files.iter().map(|(file, _)| file.try_clone().map_err(failed));
        let copies = copies.collect::<Result<Vec<_>, _>>()?;
        let offloads = files.first().map_or(config.offloads, |(_, caps)| *caps);
        let queues = files.into_iter().map(|(file, caps)| {
            let (spacing, pieces) = (PollSpacing::default(), Box::new(FramePieces::new()));
            Box::new(TapQueue { file, caps, spacing, now: Cycles::ZERO, pieces }) as Box<_>
        });
        let queues = queues.collect();
        let (files, carrier) = (Mutex::new(copies), Mutex::new(carrier));
        Ok((Self { interface, kept: kept_as(config), offloads, files, carrier }, queues))
    }

    /// Returns the queues of the interface for the next process. The interface exists as long as
    /// the returned value.
    #[must_use]
    pub fn keep(&self, port: &str) -> Kept {
        let mut files = Files::default();
        for file in self.take_files() {
            files.put(file);
        }
        let kept = Kept::new(port.to_owned(), State::Tap(self.kept.clone()), files);
        kept.stored_in(self.take_carrier())
    }

    /// Takes the kept queues over, before the service manager removes their carrier.
    pub fn take_over(&self) {
        drop(self.take_carrier());
    }

    fn take_carrier(&self) -> Option<Carrier> {
        self.carrier.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Closes the port's own descriptors of the queues, so that the interface goes with the queues.
    pub fn close(&self) {
        drop(self.take_files());
    }

    fn take_files(&self) -> Vec<File> {
        core::mem::take(&mut *self.files.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the interface was deleted, or its namespace made again, so that the port must be
    /// attached again. The kernel detaches the queues of a deleted interface. An interface that
    /// moved to another namespace keeps its queues.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        if self.interface.has_new_netns() {
            return true;
        }
        let mut request = self.interface.request();
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.first().is_some_and(|file| {
            // SAFETY: TUNGETIFF fills an `ifreq`. WHY: ioctl has no safe form.
            let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNGETIFF, &mut request) };
            done < 0 && last_error() == libc::EBADFD
        })
    }

    #[must_use]
    pub fn status(&self) -> AttachStatus {
        if self.is_gone() {
            return self.interface.gone();
        }
        self.interface.status(self.offloads, self.kept.queues)
    }
}

/// File of a queue, and the offloads that the kernel accepts.
type Opened = (File, OffloadCaps);

fn kept_as(config: &TapConfig) -> KeptTap {
    let TapConfig { interface, netns, queues, .. } = config;
    KeptTap { interface: interface.clone(), netns: netns.clone(), queues: *queues }
}

/// Files of the kept queues, if they belong to the interface of `config`.
fn kept_queues(config: &TapConfig, kept: Kept) -> Option<Vec<File>> {
    let State::Tap(tap) = kept.state else { return None };
    if tap != kept_as(config) {
        return None;
    }
    let mut files = kept.files;
    (0..usize::from(tap.queues)).map(|number| files.take_file(number).ok()).collect()
}

fn open_queues(config: &TapConfig, kept: Vec<File>) -> Result<(Interface, Vec<Opened>), PortError> {
    let name = config.interface.as_str();
    let interface = Interface::new(name, config.netns.as_deref())?;
    let mut files = Vec::with_capacity(usize::from(config.queues));
    let mut kept = kept.into_iter();
    for _ in 0..config.queues {
        files.push(open_queue(config, &interface, kept.next())?);
    }
    let failed = |call, e| PortError::system(name, call, "run as root or with CAP_NET_ADMIN", e);
    if let Some(mtu) = config.mtu {
        interface.set_mtu(mtu).map_err(|e| failed("set the MTU", e))?;
    }
    interface.set_up().map_err(|e| failed("bring the interface up", e))?;
    Ok((interface, files))
}

/// Opens a queue, or prepares the `kept` one. Returns its file, and the offloads that the kernel
/// accepts.
fn open_queue(
    config: &TapConfig,
    interface: &Interface,
    kept: Option<File>,
) -> Result<Opened, PortError> {
    let file = match kept {
        Some(file) => file,
        None => attached_queue(config, interface)?,
    };
    set_queue(config, file)
}

/// Makes a queue of the interface. The kernel makes the interface if it does not exist.
fn attached_queue(config: &TapConfig, interface: &Interface) -> Result<File, PortError> {
    let name = config.interface.as_str();
    let file = File::from(helper::descriptor(config.netns.as_deref(), name, helper::Kind::Tun)?);
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if config.queues > 1 {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    let mut request = interface.request();
    request.ifr_ifru.ifru_flags =
        libc::c_short::from_ne_bytes(u16::try_from(flags).unwrap_or(u16::MAX).to_ne_bytes());
    // SAFETY: TUNSETIFF takes an `ifreq`. WHY: ioctl has no safe form.
    let attached = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &request) };
    let remedy = "run as root; if a program uses the interface, end the program; if the interface \
                  is not a TAP device, choose another name";
    checked(name, "attach to the TAP interface", remedy, attached)?;
    Ok(file)
}

/// Turns a negative result of a system call into an error.
fn checked(
    name: &str,
    call: &'static str,
    remedy: &'static str,
    done: libc::c_int,
) -> Result<(), PortError> {
    if done < 0 {
        let e = std::io::Error::from_raw_os_error(last_error());
        return Err(PortError::system(name, call, remedy, e));
    }
    Ok(())
}

/// Sets the header and the offloads of a queue. Returns the queue's file, and the offloads that the
/// kernel accepts.
fn set_queue(config: &TapConfig, file: File) -> Result<Opened, PortError> {
    let name = config.interface.as_str();
    let header = libc::c_int::try_from(VNET_HDR_LEN).unwrap_or(12);
    let mut o = config.offloads;
    let offloads = if o.csum { TUN_F_CSUM } else { 0 }
        | if o.csum && o.tso4 { TUN_F_TSO4 } else { 0 }
        | if o.csum && o.tso6 { TUN_F_TSO6 } else { 0 };
    let fd = file.as_raw_fd();
    // SAFETY: TUNSETVNETHDRSZ takes an int. WHY: as above.
    checked(name, "set the header size", "", unsafe {
        libc::ioctl(fd, libc::TUNSETVNETHDRSZ, &header)
    })?;
    let set = |offloads| {
        // SAFETY: TUNSETOFFLOAD takes an unsigned long by value. WHY: as above.
        unsafe { libc::ioctl(fd, libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads)) }
    };
    o.uso &= o.csum && set(offloads | TUN_F_USO) == 0;
    if !o.uso {
        checked(name, "set offloads", "", set(offloads))?;
    }
    Ok((file, o))
}

/// One queue of a TAP interface.
struct TapQueue {
    file: File,
    caps: OffloadCaps,
    spacing: PollSpacing,
    now: Cycles,
    pieces: Box<FramePieces>,
}

// SAFETY: the pointers of the pieces are used only inside one call of `tx_burst`.
// WHY: `iovec` holds raw pointers, which makes the type !Send.
unsafe impl Send for TapQueue {}

impl PortQueue for TapQueue {
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
            let Some(space) = batch.arena_space(FRAME_MAX) else { break };
            let pieces =
                [piece(header.as_mut_ptr(), VNET_HDR_LEN), piece(space.as_mut_ptr(), FRAME_MAX)];
            // SAFETY: both pieces are writable for their lengths and belong to this call. WHY: the
            // safe form would need two slices. With `readv` both directions use the same pieces.
            let n = unsafe { libc::readv(self.file.as_raw_fd(), pieces.as_ptr(), 2) };
            let Ok(n) = usize::try_from(n) else { break };
            found = true;
            if n < VNET_HDR_LEN + FRAME_MIN {
                batch.errors += 1;
                continue;
            }
            batch.push_arena(n - VNET_HDR_LEN, Offload::from_wire(&header));
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
        self.pieces.write(batch, frames, self.file.as_fd(), VNET_HDR_LEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use std::io::Write;

    #[test]
    fn a_burst_of_reads_without_a_frame_ends() {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let mut theirs = File::from(theirs);
        for _ in 0..40 {
            theirs.write_all(&[0; VNET_HDR_LEN + FRAME_MIN - 1]).unwrap();
        }
        theirs.write_all(&[0; VNET_HDR_LEN + FRAME_MIN]).unwrap();
        let mut queue = TapQueue {
            file: File::from(ours),
            caps: OffloadCaps::ALL,
            spacing: PollSpacing::default(),
            now: Cycles::ZERO,
            pieces: Box::new(FramePieces::new()),
        };
        let mut batch = Batch::new();
        queue.rx_burst(&mut batch);
        assert_eq!((batch.errors, batch.len()), (ERRORS_MAX, 0));
        batch.errors = 0;
        queue.rx_burst(&mut batch);
        assert_eq!((batch.errors, batch.len()), (40 - ERRORS_MAX, 1));
    }
}
