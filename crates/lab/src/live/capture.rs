//! Captures of frames and their times in a VM's namespace, made by tcpdump.
//!
//! # Source
//!
//! The format of a capture file is in `pcap-savefile(5)`. A file header of 24 bytes begins with a
//! magic number: a1b23c4d, in the writer's byte order, if times have nanoseconds. A capture record
//! begins with four fields of four bytes: seconds, nanoseconds, captured length and true length of
//! a frame. In a capture record, the captured bytes of the frame follow the header fields.
//!
//! # Approach
//!
//! The kernel gives a frame its time stamp when the frame reaches the namespace's stack. A frame
//! with a time stamp has passed the switch, the ring and the endpoint, but no program in the
//! namespace has seen it. If tcpdump missed frames, the capture is an error.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use penstock_units::Nanos;

use super::stage::Stage;
use penstock_guest::bed::Bed;

/// Magic number of a capture file with times in nanoseconds, in the byte order of x86 and ARM.
const MAGIC: u32 = 0xa1b2_3c4d;
const FILE_HEADER: usize = 24;
const FRAME_HEADER: usize = 16;
/// Number of bytes that tcpdump captures of each frame. The captured bytes contain all headers.
const KEPT: &str = "128";
const START_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Captured {
    /// Time of the frame since 1970-01-01 00:00 UTC.
    pub at: Nanos,
    /// Length in bytes of the whole frame, without FCS.
    pub bytes: u32,
    /// First bytes of the frame, at most [`KEPT`].
    pub head: Vec<u8>,
}

impl Captured {
    /// Returns the IPv4 protocol, the captured bytes after the IPv4 header, and the length of the
    /// whole payload. Returns `None` if the frame is not IPv4 or is too short.
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
    /// Starts a capture in the namespace of `vm`. `filter` selects frames in tcpdump's syntax.
    pub fn start(bed: &Bed, stage: &mut Stage, vm: &str, filter: &str) -> anyhow::Result<Self> {
        let file = stage.dir().join(format!("capture-{}.pcap", stage.programs()));
        let to = file.display().to_string();
        let words = ["-i", "eth0", "-n", "-p", "-Z", "root", "-s", KEPT, "-B", "16384"];
        // In immediate mode, tcpdump reads each frame at once. So no frame is lost when tcpdump
        // ends.
        let file_words = ["--immediate-mode", "--time-stamp-precision=nano", "-w", &to, filter];
        let words = [&words[..], &file_words].concat();
        let program = stage.start_program(bed, vm, "tcpdump", &words)?;
        stage.await_said(program, "listening on", START_LIMIT)?;
        Ok(Self { program, file })
    }

    /// Ends the capture. Returns the path of the capture file, and the captured frames.
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

/// Parses the frames in a capture file. Returns `None` if the file is not a complete capture.
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
