//! Account of all cycles that refills generate.

/// Account of the cycles of one worker's refills. All amounts in the worker's account are in
/// cycles, counted since the worker's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Cycles that refills generated. Refills neither generate nor count cycles that the core spent
    /// without a charge to a port.
    pub generated: u64,
    /// Cycles that were charged to ports.
    pub charged: u64,
    /// Cycles that went to the pool because they were unsold or overflowed a bucket. If a cycle
    /// overflows several buckets in turn, the field counts each overflow. Other fields of the
    /// account, such as stored or charged cycles, also contain the cycles that went to the pool.
    pub passed_on: u64,
    /// Cycles that were discarded because all min-max buckets were full.
    pub discarded: u64,
    /// Tokens that added buckets had, plus tokens that buckets got from other workers, minus the
    /// tokens of removed buckets.
    pub brought: i64,
    /// Tokens in all buckets and in the pool together.
    pub stored: i64,
    /// Cycles that ports without tokens spent while no port with tokens had frames
    /// ([`super::BucketSet::lend`]). Lent cycles are charged to no port, and no other field of the
    /// account contains lent cycles.
    pub lent: u64,
}

impl Ledger {
    /// Returns the difference between the sides of the equation
    /// `generated + brought = charged + stored + discarded`, for tests. A difference of 0 means
    /// that the worker's account contains every cycle.
    #[must_use]
    pub fn unaccounted(&self) -> i128 {
        i128::from(self.generated) + i128::from(self.brought)
            - i128::from(self.charged)
            - i128::from(self.stored)
            - i128::from(self.discarded)
    }
}
