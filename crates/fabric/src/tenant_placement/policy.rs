//! Defines the settings that determine in which tree a tenant is placed.

use thiserror::Error;

/// Weight of the queue cost c_q relative to the bandwidth cost c_b, from 0 to 1 ([`super::Cost`]).
/// By QShare §IV-B, the weight of the queue cost is larger in a lightly loaded datacenter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueueWeight {
    /// The weight of the queue cost is 1 minus the reserved fraction of the most reserved layer,
    /// but at least 0.2 and at most 0.9.
    ByLoad,
    /// The weight of the queue cost is a constant from 0 to 1. The stress test of QShare §VII-C
    /// uses a weight of 0.9.
    Fixed(f64),
}

/// Method of choosing one of the trees of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The tree of least cost is chosen (QShare Algorithm 1).
    Balanced,
    /// The first tree with room for the tenant is chosen, and the children of its nodes are filled
    /// in order. The first-fit choice is the greedy choice of Oktopus, and serves as a baseline for
    /// comparison.
    FirstFit,
}

/// Settings that decide where tenants are placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Number of queues of a switch port, 2 or more.
    pub queues: u32,
    /// Number of queues of a port that no tenant may own, at least 1. The queues that no tenant may
    /// own are the shared queue and the queues for other purposes.
    pub reserved_queues: u32,
    /// Weight of the queue cost.
    pub queue_weight: QueueWeight,
    /// Method of choosing one of the trees of a layer.
    pub choice: Choice,
}

/// Why a policy is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A port has no shared queue, or no queue that tenants may own.
    #[error("{reserved} of {queues} queues are reserved; keep at least 1 shared and 1 for tenants")]
    Queues {
        /// Number of queues of a port.
        queues: u32,
        /// Number of queues of a port that no tenant may own.
        reserved: u32,
    },
    /// The weight of the queue cost is not from 0 to 1.
    #[error("the weight of queues is {0}; write 0 to 1")]
    Weight(f64),
}

impl Default for Policy {
    /// Returns a policy with eight queues per port, of which one queue is shared. The weight of the
    /// queue cost depends on the load, and the tree of least cost is chosen.
    fn default() -> Self {
        let queue_weight = QueueWeight::ByLoad;
        Self { queues: 8, reserved_queues: 1, queue_weight, choice: Choice::Balanced }
    }
}

impl Policy {
    /// Number of queues of a port that tenants may own.
    #[must_use]
    pub const fn dedicated(&self) -> u32 {
        self.queues.saturating_sub(self.reserved_queues)
    }

    /// Checks the policy's numbers of queues and the weight of the queue cost.
    ///
    /// # Errors
    /// Returns an error if no queue is shared, if tenants may own no queue, or if the weight is not
    /// from 0 to 1.
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
