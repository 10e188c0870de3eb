//! Settings that decide in which tree a tenant is placed.

use thiserror::Error;

/// Weight of c_q relative to c_b. By QShare §IV-B it is larger if the datacenter is lightly loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueueWeight {
    /// The weight is 1 minus the reserved fraction of the scarcest layer, clamped to 0.2 and 0.9.
    ByLoad,
    /// The weight is a constant from 0 to 1. The stress test of QShare §VII-C uses 0.9.
    Fixed(f64),
}

/// Which tree of a layer is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The tree of least cost is chosen (QShare Algorithm 1).
    Balanced,
    /// The first tree that fits is chosen and filled from the left. This is greedy as in Oktopus
    /// and serves for comparison.
    FirstFit,
}

/// Settings of placement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Queues of a switch port, 2 or more.
    pub queues: u32,
    /// Queues of a port that no tenant may own: the shared queue and queues for other purposes. At
    /// least 1.
    pub reserved_queues: u32,
    /// Weight of the queue cost.
    pub queue_weight: QueueWeight,
    /// Which tree of a layer is chosen.
    pub choice: Choice,
}

/// Why a policy is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// There is no shared or no dedicated queue.
    #[error("{reserved} of {queues} queues are reserved; keep at least 1 shared and 1 for tenants")]
    Queues {
        /// Queues of a port.
        queues: u32,
        /// Reserved queues of a port.
        reserved: u32,
    },
    /// The weight is outside 0 to 1.
    #[error("the weight of queues is {0}; write 0 to 1")]
    Weight(f64),
}

impl Default for Policy {
    /// Eight queues per port, one of them shared, and a weight by load.
    fn default() -> Self {
        let queue_weight = QueueWeight::ByLoad;
        Self { queues: 8, reserved_queues: 1, queue_weight, choice: Choice::Balanced }
    }
}

impl Policy {
    /// Queues of a port that tenants may own.
    #[must_use]
    pub const fn dedicated(&self) -> u32 {
        self.queues.saturating_sub(self.reserved_queues)
    }

    /// Validates the policy.
    ///
    /// # Errors
    /// There is no dedicated or no shared queue, or the weight is not from 0 to 1.
    pub fn check(&self) -> Result<(), PolicyError> {
        if self.reserved_queues == 0 || self.dedicated() == 0 {
            let (queues, reserved) = (self.queues, self.reserved_queues);
            return Err(PolicyError::Queues { queues, reserved });
        }
        match self.queue_weight {
            QueueWeight::Fixed(a) if !(0.0..=1.0).contains(&a) => Err(PolicyError::Weight(a)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_without_queues_or_with_no_weight_is_refused() {
        assert!(Policy::default().check().is_ok());
        for reserved_queues in [0, 8, 9] {
            let policy = Policy { reserved_queues, ..Policy::default() };
            assert!(matches!(policy.check(), Err(PolicyError::Queues { .. })));
        }
        for a in [f64::NAN, -0.1, 1.1] {
            let queue_weight = QueueWeight::Fixed(a);
            assert!(Policy { queue_weight, ..Policy::default() }.check().is_err());
        }
    }
}
