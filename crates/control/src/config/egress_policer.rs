//! Egress policers. `receive` of a port limits the frames that its VM receives. `receive` of a
//! tenant limits the frames that all its VMs receive together. `send` of a tenant limits the frames
//! that its VMs send through shared ports.
//!
//! If the operator states no burst, frames above a limit wait. If the operator states a burst, the
//! switch drops frames above the limit before it copies them.

use penstock_qos::egress_policer::{Sharing as QosSharing, Terms, split};
use penstock_qos::policer::{
    DEPTH_MAX, PACKETS_MAX, RATE_MAX, RATE_MIN, default_depth, default_frames, wait_depth,
    wait_frames,
};
use penstock_toml::{BitsPerSecond, Object, PacketsPerSecond, Report};
use penstock_units as units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ingress_policer::FCS_BYTES;
use super::share::Weight;

/// Minimum burst in bytes, which lets a frame pass if the MTU is 1,500 bytes.
const BURST_MIN: u32 = 1_514;

/// How the VMs of a tenant share the tenant's `receive` limit. A VM's part of the tenant's limit is
/// proportional to the `uplink_share` of its port. Decides how much a VM may receive beyond its own
/// part of the tenant's `receive` limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// A VM may also use the bandwidth that the tenant's other VMs do not use.
    #[default]
    Borrow,
    Strict,
}

/// `receive = { rate = "200M", burst = 5000000, pps = "50k", frames = 10000 }`: limits on the
/// frames that a VM receives. In `[[tenant]]`, `receive` limits the frames that all VMs of the
/// tenant receive together. Without `burst` and `frames`, frames above the limit wait in a queue
/// before the VM's port, and only a full queue drops frames. With `burst` or `frames`, the switch
/// drops frames above the limit. `send` of a tenant has the same keys except `sharing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table of rate limits such as { rate = \"200M\" }"
)]
pub struct EgressPolicer {
    /// Rate in bits per second, FCS included, 8k to 400G. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitsPerSecond>,
    /// Number of bytes that may exceed `rate` at once, 1514 to 536870912. Default: none, because
    /// frames wait. If only `frames` is set, the default is 200 ms of `rate`, at least 280048.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_514, max = 536_870_912))]
    pub burst: Option<u32>,
    /// Rate in frames per second, 1 to 1G. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pps: Option<PacketsPerSecond>,
    /// Number of frames that may exceed `pps` at once, 1 to 536870912. Default: none, because
    /// frames wait. If only `burst` is set, the default is 200 ms of `pps`, at least 256.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 536_870_912))]
    pub frames: Option<u32>,
    /// Whether a VM may exceed its part of the tenant's limit while the tenant's other VMs do not
    /// use their parts. The key `sharing` is allowed only in `receive` of `[[tenant]]`. Default
    /// `borrow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
}

impl EgressPolicer {
    /// Checks the policer's table under the key `of`.
    pub(super) fn check<T>(&self, object: &Object<'_, T>, of: &str, report: &mut Report<'_>) {
        let outside =
            |report: &mut Report<'_>, key: &str, value: String, least: String, most: String| {
                let problem = format!("`{key}` {value} is out of range");
                report.at(object, key, problem, format!("write {least} to {most}"));
            };
        let key = |name: &str| format!("{of}.{name}");
        if (self.rate, self.pps, self.burst, self.frames) == (None, None, None, None) {
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
                report.at(object, &key, problem, format!("add `{rate}`, or remove `{key}`"));
            } else if !(least..=DEPTH_MAX).contains(&depth) {
                outside(report, &key, depth.to_string(), least.to_string(), DEPTH_MAX.to_string());
            }
        }
    }

    /// Whether frames above the limit wait, because the configuration states no burst.
    pub(crate) const fn waits(&self) -> bool {
        self.burst.is_none() && self.frames.is_none()
    }

    /// Returns the limits on received frames, with defaults for bursts that the configuration does
    /// not set. If `waits` is true, frames above the limits wait.
    pub(crate) fn terms(&self, waits: bool) -> Terms {
        let depth = if waits { wait_depth } else { default_depth };
        let count = if waits { wait_frames } else { default_frames };
        let bytes = self.rate.map(|rate| (rate.0, self.burst.unwrap_or(depth(rate.0))));
        let frames = self.pps.map(|pps| (pps.0, self.frames.unwrap_or(count(pps.0))));
        Terms { bytes, frames, per_frame: FCS_BYTES, waits }
    }

    /// Whether a VM may exceed its part of the tenant's limit.
    pub(super) fn sharing(&self) -> QosSharing {
        match self.sharing.unwrap_or_default() {
            Sharing::Borrow => QosSharing::Borrow,
            Sharing::Strict => QosSharing::Strict,
        }
    }
}

/// Divides a tenant's limits on received frames among the tenant's ports, and returns each port's
/// limits. A port without its own limits gets a part of the tenant's limits (`whole`) in proportion
/// to its `uplink_share`. If frames above the tenant's limits are dropped, each port's part has the
/// same burst as the tenant's limits. The tenant's limits also decide whether the frames of a port
/// with its own limits wait.
pub(super) fn parts(
    whole: Option<EgressPolicer>,
    ports: &[(Option<EgressPolicer>, Weight)],
) -> Vec<Terms> {
    let wait = whole.map(|whole| whole.waits());
    let whole = whole.map(|whole| whole.terms(whole.waits())).unwrap_or_default();
    let weights: Vec<_> = ports.iter().map(|(_, share)| share.0).collect();
    let rates = whole.bytes.map(|(rate, depth)| (split(rate.0, &weights), depth));
    let counts = whole.frames.map(|(rate, depth)| (split(rate.0, &weights), depth));
    let part = |at: usize, parts: &Option<(Vec<u64>, u32)>| {
        parts.as_ref().map(|(rates, depth)| (rates[at].max(1), *depth))
    };
    let of = |(at, (own, _)): (usize, &(Option<EgressPolicer>, Weight))| match own {
        Some(own) => own.terms(wait.unwrap_or(own.waits())),
        None => {
            let bytes = part(at, &rates).map(|(rate, d)| (units::BitsPerSecond(rate), d));
            let frames = part(at, &counts).map(|(rate, d)| (units::PacketsPerSecond(rate), d));
            let waits = whole.waits;
            let bytes = bytes.map(|(rate, d)| (rate, if waits { wait_depth(rate) } else { d }));
            let frames = frames.map(|(rate, d)| (rate, if waits { wait_frames(rate) } else { d }));
            Terms { bytes, frames, per_frame: FCS_BYTES, waits }
        }
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
        let receive = "rate = \"1G\"\npps = \"900k\"\nburst = 25000000\nframes = 180000";
        let receive: EgressPolicer = toml_edit::de::from_str(receive).unwrap();
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
