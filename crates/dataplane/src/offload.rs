//! Offload metadata of a frame: the checked content of a virtio-net header, in host byte order.
//!
//! The source for the offload metadata is virtio 1.3 §5.1.6. The classifier compares `csum_start`,
//! `csum_offset`, `hdr_len` and `gso_size` of each frame with the headers that the switch parsed
//! ([`Offload::check`]). Before the comparison, the switch uses no value that a peer wrote as an
//! offset.

use crate::drop::DropReason;

/// Size in bytes of `virtio_net_hdr_mrg_rxbuf` and `virtio_net_hdr_v1`.
pub const VNET_HDR_LEN: usize = 12;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
pub const F_NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_F_DATA_VALID`.
pub const F_DATA_VALID: u8 = 2;
/// `VIRTIO_NET_HDR_GSO_NONE`.
pub const GSO_NONE: u8 = 0;
/// `VIRTIO_NET_HDR_GSO_TCPV4`.
pub const GSO_TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV6`.
pub const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: datagrams of one UDP flow, over IPv4 or IPv6.
pub const GSO_UDP_L4: u8 = 5;

/// Checksum and segmentation work that hardware, a guest or the switch still has to do on a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Offload {
    /// Field `flags` of the virtio-net header, with the bits [`F_NEEDS_CSUM`] and [`F_DATA_VALID`].
    pub flags: u8,
    /// Segmentation type of the frame ([`GSO_NONE`], [`GSO_TCPV4`], [`GSO_TCPV6`] or
    /// [`GSO_UDP_L4`]).
    pub gso_type: u8,
    /// Length in bytes of all headers of the frame. The length in `hdr_len` is only a hint.
    pub hdr_len: u16,
    /// Payload bytes of each segment (the MSS in TCP).
    pub gso_size: u16,
    /// Offset in bytes, from the start of the frame, of the first byte that the checksum covers.
    pub csum_start: u16,
    /// Offset in bytes of the checksum field from `csum_start`.
    pub csum_offset: u16,
}

impl Offload {
    pub const NONE: Self =
        Self { flags: 0, gso_type: 0, hdr_len: 0, gso_size: 0, csum_start: 0, csum_offset: 0 };

    /// Reads the first ten bytes of a little-endian virtio-net header.
    #[inline]
    #[must_use]
    pub fn from_wire(b: &[u8; VNET_HDR_LEN]) -> Self {
        let word = |at: usize| u16::from_le_bytes([b[at], b[at + 1]]);
        Self {
            flags: b[0],
            gso_type: b[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    /// Reads a virtio-net header that a guest wrote. The guest may request a checksum but must not
    /// declare a checksum valid (virtio 1.2 §5.1.6.2.1), because the receiver would then not verify
    /// the checksum. If a guest's header requests no offload, `from_guest` returns [`Self::NONE`],
    /// so that later stages skip the header.
    #[inline]
    #[must_use]
    pub fn from_guest(b: &[u8; VNET_HDR_LEN]) -> Self {
        let [b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, ..] = *b;
        let first = u64::from_ne_bytes([b0, b1, b2, b3, b4, b5, b6, b7]);
        Self::from_guest_words(first, u16::from_ne_bytes([b8, b9]))
    }

    /// Like [`Self::from_guest`], for a virtio-net header that was read as one word of eight bytes
    /// and one word of two bytes.
    #[inline]
    #[must_use]
    pub(crate) const fn from_guest_words(first: u64, last: u16) -> Self {
        let [flags, gso_type, h0, h1, g0, g1, c0, c1] = u64::from_le(first).to_le_bytes();
        if flags & F_NEEDS_CSUM == 0 && gso_type == GSO_NONE {
            return Self::NONE;
        }
        Self {
            flags: flags & F_NEEDS_CSUM,
            gso_type,
            hdr_len: u16::from_le_bytes([h0, h1]),
            gso_size: u16::from_le_bytes([g0, g1]),
            csum_start: u16::from_le_bytes([c0, c1]),
            csum_offset: u16::from_le(last),
        }
    }

    /// Returns the last four bytes of the virtio-net header, in memory order. The first eight bytes
    /// of the virtio-net header equal the first eight bytes of [`Offload`].
    #[inline]
    #[must_use]
    pub(crate) const fn last_word(self, num_buffers: u16) -> u32 {
        self.csum_offset as u32 | (num_buffers as u32) << 16
    }

    /// Builds the 12-byte virtio-net header, with `num_buffers` in the last two bytes.
    #[inline]
    #[must_use]
    pub fn to_wire(self, num_buffers: u16) -> [u8; VNET_HDR_LEN] {
        let mut b = [0; VNET_HDR_LEN];
        b[0] = self.flags;
        b[1] = self.gso_type;
        b[2..4].copy_from_slice(&self.hdr_len.to_le_bytes());
        b[4..6].copy_from_slice(&self.gso_size.to_le_bytes());
        b[6..8].copy_from_slice(&self.csum_start.to_le_bytes());
        b[8..10].copy_from_slice(&self.csum_offset.to_le_bytes());
        b[10..12].copy_from_slice(&num_buffers.to_le_bytes());
        b
    }

    /// Whether the metadata requests no checksum or segmentation, and no flag must be passed on.
    #[inline]
    #[must_use]
    pub fn is_none(self) -> bool {
        self.flags == 0 && self.gso_type == GSO_NONE
    }

    /// Whether the switch or the receiver must still compute the transport checksum.
    #[inline]
    #[must_use]
    pub const fn needs_csum(self) -> bool {
        self.flags & F_NEEDS_CSUM != 0
    }

    /// Whether the frame is one large segment that must be cut into smaller segments.
    #[inline]
    #[must_use]
    pub const fn is_gso(self) -> bool {
        self.gso_type != GSO_NONE
    }

    /// Compares the offload metadata with the parser's results and the frame's length. `check`
    /// clears unknown flag bits of the metadata and corrects `hdr_len`. `l4_start` is the offset of
    /// the TCP or UDP header, or 0 if there is none. `l4_end` is the offset in bytes of the end of
    /// this header.
    ///
    /// # Errors
    /// Returns [`DropReason::BadOffload`] if the metadata does not point at the checksum of the
    /// frame's own TCP or UDP header. Returns [`DropReason::BadOffload`] also if the metadata
    /// requests segmentation of a frame of another protocol.
    pub fn check(
        &mut self,
        l4_start: u16,
        l4_proto: u8,
        l4_end: u16,
        ipv6: bool,
        len: u32,
    ) -> Result<(), DropReason> {
        self.flags &= F_NEEDS_CSUM | F_DATA_VALID;
        if self.needs_csum() {
            let field = match l4_proto {
                6 => 16,
                17 => 6,
                _ => return Err(DropReason::BadOffload),
            };
            if l4_start == 0 || self.csum_start != l4_start || self.csum_offset != field {
                return Err(DropReason::BadOffload);
            }
            // A guest that requests a checksum may not also declare it valid.
            self.flags = F_NEEDS_CSUM;
        } else {
            self.csum_start = 0;
            self.csum_offset = 0;
        }
        if self.is_gso() {
            if !self.segments(l4_proto, ipv6)
                || l4_start == 0
                || self.gso_size == 0
                || !self.needs_csum()
                || u32::from(l4_end) > len
            {
                return Err(DropReason::BadOffload);
            }
            self.hdr_len = l4_end;
        } else {
            self.gso_size = 0;
            self.hdr_len = 0;
        }
        Ok(())
    }

    /// Whether the type of segmentation fits the frame's protocol. Inlined into the parser, the
    /// types would cost every plain frame six instructions.
    #[inline(never)]
    const fn segments(&self, l4_proto: u8, ipv6: bool) -> bool {
        match self.gso_type {
            GSO_TCPV4 => l4_proto == 6 && !ipv6,
            GSO_TCPV6 => l4_proto == 6 && ipv6,
            GSO_UDP_L4 => l4_proto == 17,
            _ => false,
        }
    }
}

/// Offloads that the peer of a port can perform itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadCaps {
    /// Whether the peer accepts frames with an unfinished checksum.
    pub csum: bool,
    /// Whether the peer accepts large TCP/IPv4 segments.
    pub tso4: bool,
    /// Whether the peer accepts large TCP/IPv6 segments.
    pub tso6: bool,
    /// Whether the peer accepts large UDP segments over IPv4 and IPv6.
    pub uso: bool,
}

impl OffloadCaps {
    pub const ALL: Self = Self { csum: true, tso4: true, tso6: true, uso: true };
    /// The peer performs no offloads, so the switch sends frames with finished checksums and no
    /// longer than the MTU.
    pub const NONE: Self = Self { csum: false, tso4: false, tso6: false, uso: false };

    /// Whether the peer accepts a frame with offload metadata `offload` unchanged.
    #[inline]
    #[must_use]
    pub const fn takes(self, offload: Offload) -> bool {
        // Most frames are single frames. A jump table for all types would cost them more.
        if offload.gso_type == GSO_NONE {
            return self.csum || !offload.needs_csum();
        }
        self.csum && self.takes_segments(offload.gso_type)
    }

    const fn takes_segments(self, gso_type: u8) -> bool {
        match gso_type {
            GSO_TCPV4 => self.tso4,
            GSO_TCPV6 => self.tso6,
            GSO_UDP_L4 => self.uso,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tso() -> Offload {
        Offload {
            flags: F_NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            hdr_len: 9999,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
        }
    }

    #[test]
    fn right_metadata_passes_and_hdr_len_is_ours() {
        let mut o = tso();
        assert_eq!(o.check(34, 6, 66, false, 60_000), Ok(()));
        assert_eq!(o.hdr_len, 66);
        assert_eq!(Offload::from_wire(&o.to_wire(3)), o);
    }

    #[test]
    fn reading_by_words_equals_reading_by_bytes() {
        let wire = tso().to_wire(3);
        assert_eq!(tso().last_word(3).to_ne_bytes(), wire[8..]);
        let words = |o: Offload| {
            let wire = o.to_wire(0);
            let first = u64::from_ne_bytes(*wire.first_chunk().unwrap());
            (first, u16::from_ne_bytes([wire[8], wire[9]]))
        };
        let (first, last) = words(tso());
        assert_eq!(Offload::from_guest_words(first, last), tso());
        // Metadata that requests nothing becomes `NONE`, and a guest cannot declare a checksum
        // valid.
        let idle = Offload { flags: F_DATA_VALID, hdr_len: 7, csum_start: 9, ..Offload::NONE };
        let (first, last) = words(idle);
        assert_eq!(Offload::from_guest_words(first, last), Offload::NONE);
    }

    #[test]
    fn metadata_that_points_elsewhere_is_refused() {
        let bad = [
            Offload { csum_start: 35, ..tso() },
            Offload { csum_offset: 6, ..tso() },
            Offload { gso_size: 0, ..tso() },
            Offload { gso_type: GSO_TCPV6, ..tso() },
            Offload { gso_type: 3, ..tso() },
            Offload { flags: 0, ..tso() },
        ];
        for mut o in bad {
            assert_eq!(o.check(34, 6, 66, false, 60_000), Err(DropReason::BadOffload), "{o:?}");
        }
        assert_eq!(tso().check(0, 0, 0, false, 60_000), Err(DropReason::BadOffload));
        assert_eq!(tso().check(34, 17, 42, false, 60_000), Err(DropReason::BadOffload));
        assert_eq!(tso().check(34, 6, 66, false, 60), Err(DropReason::BadOffload));
    }

    #[test]
    fn large_udp_segments_belong_to_udp_of_both_families() {
        let uso = Offload { gso_type: GSO_UDP_L4, gso_size: 1_200, csum_offset: 6, ..tso() };
        for ipv6 in [false, true] {
            let mut o = uso;
            assert_eq!(o.check(34, 17, 42, ipv6, 60_000), Ok(()));
            assert_eq!(o.hdr_len, 42);
        }
        let tcp = Offload { csum_offset: 16, ..uso };
        for mut bad in [Offload { gso_size: 0, ..uso }, Offload { flags: 0, ..uso }, tcp] {
            assert_eq!(
                bad.check(34, 17, 42, false, 60_000),
                Err(DropReason::BadOffload),
                "{bad:?}"
            );
        }
        let mut tcp = tcp;
        assert_eq!(tcp.check(34, 6, 66, false, 60_000), Err(DropReason::BadOffload));
        assert!(OffloadCaps::ALL.takes(uso));
        assert!(!OffloadCaps { uso: false, ..OffloadCaps::ALL }.takes(uso));
    }

    #[test]
    fn caps_decide_which_frames_go_out_unchanged() {
        let mut csum = tso();
        csum.gso_type = GSO_NONE;
        assert!(OffloadCaps::NONE.takes(Offload::NONE));
        assert!(!OffloadCaps::NONE.takes(csum));
        assert!(OffloadCaps { csum: true, ..OffloadCaps::NONE }.takes(csum));
        assert!(!OffloadCaps { csum: true, ..OffloadCaps::NONE }.takes(tso()));
        assert!(OffloadCaps::ALL.takes(tso()));
    }
}
