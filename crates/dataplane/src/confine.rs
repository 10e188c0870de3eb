//! Confinement limits the capabilities and system calls of threads that a guest can reach.
//!
//! # Problem
//! Workers read the rings of guests, and sessions read messages of the guests' processes. Without
//! confinement, an attacker who takes over a worker or a session would have the daemon's
//! capabilities and could make every system call.
//!
//! # Approach
//! After a thread that a guest can reach has opened its files, [`confine`] drops the thread's
//! capabilities and installs a seccomp filter. The tables in the function `allowed` define all
//! seccomp filters. A confined thread starts no other threads, so no thread inherits a wrong
//! filter.
//!
//! A system call outside the thread's table ends the process with a message that names the thread
//! and the call ([`Mode::On`]). A forbidden system call must end the process: an error in the table
//! must not look like a hang, and a thread under attack must not continue. Opening a file fails
//! with `EACCES` instead, because glibc's allocator tries to open files but also works without
//! files.
//!
//! # Cost
//! Each confined thread has two seccomp filters. The kernel keeps a bitmap of system calls that are
//! always allowed.
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

/// Effect of a system call that is not in the thread's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// The process reports the forbidden system call and aborts.
    On,
    /// The kernel logs the system call (`audit: type=1326`) and executes the call.
    Log,
    /// No seccomp filter is installed, but the thread still drops its capabilities.
    Off,
}

/// Confinement mode of threads that call [`confine`] later.
static MODE: AtomicU8 = AtomicU8::new(Mode::On as u8);

/// Sets the confinement mode of threads that start after the call. The default confinement mode is
/// [`Mode::On`].
pub fn set_mode(mode: Mode) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// Kind of a confined thread, which determines the thread's table of allowed system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The thread moves frames between guest memory, TAP devices, packet sockets and AF_XDP
    /// sockets.
    Worker,
    /// The thread exchanges vhost-user messages with the process of a VM.
    Session,
    /// The thread connects to sockets on which VMs listen, on behalf of a session, and reads
    /// nothing from the sockets. The dialler keeps `CAP_DAC_OVERRIDE` if it has this capability,
    /// because the socket may belong to another user.
    Dialler,
    /// The thread watches the state of an AF_XDP port's interface.
    Link,
    /// The thread records that the process runs.
    Witness,
}

/// Condition on one argument of a system call.
#[derive(Clone, Copy, Debug)]
enum Only {
    Any,
    /// Argument 0 of the system call must be one of the listed values.
    First(&'static [u64]),
    /// Argument 1 of the system call must be one of the listed values.
    Second(&'static [u64]),
    /// Argument 2 of the call must have none of the given bits.
    ThirdWithout(u64),
    /// Argument 0 of the system call must be the ID of the calling process.
    Ourselves,
    /// The thread may only open stream sockets of the unix family. The helper process opens sockets
    /// of other types and families for confined threads.
    UnixStream,
}
use Only::{Any, First, Ourselves, Second, ThirdWithout, UnixStream};

type Table = &'static [(libc::c_long, Only)];

/// Protection bit of `mmap` and `mprotect` that no confined thread needs.
const EXEC: u64 = libc::PROT_EXEC.unsigned_abs() as u64;

/// Operations of `fcntl` that confined threads use.
const FCNTLS: &[u64] = &[
    libc::F_GETFD.unsigned_abs() as u64,
    libc::F_SETFD.unsigned_abs() as u64,
    libc::F_DUPFD_CLOEXEC.unsigned_abs() as u64,
    libc::F_GETFL.unsigned_abs() as u64,
    libc::F_SETFL.unsigned_abs() as u64,
    libc::F_GET_SEALS.unsigned_abs() as u64,
];

/// System calls that every confined thread may make: for memory, locks, time, signals, logging and
/// the end of the thread.
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
    // glibc's sort and the limits on mappings read the size of the host's memory.
    (libc::SYS_sysinfo, Any),
    (libc::SYS_gettid, Any),
    (libc::SYS_tgkill, Ourselves),
    (libc::SYS_rt_sigaction, Any),
    (libc::SYS_rt_sigprocmask, Any),
    (libc::SYS_rt_sigreturn, Any),
    (libc::SYS_sigaltstack, Any),
    // `prctl` reads the thread's name for the message about a forbidden call.
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
    // F_SETOWN and F_SETSIG are not allowed, because with them the kernel would send any signal to
    // any process. In a debug build, the standard library checks with F_GETFD that a descriptor is
    // open before it closes the descriptor.
    (libc::SYS_fcntl, Second(FCNTLS)),
    (libc::SYS_exit, Any),
    (libc::SYS_exit_group, Any),
];

/// Further system calls that a worker may make. A worker deletes its timer when the worker ends,
/// and drops ports that were moved or removed.
const WORKER: Table = &[
    // At each timer signal, the thread reads how often it gave up its core.
    (libc::SYS_getrusage, First(&[libc::RUSAGE_THREAD.unsigned_abs() as u64])),
    (libc::SYS_timer_settime, Any),
    (libc::SYS_timer_delete, Any),
    // To stop a port, the worker shuts the port's socket down, because the session may be waiting
    // for its peer.
    (libc::SYS_shutdown, Any),
    (libc::SYS_setsockopt, Any),
    (libc::SYS_getsockopt, Any),
];

/// Further system calls that a session may make. A session accepts connections, and maps or creates
/// memory that is shared with the VM's process.
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

const DIALLER: Table = &[
    (libc::SYS_socket, UnixStream),
    (libc::SYS_connect, Any),
    (libc::SYS_ioctl, Second(&[libc::FIONBIO])),
];

const LINK: Table =
    &[(libc::SYS_ioctl, Second(&[libc::SIOCGIFINDEX, libc::SIOCGIFMTU, libc::SIOCGIFFLAGS]))];

/// System calls that fail with `EACCES`, without ending the process, if the thread's role forbids
/// the call. The allocator and the panic handler try the system calls in `REFUSED`.
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

/// Returns the tables of system calls that a role may make. The seccomp filters are made from the
/// tables of allowed system calls, and `docs/reference/privileges.md` shows the tables.
fn allowed(role: Role) -> Vec<Table> {
    match role {
        Role::Worker => vec![COMMON, WORKER],
        Role::Session => vec![COMMON, SESSION],
        Role::Dialler => vec![COMMON, DIALLER],
        Role::Link => vec![COMMON, LINK],
        Role::Witness => vec![COMMON],
    }
}

/// Drops the calling thread's capabilities and forbids every system call outside the role's table.
/// The confined thread cannot undo the confinement.
///
/// # Errors
/// Returns an error if the kernel has no seccomp, or if a service manager forbids the calls that
/// install a filter.
pub fn confine(role: Role) -> io::Result<()> {
    drop_capabilities(role).map_err(io::Error::other)?;
    let mode = MODE.load(Ordering::Relaxed);
    if mode == Mode::Off as u8 {
        return Ok(());
    }
    let is_logged = mode == Mode::Log as u8;
    install_handler()?;
    // The filter on opening files is installed first, because the second filter forbids installing
    // further filters.
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

/// Returns the seccomp filters of a role, in the order of installation.
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

/// Returns the seccomp rules for a condition on a system call's arguments. An empty list of seccomp
/// rules allows a system call with any arguments.
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
            // The lowest four bits are the socket type; the others are flags.
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
        // SAFETY: the handler makes only async-signal-safe calls. WHY: no safe form exists.
        unsafe { sigaction(Signal::SIGSYS, &action) }.map(drop)
    })
}

/// Offset in bytes of the system call's number in the kernel's `siginfo_t` on 64-bit systems. The
/// fields before the system call's number are signal, error and code, padded to 16 bytes, and the
/// call's address.
const CALL_AT: usize = 24;

/// Handler of SIGSYS: writes the names of the thread and the call to stderr and ends the process.
extern "C" fn forbidden(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a whole `siginfo_t`, and for SIGSYS the call's number is at offset
    // `CALL_AT`. WHY: libc has no name for the member.
    let call = unsafe { info.cast::<u8>().add(CALL_AT).cast::<i32>().read() };
    let mut name = [0_u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes. WHY: a signal handler must not allocate.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name = name.split(|&byte| byte == 0).next().unwrap_or(&[]);
    let mut digits = [0_u8; 10];
    let parts: [&[u8]; 6] = [
        b"penstock: thread ",
        name,
        b" made system call ",
        decimal(call.unsigned_abs(), &mut digits),
        b", which the thread's seccomp filter forbids; report this defect, and ",
        b"set seccomp = \"off\" in [host] until the defect is fixed\n",
    ];
    for part in parts {
        // SAFETY: the part is readable for its length. WHY: the safe forms may take a lock.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: the call takes no argument and ends the process. WHY: `std::process::abort` is not
    // documented as signal-safe.
    unsafe { libc::abort() }
}

/// Formats `number` in decimal without an allocation.
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

    /// Environment variable that a test sets in its child process to the confinement mode under
    /// test.
    const CHILD: &str = "PENSTOCK_CONFINE_TEST";

    /// Returns the confinement mode that a test gave to this process, or `None` if no test started
    /// the process.
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
            // SAFETY: the call only makes a socket. WHY: the test checks the number of this call.
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

    /// Finds the line that begins with `key` in a thread's `/proc` status file, and returns the
    /// line's number.
    fn status(thread_id: i32, key: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/self/task/{thread_id}/status")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn a_confined_thread_has_no_capability_and_opens_no_file() {
        for role in [Role::Worker, Role::Session, Role::Dialler, Role::Link, Role::Witness] {
            let (told, thread_id) = std::sync::mpsc::channel();
            let (done, wait) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                confine(role).unwrap();
                told.send(nix::unistd::gettid().as_raw()).unwrap();
                // A thread that logs, allocates and waits makes only allowed calls.
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
    fn a_panic_keeps_its_own_message() {
        if child().is_some() {
            on_a_thread(|| {
                confine(Role::Worker).unwrap();
                std::panic::catch_unwind(|| panic!("what went wrong")).unwrap_err()
            });
            return;
        }
        let name = "confine::tests::a_panic_keeps_its_own_message";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(CHILD, "").env("RUST_BACKTRACE", "1");
        let ended = command.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{said}");
        assert!(said.contains("what went wrong") && !said.contains("made system call"), "{said}");
    }

    #[test]
    fn a_descriptor_cannot_make_the_kernel_send_signals() {
        if child().is_some() {
            on_a_thread(|| {
                let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
                confine(Role::Session).unwrap();
                let fd = std::os::fd::AsRawFd::as_raw_fd(&ours);
                // SAFETY: the call changes only the owner of the socket. WHY: the test checks this
                // call.
                unsafe { libc::fcntl(fd, libc::F_SETOWN, 1) };
            });
            return;
        }
        let ended = run_child("a_descriptor_cannot_make_the_kernel_send_signals", "");
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT));
    }

    #[test]
    fn a_session_replaces_no_descriptor() {
        if child().is_some() {
            on_a_thread(|| {
                confine(Role::Session).unwrap();
                // SAFETY: both numbers are those of standard error, so the call would be an error.
                // WHY: the test checks this call.
                unsafe { libc::dup3(libc::STDERR_FILENO, libc::STDERR_FILENO, 0) };
            });
            return;
        }
        let ended = run_child("a_session_replaces_no_descriptor", "");
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
                // SAFETY: the call makes a new mapping that nothing uses. WHY: the test checks this
                // call.
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
