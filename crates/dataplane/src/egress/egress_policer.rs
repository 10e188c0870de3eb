//! The egress policer applies the limits of the receiver and of the sender's tenant. The policer
//! drops frames above a limit before the frames are copied, unless the frames wait for the limit.

use penstock_qos::egress_policer::{EgressPolicer, Policed};
use penstock_qos::policer::Size;
use penstock_units::Nanos;

use super::{Delivery, List};
use crate::batch::Batch;
use crate::ingress_policer::on_wire;

/// Returns the listed frames that fit into the receiver's rate limits at time `now`. Returns `None`
/// if no frame is dropped, because frames wait for the limits in the output's queue. The argument
/// `queued` is true if the worker has the output's queue; a queue that changes its worker is absent
/// for a moment.
#[inline(never)]
pub(super) fn receives(
    policer: &EgressPolicer,
    queued: bool,
    batch: &Batch,
    frames: &[u8],
    now: Nanos,
    delivery: &mut Delivery,
) -> Option<List> {
    if queued && policer.waits() {
        return None;
    }
    let (passed, above_vm, above_tenant) = police(policer, batch, frames, now);
    delivery.receive_limit += above_vm;
    delivery.tenant_limit += above_tenant;
    Some(passed)
}

/// Returns the listed frames that may leave the host at time `now` under the send limit of the
/// sender's tenant. Returns `None` if no frame is dropped, because the sender's next frames wait
/// for the limit in the sender's ring.
#[inline(never)]
pub(super) fn sends(
    policer: &EgressPolicer,
    batch: &Batch,
    frames: &[u8],
    now: Nanos,
    delivery: &mut Delivery,
) -> Option<List> {
    if policer.waits() {
        policer.refill(now);
        policer.charge_batch(frames.iter().map(|i| on_wire(batch, usize::from(*i))));
        return None;
    }
    let (passed, above_vm, above_tenant) = police(policer, batch, frames, now);
    delivery.send_limit += above_vm + above_tenant;
    Some(passed)
}

/// Returns the frames that pass, and the numbers of frames above the VM's limit and above the
/// tenant's limit.
fn police(policer: &EgressPolicer, batch: &Batch, frames: &[u8], now: Nanos) -> (List, u64, u64) {
    policer.refill(now);
    let mut sum = Size::default();
    frames.iter().for_each(|&i| sum += on_wire(batch, usize::from(i)));
    let whole = policer.all_pass(sum);
    let (mut passed, mut above_vm, mut above_tenant) = (List::EMPTY, 0, 0);
    for &i in frames {
        let verdict =
            if whole { Policed::Pass } else { policer.arrive(on_wire(batch, usize::from(i))) };
        match verdict {
            Policed::Pass => passed.push(i),
            Policed::AboveVm => above_vm += 1,
            Policed::AboveTenant => above_tenant += 1,
        }
    }
    (passed, above_vm, above_tenant)
}
