//! Finds the VMs that have bells. The switch may start and stop at any time.

use std::io;
use std::sync::Arc;

use penstock_vcpu::Mode;
use penstock_vcpu::bells::Bell;

use crate::bells::Bells;
use crate::boost::Order;
use crate::config::Config;

/// The bells of the configured VMs.
#[derive(Debug, Default)]
pub(super) struct Chime {
    bells: Option<Arc<Bells>>,
    names: Vec<(String, Bell)>,
    complained: bool,
}

impl Chime {
    /// Looks for bells, and returns whether they changed.
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
                // No switch has made the file yet.
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

    /// The order that gives the bells to a scheduling thread.
    pub fn get(&self) -> Option<Order> {
        let bells = self.bells.as_ref()?;
        Some(Order::Bells(Arc::clone(bells), self.names.clone()))
    }
}
