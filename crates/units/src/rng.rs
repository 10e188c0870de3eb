//! The generator makes reproducible random numbers from one seed, with SplitMix64 (Steele, Lea,
//! Flood 2014).

/// A seeded random number generator. The generator's numbers are predictable, so do not use them
/// for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a random number generator that starts at `seed`. Equal seeds give equal sequences.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a random number of 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random number from 0 to `limit` - 1, or 0 if `limit` is 0. The results are nearly
    /// uniform: the bias is below `limit` / 2^64.
    pub fn below(&mut self, limit: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(limit);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// Returns true with a probability of `parts_per_million` / 10^6.
    pub fn chance_ppm(&mut self, parts_per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(parts_per_million)
    }

    /// Returns a random number from 0 (inclusive) to 1 (exclusive), in steps of 2^-53.
    pub fn unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let bits = (self.next_u64() >> 11) as f64;
        bits / (1_u64 << 53) as f64
    }

    /// Creates a generator for component `part` of a simulation. A call of `fork` does not change
    /// the state of the original generator. An additional component of a simulation therefore does
    /// not change the numbers of other components.
    #[must_use]
    pub fn fork(&self, part: u64) -> Self {
        let mut seed = Self(self.0 ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(seed.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_sequence() {
        let mut rng = Rng::new(1_234_567);
        // Reference values of SplitMix64 for this seed.
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn bounds_hold() {
        let mut rng = Rng::new(7);
        assert!((0..1000).all(|_| rng.below(10) < 10));
        assert_eq!(rng.below(0), 0);
        assert!((0..1000).all(|_| !rng.chance_ppm(0)));
        assert!((0..1000).all(|_| rng.chance_ppm(1_000_000)));
    }
}
