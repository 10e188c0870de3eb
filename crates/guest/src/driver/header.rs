//! The 12-byte header in front of every frame in a ring (virtio 1.2 §5.1.6).

/// Bytes of the header with VERSION_1 or MRG_RXBUF, the only form that this driver supports.
pub const VNET_HDR_LEN: usize = 12;

/// `struct virtio_net_hdr_mrg_rxbuf` in host byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VnetHdr {
    /// Bit 0 means that a checksum must be completed; bit 1 means that checksums were verified.
    pub flags: u8,
    /// 0 none, 1 TCP/IPv4, 4 TCP/IPv6; bit 7 is ECN.
    pub gso_type: u8,
    /// Bytes of headers in front of the payload; only a hint.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Offset of the checksummed part in the frame, in bytes.
    pub csum_start: u16,
    /// Offset of the checksum from `csum_start`, in bytes.
    pub csum_offset: u16,
    /// Number of buffers that the frame spans (reception with MRG_RXBUF).
    pub num_buffers: u16,
}

impl VnetHdr {
    /// Flag: the receiver of the frame has to complete a checksum.
    pub const NEEDS_CSUM: u8 = 1;
    /// Flag: checksums were verified.
    pub const DATA_VALID: u8 = 2;
    pub const GSO_NONE: u8 = 0;
    pub const GSO_TCPV4: u8 = 1;
    pub const GSO_TCPV6: u8 = 4;

    /// Reads the header from the start of `bytes`; `None` if `bytes` is too short.
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

    /// The header in the byte order of guest memory.
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

    /// Whether the receiver of the frame has to segment it.
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
