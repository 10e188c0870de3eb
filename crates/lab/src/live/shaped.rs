//! Two VMs for VM jitter's figures: one VM has a shaped port, and the other VM represents the
//! network.

use penstock_units::BitsPerSecond;

use super::stage::Stage;
use crate::evidence::Outcome;
use crate::jitter::shaper::Kind;
use crate::rig::plan::{Bound, Plan, Vm};
use crate::rig::stats::to_f64;
use penstock_guest::clock;

/// Name of the VM that sends through a shaped port.
pub(super) const VM: &str = "vm1";
/// Name of the VM that represents the network.
pub(super) const NET: &str = "net";
/// Index of [`VM`] in the plan.
pub(super) const VM_PLACE: usize = 0;
pub(super) const NET_PLACE: usize = 1;

/// The guests for which a figure is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guest {
    /// Without offloads, and with one queue pair: the guest cuts its segments itself.
    Plain,
    /// With checksum offload, TSO and two queue pairs, as a Linux guest has them if nobody changes
    /// its settings.
    Default,
}

impl Guest {
    /// Returns `plan` with this kind of guests.
    pub fn of(self, plan: Plan) -> Plan {
        match self {
            Self::Plain => plan,
            Self::Default => Plan { offloads: true, pairs: 2, ..plan },
        }
    }
}

/// Measures a figure with both kinds of guests, one after the other, and adds both results to
/// `outcome`. The names of the results with default guests begin with `default_guest`.
pub(super) fn with_both(
    outcome: &mut Outcome,
    mut measure: impl FnMut(Guest) -> anyhow::Result<Outcome>,
) -> anyhow::Result<()> {
    let plain = measure(Guest::Plain)?;
    outcome.claims.extend(plain.claims);
    outcome.series.extend(plain.series);
    outcome.platform.extend(plain.platform);
    outcome.append("default_guest", measure(Guest::Default)?);
    Ok(())
}

/// Returns a plan with the shaped VM and the VM that represents the network. The guests are
/// [`Guest::Plain`].
pub(super) fn plan() -> Plan {
    let vm = Vm::sender(VM, NET, Bound::default());
    let net = Vm { answers: true, ..Vm::sink(NET) };
    Plan::new("", vec![vm, net])
}

/// Returns the same plan as [`plan`], but with real-time priority for endpoints and programs.
/// Figures that measure times use the plan with real-time priority.
pub(super) fn prompt_plan() -> Plan {
    Plan { prompt: true, ..plan() }
}

/// Runs `work`, and also returns the percentage of the time for which the switch's worker waited
/// for its core. Frames that are due during a wait for the core are late, but not because of the
/// shaper.
pub(super) fn waited<T>(
    stage: &mut Stage,
    work: impl FnOnce(&mut Stage) -> anyhow::Result<T>,
) -> anyhow::Result<(T, f64)> {
    let (began, before) = (clock::now(), stage.waited_ns());
    let done = work(stage)?;
    let waited = to_f64(stage.waited_ns() - before) / to_f64(clock::nanos(began.elapsed()).max(1));
    Ok((done, 100.0 * waited))
}

/// Starts to shape the frames that the VM sends. A token bucket is refilled every 50 ms, as in Xen.
pub(super) fn shape(stage: &Stage, kind: Kind, rate: BitsPerSecond) -> anyhow::Result<()> {
    let period = if kind == Kind::TokenBucket { ", period_ms = 50" } else { "" };
    let shaper = kind.name();
    stage.set(VM, &format!("shape={{ send = {}, shaper = \"{shaper}\"{period} }}", rate.0))
}

/// Stops shaping the frames that the VM sends.
pub(super) fn unshape(stage: &Stage) -> anyhow::Result<()> {
    stage.set(VM, "shape=")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_vm_may_be_shaped() {
        let text = plan().configuration(Path::new("/d"), (1, 0));
        assert!(text.contains("offloads = { csum = false, tso = false }"), "{text}");
        let default = Guest::Default.of(plan()).configuration(Path::new("/d"), (1, 0));
        assert!(default.contains("offloads = { csum = true, tso = true }"), "{default}");
        assert_eq!(default.matches("vhost-user.queues = 2").count(), 2, "{default}");
        assert!(text.contains("actions = [\"output:net\"]"), "{text}");
        assert_eq!((plan().number(VM), plan().number(NET)), (Some(VM_PLACE), Some(NET_PLACE)));
    }
}
