//! What a thread that a guest or its process can reach may still do.
//!
//! **Problem.** Workers read guests' rings, sessions read messages of guests' processes. Whoever
//! takes one of these threads over would have the daemon's capabilities and every system call.
//! **Approach.** When such a thread has what it needs, it gives its capabilities up and puts a
//! seccomp filter on itself ([`confine`]). The filters are made from one table, `allowed`. The
//! threads start no threads, so nobody inherits a filter that does not fit. **A call that is not in
//! the table** ends the process with a message that names the thread and the call ([`Mode::On`]):
//! a defect of the table must not look like a hang, and a thread that was taken over must not go
//! on. Opening a file fails with `EACCES` instead: glibc's allocator tries it and goes on without.
//! **Cost.** Two filters a thread; the kernel keeps a bitmap of calls that are always allowed.
#![allow(unsafe_code, reason = "a handler of SIGSYS")]

use core::sync::atomic::{AtomicU8, Ordering};
use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;

use caps::{CapSet, Capability};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// What happens to a system call that is not in a thread's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// The process says so and aborts.
    On,
    /// The kernel logs it (`audit: type=1326`) and carries it out.
    Log,
    /// There is no filter. Capabilities are given up all the same.
    Off,
}

/// Of all threads that are confined from now on.
static MODE: AtomicU8 = AtomicU8::new(Mode::On as u8);

/// Sets the mode of threads that are started from now on; [`Mode::On`] unless it is called.
pub fn set_mode(mode: Mode) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// A kind of thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Moves frames: rings in guests' memory, TAP, packet and AF_XDP sockets.
    Worker,
    /// Talks to the process of a VM.
    Session,
    /// Connects to VMs that listen, for a session, and hears nothing of them. It keeps
    /// `CAP_DAC_OVERRIDE` if it has it: the VM's socket may be another user's.
    Dialler,
    /// Follows the state of an AF_XDP port's interface.
    Link,
}

/// A condition on one argument of a call.
#[derive(Clone, Copy, Debug)]
enum Only {
    /// Any arguments.
    Any,
    /// Argument 0 is one of these.
    First(&'static [u64]),
    /// Argument 1 is one of these.
    Second(&'static [u64]),
    /// Argument 2 has none of these bits.
    ThirdWithout(u64),
    /// Argument 0 is this process.
    Ourselves,
    /// A unix stream socket: the helper has one of another kind.
    UnixStream,
}
use Only::{Any, First, Ourselves, Second, ThirdWithout, UnixStream};

type Table = &'static [(libc::c_long, Only)];

/// Bits of `mmap` and `mprotect` that no thread needs.
const EXEC: u64 = libc::PROT_EXEC.unsigned_abs() as u64;

/// What is asked of descriptors.
const FCNTLS: &[u64] = &[
    libc::F_GETFD.unsigned_abs() as u64,
    libc::F_SETFD.unsigned_abs() as u64,
    libc::F_DUPFD_CLOEXEC.unsigned_abs() as u64,
    libc::F_GETFL.unsigned_abs() as u64,
    libc::F_SETFL.unsigned_abs() as u64,
    libc::F_GET_SEALS.unsigned_abs() as u64,
];

/// Memory, locks, time, signals, logging and the thread's end: every thread.
const COMMON: Table = &[
    (libc::SYS_brk, Any),
    (libc::SYS_mmap, ThirdWithout(EXEC)),
    (libc::SYS_mprotect, ThirdWithout(EXEC)),
    (libc::SYS_mremap, Any),
    (libc::SYS_munmap, Any),
    (libc::SYS_madvise, Any),
    (libc::SYS_futex, Any),
    (libc::SYS_membarrier, Any),
    (libc::SYS_rseq, Any),
    (libc::SYS_set_robust_list, Any),
    (libc::SYS_sched_yield, Any),
    (libc::SYS_sched_getaffinity, Any),
    (libc::SYS_getcpu, Any),
    (libc::SYS_clock_gettime, Any),
    (libc::SYS_clock_getres, Any),
    (libc::SYS_gettimeofday, Any),
    (libc::SYS_clock_nanosleep, Any),
    (libc::SYS_nanosleep, Any),
    (libc::SYS_restart_syscall, Any),
    (libc::SYS_getrandom, Any),
    (libc::SYS_getpid, Any),
    // How much memory the host has: limits of mappings go by it, and glibc's sort.
    (libc::SYS_sysinfo, Any),
    (libc::SYS_gettid, Any),
    (libc::SYS_tgkill, Ourselves),
    (libc::SYS_rt_sigaction, Any),
    (libc::SYS_rt_sigprocmask, Any),
    (libc::SYS_rt_sigreturn, Any),
    (libc::SYS_sigaltstack, Any),
    // The message about a forbidden call names the thread.
    (libc::SYS_prctl, First(&[libc::PR_GET_NAME.unsigned_abs() as u64])),
    (libc::SYS_read, Any),
    (libc::SYS_readv, Any),
    (libc::SYS_pread64, Any),
    (libc::SYS_write, Any),
    (libc::SYS_writev, Any),
    (libc::SYS_poll, Any),
    (libc::SYS_ppoll, Any),
    (libc::SYS_recvfrom, Any),
    (libc::SYS_recvmsg, Any),
    (libc::SYS_sendto, Any),
    (libc::SYS_sendmsg, Any),
    (libc::SYS_close, Any),
    // Not all of it: F_SETOWN and F_SETSIG would have the kernel send any process any signal. The
    // standard library looks, in a debug build, whether what it closes is open.
    (libc::SYS_fcntl, Second(FCNTLS)),
    (libc::SYS_exit, Any),
    (libc::SYS_exit_group, Any),
];

/// A worker ends with its timer, and takes ports that were moved or removed apart.
const WORKER: Table = &[
    // How often the thread gave up its core, asked with each signal of its timer.
    (libc::SYS_getrusage, First(&[libc::RUSAGE_THREAD.unsigned_abs() as u64])),
    (libc::SYS_timer_settime, Any),
    (libc::SYS_timer_delete, Any),
    // A port that is stopped: its session may wait for its peer.
    (libc::SYS_shutdown, Any),
    (libc::SYS_setsockopt, Any),
    (libc::SYS_getsockopt, Any),
];

/// A session takes connections, and maps and makes what it shares with the VM's process.
const SESSION: Table = &[
    (libc::SYS_accept4, Any),
    (libc::SYS_shutdown, Any),
    (libc::SYS_getsockopt, Any),
    (libc::SYS_setsockopt, Any),
    (libc::SYS_ioctl, Second(&[libc::FIONBIO])),
    (libc::SYS_lseek, Any),
    (libc::SYS_pwrite64, Any),
    (libc::SYS_fstat, Any),
    (libc::SYS_newfstatat, Any),
    (libc::SYS_statx, Any),
    (libc::SYS_fstatfs, Any),
    (libc::SYS_readlink, Any),
    (libc::SYS_readlinkat, Any),
    (libc::SYS_dup, Any),
    (libc::SYS_eventfd2, Any),
    (libc::SYS_memfd_create, Any),
    (libc::SYS_ftruncate, Any),
    (libc::SYS_fallocate, Any),
];

/// A dialler connects.
const DIALLER: Table = &[
    (libc::SYS_socket, UnixStream),
    (libc::SYS_connect, Any),
    (libc::SYS_ioctl, Second(&[libc::FIONBIO])),
];

const LINK: Table =
    &[(libc::SYS_ioctl, Second(&[libc::SIOCGIFINDEX, libc::SIOCGIFMTU, libc::SIOCGIFFLAGS]))];

/// Calls that fail with `EACCES` and have no other consequence, where a role may not make them: the
/// allocator and the words about a panic try them.
const REFUSED: [libc::c_long; 9] = [
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_getcwd,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
];

/// The table that the filters are made from; `docs/privileges.md` shows it.
fn allowed(role: Role) -> Vec<Table> {
    match role {
        Role::Worker => vec![COMMON, WORKER],
        Role::Session => vec![COMMON, SESSION],
        Role::Dialler => vec![COMMON, DIALLER],
        Role::Link => vec![COMMON, LINK],
    }
}

/// Gives up the calling thread's capabilities, and what it may call beyond its role's table. There
/// is no way back.
///
/// # Errors
/// The kernel has no seccomp, or a service manager forbids the calls that this needs.
pub fn confine(role: Role) -> io::Result<()> {
    drop_capabilities(role).map_err(io::Error::other)?;
    let mode = MODE.load(Ordering::Relaxed);
    if mode == Mode::Off as u8 {
        return Ok(());
    }
    let is_logged = mode == Mode::Log as u8;
    install_handler()?;
    // The opening of files first: after the second filter there is no other one.
    let programs = programs(role, is_logged).map_err(io::Error::other)?;
    for program in programs {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

fn drop_capabilities(role: Role) -> Result<(), caps::errors::CapsError> {
    let held = caps::read(None, CapSet::Permitted)?;
    let kept = held.into_iter();
    let kept =
        kept.filter(|&it| role == Role::Dialler && it == Capability::CAP_DAC_OVERRIDE).collect();
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)
}

/// The filters of a role, in the order in which they are applied.
fn programs(role: Role, is_logged: bool) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let mut rules = BTreeMap::new();
    for &(call, only) in allowed(role).into_iter().flatten() {
        rules.insert(call, conditions(only)?);
    }
    let mut refused: BTreeMap<_, _> = REFUSED.iter().map(|&call| (call, Vec::new())).collect();
    refused.retain(|call, _| !rules.contains_key(call));
    rules.extend(refused.clone());
    let compile = |rules, otherwise, action| {
        SeccompFilter::new(rules, otherwise, action, arch).and_then(BpfProgram::try_from)
    };
    if is_logged {
        return Ok(vec![compile(rules, SeccompAction::Log, SeccompAction::Allow)?]);
    }
    let eacces = SeccompAction::Errno(u32::try_from(libc::EACCES).unwrap_or(1));
    Ok(vec![
        compile(refused, SeccompAction::Allow, eacces)?,
        compile(rules, SeccompAction::Trap, SeccompAction::Allow)?,
    ])
}

/// No rule: any arguments will do.
fn conditions(only: Only) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let rule = |argument, operator, value| {
        let length = SeccompCmpArgLen::Dword;
        SeccompRule::new(vec![SeccompCondition::new(argument, length, operator, value)?])
    };
    let among = |argument, values: &[u64]| {
        values.iter().map(|&value| rule(argument, SeccompCmpOp::Eq, value)).collect()
    };
    match only {
        Any => Ok(Vec::new()),
        First(values) => among(0, values),
        Second(values) => among(1, values),
        ThirdWithout(bits) => Ok(vec![rule(2, SeccompCmpOp::MaskedEq(bits), 0)?]),
        Ourselves => among(0, &[u64::from(std::process::id())]),
        UnixStream => {
            let dword = SeccompCmpArgLen::Dword;
            let family = libc::AF_UNIX.unsigned_abs().into();
            // The lowest four bits; the others are flags.
            let stream = (SeccompCmpOp::MaskedEq(0xf), libc::SOCK_STREAM.unsigned_abs().into());
            Ok(vec![SeccompRule::new(vec![
                SeccompCondition::new(0, dword.clone(), SeccompCmpOp::Eq, family)?,
                SeccompCondition::new(1, dword, stream.0, stream.1)?,
            ])?])
        }
    }
}

fn install_handler() -> nix::Result<()> {
    static INSTALLED: OnceLock<nix::Result<()>> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        let handler = SigHandler::SigAction(forbidden);
        let action = SigAction::new(handler, SaFlags::SA_SIGINFO, SigSet::empty());
        // SAFETY: the handler makes only calls that a handler may make. WHY: no safe form.
        unsafe { sigaction(Signal::SIGSYS, &action) }.map(drop)
    })
}

/// Where the kernel's `siginfo_t` has the number of the call, on 64 bits: after signal, error and
/// code (padded to 16 bytes) and the address of the call.
const CALL_AT: usize = 24;

/// Says which thread made which call, and ends the process.
extern "C" fn forbidden(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a whole `siginfo_t`, and for SIGSYS a number stands there.
    // WHY: libc has no name for that member.
    let call = unsafe { info.cast::<u8>().add(CALL_AT).cast::<i32>().read() };
    let mut name = [0_u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes. WHY: no allocation is allowed here.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name = name.split(|&byte| byte == 0).next().unwrap_or(&[]);
    let mut digits = [0_u8; 10];
    let parts: [&[u8]; 6] = [
        b"penstock: thread ",
        name,
        b" made system call ",
        decimal(call.unsigned_abs(), &mut digits),
        b", which its filter forbids: a defect, report it; ",
        b"until it is mended set seccomp = \"off\" in [host]\n",
    ];
    for part in parts {
        // SAFETY: the part is readable for its length. WHY: the safe forms may lock.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: ends the process. WHY: `std::process::abort` promises nothing to a handler.
    unsafe { libc::abort() }
}

/// Without an allocation.
fn decimal(mut number: u32, room: &mut [u8; 10]) -> &[u8] {
    let mut from = room.len();
    loop {
        from -= 1;
        room[from] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        if number == 0 {
            return &room[from..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Output};

    /// Set in the child that a test starts of itself: the mode.
    const CHILD: &str = "PENSTOCK_CONFINE_TEST";

    /// The mode if this is such a child.
    fn child() -> Option<String> {
        std::env::var(CHILD).ok()
    }

    fn run_child(test: &str, mode: &str) -> Output {
        let name = format!("confine::tests::{test}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &name, "--nocapture"]).env(CHILD, mode).output().unwrap()
    }

    fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = std::thread::Builder::new().name("penstock-w7".to_owned());
        thread.spawn(work).unwrap().join().unwrap()
    }

    fn call_something_forbidden(role: Role) -> libc::c_int {
        on_a_thread(move || {
            confine(role).unwrap();
            // SAFETY: makes a socket. WHY: the number of the call is what is tested.
            unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) }
        })
    }

    #[test]
    fn a_forbidden_call_ends_with_the_threads_name_and_the_calls_number() {
        if child().is_some() {
            call_something_forbidden(Role::Worker);
            return;
        }
        let ended =
            run_child("a_forbidden_call_ends_with_the_threads_name_and_the_calls_number", "");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{said}");
        let told = format!("penstock: thread penstock-w7 made system call {}, ", libc::SYS_socket);
        assert!(said.contains(&told) && said.contains("seccomp = \"off\""), "{said}");
    }

    #[test]
    fn without_a_filter_or_with_a_log_the_call_is_made() {
        if let Some(mode) = child() {
            set_mode(if mode == "log" { Mode::Log } else { Mode::Off });
            assert!(call_something_forbidden(Role::Dialler) >= 0);
            return;
        }
        for mode in ["log", "off"] {
            let ended = run_child("without_a_filter_or_with_a_log_the_call_is_made", mode);
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        }
    }

    /// What `/proc` says about a thread of ours, by the beginning of a line.
    fn status(thread_id: i32, key: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/self/task/{thread_id}/status")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn a_confined_thread_has_no_capability_and_opens_no_file() {
        for role in [Role::Worker, Role::Session, Role::Dialler, Role::Link] {
            let (told, thread_id) = std::sync::mpsc::channel();
            let (done, wait) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                confine(role).unwrap();
                told.send(nix::unistd::gettid().as_raw()).unwrap();
                // What a thread that logs, allocates and waits does is allowed.
                eprintln!("{}", vec![0_u8; 1 << 20].len());
                std::thread::yield_now();
                let _ = wait.recv();
                std::fs::File::open("/proc/self/status").unwrap_err().raw_os_error()
            });
            let thread_id = thread_id.recv().unwrap();
            let kept =
                if role == Role::Dialler { Capability::CAP_DAC_OVERRIDE.bitmask() } else { 0 };
            for set in ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"] {
                assert_eq!(status(thread_id, set) & !kept, 0, "{role:?} {set}");
            }
            assert_eq!(status(thread_id, "Seccomp:"), 2, "{role:?}");
            drop(done);
            assert_eq!(thread.join().unwrap(), Some(libc::EACCES), "{role:?}");
        }
    }

    #[test]
    fn a_panic_says_its_own_words() {
        if child().is_some() {
            on_a_thread(|| {
                confine(Role::Worker).unwrap();
                std::panic::catch_unwind(|| panic!("what went wrong")).unwrap_err()
            });
            return;
        }
        let name = "confine::tests::a_panic_says_its_own_words";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(CHILD, "").env("RUST_BACKTRACE", "1");
        let ended = command.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{said}");
        assert!(said.contains("what went wrong") && !said.contains("made system call"), "{said}");
    }

    #[test]
    fn nobody_is_sent_a_signal_by_a_descriptor() {
        if child().is_some() {
            on_a_thread(|| {
                let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
                confine(Role::Session).unwrap();
                let fd = std::os::fd::AsRawFd::as_raw_fd(&ours);
                // SAFETY: changes who is told of the socket. WHY: the call is what is tested.
                unsafe { libc::fcntl(fd, libc::F_SETOWN, 1) };
            });
            return;
        }
        let ended = run_child("nobody_is_sent_a_signal_by_a_descriptor", "");
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT));
    }

    #[test]
    fn memory_that_can_be_run_is_not_to_be_had() {
        let name = "memory_that_can_be_run_is_not_to_be_had";
        if child().is_some() {
            on_a_thread(|| {
                confine(Role::Session).unwrap();
                let (read_exec, private) =
                    (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                // SAFETY: a new mapping that nobody uses. WHY: as above.
                unsafe { libc::mmap(core::ptr::null_mut(), 4096, read_exec, private, -1, 0) };
            });
            return;
        }
        assert_eq!(run_child(name, "").status.signal(), Some(libc::SIGABRT));
    }

    #[test]
    fn numbers_are_written_without_an_allocation() {
        let mut room = [0; 10];
        for (number, text) in [(0, "0"), (41, "41"), (u32::MAX, "4294967295")] {
            assert_eq!(decimal(number, &mut room), text.as_bytes());
        }
    }
}
