//! The switch's end of the bells (`penstock_vcpu::bells`), which tell the vCPU scheduler that
//! frames arrived for a VM.
//!
//! # Approach
//! A bell is a counter in a file that switch and scheduler share. A ring is one addition, made once
//! per burst of which a driver is notified. The scheduler reads the counters when it polls. When it
//! sleeps and wants to be woken, it sets a byte beside the counter. The worker that finds the byte
//! set clears it and sends one datagram. There is thus at most one system call each time the
//! scheduler goes to sleep, however many frames arrive.
//!
//! # Cost
//! A burst costs some tens of cycles, a datagram some microseconds.
//!
//! # Trust
//! The file belongs to the operator (mode 0600). If it is shortened, it reads as zeros
//! ([`super::peer_memory`]) and wakes no thread.

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

/// Maximum length in bytes of a socket's path (`unix(7)`), without the zero at its end.
const PATH_MAX: usize = 107;

/// Reason for which the bells cannot be used, or a VM has no bell.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VcpuBellError {
    /// The file of bells cannot be opened or prepared.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The file cannot be shared.
    #[error(
        "{}: {source}; set [vcpu] `run_dir` to a directory on a tmpfs, as /run is", path.display()
    )]
    Shared { path: PathBuf, source: SharedFileError },
    /// The path leads to a file of another kind.
    #[error("{}: not a file of bells; remove it", .0.display())]
    Foreign(PathBuf),
    /// The name is not a valid VM name.
    #[error("{0:?} is not a name of a bell; use 1 to {NAME_MAX} bytes without NUL")]
    Name(String),
    /// All bells are assigned.
    #[error(
        "all {BELLS} bells of {} are given away, none is left for {name:?}; stop switch and \
         scheduler and remove the file",
        path.display()
    )]
    Full {
        /// Path of the file of bells.
        path: PathBuf,
        /// Name of the VM without a bell.
        name: String,
    },
}

/// The bells of all VMs of a host.
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
    /// Opens the file of bells in `dir`, the scheduler's `run_dir`. Creates file and directory if
    /// they are missing. Bells that the file already has keep their numbers.
    ///
    /// # Errors
    /// The directory is not on a tmpfs, or the file is of another kind.
    pub fn open(dir: &Path) -> Result<Arc<Self>, VcpuBellError> {
        let path = dir.join(BELLS_FILE);
        let (file, socket) = Self::file(dir, &path)?;
        // The file belongs to the operator, so it counts for no port.
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
        // With a link, the switch would write into the file that the link names.
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

    /// Extends the file to its length. Returns false if it is no file of bells.
    fn prepare(file: &File) -> io::Result<bool> {
        file.lock()?;
        let length = file.metadata()?.len();
        let mut magic = [0; 8];
        if length >= 8 {
            file.read_exact_at(&mut magic, 0)?;
        }
        // Zeros are accepted: the creator of the file has not written yet, or died before it could.
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

    /// The bell of the VM `name`. If the VM has no bell, this call assigns one.
    ///
    /// # Errors
    /// All bells are assigned, or the name is invalid.
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

    /// Socket path of scheduling thread `at`, written into `room` without an allocation.
    fn socket_of<'a>(&self, at: usize, room: &'a mut [u8; PATH_MAX]) -> Option<&'a Path> {
        let mut left = &mut room[..];
        left.write_all(self.dir.as_os_str().as_bytes()).ok()?;
        write!(left, "/{SOCKET_PREFIX}{at}").ok()?;
        let unused = left.len();
        Some(Path::new(OsStr::from_bytes(&room[..PATH_MAX - unused])))
    }
}

/// The bell of one VM, which the worker rings.
#[derive(Clone)]
pub struct VcpuBell {
    bells: Arc<VcpuBells>,
    bell: Bell,
    name: Arc<str>,
}

impl fmt::Debug for VcpuBell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bell of {} in {}", self.name, self.bells.dir.display())
    }
}

impl VcpuBell {
    /// Reports that frames arrived for the VM. Returns the number of system calls made to wake
    /// scheduling threads.
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

    /// Wakes the summoned threads. A thread that has ended has no socket, and a thread with a full
    /// socket is awake.
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
    use super::*;

    /// A new directory on a tmpfs.
    fn dir(name: &str) -> PathBuf {
        let dir = format!("/dev/shm/penstock-bells-{name}-{}", std::process::id());
        let _ = std::fs::remove_dir_all(&dir);
        PathBuf::from(dir)
    }

    fn word(dir: &Path, at: usize) -> u64 {
        let mut word = [0; 8];
        let file = File::open(dir.join(BELLS_FILE)).unwrap();
        file.read_exact_at(&mut word, wide(at)).unwrap();
        u64::from_ne_bytes(word)
    }

    #[test]
    fn a_bell_survives_the_switch_and_continues_counting() {
        let dir = dir("restart");
        let bells = VcpuBells::open(&dir).unwrap();
        let (web, db) = (bells.claim("web").unwrap(), bells.claim("db").unwrap());
        assert_eq!((web.ring(), web.ring(), db.ring()), (0, 0, 0), "nobody has to be woken");
        let again = VcpuBells::open(&dir).unwrap().claim("web").unwrap();
        again.ring();
        assert_eq!((word(&dir, web.bell.counter_at()), word(&dir, db.bell.counter_at())), (3, 1));
        assert!(matches!(bells.claim(""), Err(VcpuBellError::Name(_))));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn only_the_sleeping_thread_is_woken_and_only_once() {
        let dir = dir("summons");
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
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_content_of_the_file_is_not_trusted() {
        let dir = dir("hostile");
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(BELLS_FILE);
        std::fs::write(&path, [1; 64]).unwrap();
        assert!(VcpuBells::open(&dir).unwrap_err().to_string().contains("remove it"));
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
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
