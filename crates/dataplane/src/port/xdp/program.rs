//! The XDP program that redirects an interface's frames to the port's sockets. The switch builds
//! the program's BPF instructions itself, without a compiler.
//!
//! # Problem
//! Frames reach an AF_XDP socket only if an XDP program on the interface redirects them.
//!
//! # Approach
//! The XDP program has six instructions. The program looks up the frame's queue in a map of sockets
//! and redirects the frame to the socket in the map. Frames of a queue without a socket go to the
//! kernel (`XDP_PASS`). A BPF link attaches the program to the interface. The kernel detaches the
//! program when the link's descriptor is closed, even if the switch is killed. After the switch
//! ends, no interface keeps an XDP program that redirects frames to sockets without a reader. The
//! switch tries the driver's own XDP hook (*native*) first, then the hook of the stack (*generic*).
//! The switch never replaces an XDP program of another owner.
//!
//! # Source
//! The source for the XDP program is the kernel's `bpf.h`. Since Linux 5.3, `bpf_redirect_map`
//! returns the action in its flags if the map has no entry. Linux 5.9 introduced BPF links for XDP
//! programs.
#![allow(unsafe_code, reason = "bpf(2)")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::super::PortError;
use super::{patience, refused};

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The hook of the kernel at which the XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The XDP program runs in the driver, before the kernel makes its own buffer (`sk_buff`).
    Native,
    /// The XDP program runs in the stack, after the kernel made its own buffer (`sk_buff`). The
    /// hook in the stack is slower and always copies frames.
    Generic,
}

impl Mode {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }

    const fn flags(self) -> u32 {
        match self {
            Self::Native => XDP_FLAGS_DRV_MODE,
            Self::Generic => XDP_FLAGS_SKB_MODE,
        }
    }
}

/// The XDP program on an interface. When `Program` is dropped, the XDP program is detached from the
/// interface.
#[derive(Debug)]
pub(super) struct Program {
    sockets: OwnedFd,
    _program: OwnedFd,
    _link: OwnedFd,
    mode: Mode,
}

impl Program {
    /// Loads the XDP program and attaches the program to the interface with index `index`, in the
    /// namespace of the calling thread.
    pub(super) fn attach(name: &str, index: u32, queues: u32) -> Result<Self, PortError> {
        let rights = "run as root, or with CAP_NET_ADMIN and CAP_BPF";
        let sockets = create_map(queues).map_err(|e| refused(name, "make a map", rights, e))?;
        let program =
            load(&sockets).map_err(|e| refused(name, "load the XDP program", rights, e))?;
        let (link, mode) = attach_somehow(&program, index).map_err(|e| {
            let remedy = match e.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => {
                    "another XDP program is attached to the interface; end the owner of the \
                     program, or detach the program with `ip link set dev NAME xdp off`"
                }
                Some(libc::ERANGE) => "lower the MTU of the interface or of its peer",
                Some(libc::ENOSPC) => "give the interface as many queues as its peer has",
                _ => "use a driver with XDP, or type = \"packet\"",
            };
            refused(name, "attach the XDP program", remedy, e)
        })?;
        Ok(Self { sockets, _program: program, _link: link, mode })
    }

    /// Lets the XDP program redirect the frames of `queue` to `socket` from now on.
    pub(super) fn serve(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = u32::try_from(socket.as_raw_fd()).map_err(io::Error::other)?;
        let update = MapUpdate {
            map: descriptor(&self.sockets)?,
            _pad: 0,
            key: &raw const queue as u64,
            value: &raw const value as u64,
            flags: 0,
        };
        bpf(BPF_MAP_UPDATE_ELEM, &update).map(drop)
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }
}

/// One BPF instruction: opcode, registers, offset and constant. The high half of `registers` names
/// the source register.
#[derive(Clone, Copy)]
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    constant: i32,
}

const fn instruction(code: u8, registers: u8, offset: i16, constant: i32) -> Instruction {
    Instruction { code, registers, offset, constant }
}

/// The instructions of the program `return bpf_redirect_map(&sockets, context->rx_queue_index,
/// XDP_PASS);`.
const fn instructions(sockets: i32) -> [Instruction; 6] {
    const LOAD_WORD: u8 = 0x61;
    const LOAD_DOUBLE_CONSTANT: u8 = 0x18;
    const MOVE_CONSTANT: u8 = 0xb7;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    /// Source register that marks an instruction's constant as the descriptor of a map.
    const MAP: u8 = 1 << 4;
    /// Offset in bytes of `rx_queue_index` in `struct xdp_md`.
    const QUEUE: i16 = 16;
    const XDP_PASS: i32 = 2;
    const REDIRECT_MAP: i32 = 51;
    [
        instruction(LOAD_WORD, 1 << 4 | 2, QUEUE, 0), // r2 = *(u32 *)(r1 + 16)
        instruction(LOAD_DOUBLE_CONSTANT, MAP | 1, 0, sockets), // r1 = sockets
        instruction(0, 0, 0, 0),                      // its upper half
        instruction(MOVE_CONSTANT, 3, 0, XDP_PASS),   // r3 = XDP_PASS
        instruction(CALL, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0),
    ]
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach: u32,
    flags: u32,
}

/// Calls `bpf(2)` with `attributes`, one of the attribute structures of this module.
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `attributes`, which have the form of
    // `command`, and the memory at their addresses: values of the callers, alive during the call.
    // WHY: no safe form exists.
    let done = unsafe {
        libc::syscall(libc::SYS_bpf, command, core::ptr::from_ref(attributes), size_of::<T>())
    };
    match libc::c_int::try_from(done) {
        Ok(done) if done >= 0 => Ok(done),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Like [`bpf`], for a command that returns a new file descriptor.
fn bpf_open<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the kernel has just made this descriptor (close-on-exec, like all of bpf), and
    // nothing else owns it. WHY: no safe form turns a number into an owned descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn descriptor(fd: &OwnedFd) -> io::Result<u32> {
    u32::try_from(fd.as_raw_fd()).map_err(io::Error::other)
}

fn create_map(queues: u32) -> io::Result<OwnedFd> {
    let (key_bytes, value_bytes) = (4, 4);
    let kind = BPF_MAP_TYPE_XSKMAP;
    bpf_open(BPF_MAP_CREATE, &MapCreate { kind, key_bytes, value_bytes, entries: queues, flags: 0 })
}

fn load(sockets: &OwnedFd) -> io::Result<OwnedFd> {
    let program = instructions(sockets.as_raw_fd());
    let mut name = [0; 16];
    name[..8].copy_from_slice(b"penstock");
    bpf_open(
        BPF_PROG_LOAD,
        &ProgramLoad {
            kind: BPF_PROG_TYPE_XDP,
            count: 6,
            instructions: program.as_ptr() as u64,
            licence: c"Apache-2.0 OR MIT".as_ptr() as u64,
            log_level: 0,
            log_bytes: 0,
            log: 0,
            kernel: 0,
            flags: 0,
            name,
            interface: 0,
            attach: BPF_XDP,
        },
    )
}

/// Attaches the XDP program natively or, if the driver cannot run it, in the stack.
/// `attach_somehow` tries several times, because the kernel detaches a previous owner's program
/// only shortly after the owner's process ends.
fn attach_somehow(program: &OwnedFd, interface: u32) -> io::Result<(OwnedFd, Mode)> {
    let program = descriptor(program)?;
    let attach = |mode: Mode| {
        patience(|| {
            let link = LinkCreate { program, interface, attach: BPF_XDP, flags: mode.flags() };
            bpf_open(BPF_LINK_CREATE, &link)
        })
    };
    match attach(Mode::Native) {
        Ok(link) => Ok((link, Mode::Native)),
        Err(native) if native.raw_os_error() == Some(libc::EBUSY) => Err(native),
        // If both refuse, the driver's error is more useful than the stack's error.
        Err(native) => attach(Mode::Generic).map(|link| (link, Mode::Generic)).map_err(|generic| {
            if native.raw_os_error() == Some(libc::EOPNOTSUPP) { generic } else { native }
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the XDP program with the bytes that `bpf(2)` expects. The test writes the expected
    /// bytes with the constants of the BPF instruction set.
    #[test]
    fn the_program_is_what_its_comment_says() {
        let bytes = |i: &Instruction| (i.code, i.registers, i.offset, i.constant);
        let program = instructions(7);
        let all: Vec<_> = program.iter().map(bytes).collect();
        // BPF_LDX|BPF_MEM|BPF_W, BPF_LD|BPF_DW|BPF_IMM, BPF_ALU64|BPF_MOV|BPF_K, BPF_JMP|BPF_CALL,
        // BPF_JMP|BPF_EXIT.
        assert_eq!(
            all,
            [
                (0x61, 0x12, 16, 0),
                (0x18, 0x11, 0, 7),
                (0, 0, 0, 0),
                (0xb7, 0x03, 0, 2),
                (0x85, 0, 0, 51),
                (0x95, 0, 0, 0)
            ]
        );
        assert_eq!(size_of::<Instruction>(), 8);
        assert_eq!((size_of::<ProgramLoad>(), size_of::<MapUpdate>()), (72, 32));
    }
}
