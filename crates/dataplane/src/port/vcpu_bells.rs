//! The switch's part of the vCPU bells, which are frame counters for the vCPU scheduler
//! (`penstock_vcpu::bells`). The switch increments a VM's bell (a frame counter) to notify the vCPU
//! scheduler that frames arrived for the VM.
//!
//! # Approach
//! A vCPU bell is a frame counter in a file that switch and vCPU scheduler share. The switch adds
//! one to a VM's frame counter for each burst for which it notifies the VM's driver. The vCPU
//! scheduler reads the counters when it polls. Before the scheduler sleeps, it sets a byte beside
//! the counter of each VM for which the switch should wake it. If a worker finds the wake-up byte
//! of a VM set, the worker clears the byte and sends one datagram to the scheduler. The switch
//! makes at most one system call for each sleep of the vCPU scheduler, regardless of the number of
//! arriving frames.
//!
//! # Cost
//! Adding to a VM's frame counter costs some tens of cycles per burst. A datagram that wakes the
//! vCPU scheduler costs some microseconds.
//!
//! # Trust
//! The file with the vCPU bells belongs to the operator (mode 0600). If a process shortens the file
//! of vCPU bells, the missing counters read as zeros ([`super::peer_memory`]), and the switch wakes
//! no thread.

use core::fmt;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_vcpu::bells::{
    BELLS, BELLS_FILE, Bell, FILE_LEN, LINE, MAGIC, NAME_MAX, NAMES_AT, Place, SOCKET_PREFIX,
    SUMMONS, line_of, place, ring, summoned, take_summons,
};

use super::peer_memory::shared_file::SharedFile;
use super::peer_memory::{MemoryAccount, SharedFileError};

/// Maximum length in bytes of a Unix socket's path (`unix(7)`), without the terminating zero.
const PATH_MAX: usize = 107;

/// Reason why the switch cannot use the vCPU bells, or why a VM has no vCPU bell.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VcpuBellError {
    /// The switch cannot open or prepare the file that contains the VMs' vCPU bells.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The switch cannot map the file of vCPU bells.
    #[error(
        "{}: {source}; set [vcpu] `run_dir` to a directory on a tmpfs, as /run is \
         on most hosts", path.display()
    )]
    Shared { path: PathBuf, source: SharedFileError },
    /// The file at the path of the vCPU bells contains other data.
    #[error("{}: not a file of vCPU doorbells; remove the file", .0.display())]
    Foreign(PathBuf),
    /// The given name is not a valid name for a VM.
    #[error("{0:?} is not a valid VM name for a doorbell; use 1 to {NAME_MAX} bytes without NUL")]
    Name(String),
    /// All vCPU bells (frame counters) of the host are assigned to VMs.
    #[error(
        "all {BELLS} doorbells in {} are assigned, so VM {name:?} gets no doorbell; stop the \
         switch and the scheduler, then remove the file",
        path.display()
    )]
    Full {
        /// Path of the file with the VMs' vCPU bells.
        path: PathBuf,
        /// Name of the VM for which no vCPU bell is free.
        name: String,
    },
}

/// The file with the vCPU bells (frame counters for the vCPU scheduler) of all VMs of a host.
#[derive(Debug)]
pub struct VcpuBells {
    dir: PathBuf,
    file: File,
    shared: SharedFile,
    socket: UnixDatagram,
}

fn wide(at: usize) -> u64 {
    u64::try_from(at).unwrap_or(u64::MAX)
}

impl VcpuBells {
    /// Opens the file of vCPU bells (frame counters) in `dir`, the vCPU scheduler's `run_dir`. If
    /// the file or the directory is missing, `open` creates it. The vCPU bells that are already in
    /// the file keep their numbers.
    ///
    /// # Errors
    /// Returns an error if the directory is not on a tmpfs, or if the file does not contain vCPU
    /// bells.
    pub fn open(dir: &Path) -> Result<Arc<Self>, VcpuBellError> {
        let path = dir.join(BELLS_FILE);
        let (file, socket) = Self::file(dir, &path)?;
        // The file belongs to the operator, so its bytes count for no port.
        let account = MemoryAccount::default();
        let map = SharedFile::map(&account, "bells", &file, 0, wide(FILE_LEN), wide(FILE_LEN));
        let shared = map.map_err(|source| VcpuBellError::Shared { path, source })?;
        Ok(Arc::new(Self { dir: dir.to_owned(), file, shared, socket }))
    }

    fn file(dir: &Path, path: &Path) -> Result<(File, UnixDatagram), VcpuBellError> {
        let failed = |source| VcpuBellError::File { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // If the switch followed a link, it would write into the link's target.
        options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
        let file = options.open(path).map_err(failed)?;
        let of_bells = Self::prepare(&file).map_err(failed)?;
        if !of_bells {
            return Err(VcpuBellError::Foreign(path.to_owned()));
        }
        let socket = UnixDatagram::unbound().map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok((file, socket))
    }

    /// Extends `file` to the length of a file of vCPU bells. Returns false if `file` contains other
    /// data than vCPU bells.
    fn prepare(file: &File) -> io::Result<bool> {
        file.lock()?;
        let length = file.metadata()?.len();
        let mut magic = [0; 8];
        if length >= 8 {
            file.read_exact_at(&mut magic, 0)?;
        }
        // Zeros are accepted. In that case the creator of the file has not written yet, or died
        // before it wrote.
        if length > 0 && ![0, MAGIC].contains(&u64::from_ne_bytes(magic)) {
            return Ok(false);
        }
        if length < wide(FILE_LEN) {
            file.set_len(wide(FILE_LEN))?;
        }
        file.write_all_at(&MAGIC.to_ne_bytes(), 0)?;
        file.unlock()?;
        Ok(true)
    }

    /// Returns the frame counter ("bell") of the VM `name`. If the VM has no counter, `claim`
    /// assigns a free counter to the VM.
    ///
    /// # Errors
    /// Returns an error if all bells are assigned, or if `name` is invalid.
    pub fn claim(self: &Arc<Self>, name: &str) -> Result<VcpuBell, VcpuBellError> {
        let path = || self.dir.join(BELLS_FILE);
        let line = line_of(name).ok_or_else(|| VcpuBellError::Name(name.to_owned()))?;
        let failed = |source| VcpuBellError::File { path: path(), source };
        self.file.lock().map_err(failed)?;
        let entered = self.enter(&line);
        self.file.unlock().map_err(failed)?;
        match entered.map_err(failed)? {
            Some(bell) => Ok(VcpuBell { bells: Arc::clone(self), bell, name: name.into() }),
            None => Err(VcpuBellError::Full { path: path(), name: name.to_owned() }),
        }
    }

    fn enter(&self, line: &[u8; LINE]) -> io::Result<Option<Bell>> {
        let mut names = vec![0; usize::from(BELLS) * LINE];
        self.file.read_exact_at(&mut names, wide(NAMES_AT))?;
        Ok(match place(&names, line) {
            Place::Has(bell) => Some(bell),
            Place::Full => None,
            Place::Free(bell) => {
                self.file.write_all_at(line, wide(bell.name_at()))?;
                Some(bell)
            }
        })
    }

    /// Socket path of scheduling thread number `at`. The path is written into `room` without an
    /// allocation.
    fn socket_of<'a>(&self, at: usize, room: &'a mut [u8; PATH_MAX]) -> Option<&'a Path> {
        let mut left = &mut room[..];
        left.write_all(self.dir.as_os_str().as_bytes()).ok()?;
        write!(left, "/{SOCKET_PREFIX}{at}").ok()?;
        let unused = left.len();
        Some(Path::new(OsStr::from_bytes(&room[..PATH_MAX - unused])))
    }
}

/// The frame counter of one VM for the vCPU scheduler (the VM's "bell"). A worker increments the
/// VM's frame counter when frames arrive for the VM.
#[derive(Clone)]
pub struct VcpuBell {
    bells: Arc<VcpuBells>,
    bell: Bell,
    name: Arc<str>,
}

impl fmt::Debug for VcpuBell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "doorbell of VM {} in {}", self.name, self.bells.dir.display())
    }
}

impl VcpuBell {
    /// Whether both are the bell of one VM in the same open file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bells, &other.bells) && self.bell == other.bell && self.name == other.name
    }

    /// Reports to the vCPU scheduler that frames arrived for the VM. Returns the number of system
    /// calls that woke scheduling threads.
    #[inline]
    pub fn ring(&self) -> u32 {
        let Some(counter) = self.bells.shared.u64_at(self.bell.counter_at()) else { return 0 };
        ring(counter);
        let mut calls = 0;
        for at in 0..SUMMONS {
            let word = self.bells.shared.u64_at(self.bell.summons_at() + at * 8);
            let taken = word.map_or(0, take_summons);
            if taken != 0 {
                calls += self.wake(at, taken);
            }
        }
        calls
    }

    /// Wakes the scheduling threads that requested to be woken, and returns the number of system
    /// calls. Errors of the wake-up datagram are ignored, because a scheduling thread that has
    /// ended has no socket, and a thread with a full socket is awake.
    #[cold]
    fn wake(&self, at: usize, taken: u64) -> u32 {
        let mut calls = 0;
        for thread in summoned(at, taken) {
            let mut room = [0; PATH_MAX];
            if let Some(path) = self.bells.socket_of(thread, &mut room) {
                let _ = self.bells.socket.send_to(self.name.as_bytes(), path);
                calls += 1;
            }
        }
        calls
    }
}

#[cfg(test)]
mod tests {
    use penstock_testing::memory_dir;

    use super::*;

    fn word(dir: &Path, at: usize) -> u64 {
        let mut word = [0; 8];
        let file = File::open(dir.join(BELLS_FILE)).unwrap();
        file.read_exact_at(&mut word, wide(at)).unwrap();
        u64::from_ne_bytes(word)
    }

    #[test]
    fn a_bell_survives_the_switch_and_continues_counting() {
        let home = memory_dir();
        let dir = home.join("run");
        let bells = VcpuBells::open(&dir).unwrap();
        let (web, db) = (bells.claim("web").unwrap(), bells.claim("db").unwrap());
        assert_eq!((web.ring(), web.ring(), db.ring()), (0, 0, 0), "nobody has to be woken");
        let again = VcpuBells::open(&dir).unwrap().claim("web").unwrap();
        again.ring();
        assert_eq!((word(&dir, web.bell.counter_at()), word(&dir, db.bell.counter_at())), (3, 1));
        assert!(matches!(bells.claim(""), Err(VcpuBellError::Name(_))));
    }

    #[test]
    fn only_the_sleeping_thread_is_woken_and_only_once() {
        let dir = memory_dir();
        let bells = VcpuBells::open(&dir).unwrap();
        let web = bells.claim("web").unwrap();
        let listens = UnixDatagram::bind(dir.join(format!("{SOCKET_PREFIX}11"))).unwrap();
        listens.set_nonblocking(true).unwrap();
        let file = File::options().write(true).open(dir.join(BELLS_FILE)).unwrap();
        // Another thread has ended, so its socket does not exist.
        for thread in [11, 12] {
            file.write_all_at(&[1], wide(web.bell.summons_at() + thread)).unwrap();
        }
        assert_eq!((web.ring(), web.ring()), (2, 0), "the second has nobody to wake");
        let mut name = [0; 8];
        assert_eq!((listens.recv(&mut name).unwrap(), &name[..3]), (3, &b"web"[..]));
        assert!(listens.recv(&mut name).is_err(), "once");
    }

    #[test]
    fn the_content_of_the_file_is_not_trusted() {
        let dir = memory_dir();
        let path = dir.join(BELLS_FILE);
        std::fs::write(&path, [1; 64]).unwrap();
        assert!(VcpuBells::open(&dir).unwrap_err().to_string().contains("remove the file"));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(dir.join("other"), [0; 64]).unwrap();
        std::os::unix::fs::symlink(dir.join("other"), &path).unwrap();
        assert!(matches!(VcpuBells::open(&dir), Err(VcpuBellError::File { .. })), "a link");
        std::fs::remove_file(&path).unwrap();
        let mut noise = vec![0xff; FILE_LEN];
        noise[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        std::fs::write(&path, &noise).unwrap();
        let full = VcpuBells::open(&dir).unwrap();
        assert!(full.claim("web").unwrap_err().to_string().contains("remove the file"));
        std::fs::remove_file(&path).unwrap();
        let bells = VcpuBells::open(&dir).unwrap();
        let web = bells.claim("web").unwrap();
        // The file is shortened while in use: no thread is woken, and the process survives.
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert_eq!(web.ring(), 0);
        assert!(bells.claim("db").is_err());
    }
}
