//! Egress of outputs that may not have all that comes for them, and of senders that may not send
//! all of it: what is above is dropped here, before it is copied anywhere.

use penstock_qos::egress_policer::{EgressPolicer, Policed};
use penstock_qos::policer::Size;
use penstock_units::Nanos;

use super::{Delivery, List};
use crate::batch::Batch;
use crate::ingress_policer::on_wire;

/// The frames of the list that their receiver may have at `now`.
#[inline(never)]
pub(super) fn receives(
    policer: &EgressPolicer,
    batch: &Batch,
    frames: &[u8],
    now: Nanos,
    delivery: &mut Delivery,
) -> List {
    let (passed, above_vm, above_tenant) = police(policer, batch, frames, now);
    delivery.receive_limit += above_vm;
    delivery.tenant_limit += above_tenant;
    passed
}

/// The frames of the list that their sender's tenant may send over the network at `now`.
#[inline(never)]
pub(super) fn sends(
    policer: &EgressPolicer,
    batch: &Batch,
    frames: &[u8],
    now: Nanos,
    delivery: &mut Delivery,
) -> List {
    let (passed, above_vm, above_tenant) = police(policer, batch, frames, now);
    delivery.send_limit += above_vm + above_tenant;
    passed
}

/// What passes, and how many frames are above a VM's and above a tenant's limit.
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
