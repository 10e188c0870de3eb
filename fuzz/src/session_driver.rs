//! The front end of a vhost-user session for [`crate::vhost_session`]. The front end sends messages
//! with descriptors, and shortens its memory files, replaces the files and punches holes into them.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// Size of a memory file in bytes.
pub(crate) const FILE: u64 = 0x1_0000;
/// Number of memory files that a driver has at once.
pub(crate) const FILES: usize = 3;

/// A change that a driver makes to a memory file during a session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Shortens the file to a number of bytes.
    Shrink(u64),
    /// Punches a hole into the file: offset and length in bytes.
    Punch(u64, u64),
    /// Extends the file to a number of bytes.
    Grow(u64),
}

/// A memory file of the driver, with the bytes that the driver wrote.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) file: File,
    /// Bytes of the whole file as the driver wrote them.
    written: Vec<u8>,
    /// Ranges that the driver announced to the switch. The switch may write only in these ranges.
    announced: Vec<(u64, u64)>,
    /// Whether a fault changed bytes of the file.
    torn: bool,
}

impl Memory {
    pub(crate) fn new(name: &std::ffi::CStr, fill: u8) -> Self {
        let file = memfd_create(name, MFdFlags::MFD_CLOEXEC).expect("a memory file");
        let file = File::from(file);
        let written = vec![fill; usize::try_from(FILE).unwrap_or(0)];
        file.write_all_at(&written, 0).expect("its bytes");
        Self { file, written, announced: Vec::new(), torn: false }
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        let from = usize::try_from(at).unwrap_or(usize::MAX).min(self.written.len());
        let len = bytes.len().min(self.written.len() - from);
        let _ = self.file.write_all_at(&bytes[..len], at);
        self.written[from..from + len].copy_from_slice(&bytes[..len]);
    }

    pub(crate) fn announce(&mut self, offset: u64, len: u64) {
        self.announced.push((offset, offset.saturating_add(len)));
    }

    /// Restores the length of the file; the restored part has zeroes.
    pub(crate) fn mend(&self) {
        self.file.set_len(FILE).expect("a size");
    }

    pub(crate) fn suffer(&mut self, fault: Fault) {
        self.torn = true;
        let _ = match fault {
            Fault::Shrink(len) | Fault::Grow(len) => self.file.set_len(len).is_ok(),
            Fault::Punch(from, len) => {
                let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE;
                let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE;
                let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
                fallocate(&self.file, punch | keep, number(from), number(len.max(1))).is_ok()
            }
        };
    }

    /// Panics if a byte changed outside the ranges that the driver announced.
    pub(crate) fn check(&self) {
        if self.torn {
            return;
        }
        let mut bytes = vec![0; self.written.len()];
        self.file.read_exact_at(&mut bytes, 0).expect("the file");
        let (mut at, whole) = (0_u64, 256);
        for (now, before) in bytes.chunks(whole).zip(self.written.chunks(whole)) {
            if now == before {
                at += whole as u64;
                continue;
            }
            for (now, before) in now.iter().zip(before) {
                let may = || self.announced.iter().any(|(from, to)| (*from..*to).contains(&at));
                assert!(now == before || may(), "the switch wrote byte {at:#x} of a file");
                at += 1;
            }
        }
    }
}

/// Memory files that faults can change in the middle of a call of the session.
pub(crate) type Files = Arc<Mutex<Vec<Memory>>>;

/// Request numbers of vhost-user.
pub(crate) mod request {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_LOG_BASE: u32 = 6;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const RESET_DEVICE: u32 = 34;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
}

/// Body of a vhost-user message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body(pub(crate) Vec<u8>);

impl Body {
    pub(crate) fn u64s(words: &[u64]) -> Self {
        Self(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    pub(crate) fn u32s(words: &[u32]) -> Self {
        Self(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    pub(crate) fn and(mut self, more: Self) -> Self {
        self.0.extend(more.0);
        self
    }
}

/// The driver's end of the session's socket.
#[derive(Debug)]
pub(crate) struct Line(pub(crate) UnixStream);

impl Line {
    /// Sends a message. Returns false if the socket refuses the message.
    pub(crate) fn send(&self, request: u32, body: &Body, descriptors: &[OwnedFd]) -> bool {
        let size = u32::try_from(body.0.len()).unwrap_or(0);
        let mut bytes = Body::u32s(&[request, 1, size]).0;
        bytes.extend(&body.0);
        self.send_bytes(&bytes, descriptors)
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8], descriptors: &[OwnedFd]) -> bool {
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let parts = [IoSlice::new(bytes)];
        let sent = sendmsg::<()>(self.0.as_raw_fd(), &parts, control, MsgFlags::MSG_DONTWAIT, None);
        sent.is_ok_and(|sent| sent == bytes.len())
    }

    /// Reads the switch's replies, and closes descriptors that come with them.
    pub(crate) fn drain(&mut self) {
        let _ = self.0.set_nonblocking(true);
        while self.0.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {}
        let _ = self.0.set_nonblocking(false);
    }
}

pub(crate) fn duplicate(file: &impl AsFd) -> OwnedFd {
    file.as_fd().try_clone_to_owned().expect("a descriptor")
}
