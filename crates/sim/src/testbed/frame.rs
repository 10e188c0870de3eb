//! Headers of the testbed's frames. A header contains the fields that the classifier reads, and a
//! mark that identifies the frame's purpose.

use penstock_dataplane::batch::{Batch, BatchFull};
use penstock_dataplane::offload::{F_NEEDS_CSUM, GSO_TCPV4, Offload};
use penstock_units::MacAddr;

/// Size of a simulated frame's header in bytes. A frame without FCS is at least as long as its
/// header.
const HEAD: usize = 56;
const FCS: usize = 4;
const MARK: usize = 42;
/// Length in bytes of the headers of Ethernet, IPv4 and TCP without options.
const TCP_HEADERS: usize = 54;

/// Mark in the header of a simulated frame, which identifies the frame's purpose. The numbers in
/// marks are values of the sender's cycle counter. Bulk frames have no mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// A message of the VM's probe, with the time at which the VM sent the message.
    Probe(u64),
    /// Reply to a probe message, with the time at which the VM sent the probe message.
    Reply(u64),
    /// A frame with a measured one-way time, with the time at which the frame entered the VM's
    /// ring.
    Sample(u64),
    /// A client's request, with the time at which the client sent the request.
    Request(u64),
    /// Any frame of a response except the last frame, with the time at which the client sent the
    /// request.
    Part(u64),
    /// The last frame of a response, with the time at which the client sent the request.
    Response(u64),
    /// A frame from which the switch learns a VM's address.
    Greeting,
    /// A client's acknowledgement of a response.
    Ack,
}

impl Mark {
    const fn code(self) -> (u8, u64) {
        match self {
            Self::Probe(at) => (1, at),
            Self::Reply(at) => (2, at),
            Self::Sample(at) => (3, at),
            Self::Request(at) => (4, at),
            Self::Part(at) => (5, at),
            Self::Response(at) => (6, at),
            Self::Greeting => (7, 0),
            Self::Ack => (8, 0),
        }
    }

    const fn of(code: u8, at: u64) -> Option<Self> {
        match code {
            1 => Some(Self::Probe(at)),
            2 => Some(Self::Reply(at)),
            3 => Some(Self::Sample(at)),
            4 => Some(Self::Request(at)),
            5 => Some(Self::Part(at)),
            6 => Some(Self::Response(at)),
            7 => Some(Self::Greeting),
            8 => Some(Self::Ack),
            _ => None,
        }
    }
}

/// Returns the MAC address of the VM on port `port`, or of the second server if `port` is 0.
pub(super) const fn mac_of(port: u16) -> MacAddr {
    let [high, low] = port.to_be_bytes();
    MacAddr([0x52, 0x54, 0, 0, high, low])
}

/// Writes frames from one port to another.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    head: [u8; HEAD],
}

impl Writer {
    pub(super) fn new(from: u16, to: u16) -> Self {
        let mut head = [0; HEAD];
        head[..6].copy_from_slice(&mac_of(to).0);
        head[6..12].copy_from_slice(&mac_of(from).0);
        head[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
        let ([a, b], [c, d]) = (from.to_be_bytes(), to.to_be_bytes());
        head[26..34].copy_from_slice(&[10, 1, a, b, 10, 1, c, d]);
        head[34..38].copy_from_slice(&[0x10, 0, 0, 9]);
        Self { head }
    }

    /// Adds a frame of `size` bytes, FCS included, to `batch`. `flow` is the number of the frame's
    /// flow. If `flow` is `None`, the frame has the unchanged addresses and ports of the writer's
    /// header.
    pub(super) fn push(
        &mut self,
        batch: &mut Batch,
        size: usize,
        flow: Option<u64>,
        mark: Option<Mark>,
    ) -> Result<(), BatchFull> {
        let len = self.prepare(size, mark);
        let Some(flow) = flow else { return batch.push_head(&self.head, len) };
        // The flow determines the destination address and both ports (C2QoS §III-B).
        let mut head = self.head;
        head[30..38].copy_from_slice(&flow.to_be_bytes());
        batch.push_head(&head, len)
    }

    /// Adds up to `count` equal frames of `size` bytes, FCS included, to `batch`. The frames have
    /// no mark, and the unchanged addresses and ports of the writer's header. Returns the number
    /// of added frames, which is lower than `count` if the batch is full.
    pub(super) fn push_many(&mut self, batch: &mut Batch, size: usize, count: u64) -> u64 {
        let len = self.prepare(size, None);
        let mut added = 0;
        while added < count && batch.push_head(&self.head, len).is_ok() {
            added += 1;
        }
        added
    }

    /// Writes the length and the mark of the next frame of `size` bytes, FCS included, into the
    /// header. Returns the frame's length without FCS.
    fn prepare(&mut self, size: usize, mark: Option<Mark>) -> usize {
        let len = size.saturating_sub(FCS).max(HEAD);
        let total = u16::try_from(len - 14).unwrap_or(u16::MAX).to_be_bytes();
        self.head[16..18].copy_from_slice(&total);
        let (code, at) = mark.map_or((0, 0), Mark::code);
        self.head[MARK] = code;
        self.head[MARK + 1..MARK + 9].copy_from_slice(&at.to_be_bytes());
        len
    }
}

impl Writer {
    /// Adds a large segment (TSO) to `batch`, which becomes `segments` frames of `size` bytes each,
    /// FCS included.
    pub(super) fn push_segments(
        &mut self,
        batch: &mut Batch,
        size: usize,
        segments: u16,
    ) -> Result<(), BatchFull> {
        let payload = size.saturating_sub(FCS + TCP_HEADERS).max(1);
        let len = TCP_HEADERS + payload * usize::from(segments);
        let mut head = self.head;
        head[16..18].copy_from_slice(&u16::try_from(len - 14).unwrap_or(u16::MAX).to_be_bytes());
        // The protocol is TCP, with a header of five words.
        (head[23], head[46]) = (6, 0x50);
        batch.push_head(&head, len)?;
        let at = batch.len() - 1;
        batch.frame_mut(at).offload = Offload {
            flags: F_NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            hdr_len: u16::try_from(TCP_HEADERS).unwrap_or(u16::MAX),
            gso_size: u16::try_from(payload).unwrap_or(u16::MAX),
            csum_start: 34,
            csum_offset: 16,
        };
        Ok(())
    }
}

/// Reads the sender's port, the receiver's port and the mark from a header.
pub(super) fn read(head: &[u8]) -> Option<(u16, u16, Option<Mark>)> {
    let word = |at: usize| Some(u16::from_be_bytes([*head.get(at)?, *head.get(at + 1)?]));
    let at = u64::from_be_bytes(head.get(MARK + 1..MARK + 9)?.try_into().ok()?);
    Some((word(10)?, word(4)?, Mark::of(*head.get(MARK)?, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_segment_is_what_a_guest_would_send() {
        let mut batch = Batch::new();
        Writer::new(3, 4).push_segments(&mut batch, 1_506, 44).unwrap();
        let frame = *batch.frame(0);
        let mut offload = frame.offload;
        assert_eq!(frame.len, 54 + 44 * 1_448);
        assert_eq!(offload.check(34, 6, 54, false, frame.len), Ok(()));
        assert_eq!(read(batch.head(0)), Some((3, 4, None)));
    }

    #[test]
    fn many_frames_are_as_many_single_frames() {
        let (mut one, mut many) = (Batch::new(), Batch::new());
        let mut writer = Writer::new(3, 4);
        writer.push(&mut one, 64, None, Some(Mark::Probe(7))).unwrap();
        writer.push(&mut many, 64, None, Some(Mark::Probe(7))).unwrap();
        let mut pushed = 0;
        while one.has_room() {
            Writer::new(3, 4).push(&mut one, 512, None, None).unwrap();
            pushed += 1;
        }
        assert_eq!(writer.push_many(&mut many, 512, 2), 2);
        assert_eq!(writer.push_many(&mut many, 512, u64::MAX), pushed - 2);
        assert_eq!((one.len(), one.bytes()), (many.len(), many.bytes()));
        assert!((0..one.len()).all(|i| one.head(i) == many.head(i)));
    }

    #[test]
    fn a_written_header_reads_the_same() {
        let mut batch = Batch::new();
        let marks = [None, Some(Mark::Probe(77)), Some(Mark::Response(u64::MAX))];
        for mark in marks {
            batch.clear();
            Writer::new(3, 0).push(&mut batch, 64, Some(9), mark).unwrap();
            assert_eq!(read(batch.head(0)), Some((3, 0, mark)));
            assert_eq!(batch.bytes(), 60);
        }
    }
}
