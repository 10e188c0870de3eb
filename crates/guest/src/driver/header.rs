//! Encodes and parses the 12-byte header in front of every frame in a ring (virtio 1.2 §5.1.6).

/// Length in bytes of the header with VERSION_1 or MRG_RXBUF. The driver supports only the header
/// of this length.
pub const VNET_HDR_LEN: usize = 12;

/// `struct virtio_net_hdr_mrg_rxbuf` in host byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VnetHdr {
    /// Flag bits of the virtio-net header: bit 0 asks the receiver to complete a checksum. If bit 1
    /// of the flags is set, the frame's checksums have been verified.
    pub flags: u8,
    /// Kind of segmentation: 0 means none, 1 means TCP/IPv4, and 4 means TCP/IPv6. Bit 7 of
    /// `gso_type` is set if the TCP connection uses ECN.
    pub gso_type: u8,
    /// Length in bytes of the headers in front of the payload. The header length is only a hint to
    /// the receiver of the frame.
    pub hdr_len: u16,
    /// Payload of each segment in bytes.
    pub gso_size: u16,
    /// Offset in bytes of the checksummed part from the start of the frame.
    pub csum_start: u16,
    /// Offset in bytes of the checksum field from `csum_start`.
    pub csum_offset: u16,
    /// Number of receive buffers that the frame spans, with MRG_RXBUF.
    pub num_buffers: u16,
}

impl VnetHdr {
    /// Flag bit: the receiver of the frame has to complete a checksum.
    pub const NEEDS_CSUM: u8 = 1;
    pub const GSO_NONE: u8 = 0;
    pub const GSO_TCPV4: u8 = 1;
    pub const GSO_TCPV6: u8 = 4;

    /// Parses the header at the start of `bytes`; `None` if `bytes` is too short.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let b: &[u8; VNET_HDR_LEN] = bytes.first_chunk()?;
        let word = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        Some(Self {
            flags: b[0],
            gso_type: b[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
            num_buffers: word(10),
        })
    }

    /// Returns the header as little-endian bytes for guest memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; VNET_HDR_LEN] {
        let mut b = [0; VNET_HDR_LEN];
        b[0] = self.flags;
        b[1] = self.gso_type;
        b[2..4].copy_from_slice(&self.hdr_len.to_le_bytes());
        b[4..6].copy_from_slice(&self.gso_size.to_le_bytes());
        b[6..8].copy_from_slice(&self.csum_start.to_le_bytes());
        b[8..10].copy_from_slice(&self.csum_offset.to_le_bytes());
        b[10..12].copy_from_slice(&self.num_buffers.to_le_bytes());
        b
    }

    /// Whether the receiver of the frame has to divide the frame into segments.
    #[must_use]
    pub const fn is_gso(&self) -> bool {
        self.gso_type & 0x7f != Self::GSO_NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let hdr = VnetHdr {
            flags: VnetHdr::NEEDS_CSUM,
            gso_type: VnetHdr::GSO_TCPV6,
            hdr_len: 74,
            gso_size: 1440,
            csum_start: 54,
            csum_offset: 16,
            num_buffers: 3,
        };
        assert_eq!(VnetHdr::parse(&hdr.to_bytes()), Some(hdr));
        assert_eq!(VnetHdr::parse(&[0; 11]), None);
        assert!(hdr.is_gso() && !VnetHdr::default().is_gso());
    }
}
