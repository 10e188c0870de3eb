//! The switch's end of the bells (`penstock_vcpu::bells`): who schedules a VM's vCPUs is told that
//! frames came for it.
//!
//! **Rule.** A bell is a counter in a file that both sides share: one addition a burst that a
//! driver is told of. The scheduler looks at it at its polls. When it sleeps and wants to be woken,
//! a byte beside the counter says so; who finds it takes it away and sends one datagram. So there
//! is at most one system call for each time that the scheduler goes to sleep, however many frames
//! come. **Cost.** Some tens of cycles a burst, microseconds for a datagram. **Trust.** The file is
//! the operator's (mode 0600); shortened, it reads as zeroes ([`super::peer_memory`]) and rings
//! nobody.

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

/// Bytes of the longest path of a socket (`unix(7)`, without the zero at its end).
const PATH_MAX: usize = 107;

/// Bells cannot be used, or a VM has none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VcpuBellError {
    /// The file.
    #[error("{}: {source}", path.display())]
    File {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// It cannot be shared.
    #[error(
        "{}: {source}; set [vcpu] `run_dir` to a directory on a tmpfs, as /run is", path.display()
    )]
    Shared {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        source: SharedFileError,
    },
    /// Something else stands there.
    #[error("{}: not a file of bells; remove it", .0.display())]
    Foreign(PathBuf),
    /// A name of no VM.
    #[error("{0:?} is not a name of a bell; use 1 to {NAME_MAX} bytes without NUL")]
    Name(String),
    /// No bell is left.
    #[error(
        "all {BELLS} bells of {} are given away, none is left for {name:?}; stop switch and \
         scheduler and remove the file",
        path.display()
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// The VM.
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
    /// Opens the file of bells in `dir`, the scheduler's `run_dir`; makes both if they are missing.
    /// Bells that are in it keep their numbers.
    ///
    /// # Errors
    /// The directory is on a disk, or the file is something else.
    pub fn open(dir: &Path) -> Result<Arc<Self>, VcpuBellError> {
        let path = dir.join(BELLS_FILE);
        let (file, socket) = Self::file(dir, &path)?;
        // The operator's file, so no port's.
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
        // A link would have the switch write into what it names.
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

    /// Makes it as long as it has to be; whether it is a file of bells.
    fn prepare(file: &File) -> io::Result<bool> {
        file.lock()?;
        let length = file.metadata()?.len();
        let mut magic = [0; 8];
        if length >= 8 {
            file.read_exact_at(&mut magic, 0)?;
        }
        // Zeroes: whoever made it has not come to write, or died before.
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

    /// The bell of the VM `name`, which is given one if it has none.
    ///
    /// # Errors
    /// All are given away, or the name is none.
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

    /// Where scheduling thread `at` listens, written into `room`: nothing is allocated.
    fn socket_of<'a>(&self, at: usize, room: &'a mut [u8; PATH_MAX]) -> Option<&'a Path> {
        let mut left = &mut room[..];
        left.write_all(self.dir.as_os_str().as_bytes()).ok()?;
        write!(left, "/{SOCKET_PREFIX}{at}").ok()?;
        let unused = left.len();
        Some(Path::new(OsStr::from_bytes(&room[..PATH_MAX - unused])))
    }
}

/// One VM's bell, for the worker to ring.
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
    /// Frames came for the VM. How many system calls it took to wake who schedules it.
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

    /// A thread that ended meanwhile is told nothing, and one whose socket is full is awake.
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

    /// On a tmpfs, as the directory has to be.
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
    fn a_bell_outlives_the_switch_and_counts_on() {
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
    fn who_sleeps_is_woken_once_and_by_name() {
        let dir = dir("summons");
        let bells = VcpuBells::open(&dir).unwrap();
        let web = bells.claim("web").unwrap();
        let listens = UnixDatagram::bind(dir.join(format!("{SOCKET_PREFIX}11"))).unwrap();
        listens.set_nonblocking(true).unwrap();
        let file = File::options().write(true).open(dir.join(BELLS_FILE)).unwrap();
        // Another one has ended: its socket is not there.
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
    fn what_stands_there_is_not_trusted() {
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
        // Cut off while it is in use: nothing is told, and nobody dies of it.
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert_eq!(web.ring(), 0);
        assert!(bells.claim("db").is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
