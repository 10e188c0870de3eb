//! A VM with a shaped port, and the network behind it: the stage of VM jitter's figures.

use penstock_units::BitsPerSecond;

use super::stage::Stage;
use crate::jitter::shaper::Kind;
use crate::rig::plan::{Bound, Plan, Vm};
use crate::rig::stats::to_f64;
use penstock_guest::clock;

/// The VM that sends.
pub(super) const VM: &str = "vm1";
/// The VM that represents the network.
pub(super) const NET: &str = "net";
/// Indices in the plan.
pub(super) const VM_PLACE: usize = 0;
pub(super) const NET_PLACE: usize = 1;

/// The VM and the network.
pub(super) fn plan() -> Plan {
    let vm = Vm::sender(VM, NET, Bound::default());
    let net = Vm { answers: true, ..Vm::sink(NET) };
    // Ports offer no offloads, because a large segment would leave a shaper all at once.
    Plan::new("", vec![vm, net])
}

/// Like [`plan`], for figures that measure times.
pub(super) fn prompt_plan() -> Plan {
    Plan { prompt: true, ..plan() }
}

/// Runs `work`. Also returns the percentage of that time for which the worker waited for its core.
/// Frames that depart during such a wait are late, but not because of the shaper.
pub(super) fn waited<T>(
    stage: &mut Stage,
    work: impl FnOnce(&mut Stage) -> anyhow::Result<T>,
) -> anyhow::Result<(T, f64)> {
    let (began, before) = (clock::now(), stage.waited_ns());
    let done = work(stage)?;
    let waited = to_f64(stage.waited_ns() - before) / to_f64(clock::nanos(began.elapsed()).max(1));
    Ok((done, 100.0 * waited))
}

/// Shapes the VM's frames from now on. A token bucket is refilled every 50 ms, as Xen's is.
pub(super) fn shape(stage: &Stage, kind: Kind, rate: BitsPerSecond) -> anyhow::Result<()> {
    let period = if kind == Kind::TokenBucket { ", period_ms = 50" } else { "" };
    let shaper = kind.name();
    stage.set(VM, &format!("shape={{ send = {}, shaper = \"{shaper}\"{period} }}", rate.0))
}

/// Stops shaping the VM's frames.
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
        assert!(text.contains("actions = [\"output:net\"]"), "{text}");
        assert_eq!((plan().number(VM), plan().number(NET)), (Some(VM_PLACE), Some(NET_PLACE)));
    }
}
