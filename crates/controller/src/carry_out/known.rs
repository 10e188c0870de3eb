//! Remembers the state of a switch while a plan is executed, so that the controller reads a switch
//! once and not before each message.
//!
//! # Problem
//!
//! A plan has several messages for a switch. To compute the changes of a message, the controller
//! needs the state of the switch. Some switches take a second for a complete read.
//!
//! # Approach
//!
//! The controller reads a switch before the plan's first message to it. After an acknowledged
//! message, the switch has the state that the message requested. Before hosts mark packets for new
//! queues, the controller reads the switches once more, because a switch may acknowledge a message
//! that it has not executed. After an error, the state of the switch is uncertain, so the
//! controller forgets it and reads the switch before the next message.

use std::collections::BTreeMap;

use super::answer::Said;
use crate::Stamp;
use crate::southbound::{Capabilities, SwitchDriver, SwitchState, diff, possible};

/// State of a switch, and what the switch can do.
#[derive(Clone, Debug)]
pub(super) struct KnownSwitch {
    can: Capabilities,
    state: SwitchState,
}

impl KnownSwitch {
    /// Returns the ports that the driver leaves out, with the reason.
    pub(super) fn left_out(&self) -> &BTreeMap<String, String> {
        &self.state.left_out
    }

    async fn read(driver: &dyn SwitchDriver) -> Result<Self, Said> {
        let (can, state) = driver.look().await?;
        Ok(Self { can, state })
    }
}

/// Brings a switch to the state `wanted`. The argument `known` is the present state of the switch,
/// and the function reads the switch if it is `None`. Returns the new state.
pub(super) async fn bring_to(
    driver: &dyn SwitchDriver,
    known: Option<KnownSwitch>,
    wanted: &SwitchState,
    stamp: Stamp,
) -> Result<KnownSwitch, Said> {
    let mut known = match known {
        Some(known) => known,
        None => KnownSwitch::read(driver).await?,
    };
    let mut wanted = wanted.clone();
    wanted.ports.retain(|port, _| !known.state.left_out.contains_key(port));
    let wanted = possible(driver.name(), &known.can, wanted)?;
    driver.apply(stamp, &diff(&known.state, &wanted)).await?;
    known.state.ports.extend(wanted.ports);
    Ok(known)
}
