//! A bucket of the exact-match cache or of a rule table has eight one-byte signatures in one 64-bit
//! word. One operation compares all eight signatures.

/// Number of ways in a bucket of the cache or of a rule table.
pub(crate) const WAYS: usize = 8;

const LANES: u64 = 0x0101_0101_0101_0101;
const LANE_TOP: u64 = 0x8080_8080_8080_8080;

/// Returns the signature of a hash. The signature is the hash's top byte, but never zero, because
/// zero marks an empty way.
#[inline]
pub(crate) const fn signature(hash: u64) -> u64 {
    let top = hash >> 56;
    top + (top == 0) as u64
}

/// Set of the ways (entries) of one bucket of which the signature matches. If way k of the bucket
/// matches, the highest bit of byte k is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidates(u64);

impl Candidates {
    pub(crate) const NONE: Self = Self(0);

    /// Returns the ways (entries) of the bucket with the signature word `bucket` that have the
    /// signature `signature`. The subtraction of whole words may borrow from the next byte, so the
    /// result may wrongly contain the way after a matching way. The caller must compare the rules'
    /// keys, because the result may contain false matches.
    #[inline]
    pub(crate) const fn among(bucket: u64, signature: u64) -> Self {
        let x = bucket ^ (signature * LANES);
        Self(x.wrapping_sub(LANES) & !x & LANE_TOP)
    }

    #[inline]
    pub(crate) fn first(self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        (bit < 64).then_some(bit / WAYS)
    }

    #[inline]
    pub(crate) fn without_first(self) -> Self {
        Self(self.0 & self.0.wrapping_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_found_by_its_signature() {
        for way in 0..WAYS {
            let word = 0x0707_0707_0707_0707 & !(0xff << (8 * way)) | 9 << (8 * way);
            let found = Candidates::among(word, 9);
            assert_eq!((found.first(), found.without_first()), (Some(way), Candidates::NONE));
            assert_eq!(Candidates::among(word, 8), Candidates::NONE);
        }
        assert_eq!((signature(0), signature(u64::MAX)), (1, 255));
    }
}
