//! Switches and hosts that failed.

use std::fmt;

use penstock_fabric::topology::NodeId;

/// Switch or host that failed, with the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Server or switch that failed.
    pub node: NodeId,
    pub problem: String,
    /// True if the server or switch answered and refused the change. The value is false if, for
    /// example, the server or switch did not answer.
    pub refused: bool,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

/// Repaired switches with their changes, and the switches and hosts that failed.
pub(super) type Mended = (Vec<(NodeId, Vec<String>)>, Vec<Trouble>);
