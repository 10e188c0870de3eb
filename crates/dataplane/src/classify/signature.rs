//! Eight one-byte signatures in a word, compared at once: a bucket of the cache or of the rules.

/// Number of ways in a bucket.
pub(super) const WAYS: usize = 8;

const LANES: u64 = 0x0101_0101_0101_0101;
const LANE_TOP: u64 = 0x8080_8080_8080_8080;

/// Signature of a hash: its top byte, but never zero, which marks an empty way.
#[inline]
pub(super) const fn signature(hash: u64) -> u64 {
    let top = hash >> 56;
    top + (top == 0) as u64
}

/// Ways of a bucket whose signature matches: the top bit of byte k represents way k.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Candidates(u64);

impl Candidates {
    pub(super) const NONE: Self = Self(0);

    /// The ways of `bucket` with `signature`. Because of the subtraction's borrow, the result may
    /// also contain the way above a match, so the caller must compare the keys.
    #[inline]
    pub(super) const fn among(bucket: u64, signature: u64) -> Self {
        let x = bucket ^ (signature * LANES);
        Self(x.wrapping_sub(LANES) & !x & LANE_TOP)
    }

    #[inline]
    pub(super) fn first(self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        (bit < 64).then_some(bit / WAYS)
    }

    #[inline]
    pub(super) fn without_first(self) -> Self {
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
