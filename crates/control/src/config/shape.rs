//! The key `shape` of a port: shapers, which delay a VM's frames so that the frames do not exceed a
//! rate. Sent and received frames have separate rates.

use penstock_dataplane::queue::{ShapeTerms, ShaperKind};
use penstock_qos::shaper::{PERIOD_OF_XEN, RATE_MAX, RATE_MIN, Smoothing};
use penstock_toml::{BitsPerSecond, Object, Report};
use penstock_units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::release::Egress;
use super::values::outside;

/// Range of `period_ms`.
const PERIOD_MS: core::ops::RangeInclusive<u64> = 1..=1_000;
/// Range of `window_us`.
const WINDOW_US: core::ops::RangeInclusive<u64> = 1..=100_000;
/// Range of `interval_ms`.
const INTERVAL_MS: core::ops::RangeInclusive<u64> = 10..=60_000;

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
    /// Range in microseconds within which the time between two frames of 1,500 bytes may vary, 1 to
    /// 100000. At most 30 % above and below the mean are used. A wider window keeps the rate more
    /// exactly, and a narrower window spaces frames more evenly. The key `window_us` is allowed
    /// only with `shaper = "smooth"`. Default 3000, the value in VM jitter §IV.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub window_us: Option<u64>,
    /// Time in milliseconds after which the shaper corrects its window so that the mean rate is
    /// right, 10 to 60000. The key `interval_ms` is allowed only with `shaper = "smooth"`. Default
    /// 1000, the value in VM jitter §IV.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 60_000))]
    pub interval_ms: Option<u64>,
    /// Interval between two additions of tokens in milliseconds, 1 to 1000. The key `period_ms` is
    /// allowed only with `shaper = "token-bucket"`. Default 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000))]
    pub period_ms: Option<u64>,
}

impl Shape {
    /// Checks the table `shape` of a port with this `egress`.
    pub(super) fn check<T>(&self, object: &Object<'_, T>, egress: Egress, report: &mut Report<'_>) {
        for (key, rate) in [("shape.send", self.send), ("shape.receive", self.receive)] {
            if let Some(rate) = rate {
                outside(object, key, rate.0, &(RATE_MIN..=RATE_MAX), report);
            }
        }
        if self.send.is_none() && self.receive.is_none() {
            let remedy = "add `send` or `receive`, as in shape = { send = \"4M\" }";
            report.at(object, "shape", "`shape` has no rate", remedy);
        }
        let keys = [
            ("period_ms", self.period_ms, Shaper::TokenBucket, PERIOD_MS),
            ("window_us", self.window_us, Shaper::Smooth, WINDOW_US),
            ("interval_ms", self.interval_ms, Shaper::Smooth, INTERVAL_MS),
        ];
        for (key, value, shaper, range) in keys {
            let Some(value) = value else { continue };
            let path = format!("shape.{key}");
            if self.shaper == shaper {
                outside(object, &path, value, &range, report);
                continue;
            }
            let other = if shaper == Shaper::Smooth { "smooth" } else { "token-bucket" };
            let problem = format!("`{key}` belongs to the shaper `{other}`");
            report.at(object, &path, problem, "remove it");
        }
        if self.receive.is_some() && matches!(egress, Egress::FairShare | Egress::Wfq) {
            let problem = format!("`{}` uses `link` as its rate, not `shape.receive`", egress);
            report.at(object, "shape.receive", problem, "write the rate as `link`");
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
            Shaper::Smooth => ShaperKind::Smooth(Smoothing {
                width: self.window_us.map_or(Smoothing::DEFAULT.width, Nanos::from_micros),
                interval: self.interval_ms.map_or(Smoothing::DEFAULT.interval, Nanos::from_millis),
            }),
            Shaper::TokenBucket => ShaperKind::TokenBucket(period),
        };
        ShapeTerms { rate: rate.0, kind }
    }
}
