//! A port's queue and shaper, as the worker takes them.

use penstock_dataplane::queue::{Order, Pacing, QueueTerms, ShapeTerms, ShaperKind};
use penstock_qos::fair_share::{Bound, Excess as QosExcess};
use penstock_qos::shaper::PERIOD_OF_XEN;
use penstock_toml::BitsPerSecond;
use penstock_units::Nanos;

use super::super::model::Port;
use super::super::queueing::{Excess, Shape, Shaper};
use super::super::release::Egress;

impl Shape {
    fn terms(&self, rate: BitsPerSecond) -> ShapeTerms {
        let period = self.period_ms.map_or(PERIOD_OF_XEN, Nanos::from_millis);
        let kind = match self.shaper {
            Shaper::Smooth => ShaperKind::Smooth,
            Shaper::TokenBucket => ShaperKind::TokenBucket(period),
        };
        ShapeTerms { rate: rate.0, kind }
    }
}

impl Port {
    /// How what it sends is shaped.
    pub(crate) fn shaped(&self) -> Option<ShapeTerms> {
        let shape = self.shape.as_ref()?;
        Some(shape.terms(shape.send?))
    }

    /// The queue of what goes to it: where frames are shared, where they are shaped, and where one
    /// is asked for.
    pub(crate) fn queued(&self) -> Option<QueueTerms> {
        let shaped = self.shape.and_then(|shape| Some(shape.terms(shape.receive?)));
        let order = match self.egress {
            Egress::FairShare => Order::FairShare,
            Egress::Wfq => Order::Wfq,
            Egress::Fifo if self.queue.is_none() && shaped.is_none() => return None,
            Egress::Fifo => Order::Fifo,
        };
        let queue = self.queue.unwrap_or_default();
        let is_long = shaped.is_some() || order == Order::Wfq;
        let wait_us = queue.wait_us.unwrap_or(if is_long { 1_000_000 } else { 10_000 });
        let excess = match (order, queue.excess) {
            (Order::FairShare, None | Some(Excess::Hold)) => QosExcess::Hold,
            _ => QosExcess::Drop,
        };
        let bound = Bound { bytes: queue.bytes, wait: Nanos::from_micros(wait_us), excess };
        let link = self.link.map(|link| Pacing::Link(link.0));
        let pacing = shaped.map(Pacing::Shaped).or(link).unwrap_or_default();
        Some(QueueTerms { order, pacing, bound, frames: queue.frames })
    }

    /// Whether all its queue pairs have to be with one worker: a queue and a shaper are one.
    pub(crate) fn is_one_workers(&self) -> bool {
        self.queued().is_some() || self.shaped().is_some()
    }
}
