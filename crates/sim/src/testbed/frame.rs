//! Headers of synthetic frames. They contain the fields that the classifier reads, and a mark by
//! which the receiver recognises the frame.

use penstock_dataplane::batch::{Batch, BatchFull};
use penstock_units::MacAddr;

/// Bytes of a header. No frame is shorter.
const HEAD: usize = 56;
const FCS: usize = 4;
const MARK: usize = 42;

/// Purpose of a frame. The numbers are counter values at the time of sending. Bulk frames have no
/// mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// A message of the probe.
    Probe(u64),
    /// Reply to a probe message that was sent at this count.
    Reply(u64),
    /// A frame whose one-way time is measured. It entered the ring at this count.
    Sample(u64),
    /// A client's request.
    Request(u64),
    /// A frame of a response, except the last, to a request sent at this count.
    Part(u64),
    /// The last frame of a response to a request sent at this count.
    Response(u64),
    /// A frame that makes addresses known to the switch.
    Greeting,
    /// A client's acknowledgement.
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

/// MAC address of the VM on port `port`; port 0 is the server.
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

    /// Adds a frame of `size` bytes with FCS. `flow` selects its flow, if any.
    pub(super) fn push(
        &mut self,
        batch: &mut Batch,
        size: usize,
        flow: Option<u64>,
        mark: Option<Mark>,
    ) -> Result<(), BatchFull> {
        let len = size.saturating_sub(FCS).max(HEAD);
        let total = u16::try_from(len - 14).unwrap_or(u16::MAX).to_be_bytes();
        self.head[16..18].copy_from_slice(&total);
        let (code, at) = mark.map_or((0, 0), Mark::code);
        self.head[MARK] = code;
        self.head[MARK + 1..MARK + 9].copy_from_slice(&at.to_be_bytes());
        let Some(flow) = flow else { return batch.push_head(&self.head, len) };
        // The flow determines the destination address and both ports (C2QoS §III-B).
        let mut head = self.head;
        head[30..38].copy_from_slice(&flow.to_be_bytes());
        batch.push_head(&head, len)
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
