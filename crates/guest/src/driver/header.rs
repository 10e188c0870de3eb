//! The 12-byte header in front of every frame in a ring (virtio 1.2 §5.1.6).

/// Bytes of the header with VERSION_1 or MRG_RXBUF, the only form this driver speaks.
pub const VNET_HDR_LEN: usize = 12;

/// `struct virtio_net_hdr_mrg_rxbuf`, in host form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VnetHdr {
    /// Bit 0: a checksum is to be completed; bit 1: checksums were verified.
    pub flags: u8,
    /// 0 none, 1 TCP/IPv4, 4 TCP/IPv6 (bit 7: ECN).
    pub gso_type: u8,
    /// Bytes of headers in front of the payload; a hint.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Where the checksummed part begins, in bytes of the frame.
    pub csum_start: u16,
    /// Where the checksum is stored, in bytes after `csum_start`.
    pub csum_offset: u16,
    /// Buffers this frame spans (receive with MRG_RXBUF).
    pub num_buffers: u16,
}

impl VnetHdr {
    /// Flag: the receiver of the frame has a checksum to complete.
    pub const NEEDS_CSUM: u8 = 1;
    /// Flag: checksums have been verified.
    pub const DATA_VALID: u8 = 2;
    /// GSO type: none.
    pub const GSO_NONE: u8 = 0;
    /// GSO type: TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// GSO type: TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;

    /// Reads the header from the start of `bytes`; `None` when they are too few.
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

    /// The header as it stands in guest memory.
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

    /// Whether the frame is to be segmented by whoever receives it.
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
