//! Writes captured frames as pcapng.
//!
//! # Source
//!
//! PCAP Next Generation file format, draft-ietf-opsawg-pcapng. A file is a section header block,
//! one interface description block, an enhanced packet block for each frame, and an interface
//! statistics block at the end.

use std::io::{self, Write};

use penstock_control::api::{CaptureDirection, CapturedFrame};

/// Types of blocks.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// Value by which a reader finds the byte order.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Link type of Ethernet.
const ETHERNET: u16 = 1;
/// Options of all blocks.
const COMMENT: u16 = 1;
const END_OF_OPTIONS: u16 = 0;
/// Options of the section header: name of the program.
const USER_APPLICATION: u16 = 4;
/// Options of the interface description: name, description, resolution of times.
const INTERFACE_NAME: u16 = 2;
const INTERFACE_TEXT: u16 = 3;
const TIME_RESOLUTION: u16 = 9;
/// Resolution of times as a negative power of ten: nanoseconds.
const NANOSECONDS: u8 = 9;
/// Options of a packet: flags with the direction, lost frames before it, queue.
const FLAGS: u16 = 2;
const DROP_COUNT: u16 = 4;
const QUEUE: u16 = 6;
/// Directions in the flags.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// Options of the interface statistics: frames seen, and frames that the capture left out.
const RECEIVED: u16 = 4;
const DROPPED: u16 = 5;
/// Longest text of an option.
const TEXT_MAX: usize = 4_096;

/// Writer of one capture.
#[derive(Debug)]
pub(super) struct Writer<W> {
    out: W,
    block: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a file with the frames of `port`.
    ///
    /// # Errors
    /// Returns an error if `out` cannot be written.
    pub(super) fn new(out: W, port: &str, what: &str, snap_len: u32) -> io::Result<Self> {
        let mut writer = Self { out, block: Vec::new() };
        writer.word(BYTE_ORDER_MAGIC);
        writer.bytes(&[1_u16, 0].map(u16::to_le_bytes).concat());
        writer.bytes(&u64::MAX.to_le_bytes());
        let program = concat!("penstock ", env!("CARGO_PKG_VERSION"));
        writer.option(USER_APPLICATION, program.as_bytes());
        writer.end(SECTION_HEADER)?;
        writer.bytes(&[ETHERNET, 0].map(u16::to_le_bytes).concat());
        writer.word(snap_len);
        writer.option(INTERFACE_NAME, port.as_bytes());
        writer.option(INTERFACE_TEXT, what.as_bytes());
        writer.option(TIME_RESOLUTION, &[NANOSECONDS]);
        writer.end(INTERFACE_DESCRIPTION)?;
        Ok(writer)
    }

    /// Writes a frame with its comment.
    ///
    /// # Errors
    /// Returns an error if `out` cannot be written.
    pub(super) fn frame(&mut self, frame: &CapturedFrame, comment: &str) -> io::Result<()> {
        self.word(0);
        self.time(frame.unix_ns);
        self.word(u32::try_from(frame.data.len()).unwrap_or(u32::MAX));
        self.word(frame.len);
        self.bytes(&frame.data);
        self.pad();
        self.option(COMMENT, comment.as_bytes());
        let direction = match frame.direction() {
            CaptureDirection::Out => OUTBOUND,
            _ => INBOUND,
        };
        self.option(FLAGS, &direction.to_le_bytes());
        if frame.missed > 0 {
            self.option(DROP_COUNT, &u64::from(frame.missed).to_le_bytes());
        }
        self.option(QUEUE, &frame.queue.to_le_bytes());
        self.end(ENHANCED_PACKET)
    }

    /// Writes what the capture left out in all, and ends the file.
    ///
    /// # Errors
    /// Returns an error if `out` cannot be written.
    pub(super) fn finish(&mut self, unix_ns: u64, frames: u64, left_out: u64) -> io::Result<()> {
        self.word(0);
        self.time(unix_ns);
        self.option(RECEIVED, &(frames + left_out).to_le_bytes());
        self.option(DROPPED, &left_out.to_le_bytes());
        self.end(INTERFACE_STATISTICS)
    }

    fn word(&mut self, word: u32) {
        self.bytes(&word.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
    }

    /// Adds a time in two words, the upper one first.
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a number")]
    fn time(&mut self, unix_ns: u64) {
        self.word((unix_ns >> 32) as u32);
        self.word(unix_ns as u32);
    }

    /// Fills the block up to a multiple of four bytes.
    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(TEXT_MAX)];
        let len = u16::try_from(value.len()).unwrap_or(0);
        self.bytes(&[code, len].map(u16::to_le_bytes).concat());
        self.bytes(value);
        self.pad();
    }

    /// Ends the options, and writes the block with its type and length.
    fn end(&mut self, kind: u32) -> io::Result<()> {
        self.bytes(&[END_OF_OPTIONS, 0].map(u16::to_le_bytes).concat());
        // Type, length, and the length again.
        let len = u32::try_from(self.block.len() + 12).unwrap_or(u32::MAX).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&len)?;
        self.out.write_all(&self.block)?;
        self.out.write_all(&len)?;
        self.block.clear();
        Ok(())
    }
}

impl Writer<Vec<u8>> {
    /// Takes what was written since the last call.
    pub(super) fn take(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits a file into blocks: type and body, as a reader does.
    fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
        let mut all = Vec::new();
        while !file.is_empty() {
            let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
            let len = word(4) as usize;
            assert_eq!((len % 4, word(len - 4) as usize), (0, len), "the length is there twice");
            all.push((word(0), &file[8..len - 4]));
            file = &file[len..];
        }
        all
    }

    #[test]
    fn a_file_has_its_blocks_in_order_and_the_frame_byte_for_byte() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, "vm1", "port vm1", 65_535).unwrap();
        let frame = CapturedFrame {
            unix_ns: 0x1234_5678_9abc_def0,
            direction: CaptureDirection::Out.into(),
            data: vec![1, 2, 3, 4, 5],
            len: 60,
            missed: 7,
            queue: 3,
            ..CapturedFrame::default()
        };
        writer.frame(&frame, "verdict=dropped").unwrap();
        writer.finish(1, 1, 7).unwrap();
        let blocks = blocks(&file);
        let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(
            kinds,
            [SECTION_HEADER, INTERFACE_DESCRIPTION, ENHANCED_PACKET, INTERFACE_STATISTICS]
        );
        assert_eq!(blocks[0].1[..4], BYTE_ORDER_MAGIC.to_le_bytes());
        let packet = blocks[2].1;
        assert_eq!(packet[4..8], 0x1234_5678_u32.to_le_bytes());
        assert_eq!(packet[8..12], 0x9abc_def0_u32.to_le_bytes());
        assert_eq!(packet[12..20], [5_u32, 60].map(u32::to_le_bytes).concat());
        assert_eq!(packet[20..28], [1, 2, 3, 4, 5, 0, 0, 0], "padded to four bytes");
        let options = &packet[28..];
        assert_eq!(options[..4], [COMMENT, 15].map(u16::to_le_bytes).concat());
        assert_eq!(&options[4..19], b"verdict=dropped");
        assert_eq!(options[20..28], [2, 0, 4, 0, 2, 0, 0, 0], "outbound");
        assert_eq!(options[28..40], [4, 0, 8, 0, 7, 0, 0, 0, 0, 0, 0, 0], "seven lost before");
        assert_eq!(options[40..48], [6, 0, 4, 0, 3, 0, 0, 0], "queue");
        assert_eq!(options[48..], [0; 4]);
    }
}
