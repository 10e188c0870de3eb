//! Frames that arrive in a VM's namespace, and their times, from a capture by tcpdump.
//!
//! # Source
//!
//! The format is that of `pcap-savefile(5)`. A header of 24 bytes begins with a magic number. For
//! nanoseconds it is a1b23c4d, in the byte order of the writer. Each frame has seconds,
//! nanoseconds, captured length and true length, of four bytes each, and then the captured bytes.
//!
//! # Approach
//!
//! Times are the kernel's, taken when the frame reaches the namespace's stack. At that moment the
//! frame has passed the switch, the ring and the endpoint's write. No program in the namespace has
//! seen it yet. A capture that missed frames is an error.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use penstock_units::Nanos;

use super::stage::Stage;
use penstock_guest::bed::Bed;

/// Magic number for nanoseconds, in the byte order of x86 and ARM.
const MAGIC: u32 = 0xa1b2_3c4d;
const FILE_HEADER: usize = 24;
const FRAME_HEADER: usize = 16;
/// Bytes of a frame that are kept: all headers.
const KEPT: &str = "128";
/// Longest time until tcpdump listens.
const START_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Captured {
    /// Time since 1970.
    pub at: Nanos,
    /// Length of the whole frame, without FCS.
    pub bytes: u32,
    /// The frame's first bytes.
    pub head: Vec<u8>,
}

impl Captured {
    /// The IPv4 protocol, the captured payload, and the length of the whole payload.
    pub fn ipv4(&self) -> Option<(u8, &[u8], usize)> {
        let packet = self.head.get(14..)?;
        if self.head.get(12..14)? != [8, 0] {
            return None;
        }
        let header = usize::from(packet.first()? & 0xf) * 4;
        let total = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
        Some((*packet.get(9)?, packet.get(header..)?, total.checked_sub(header)?))
    }
}

#[derive(Debug)]
pub(super) struct Capture {
    program: usize,
    file: PathBuf,
}

impl Capture {
    /// Captures the frames to and from the namespace of `vm` that match `filter`, which has
    /// tcpdump's syntax.
    pub fn start(bed: &Bed, stage: &mut Stage, vm: &str, filter: &str) -> anyhow::Result<Self> {
        let file = stage.dir().join(format!("capture-{}.pcap", stage.programs()));
        let to = file.display().to_string();
        let words = ["-i", "eth0", "-n", "-p", "-Z", "root", "-s", KEPT, "-B", "16384"];
        // In immediate mode tcpdump reads each frame at once, so the end of tcpdump loses no frame.
        let file_words = ["--immediate-mode", "--time-stamp-precision=nano", "-w", &to, filter];
        let words = [&words[..], &file_words].concat();
        let program = stage.start_program(bed, vm, "tcpdump", &words)?;
        stage.await_said(program, "listening on", START_LIMIT)?;
        Ok(Self { program, file })
    }

    /// Ends the capture. Returns the file and the captured frames.
    pub fn end(self, stage: &mut Stage) -> anyhow::Result<(PathBuf, Vec<Captured>)> {
        stage.end_programs(self.program..self.program + 1);
        let said = stage.said(self.program)?;
        let whole = said.lines().any(|line| line.trim() == "0 packets dropped by kernel");
        anyhow::ensure!(whole, "tcpdump missed frames or failed:\n{said}");
        let file = std::fs::read(&self.file).context("reading a capture")?;
        let frames = read(&file).context("a capture ends in the middle of a frame")?;
        Ok((self.file, frames))
    }
}

/// The frames in a file. `None` if it is not a complete capture.
fn read(file: &[u8]) -> Option<Vec<Captured>> {
    let word =
        |bytes: &[u8], at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let mut rest = file.get(FILE_HEADER..).filter(|_| word(file, 0) == Some(MAGIC))?;
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let [secs, nanos, kept] = [word(rest, 0)?, word(rest, 4)?, word(rest, 8)?];
        let end = FRAME_HEADER + usize::try_from(kept).ok()?;
        let at = Nanos(u64::from(secs) * 1_000_000_000 + u64::from(nanos));
        let head = rest.get(FRAME_HEADER..end)?.to_vec();
        frames.push(Captured { at, bytes: word(rest, 12)?, head });
        rest = &rest[end..];
    }
    Some(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(frames: &[(u32, u32, u32, &[u8])]) -> Vec<u8> {
        let mut file = MAGIC.to_le_bytes().to_vec();
        file.resize(FILE_HEADER, 0);
        for (secs, nanos, bytes, head) in frames {
            let kept = u32::try_from(head.len()).unwrap();
            for word in [*secs, *nanos, kept, *bytes] {
                file.extend(word.to_le_bytes());
            }
            file.extend(*head);
        }
        file
    }

    #[test]
    fn frames_come_back_with_their_times() {
        let bytes = file(&[(3, 7, 1_370, &[1, 2, 3]), (4, 0, 60, &[])]);
        let frames = read(&bytes).unwrap();
        assert_eq!((frames[0].at, frames[0].bytes), (Nanos(3_000_000_007), 1_370));
        assert_eq!((frames[0].head.as_slice(), frames[1].at.0), (&[1, 2, 3][..], 4_000_000_000));
        assert_eq!(read(&file(&[])), Some(Vec::new()));
    }

    #[test]
    fn what_is_no_whole_capture_is_refused() {
        let whole = file(&[(3, 7, 1_370, &[1, 2, 3])]);
        for end in [0, 3, 23, 30, whole.len() - 1] {
            assert_eq!(read(&whole[..end]), None, "{end}");
        }
        let mut micros = whole;
        micros[..4].copy_from_slice(&0xa1b2_c3d4_u32.to_le_bytes());
        assert_eq!(read(&micros), None);
    }

    #[test]
    fn a_payload_is_found_behind_options_and_before_padding() {
        let mut head = vec![0; 14 + 24 + 10];
        (head[12], head[14], head[17], head[23], head[38]) = (8, 0x46, 30, 17, 0xab);
        let frame = Captured { at: Nanos(0), bytes: 60, head };
        let (proto, payload, length) = frame.ipv4().unwrap();
        assert_eq!((proto, payload[0], length), (17, 0xab, 6));
        let arp = Captured { head: vec![8; 60], ..frame.clone() };
        assert_eq!((arp.ipv4(), Captured { head: vec![], ..frame }.ipv4()), (None, None));
    }
}
