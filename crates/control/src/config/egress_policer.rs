//! Egress policers. `receive` limits the frames that a VM, or all VMs of a tenant together,
//! receive. `send` of a tenant limits the frames that the tenant's VMs send by shared ports. Frames
//! above a limit are dropped before they are copied.

use penstock_qos::egress_policer::{Sharing as QosSharing, Terms, split};
use penstock_qos::policer::{
    DEPTH_MAX, PACKETS_MAX, RATE_MAX, RATE_MIN, default_depth, default_frames,
};
use penstock_toml::{BitsPerSecond, Object, PacketsPerSecond, Report};
use penstock_units as units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ingress_policer::FCS_BYTES;
use super::share::Weight;

/// Minimum burst in bytes, so that a frame of an MTU of 1,500 passes.
const BURST_MIN: u32 = 1_514;

/// What a tenant's VM may receive above its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// The part that the tenant's other VMs do not use.
    #[default]
    Borrow,
    Strict,
}

/// `receive = { rate = "200M", burst = 5000000, pps = "50k", frames = 10000 }`: limits on what a VM
/// receives or, in `[[tenant]]`, on what all VMs of a tenant receive together. Frames above a limit
/// are dropped before they are copied. A tenant's `send` has the same keys except `sharing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { rate = \"200M\" }")]
pub struct EgressPolicer {
    /// Bits per second, FCS included, 8k to 400G. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitsPerSecond>,
    /// Depth in bytes, 1514 to 536870912. Default: 200 ms of `rate`, at least 280048.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_514, max = 536_870_912))]
    pub burst: Option<u32>,
    /// Frames per second, 1 to 1G. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pps: Option<PacketsPerSecond>,
    /// Depth in frames, 1 to 536870912. Default: 200 ms of `pps`, at least 256.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 536_870_912))]
    pub frames: Option<u32>,
    /// Tenant: whether a VM above its part may use the parts that the tenant's other VMs leave.
    /// Default `borrow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
}

impl EgressPolicer {
    /// Checks the table under the key `of`.
    pub(super) fn check<T>(&self, object: &Object<'_, T>, of: &str, report: &mut Report<'_>) {
        let outside =
            |report: &mut Report<'_>, key: &str, value: String, least: String, most: String| {
                let problem = format!("`{key}` {value} is out of range");
                report.at(object, key, problem, format!("write {least} to {most}"));
            };
        let key = |name: &str| format!("{of}.{name}");
        if self.rate.is_none() && self.pps.is_none() {
            let remedy = format!("add `rate` or `pps`, as in {of} = {{ rate = \"200M\" }}");
            report.at(object, of, format!("`{of}` has no rate"), remedy);
        }
        if let Some(rate) = self.rate.map(|rate| rate.0)
            && !(RATE_MIN..=RATE_MAX).contains(&rate)
        {
            let (least, most) = (RATE_MIN.to_string(), RATE_MAX.to_string());
            outside(report, &key("rate"), rate.to_string(), least, most);
        }
        if let Some(pps) = self.pps.map(|pps| pps.0)
            && !(units::PacketsPerSecond(1)..=PACKETS_MAX).contains(&pps)
        {
            let most = PACKETS_MAX.to_string();
            outside(report, &key("pps"), pps.to_string(), "1".to_owned(), most);
        }
        let depths = [
            (key("burst"), self.burst, BURST_MIN, self.rate.is_some(), "rate"),
            (key("frames"), self.frames, 1, self.pps.is_some(), "pps"),
        ];
        for (key, depth, least, has_rate, rate) in depths {
            let Some(depth) = depth else { continue };
            if !has_rate {
                let problem = format!("`{key}` needs `{rate}`");
                report.at(object, &key, problem, format!("add `{rate}`, or remove it"));
            } else if !(least..=DEPTH_MAX).contains(&depth) {
                outside(report, &key, depth.to_string(), least.to_string(), DEPTH_MAX.to_string());
            }
        }
    }

    /// The limits with default depths.
    pub(crate) fn terms(&self) -> Terms {
        let bytes = self.rate.map(|rate| (rate.0, self.burst.unwrap_or(default_depth(rate.0))));
        let frames = self.pps.map(|pps| (pps.0, self.frames.unwrap_or(default_frames(pps.0))));
        Terms { bytes, frames, per_frame: FCS_BYTES }
    }

    /// Whether a VM may exceed its part.
    pub(super) fn sharing(&self) -> QosSharing {
        match self.sharing.unwrap_or_default() {
            Sharing::Borrow => QosSharing::Borrow,
            Sharing::Strict => QosSharing::Strict,
        }
    }
}

/// The limits of each port of a tenant. A port without limits of its own has a part of the tenant's
/// limits `whole`. The part depends on `uplink_share`. A part has the same depth as the tenant's
/// limit.
pub(super) fn parts(
    whole: Option<EgressPolicer>,
    ports: &[(Option<EgressPolicer>, Weight)],
) -> Vec<Terms> {
    let whole = whole.map(|whole| whole.terms()).unwrap_or_default();
    let weights: Vec<_> = ports.iter().map(|(_, share)| share.0).collect();
    let rates = whole.bytes.map(|(rate, depth)| (split(rate.0, &weights), depth));
    let counts = whole.frames.map(|(rate, depth)| (split(rate.0, &weights), depth));
    let part = |at: usize, parts: &Option<(Vec<u64>, u32)>| {
        parts.as_ref().map(|(rates, depth)| (rates[at].max(1), *depth))
    };
    let of = |(at, (own, _)): (usize, &(Option<EgressPolicer>, Weight))| match own {
        Some(own) => own.terms(),
        None => Terms {
            bytes: part(at, &rates).map(|(rate, d)| (units::BitsPerSecond(rate), d)),
            frames: part(at, &counts).map(|(rate, d)| (units::PacketsPerSecond(rate), d)),
            per_frame: FCS_BYTES,
        },
    };
    ports.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::attachment::Tap;
    use super::super::model::{Port, Tenant};
    use super::super::share::Weight;
    use super::*;

    fn port(name: &str, share: u64) -> Port {
        let share = Weight(penstock_units::Weight::new(share).unwrap());
        Port { uplink_share: share, ..Port::new(name, Tap::new(name)) }
    }

    #[test]
    fn parts_go_by_share_unless_a_vm_has_its_own() {
        let receive: EgressPolicer =
            toml_edit::de::from_str("rate = \"1G\"\npps = \"900k\"").unwrap();
        let tenant = Tenant { receive: Some(receive), ..Tenant::new("red") };
        let own = toml_edit::de::from_str("rate = \"50M\"\nburst = 9000").unwrap();
        let own = Port { receive: Some(own), ..port("c", 1) };
        let ports = [&port("a", 2), &port("b", 1), &own];
        let parts = tenant.parts(&ports);
        let rates = parts.iter().map(|t| t.bytes.map(|(rate, depth)| (rate.0, depth)));
        assert_eq!(
            rates.collect::<Vec<_>>(),
            [
                Some((500_000_000, 25_000_000)),
                Some((250_000_000, 25_000_000)),
                Some((50_000_000, 9_000)),
            ]
        );
        let frames = parts.iter().map(|t| t.frames.map(|(rate, depth)| (rate.0, depth)));
        assert_eq!(
            frames.collect::<Vec<_>>(),
            [Some((450_000, 180_000)), Some((225_000, 180_000)), None]
        );
        assert_eq!(tenant.receive_sharing(), QosSharing::Borrow);
        assert!(tenant.parts(&[]).is_empty());
    }
}
