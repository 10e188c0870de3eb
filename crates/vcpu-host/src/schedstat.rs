//! Run time and waiting time of a thread, as the kernel counts them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

/// Content of `/proc/PID/task/TID/schedstat` (Linux, `Documentation/scheduler/sched-stats.rst`).
/// The counters in `schedstat` never decrease during the life of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedstat {
    /// Run time of the thread, up to the kernel's last update of the counter.
    pub ran: Duration,
    /// Time during which the thread was runnable but not running.
    pub waited: Duration,
    /// Number of times that the thread started to run on a processor.
    pub turns: u64,
}

impl Schedstat {
    /// Reads the counters of the thread with the procfs directory `task`.
    ///
    /// # Errors
    /// Returns `NotFound` if the thread has exited, and `InvalidData` if the file does not contain
    /// three numbers. A kernel without `CONFIG_SCHED_INFO` does not have the file `schedstat`.
    pub fn read(task: &Path) -> io::Result<Self> {
        let file = task.join("schedstat");
        let text = std::fs::read_to_string(&file).map_err(gone)?;
        parse(&text).ok_or_else(|| {
            let why = format!("{}: expected three numbers, found {text:?}", file.display());
            io::Error::new(io::ErrorKind::InvalidData, why)
        })
    }

    /// Reads the counters from the open `schedstat` file, without an allocation.
    ///
    /// # Errors
    /// Returns `NotFound` if the thread has exited, and `InvalidData` if the file does not contain
    /// three numbers.
    pub fn read_from(file: &File) -> io::Result<Self> {
        let mut bytes = [0; 64];
        let length = file.read_at(&mut bytes, 0).map_err(gone)?;
        let text = bytes.get(..length).and_then(|bytes| str::from_utf8(bytes).ok());
        text.and_then(parse).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Converts ESRCH to the error of a missing file. The kernel returns ESRCH if a thread exits
/// between open and read.
fn gone(e: io::Error) -> io::Error {
    const ESRCH: i32 = 3;
    if e.raw_os_error() == Some(ESRCH) { io::ErrorKind::NotFound.into() } else { e }
}

fn parse(text: &str) -> Option<Schedstat> {
    let mut numbers = text.split_ascii_whitespace().map(|n| n.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let (ran, waited, turns) = (next()?, next()?, next()?);
    Some(Schedstat { ran: Duration::from_nanos(ran), waited: Duration::from_nanos(waited), turns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_numbers_and_nothing_less() {
        let got = parse("1500 20 3\n").unwrap();
        assert_eq!(
            (got.ran, got.waited, got.turns),
            (Duration::from_nanos(1500), Duration::from_nanos(20), 3)
        );
        assert_eq!(parse("1500 20\n"), None);
        assert_eq!(parse("1500 x 3\n"), None);
    }

    #[test]
    fn a_thread_that_computes_is_seen_to_run() {
        let me = Path::new("/proc/thread-self");
        let before = Schedstat::read(me).unwrap();
        // The loop ends when the counter grows, or after a number of reads.
        let ran = (0..10_000_000).any(|_| Schedstat::read(me).unwrap().ran > before.ran);
        assert!(ran);
        let open = File::open(me.join("schedstat")).unwrap();
        assert!(Schedstat::read_from(&open).unwrap().ran > before.ran);
    }

    #[test]
    fn a_thread_that_is_gone_is_not_found() {
        let e = Schedstat::read(Path::new("/proc/self/task/0")).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
    }
}
