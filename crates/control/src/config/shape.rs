//! The key `shape` of a port: shapers, which delay a VM's frames so that the frames do not exceed a
//! rate. Sent and received frames have separate rates.

use penstock_dataplane::queue::{ShapeTerms, ShaperKind};
use penstock_qos::shaper::{PERIOD_OF_XEN, RATE_MAX, RATE_MIN};
use penstock_toml::{BitsPerSecond, Object, Report};
use penstock_units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::release::Egress;
use super::values::outside;

/// Range of `period_ms`.
const PERIOD_MS: core::ops::RangeInclusive<u64> = 1..=1_000;

/// Algorithm of a shaper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Shaper {
    /// The shaper spaces frames evenly: it sends consecutive frames with a time gap. The gap
    /// between frames may vary within a range around its mean.
    #[default]
    Smooth,
    /// A token bucket, which receives its tokens once per `period_ms`. The token bucket is the
    /// baseline for comparisons with `smooth`.
    TokenBucket,
}

/// Rates of a VM's shapers, as in `shape = { send = "4M", receive = "20M" }`. A shaper delays
/// frames; a policer drops frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table of shaper rates such as { send = \"4M\" }"
)]
pub struct Shape {
    /// Rate of sent frames in bits per second, FCS included, 256k to 10G. Default: not shaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send: Option<BitsPerSecond>,
    /// Rate of received frames in bits per second, FCS included, 256k to 10G. Default: not shaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<BitsPerSecond>,
    /// Shaping algorithm. Default `smooth`.
    #[serde(skip_serializing_if = "penstock_toml::text::is_default")]
    pub shaper: Shaper,
    /// Interval between two additions of tokens in milliseconds, 1 to 1000. The key `period_ms` is
    /// allowed only with `shaper = "token-bucket"`. Default 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000))]
    pub period_ms: Option<u64>,
}

impl Shape {
    /// Checks the table `shape` of a port with this `egress`. The argument `has_tso` is true if the
    /// port's VM may send large segments.
    pub(super) fn check<T>(
        &self,
        object: &Object<'_, T>,
        egress: Egress,
        has_tso: bool,
        report: &mut Report<'_>,
    ) {
        for (key, rate) in [("shape.send", self.send), ("shape.receive", self.receive)] {
            if let Some(rate) = rate {
                outside(object, key, rate.0, &(RATE_MIN..=RATE_MAX), report);
            }
        }
        if self.send.is_none() && self.receive.is_none() {
            let remedy = "add `send` or `receive`, as in shape = { send = \"4M\" }";
            report.at(object, "shape", "`shape` has no rate", remedy);
        }
        match (self.shaper, self.period_ms) {
            (Shaper::TokenBucket, Some(period)) => {
                outside(object, "shape.period_ms", period, &PERIOD_MS, report);
            }
            (Shaper::Smooth, Some(_)) => {
                let problem = "`period_ms` belongs to the shaper `token-bucket`";
                report.at(object, "shape.period_ms", problem, "remove it");
            }
            (_, None) => {}
        }
        if self.receive.is_some() && egress != Egress::Fifo {
            let problem = format!("`{}` uses `link` as its rate, not `shape.receive`", egress);
            report.at(object, "shape.receive", problem, "write the rate as `link`");
        }
        if self.send.is_some() && has_tso {
            let problem = "a large TCP segment would leave in one burst despite `shape`";
            let remedy = "set offloads = { tso = false }, so that the VM segments its packets";
            report.at(object, "shape.send", problem, remedy);
        }
    }

    /// Shaper of the frames that the port sends.
    pub(super) fn send_terms(&self) -> Option<ShapeTerms> {
        self.send.map(|rate| self.terms(rate))
    }

    /// Shaper of the frames that the port receives.
    pub(super) fn receive_terms(&self) -> Option<ShapeTerms> {
        self.receive.map(|rate| self.terms(rate))
    }

    fn terms(&self, rate: BitsPerSecond) -> ShapeTerms {
        let period = self.period_ms.map_or(PERIOD_OF_XEN, Nanos::from_millis);
        let kind = match self.shaper {
            Shaper::Smooth => ShaperKind::Smooth,
            Shaper::TokenBucket => ShaperKind::TokenBucket(period),
        };
        ShapeTerms { rate: rate.0, kind }
    }
}
