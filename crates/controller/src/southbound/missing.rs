//! Computes the changes that a switch still needs.

use super::driver::{Capabilities, Change, DriverError, PortState, SwitchDriver, SwitchState};
use super::step::{agree, step};
use super::{classes, diff::diff};

/// Returns the changes that give a switch the state `wanted`, without changing the switch. The
/// changes do not concern ports in [`SwitchState::left_out`].
///
/// # Errors
/// Returns an error if the switch does not answer, or if it does not support the state
/// ([`DriverError::Beyond`]).
pub async fn missing(
    driver: &dyn SwitchDriver,
    wanted: &SwitchState,
) -> Result<Vec<Change>, DriverError> {
    let wanted = possible(driver.name(), &driver.capabilities().await?, wanted)?;
    Ok(diff(&driver.read_back().await?, &wanted))
}

/// Returns the state that a switch with the capabilities `can` should have to implement the
/// decision `wanted`.
pub(crate) fn possible(
    switch: &str,
    can: &Capabilities,
    wanted: &SwitchState,
) -> Result<SwitchState, DriverError> {
    let mut wanted = wanted.clone();
    classes::complete(can, &mut wanted);
    let fresh = PortState { weights: Vec::new(), map: can.fixed_map.clone() };
    let ports = wanted.ports.keys().map(|port| (port.clone(), fresh.clone()));
    let mut state = SwitchState { ports: ports.collect(), ..SwitchState::default() };
    let changes = diff(&state, &wanted);
    changes.iter().try_for_each(|change| step(switch, can, &mut state, change))?;
    agree(switch, can, &state)?;
    Ok(wanted)
}
