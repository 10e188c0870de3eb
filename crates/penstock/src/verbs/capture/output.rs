//! Writes the output of a capture on a thread of its own.
//!
//! # Problem
//!
//! The reader of a pipe may stop reading, such as a Wireshark that was stopped. A write then
//! blocks, and the command would neither take frames from the daemon nor end.
//!
//! # Approach
//!
//! Only the writing thread blocks. At most [`BACKLOG_MAX`] bytes wait for it, plus one message of
//! the daemon. The caller counts the frames for which there is no room. At the end, the command
//! waits as long as the reader takes something.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

use nix::unistd::gettid;
use penstock_vcpu_host::policy::{self, Policy};
use tokio::sync::oneshot;

/// Limit on the bytes that wait to be written. Above it, the output has no room.
pub(super) const BACKLOG_MAX: usize = 8 << 20;
/// Bytes of one write. The end of the capture sees from finished writes that the reader reads.
const PIECE: usize = 64 << 10;

/// Frames in the form of the output.
struct Chunk {
    bytes: Vec<u8>,
    frames: u64,
}

/// What waits to be written.
#[derive(Debug, Default)]
struct Backlog {
    bytes: AtomicUsize,
    frames: AtomicU64,
    /// Number of the writing thread; 0 before the thread runs.
    thread: AtomicU32,
}

/// How the output of a capture ended.
#[derive(Debug)]
pub(super) enum End {
    /// Everything is written, or the reader wants no more.
    Whole,
    /// The reader takes nothing. This number of frames is not written.
    Stopped(u64),
    /// The output cannot be written. This number of frames is not, or not whole, in the output.
    Failed(io::Error, u64),
}

/// Output with a thread that writes.
#[derive(Debug)]
pub(super) struct Output {
    chunks: Option<mpsc::Sender<Chunk>>,
    backlog: Arc<Backlog>,
    end: oneshot::Receiver<io::Result<()>>,
    /// Result of the writing thread, after its end.
    result: Option<io::Result<()>>,
}

impl Output {
    /// Starts the thread, which has the scheduling policy and the processors of its caller.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a thread.
    pub(super) fn start(mut out: Box<dyn Write + Send>) -> io::Result<Self> {
        let (chunks, waiting) = mpsc::channel();
        let (ended, end) = oneshot::channel();
        let backlog = Arc::new(Backlog::default());
        let of_thread = Arc::clone(&backlog);
        std::thread::Builder::new().name("capture-out".to_owned()).spawn(move || {
            of_thread.thread.store(gettid().as_raw().unsigned_abs(), Relaxed);
            let _ = ended.send(write(&waiting, &mut *out, &of_thread));
        })?;
        Ok(Self { chunks: Some(chunks), backlog, end, result: None })
    }

    /// Whether the output takes more frames now.
    pub(super) fn has_room(&self) -> bool {
        self.backlog.bytes.load(Relaxed) < BACKLOG_MAX
    }

    /// Passes bytes with `frames` frames to the writing thread.
    pub(super) fn put(&self, bytes: Vec<u8>, frames: u64) {
        self.backlog.bytes.fetch_add(bytes.len(), Relaxed);
        self.backlog.frames.fetch_add(frames, Relaxed);
        if let Some(chunks) = &self.chunks {
            // If the thread has ended, its result says why.
            let _ = chunks.send(Chunk { bytes, frames });
        }
    }

    /// Waits until the output cannot be written any more.
    pub(super) async fn ended(&mut self) {
        if self.result.is_none() {
            let gone = |_| Err(io::Error::other("the writing thread ended"));
            self.result = Some((&mut self.end).await.unwrap_or_else(gone));
        }
    }

    /// Writes the rest. Gives up if the reader takes nothing for the time `patience`. A reader that
    /// has ended wants no more frames, which is no error.
    pub(super) async fn finish(mut self, patience: Duration) -> End {
        drop(self.chunks.take());
        let thread = self.backlog.thread.load(Relaxed);
        if thread > 0 {
            // Only with CAP_SYS_NICE. Without it, the end takes longer on a busy machine.
            let _ = policy::set(thread, Policy::DEFAULT);
        }
        let mut before = self.backlog.bytes.load(Relaxed);
        while tokio::time::timeout(patience, self.ended()).await.is_err() {
            let left = self.backlog.bytes.load(Relaxed);
            if left >= before {
                return End::Stopped(self.backlog.frames.load(Relaxed));
            }
            before = left;
        }
        match self.result {
            Some(Err(error)) if error.kind() != ErrorKind::BrokenPipe => {
                End::Failed(error, self.backlog.frames.load(Relaxed))
            }
            _ => End::Whole,
        }
    }
}

/// Writes all chunks until no more can come.
fn write(chunks: &mpsc::Receiver<Chunk>, out: &mut dyn Write, backlog: &Backlog) -> io::Result<()> {
    while let Ok(Chunk { bytes, frames }) = chunks.recv() {
        for piece in bytes.chunks(PIECE) {
            out.write_all(piece)?;
            backlog.bytes.fetch_sub(piece.len(), Relaxed);
        }
        out.flush()?;
        backlog.frames.fetch_sub(frames, Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that takes a piece for each message, and nothing without one.
    struct Slow(mpsc::Receiver<()>, mpsc::Sender<usize>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?;
            let _ = self.1.send(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(work)
    }

    #[test]
    fn a_reader_that_stops_bounds_the_backlog_and_its_frames_are_counted() {
        let (reads, taken) = mpsc::channel();
        let (took, all) = mpsc::channel();
        let output = Output::start(Box::new(Slow(taken, took))).unwrap();
        let mut chunks = 0;
        while output.has_room() {
            output.put(vec![0; PIECE], 10);
            chunks += 1;
        }
        assert_eq!(chunks, BACKLOG_MAX / PIECE);
        reads.send(()).unwrap();
        assert_eq!(all.recv().unwrap(), PIECE);
        let end = run(output.finish(Duration::from_millis(20)));
        let End::Stopped(left) = end else { panic!("{end:?}") };
        let most = 10 * u64::try_from(chunks).unwrap();
        assert!((most - 10..=most).contains(&left), "{left} of {most}");
    }

    #[test]
    fn the_rest_is_written_and_an_ended_reader_is_no_error() {
        let (reads, taken) = mpsc::channel();
        let (took, all) = mpsc::channel();
        let output = Output::start(Box::new(Slow(taken, took))).unwrap();
        output.put(vec![0; PIECE + 1], 1);
        reads.send(()).unwrap();
        reads.send(()).unwrap();
        assert!(matches!(run(output.finish(Duration::from_secs(600))), End::Whole));
        assert_eq!(all.iter().sum::<usize>(), PIECE + 1);

        let (reads, taken) = mpsc::channel::<()>();
        let output = Output::start(Box::new(Slow(taken, mpsc::channel().0))).unwrap();
        output.put(vec![0; 1], 1);
        drop(reads);
        assert!(matches!(run(output.finish(Duration::from_secs(600))), End::Whole));
    }

    /// A disk with room for some bytes.
    struct Disk(usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = self.0.min(bytes.len());
            self.0 -= room;
            if room == 0 { Err(ErrorKind::StorageFull.into()) } else { Ok(room) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn frames_that_a_full_disk_refuses_are_counted() {
        let mut output = Output::start(Box::new(Disk(PIECE + 1))).unwrap();
        output.put(vec![0; PIECE], 10);
        output.put(vec![0; PIECE], 20);
        run(output.ended());
        output.put(vec![0; PIECE], 30);
        let end = run(output.finish(Duration::from_secs(600)));
        let End::Failed(error, left) = &end else { panic!("{end:?}") };
        assert_eq!((error.kind(), *left), (ErrorKind::StorageFull, 50));
    }
}
