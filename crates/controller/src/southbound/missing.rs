//! Computes the changes that a switch still needs.

use std::collections::BTreeMap;

use super::driver::{Capabilities, Change, DriverError, SwitchDriver, SwitchState};
use super::step::{agree, check_map, check_unmap, check_weights};
use super::{classes, diff::diff};

/// Difference between the state of a switch and a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Changes that give the switch the wanted state. The changes do not concern ports in
    /// `left_out`.
    pub changes: Vec<Change>,
    /// Number of queues of the switch, with the shared queue, that plans may use.
    pub queues: u8,
    /// Ports of the decision that the driver does not use, with the reason. A tenant that sends
    /// through one of these ports must stay in the shared queue, because the port does not know the
    /// tenant's code point.
    pub left_out: BTreeMap<String, String>,
}

/// Compares a switch with the state `wanted`, without changing the switch.
///
/// # Errors
/// Returns an error if the switch does not answer, or if it does not support the state
/// ([`DriverError::Beyond`]). Ports that the driver does not use need no support.
pub async fn survey(
    driver: &dyn SwitchDriver,
    wanted: &SwitchState,
) -> Result<Survey, DriverError> {
    let (can, is) = driver.look().await?;
    let mut wanted = wanted.clone();
    let mut left_out = is.left_out.clone();
    left_out.retain(|port, _| wanted.ports.remove(port).is_some());
    let wanted = possible(driver.name(), &can, wanted)?;
    Ok(Survey { changes: diff(&is, &wanted), queues: usable_queues(&can), left_out })
}

/// Explains what follows from a switch on which plans may use fewer queues than the fabric has.
#[must_use]
pub fn few_queues(usable: u8, queues: u8) -> String {
    format!(
        "the switch has {usable} queues for plans, and the fabric's file says {queues}, so fewer \
         tenants get queues through its ports; if all ports should have as many, raise \
         `reserved_queues` in the fabric's file"
    )
}

/// Returns the number of queues, with the shared queue, that a plan may use on each port of a
/// switch. On a switch with traffic classes, each queue needs a class of its own.
#[must_use]
pub fn usable_queues(can: &Capabilities) -> u8 {
    if can.remap {
        return can.queues.min(can.classes);
    }
    let highest = can.fixed_map.values().max().copied().unwrap_or(0);
    can.queues.min(highest.saturating_add(1))
}

/// Returns the state that a switch with the capabilities `can` should have to implement the
/// decision `wanted`. The state has neither weights nor code points of queues that the switch
/// lacks, so these code points are in queue 0.
pub(crate) fn possible(
    switch: &str,
    can: &Capabilities,
    mut wanted: SwitchState,
) -> Result<SwitchState, DriverError> {
    let queues = usable_queues(can);
    for port in wanted.ports.values_mut() {
        port.weights.truncate(queues.into());
        port.map.retain(|_, queue| *queue < queues);
    }
    classes::complete(can, &mut wanted);
    for port in wanted.ports.values_mut() {
        *port = std::mem::take(port).canonical();
    }
    // The checks are those of the changes of a switch that has just started.
    for (name, port) in &wanted.ports {
        let mut gone = can.fixed_map.keys().filter(|dscp| port.queue(**dscp) == 0);
        gone.try_for_each(|dscp| check_unmap(switch, can, name, *dscp))?;
    }
    for (name, port) in &wanted.ports {
        let fixed = |dscp: &u8| can.fixed_map.get(dscp).copied();
        let mut new = port.map.iter().filter(|(dscp, queue)| fixed(dscp) != Some(**queue));
        new.try_for_each(|(dscp, queue)| check_map(switch, can, name, (*dscp, *queue)))?;
    }
    for (name, port) in &wanted.ports {
        check_weights(switch, can, name, &port.weights)?;
    }
    agree(switch, can, &wanted)?;
    Ok(wanted)
}
