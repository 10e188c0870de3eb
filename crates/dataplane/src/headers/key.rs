//! The flow key: the headers of a frame in eight words, and the keyed hash of the key.
//!
//! # Problem
//! The comparison of two keys may take only a few instructions, although a decision may depend on
//! many header fields. Tenants choose the headers of their frames, so tenants must not be able to
//! predict a key's hash.
//!
//! # Source
//! Datapath rule 31 requires that an IPv4 key with its input port fits into 32 bytes.
//!
//! # Quantities
//! Four words are enough for an IPv4, ARP or other key. Only the key of an IPv6 frame uses words 4
//! to 7, which are zero in all other keys:
//!
//! | word of the key | bits 63-48 | bits 47-32 | bits 31-16 | bits 15-8 | bits 7-0 |
//! |---|---|---|---|---|---|
//! | word 0 | input port | VLAN id | `EtherType` | IP protocol | DSCP, fragment state |
//! | word 1 | destination MAC (bits 63-16) | .. | .. | source port (bits 15-0) | .. |
//! | word 2 | source MAC (bits 63-16) | .. | .. | destination port (bits 15-0) | .. |
//! | word 3 | IPv4 source, or ARP sender | .. | IPv4 destination, or ARP target | .. | .. |
//! | words 4 and 5 | IPv6 source address | .. | .. | .. | .. |
//! | words 6 and 7 | IPv6 destination address | .. | .. | .. | .. |
//!
//! The key stores ICMP's type and code as source and destination port, and ARP's operation as the
//! destination port. ECN and PCP are not part of the flow key.
//!
//! # Cost
//! The hash of a 32-byte key takes three wide multiplications, of which two run in parallel.

pub const ETHERTYPE_IPV4: u16 = 0x0800;
pub const ETHERTYPE_ARP: u16 = 0x0806;
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
pub const ETHERTYPE_VLAN: u16 = 0x8100;

pub(crate) const MAC_MASK: u64 = 0xffff_ffff_ffff;
const WORDS: usize = 8;
const NARROW: usize = 4;

/// Header fields of a frame as eight words. A table in the documentation of the module `key` lists
/// the fields in each word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(32))]
pub struct FlowKey(pub(crate) [u64; WORDS]);

/// Mask for comparing two [`FlowKey`]s. A comparison under the mask ignores the key bits that are 0
/// in the mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowMask(pub(crate) [u64; WORDS]);

/// The header fields of a [`FlowKey`], each in a member of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyFields {
    /// Number of the switch port from which the frame came.
    pub in_port: u16,
    /// VLAN id of the key, 12 bits.
    pub vid: u16,
    pub ethertype: u16,
    /// IP protocol number. In an IPv6 frame, `proto` is the protocol after all extension headers.
    pub proto: u8,
    /// DSCP of the frame in the upper six bits, and fragment state (`FRAGMENT_*`) in the lower two
    /// bits.
    pub tos: u8,
    pub dst_mac: u64,
    pub src_mac: u64,
    pub src_port: u16,
    pub dst_port: u16,
    pub ipv4_src: u32,
    pub ipv4_dst: u32,
    pub ipv6_src: u128,
    pub ipv6_dst: u128,
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the function takes the low 64 bits on purpose"
)]
const fn low(wide: u128) -> u64 {
    wide as u64
}

#[expect(clippy::cast_possible_truncation, reason = "takes the low 16 bits on purpose")]
const fn bits16(word: u64, shift: u32) -> u16 {
    (word >> shift) as u16
}

impl KeyFields {
    /// Value of `KeyFields` with every bit of every field set.
    pub const ALL: Self = Self {
        in_port: u16::MAX,
        vid: u16::MAX,
        ethertype: u16::MAX,
        proto: u8::MAX,
        tos: u8::MAX,
        dst_mac: MAC_MASK,
        src_mac: MAC_MASK,
        src_port: u16::MAX,
        dst_port: u16::MAX,
        ipv4_src: u32::MAX,
        ipv4_dst: u32::MAX,
        ipv6_src: u128::MAX,
        ipv6_dst: u128::MAX,
    };

    pub(crate) const fn words(&self) -> [u64; WORDS] {
        [
            (self.in_port as u64) << 48
                | (self.vid as u64) << 32
                | (self.ethertype as u64) << 16
                | (self.proto as u64) << 8
                | self.tos as u64,
            self.dst_mac << 16 | self.src_port as u64,
            self.src_mac << 16 | self.dst_port as u64,
            (self.ipv4_src as u64) << 32 | self.ipv4_dst as u64,
            low(self.ipv6_src >> 64),
            low(self.ipv6_src),
            low(self.ipv6_dst >> 64),
            low(self.ipv6_dst),
        ]
    }
}

impl FlowKey {
    #[must_use]
    pub const fn new(fields: &KeyFields) -> Self {
        Self(fields.words())
    }

    #[must_use]
    pub fn fields(&self) -> KeyFields {
        let wide = |at: usize| u128::from(self.0[at]) << 64 | u128::from(self.0[at + 1]);
        KeyFields {
            in_port: bits16(self.0[0], 48),
            vid: self.vid(),
            ethertype: self.ethertype(),
            proto: self.proto(),
            tos: self.0[0].to_le_bytes()[0],
            dst_mac: self.dst_mac(),
            src_mac: self.src_mac(),
            src_port: bits16(self.0[1], 0),
            dst_port: bits16(self.0[2], 0),
            ipv4_src: self.ipv4_src(),
            ipv4_dst: u32::try_from(self.0[3] & 0xffff_ffff).unwrap_or(0),
            ipv6_src: wide(4),
            ipv6_dst: wide(6),
        }
    }

    /// Number of the switch port from which the frame came.
    #[inline]
    #[must_use]
    pub const fn in_port(&self) -> u16 {
        bits16(self.0[0], 48)
    }

    /// VLAN id of the key, 12 bits. A key from the parser has the VLAN id of the frame's tag. A key
    /// for the lookup of rules has the VLAN id of the tenant's network.
    #[inline]
    #[must_use]
    pub const fn vid(&self) -> u16 {
        bits16(self.0[0], 32)
    }

    /// Returns a copy of this key with VLAN id `vid`.
    #[inline]
    #[must_use]
    pub const fn with_vid(&self, vid: u16) -> Self {
        let [_, b, c, d, e, f, g, h] = self.0;
        Self([self.first_with_vid(vid), b, c, d, e, f, g, h])
    }

    /// Returns the first word of this key with its VLAN id replaced by `vid`.
    #[inline]
    pub(crate) const fn first_with_vid(&self, vid: u16) -> u64 {
        self.0[0] & !(0xffff << 32) | (vid as u64) << 32
    }

    #[inline]
    #[must_use]
    pub const fn ethertype(&self) -> u16 {
        bits16(self.0[0], 16)
    }

    #[inline]
    #[must_use]
    pub const fn proto(&self) -> u8 {
        self.0[0].to_le_bytes()[1]
    }

    /// Destination MAC address in the low 48 bits of the result.
    #[inline]
    #[must_use]
    pub const fn dst_mac(&self) -> u64 {
        self.0[1] >> 16
    }

    /// Source MAC address in the low 48 bits of the result.
    #[inline]
    #[must_use]
    pub const fn src_mac(&self) -> u64 {
        self.0[2] >> 16
    }

    /// Source and destination port of TCP or UDP. For an ICMP frame, the two numbers are the ICMP
    /// type and code. For an ARP frame, the two numbers are 0 and the ARP operation.
    #[inline]
    #[must_use]
    pub const fn ports(&self) -> (u16, u16) {
        (bits16(self.0[1], 0), bits16(self.0[2], 0))
    }

    /// IPv4 address of the frame's source, or of the ARP sender.
    #[inline]
    #[must_use]
    pub const fn ipv4_src(&self) -> u32 {
        (self.0[3] >> 32) as u32
    }

    #[inline]
    #[must_use]
    pub const fn ipv6_src(&self) -> u128 {
        (self.0[4] as u128) << 64 | self.0[5] as u128
    }

    /// Whether the key uses its last four words, which have the IPv6 addresses.
    #[inline]
    #[must_use]
    pub const fn is_wide(&self) -> bool {
        self.ethertype() == ETHERTYPE_IPV6
    }

    #[inline]
    pub(crate) fn narrow(&self) -> [u64; NARROW] {
        [self.0[0], self.0[1], self.0[2], self.0[3]]
    }

    #[inline]
    pub(crate) fn upper(&self) -> [u64; NARROW] {
        [self.0[4], self.0[5], self.0[6], self.0[7]]
    }

    /// Returns a copy of this key with the first word `first`, in which only the bits of `mask` are
    /// kept. Changing one word of a copied key and then reading the copy as vectors would stall the
    /// CPU.
    #[inline]
    pub(crate) fn masked_with(&self, first: u64, mask: &FlowMask) -> Self {
        let ([_, b, c, d, e, f, g, h], [m, n, o, p, q, r, s, t]) = (&self.0, &mask.0);
        Self([first & m, b & n, c & o, d & p, e & q, f & r, g & s, h & t])
    }

    /// Like [`Self::masked_with`], for a mask without bits of an IPv6 address.
    #[inline]
    pub(crate) fn masked_narrow(&self, first: u64, mask: &FlowMask) -> Self {
        let ([_, b, c, d, ..], [m, n, o, p, ..]) = (&self.0, &mask.0);
        Self([first & m, b & n, c & o, d & p, 0, 0, 0, 0])
    }

    /// Returns this key, reduced to the bits of `mask`. The key must not have IPv6 addresses. The
    /// key of an IPv4 frame from address 0.0.0.0 (DHCP) keeps all bits, because the decision on
    /// such a frame also depends on the UDP ports.
    #[inline(always)]
    pub(crate) fn relevant_narrow(&self, mask: &FlowMask) -> Self {
        let ([a, b, c, d, ..], [m, n, o, p, ..]) = (&self.0, &mask.0);
        if d >> 32 == 0 {
            return *self;
        }
        Self([a & m, b & n, c & o, d & p, 0, 0, 0, 0])
    }

    /// Returns the key reduced to the bits of `mask`, for a key with or without IPv6 addresses.
    #[inline]
    pub(crate) fn relevant(&self, mask: &FlowMask) -> Self {
        if self.is_wide() { self.masked(mask) } else { self.relevant_narrow(mask) }
    }

    /// Whether this flow key equals the flow key `other`.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        let [a, b, c, d, e, f, g, h] = other.0;
        self.narrow_is(&[a, b, c, d]) && self.upper_is(&[e, f, g, h])
    }

    /// Whether the key's first four words equal `words`. Keys are compared word by word, because a
    /// vector comparison would wait for the stores of a copied key.
    #[inline]
    pub(crate) fn narrow_is(&self, words: &[u64; NARROW]) -> bool {
        let [a, b, c, d, ..] = &self.0;
        (a ^ words[0]) | (b ^ words[1]) | (c ^ words[2]) | (d ^ words[3]) == 0
    }

    /// Whether the key's last four words equal `words`.
    #[inline]
    pub(crate) fn upper_is(&self, words: &[u64; NARROW]) -> bool {
        let [.., a, b, c, d] = &self.0;
        (a ^ words[0]) | (b ^ words[1]) | (c ^ words[2]) | (d ^ words[3]) == 0
    }

    /// Returns a copy of this key in which only the bits of `mask` are kept.
    #[inline]
    #[must_use]
    pub fn masked(&self, mask: &FlowMask) -> Self {
        Self(core::array::from_fn(|i| self.0[i] & mask.0[i]))
    }
}

impl FlowMask {
    /// Returns the mask that compares the bits that are set in `fields`.
    #[must_use]
    pub const fn new(fields: &KeyFields) -> Self {
        Self(fields.words())
    }

    /// Returns the mask of all bits that are set in at least one of two masks.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Whether the mask contains bits of an IPv6 address.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        self.0[NARROW..] != [0; NARROW]
    }
}

/// Secret constants of the hash of flow keys, made from a random number. Each process draws the
/// random number of its hash constants once.
#[derive(Clone, Copy)]
pub struct HashSeed([u64; 10]);

impl core::fmt::Debug for HashSeed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("HashSeed(..)")
    }
}

/// Multiplies two words and folds the halves of the product with an exclusive or.
#[inline]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    low(product) ^ low(product >> 64)
}

impl HashSeed {
    /// Expands one random number to the secret constants of the hash with splitmix64.
    #[must_use]
    pub fn new(random: u64) -> Self {
        let mut state = random;
        Self(core::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// Hash of the first four words of key `k`.
    #[inline]
    #[must_use]
    pub fn hash_narrow(&self, k: &FlowKey) -> u64 {
        let s = &self.0;
        let a = fold(k.0[0] ^ s[0], k.0[1] ^ s[1]);
        let b = fold(k.0[2] ^ s[2], k.0[3] ^ s[3]);
        fold(a ^ s[4], b ^ s[5])
    }

    /// Hash of all eight words of key `k`.
    #[inline]
    #[must_use]
    pub fn hash_wide(&self, k: &FlowKey) -> u64 {
        self.hash_upper(self.hash_narrow(k), k)
    }

    /// Hash of all eight words of key `k`. The argument `narrow` is the hash of the key's first
    /// four words.
    #[inline]
    pub(crate) fn hash_upper(&self, narrow: u64, k: &FlowKey) -> u64 {
        let s = &self.0;
        let a = fold(k.0[4] ^ s[6], k.0[5] ^ s[7]);
        let b = fold(k.0[6] ^ s[8], k.0[7] ^ s[9]);
        fold(narrow ^ a, b.rotate_left(29) ^ s[3])
    }

    /// Hash of key `k`: of eight words if the key has IPv6 addresses, else of four words.
    #[inline]
    #[must_use]
    pub fn hash(&self, k: &FlowKey) -> u64 {
        if k.is_wide() { self.hash_wide(k) } else { self.hash_narrow(k) }
    }

    /// Returns a number that is equal for all frames of a flow. The switch uses the flow's number
    /// to distribute flows over queues. Computing a flow's number costs one multiplication for an
    /// IPv4 key and more for an IPv6 key.
    #[inline]
    #[must_use]
    pub fn flow(&self, k: &FlowKey) -> u64 {
        let s = &self.0;
        let narrow = fold(k.0[3] ^ s[2], k.0[1].rotate_left(17) ^ k.0[2] ^ s[3]);
        if k.is_wide() { self.hash_upper(narrow, k) } else { narrow }
    }

    /// Hash of one word, which contains a domain and a MAC address.
    #[inline]
    #[must_use]
    pub fn hash_word(&self, word: u64) -> u64 {
        fold(word ^ self.0[0], self.0[1] | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> KeyFields {
        KeyFields {
            in_port: 7,
            vid: 0xabc,
            ethertype: ETHERTYPE_IPV6,
            proto: 6,
            tos: 0xb9,
            dst_mac: 0x5254_0000_0001,
            src_mac: 0x5254_0000_0002,
            src_port: 1234,
            dst_port: 80,
            ipv4_src: 0x0a00_0001,
            ipv4_dst: 0x0a00_0002,
            ipv6_src: 0xfe80 << 112 | 1,
            ipv6_dst: 0xfe80 << 112 | 2,
        }
    }

    #[test]
    fn fields_survive_the_packing() {
        let key = FlowKey::new(&fields());
        assert_eq!(key.fields(), fields());
        assert_eq!(key.with_vid(5).fields(), KeyFields { vid: 5, ..fields() });
        assert_eq!((key.in_port(), key.proto(), key.ports()), (7, 6, (1234, 80)));
        assert_eq!((key.dst_mac(), key.src_mac()), (0x5254_0000_0001, 0x5254_0000_0002));
        assert_eq!(key.ipv6_src(), 0xfe80 << 112 | 1);
    }

    #[test]
    fn every_bit_of_a_key_changes_half_the_hash() {
        let seed = HashSeed::new(42);
        let key = FlowKey::new(&fields());
        let mut least = 64;
        for bit in 0..512_usize {
            let mut other = key;
            other.0[bit / 64] ^= 1 << (bit % 64);
            least = least.min((seed.hash_wide(&key) ^ seed.hash_wide(&other)).count_ones());
            if bit < 256 {
                let narrow = seed.hash_narrow(&key) ^ seed.hash_narrow(&other);
                least = least.min(narrow.count_ones());
            }
        }
        assert!(least >= 12, "{least}");
    }

    #[test]
    fn the_seed_changes_the_hash() {
        let key = FlowKey::new(&fields());
        assert_ne!(HashSeed::new(1).hash(&key), HashSeed::new(2).hash(&key));
        assert_ne!(HashSeed::new(1).hash_word(9), HashSeed::new(2).hash_word(9));
    }
}
