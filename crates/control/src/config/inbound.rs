//! The key `inbound` of a shared port: the frames that arrive through an uplink are shared among
//! the tenants and their VMs by weight.

use penstock_qos::policer::RATE_MAX;
use penstock_toml::{BitsPerSecond, Object, Report};
use penstock_units as units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::outside;

/// Lowest value of `inbound.rate`.
const RATE_MIN: units::BitsPerSecond = units::BitsPerSecond(1_000_000);
/// Default of `inbound.rate`, in thousandths of `link`. The switch shares what arrives only if more
/// arrives than the rate, so the rate must be below the rate of the link.
const OF_LINK_PERMILLE: u64 = 950;

/// Shares of the frames that arrive through an uplink, as in `inbound = { rate = "9500M" }`. If
/// more frames arrive than the rate, or than the core can deliver, tenants share by `uplink_weight`
/// and their ports by `uplink_share`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "an inbound table such as { rate = \"9500M\" }")]
pub struct Inbound {
    /// Rate that the tenants share, in bits per second, 1M to 400G. FCS, preamble and gap count.
    /// The default is 95 % of `link`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitsPerSecond>,
}

impl Inbound {
    /// Returns the rate that the tenants share. Returns `None` if neither the rate nor the rate of
    /// the link is configured.
    pub(super) fn rate(self, link: Option<BitsPerSecond>) -> Option<units::BitsPerSecond> {
        let of_link = |link: BitsPerSecond| {
            let rate = u128::from(link.0.0) * u128::from(OF_LINK_PERMILLE) / 1_000;
            units::BitsPerSecond(u64::try_from(rate).unwrap_or(link.0.0))
        };
        self.rate.map(|rate| rate.0).or(link.map(of_link))
    }

    /// Checks the key `inbound` of a port with the rate `link` of its link. `shared` is true if the
    /// port has no tenant.
    pub(super) fn check<T>(
        self,
        object: &Object<'_, T>,
        shared: bool,
        link: Option<BitsPerSecond>,
        report: &mut Report<'_>,
    ) {
        if !shared {
            let remedy =
                "move `inbound` to the uplink; limit what this port receives with `receive`";
            report.at(object, "inbound", "`inbound` is only for a shared port", remedy);
            return;
        }
        let Some(rate) = self.rate(link) else {
            let problem = "`inbound` has no rate that the tenants could share";
            report.at(object, "inbound", problem, "add `link`, the rate of the port's link");
            return;
        };
        if self.rate.is_none() {
            return;
        }
        outside(object, "inbound.rate", rate, &(RATE_MIN..=RATE_MAX), report);
        if let Some(link) = link.filter(|link| rate >= link.0) {
            let problem = format!("`inbound.rate` {rate} is not below `link` {}", link.0);
            let remedy = "write less than `link`, or remove `rate` for 95 % of it";
            report.at(object, "inbound.rate", problem, remedy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_rate_leaves_room_on_the_link() {
        let rate = |text: &str, link: Option<u64>| {
            let inbound: Inbound = toml_edit::de::from_str(text).unwrap();
            let link = link.map(|link| BitsPerSecond(units::BitsPerSecond(link)));
            inbound.rate(link).map(|rate| rate.0)
        };
        assert_eq!(rate("", None), None);
        assert_eq!(rate("", Some(10_000_000_000)), Some(9_500_000_000));
        assert_eq!(rate("rate = \"9G\"", Some(10_000_000_000)), Some(9_000_000_000));
        assert_eq!(rate("rate = \"1G\"", None), Some(1_000_000_000));
    }
}
