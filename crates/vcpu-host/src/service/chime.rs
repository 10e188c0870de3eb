//! Finds the counters (bells) with which the switch reports frames for VMs. The service repeats the
//! search for the file of frame-arrival counters, because the switch may start and stop at any
//! time.

use std::io;
use std::sync::Arc;

use penstock_vcpu::Mode;
use penstock_vcpu::bells::Bell;

use crate::bells::Bells;
use crate::boost::Order;
use crate::config::Config;

/// The configured VMs' frame-arrival counters (bells), which the switch increments.
#[derive(Debug, Default)]
pub(super) struct Chime {
    bells: Option<Arc<Bells>>,
    names: Vec<(String, Bell)>,
    complained: bool,
}

impl Chime {
    /// Looks for the frame-arrival counters (bells) of the configured VMs. Returns true if the
    /// function found another VM's counter, or if the file of counters was replaced or removed.
    pub fn look(&mut self, config: &Config) -> bool {
        // Only aperiodic VMs have deadlines for events.
        let aperiodic = |vm: &&crate::config::VmConfig| vm.contract.mode == Mode::Aperiodic;
        let mut wanted = config.vms.iter().filter(aperiodic).peekable();
        if wanted.peek().is_none() {
            return false;
        }
        let mut changed = false;
        if !self.bells.as_ref().is_some_and(|bells| bells.is_current()) {
            changed = self.bells.take().is_some();
            self.names.clear();
            match Bells::open(&config.run_dir) {
                Ok(bells) => self.bells = Some(Arc::new(bells)),
                // No switch has created the file yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    if !std::mem::replace(&mut self.complained, true) {
                        tracing::warn!(%error, "frame events of the switch cannot be received");
                    }
                }
            }
        }
        let Some(bells) = &self.bells else { return changed };
        for vm in wanted {
            if self.names.iter().any(|(name, _)| *name == vm.name) {
                continue;
            }
            if let Some(bell) = bells.find(&vm.name) {
                tracing::info!(vm = vm.name, "receiving frame events from the switch");
                self.names.push((vm.name.clone(), bell));
                changed = true;
            }
        }
        changed
    }

    /// Returns the order that gives the file and the numbers of the VMs' frame-arrival counters
    /// (bells) to a scheduling thread. Returns `None` if the service found no file of frame-arrival
    /// counters.
    pub fn get(&self) -> Option<Order> {
        let bells = self.bells.as_ref()?;
        Some(Order::Bells(Arc::clone(bells), self.names.clone()))
    }
}
