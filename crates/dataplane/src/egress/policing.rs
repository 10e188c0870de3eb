//! Egress of outputs that may not have all that comes for them: what is above is dropped here,
//! before it is copied anywhere.

use penstock_qos::policer::Size;
use penstock_qos::policing::{Policed, Policing};
use penstock_units::Nanos;

use super::{Delivery, List};
use crate::batch::Batch;
use crate::police::on_wire;

/// The frames of the list that their receiver may have at `now`.
#[inline(never)]
pub(super) fn police(
    policing: &Policing,
    batch: &Batch,
    frames: &[u8],
    now: Nanos,
    delivery: &mut Delivery,
) -> List {
    policing.refill(now);
    let mut sum = Size::default();
    frames.iter().for_each(|&i| sum += on_wire(batch, usize::from(i)));
    let whole = policing.all_pass(sum);
    let mut passed = List::EMPTY;
    for &i in frames {
        let verdict =
            if whole { Policed::Pass } else { policing.arrive(on_wire(batch, usize::from(i))) };
        match verdict {
            Policed::Pass => passed.push(i),
            Policed::AboveVm => delivery.receive_limit += 1,
            Policed::AboveTenant => delivery.tenant_limit += 1,
        }
    }
    passed
}
