//! Computes the hash FNV-1a with 64 bits (RFC 9923). Penstock uses the hash to distribute names and
//! to detect disk errors. FNV-1a does not resist attackers.

/// Returns the hash of `bytes`, which is identical on every machine and in every version of
/// Penstock.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_hashes_are_those_that_are_published() {
        assert_eq!(super::fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(super::fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(super::fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
