//! The ingress policer, `police`. Under the policies `bps` and `pps` it limits the frames that a
//! port sends.

use penstock_qos::cost_model::FCS;
use penstock_qos::policer::{Limit, Spec, SpecError, default_depth, default_frames};
use penstock_toml::{BitsPerSecond, PacketsPerSecond};
use penstock_units as units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::release::IngressPolicy;
use super::share::{Contract, ContractRate, Sizes};

/// Mean frame of IMIX (RFC 6985: 7 of 64, 4 of 594, 1 of 1518 bytes) with FCS.
const IMIX_BYTES: u64 = 362;
/// Bytes of the FCS, which every rate counts in addition to the bytes that the switch sees.
pub(super) const FCS_BYTES: u8 = 4;
const _: () = assert!(FCS_BYTES as u64 == FCS);

/// `police = { cir = "2G", cbs = 50000000, ebs = 0 }` (RFC 2697), with `pir` and `pbs` in place of
/// `ebs` (RFC 2698), or `{ pps = "600k", burst = 120000 }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table such as { cir = \"2G\" } or { pps = \"600k\" }")]
pub struct IngressPolicer {
    /// Committed information rate in bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cir: Option<BitsPerSecond>,
    /// Committed burst size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cbs: Option<u32>,
    /// Excess burst size in bytes (RFC 2697).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ebs: Option<u32>,
    /// Peak information rate in bits per second (RFC 2698).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pir: Option<BitsPerSecond>,
    /// Peak burst size in bytes (RFC 2698).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pbs: Option<u32>,
    /// Frames per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pps: Option<PacketsPerSecond>,
    /// Depth in frames, with `pps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// A mistake in a port's limits: key, problem, remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IngressPolicerError {
    pub(super) key: &'static str,
    pub(super) problem: String,
    pub(super) remedy: String,
}

impl IngressPolicerError {
    fn new(key: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { key, problem: problem.into(), remedy: remedy.into() }
    }
}

impl From<SpecError> for IngressPolicerError {
    fn from(error: SpecError) -> Self {
        let text = error.to_string();
        let (problem, remedy) = text.split_once("; ").unwrap_or((&text, "correct it"));
        Self::new("police", problem, remedy)
    }
}

/// The limit in a `police` table. Keys of the table's three forms exclude each other.
fn limit(police: &IngressPolicer) -> Result<Limit, IngressPolicerError> {
    let IngressPolicer { cir, cbs, ebs, pir, pbs, pps, burst } = police;
    let odd =
        |problem: &str, remedy: &str| Err(IngressPolicerError::new("police", problem, remedy));
    let (cir, pir) = (cir.map(|rate| rate.0), pir.map(|rate| rate.0));
    match (cir, pps) {
        (Some(_), Some(_)) => odd("`cir` and `pps` exclude each other", "keep one of them"),
        (None, None) => odd("neither `cir` nor `pps` is there", "add one, as in cir = \"2G\""),
        (None, Some(rate)) => {
            if cbs.or(*ebs).or(*pbs).is_some() || pir.is_some() {
                return odd("`pps` allows only `burst` beside it", "remove the other keys");
            }
            let burst = burst.unwrap_or_else(|| default_frames(rate.0));
            Ok(Limit::Packets { rate: rate.0, burst })
        }
        (Some(_), None) if burst.is_some() => odd("`burst` needs `pps`", "write `cbs`"),
        (Some(cir), None) => {
            let cbs = cbs.unwrap_or_else(|| default_depth(cir));
            match (pir, pbs, ebs) {
                (None, None, ebs) => Ok(Limit::SingleRate { cir, cbs, ebs: ebs.unwrap_or(0) }),
                (None, Some(_), _) => odd("`pbs` needs `pir`", "add `pir`, or write `ebs`"),
                (Some(_), _, Some(_)) => {
                    odd("`pir` (RFC 2698) and `ebs` (RFC 2697) exclude each other", "keep one")
                }
                (Some(pir), pbs, None) => {
                    let pbs = pbs.unwrap_or_else(|| default_depth(pir));
                    Ok(Limit::TwoRate { cir, cbs, pir, pbs })
                }
            }
        }
    }
}

/// The limit of a port with this `policy`: `police`, or the rate of `contract`. `None` under
/// policies that do not police.
///
/// # Errors
/// The port has neither `police` nor `contract`, or the limit is impossible.
pub(super) fn checked(
    police: Option<&IngressPolicer>,
    contract: Option<&Contract>,
    policy: IngressPolicy,
) -> Result<Option<Spec>, IngressPolicerError> {
    let given = police.map(limit).transpose()?;
    // A `police` without its policy is checked as well.
    let given = given.map(|limit| Spec::new(limit).map(|_| limit)).transpose()?;
    let rate = contract.map(|contract| contract.rate);
    let limit = match (policy, given, rate) {
        (IngressPolicy::Bps, Some(Limit::Packets { .. }), _) => {
            let remedy = "write cir = \"...\", or set ingress_policy = \"pps\"";
            return Err(IngressPolicerError::new("police", "policy `bps` is given `pps`", remedy));
        }
        (IngressPolicy::Pps, Some(Limit::SingleRate { .. } | Limit::TwoRate { .. }), _) => {
            let remedy = "write pps = \"...\", or set ingress_policy = \"bps\"";
            return Err(IngressPolicerError::new("police", "policy `pps` is given `cir`", remedy));
        }
        (IngressPolicy::Bps | IngressPolicy::Pps, Some(limit), _) => limit,
        (IngressPolicy::Bps, None, Some(ContractRate::Bits(cir))) => {
            Limit::SingleRate { cir, cbs: default_depth(cir), ebs: 0 }
        }
        (IngressPolicy::Pps, None, Some(ContractRate::Packets(rate))) => {
            Limit::Packets { rate, burst: default_frames(rate) }
        }
        (policy @ (IngressPolicy::Bps | IngressPolicy::Pps), None, _) => {
            let problem = format!("policy `{policy}` has no rate");
            let remedy = match policy {
                IngressPolicy::Pps => {
                    "add police = { pps = \"600k\" }, or a contract in frames per second"
                }
                _ => "add police = { cir = \"2G\" }, or a contract in bits per second",
            };
            return Err(IngressPolicerError::new("ingress_policy", problem, remedy));
        }
        _ => return Ok(None),
    };
    // Contracts and the cost model count a frame of 64 bytes as 60 bytes and the FCS.
    Ok(Some(Spec::new(limit)?.per_frame(FCS_BYTES)))
}

/// The rate that a port purchased, in bits per second, FCS included: the contract's rate, otherwise
/// the rate of `police`. Frames per second are converted by the contract's frame size.
pub(super) fn bought(
    police: Option<&IngressPolicer>,
    contract: Option<&Contract>,
) -> Option<units::BitsPerSecond> {
    let of_frames = |rate: units::PacketsPerSecond, size: Option<u64>| {
        units::BitsPerSecond(rate.0.saturating_mul(8 * size.unwrap_or(IMIX_BYTES)))
    };
    match (contract, police) {
        (Some(contract), _) => Some(match contract.rate {
            ContractRate::Bits(rate) => rate,
            ContractRate::Packets(rate) => of_frames(rate, contract.size.as_ref().map(Sizes::mean)),
        }),
        (None, Some(IngressPolicer { cir: Some(rate), .. })) => Some(rate.0),
        (None, Some(IngressPolicer { pps: Some(rate), .. })) => Some(of_frames(rate.0, None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::attachment::Tap;
    use super::super::model::Port;
    use super::*;
    use penstock_qos::policer::{Colour, Policer, Size};
    use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond};

    fn port(toml: &str) -> Port {
        let text = format!("name = \"vm1\"\ntap.interface = \"t\"\n{toml}");
        toml_edit::de::from_str(&text).unwrap()
    }

    fn spec(toml: &str) -> Result<Option<Limit>, String> {
        let error = |error: IngressPolicerError| format!("{}: {}", error.problem, error.remedy);
        port(toml)
            .checked_ingress_policer()
            .map(|spec| spec.map(|spec| spec.limit()))
            .map_err(error)
    }

    const G: u64 = 1_000_000_000;

    #[test]
    fn depths_that_are_left_out_are_filled_in() {
        let cir = BitsPerSecond(2 * G);
        let got = spec("ingress_policy = \"bps\"\npolice = { cir = \"2G\" }");
        assert_eq!(got, Ok(Some(Limit::SingleRate { cir, cbs: 50_000_000, ebs: 0 })));
        let got = spec("ingress_policy = \"bps\"\ncontract = { rate = \"2G\" }");
        assert_eq!(got, Ok(Some(Limit::SingleRate { cir, cbs: 50_000_000, ebs: 0 })));
        let got =
            spec("ingress_policy = \"bps\"\npolice = { cir = \"2G\", cbs = 9, pir = \"4G\" }");
        let pir = BitsPerSecond(4 * G);
        assert_eq!(got, Ok(Some(Limit::TwoRate { cir, cbs: 9, pir, pbs: 100_000_000 })));
        let got = spec("ingress_policy = \"pps\"\npolice = { pps = \"600k\" }");
        let rate = PacketsPerSecond(600_000);
        assert_eq!(got, Ok(Some(Limit::Packets { rate, burst: 120_000 })));
        assert_eq!(spec("police = { cir = \"2G\" }"), Ok(None), "another policy");
    }

    /// A contract and a policer of the same rate pass the same frames: 1,000 frames of 64 bytes
    /// with FCS are 512,000 bits.
    #[test]
    fn a_policed_frame_counts_its_fcs() {
        let toml = "ingress_policy = \"bps\"\npolice = { cir = \"512k\", cbs = 640 }";
        let policer = Policer::new(port(toml).ingress_policer().unwrap());
        let frame = Size { bytes: 60, frames: 1 };
        let burst = (0..20).take_while(|_| policer.mark(frame) == Colour::Green).count();
        assert_eq!(burst, 10, "640 bytes");
        let mut passed = 0;
        for millis in 1..=1_000 {
            policer.refill(Nanos::from_millis(millis));
            passed += u32::from(policer.mark(frame) == Colour::Green);
        }
        assert_eq!(passed, 1_000);
        let bought = port("contract = { rate = \"1kpps\", size = 64 }").bought();
        assert_eq!(bought, Some(BitsPerSecond(512_000)));
    }

    #[test]
    fn mixtures_are_refused_with_a_remedy() {
        for (police, error) in [
            ("{ cir = \"1G\", pps = \"1k\" }", "`cir` and `pps` exclude each other"),
            ("{ cbs = 1 }", "neither `cir` nor `pps` is there"),
            ("{ pps = \"1k\", cbs = 5 }", "`pps` allows only `burst` beside it"),
            ("{ cir = \"1G\", burst = 5 }", "`burst` needs `pps`"),
            ("{ cir = \"1G\", pbs = 5 }", "`pbs` needs `pir`"),
            ("{ cir = \"1G\", ebs = 5, pir = \"1G\" }", "`pir` (RFC 2698) and `ebs`"),
            ("{ cir = \"1G\", pir = \"1M\" }", "peak rate 1M is below the committed rate 1G"),
            ("{ cir = \"1k\" }", "rate 1k is out of range"),
            ("{ pps = \"1k\" }", "policy `bps` is given `pps`"),
        ] {
            let got = spec(&format!("ingress_policy = \"bps\"\npolice = {police}")).unwrap_err();
            assert!(got.starts_with(error), "{police}: {got}");
        }
        let got = spec("ingress_policy = \"pps\"\ncontract = { rate = \"1G\" }").unwrap_err();
        assert!(got.starts_with("policy `pps` has no rate: add police = { pps"), "{got}");
    }

    #[test]
    fn what_was_bought_is_the_contract_or_the_police() {
        let bought = |toml| port(toml).bought().map(|rate| rate.0);
        assert_eq!(bought("contract = { rate = \"4G\" }\npolice = { cir = \"1G\" }"), Some(4 * G));
        assert_eq!(bought("police = { cir = \"1G\" }"), Some(G));
        assert_eq!(bought("contract = { rate = \"1Mpps\", size = 1000 }"), Some(8 * G));
        assert_eq!(bought(""), None);
        assert_eq!(Port::new("vm1", Tap::new("t")).bought(), None);
    }
}
