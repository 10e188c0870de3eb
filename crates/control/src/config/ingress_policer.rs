//! The ingress policer, which the key `police` of a port configures. Under the policies `bps` and
//! `pps`, the ingress policer limits the frames that a port sends.

use penstock_qos::cost_model::FCS;
use penstock_qos::policer::{Limit, Spec, SpecError, default_depth, wait_depth, wait_frames};
use penstock_toml::{BitsPerSecond, PacketsPerSecond};
use penstock_units as units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::contract::{Contract, ContractRate, Sizes};
use super::release::IngressPolicy;

/// Mean frame size of IMIX in bytes, FCS included (RFC 6985: 7 frames of 64 bytes, 4 of 594, 1 of
/// 1518).
const IMIX_BYTES: u64 = 362;
/// Size of the FCS in bytes. Rates in the configuration include the FCS, but the frames that the
/// switch polices have no FCS.
pub(super) const FCS_BYTES: u8 = 4;
const _: () = assert!(FCS_BYTES as u64 == FCS);

/// Limits on sent frames, as in `police = { cir = "2G" }` or `police = { pps = "600k" }`. If a
/// `police` table states no burst, frames above the limit wait in the VM's ring. If a `police`
/// table states a burst, the switch drops frames above the limit. Examples with a burst are `{ cir
/// = "2G", cbs = 50000000, ebs = 0 }` (RFC 2697), `{ cir = "1G", pir = "2G", cbs = 50000000, pbs =
/// 50000000 }` (RFC 2698) and `{ pps = "600k", burst = 120000 }`. With `cir` and `pps`, both limits
/// apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a police table such as { cir = \"2G\" } or { pps = \"600k\" }"
)]
pub struct IngressPolicer {
    /// Committed information rate in bits per second, FCS included, 8k to 400G.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cir: Option<BitsPerSecond>,
    /// Committed burst size in bytes, at which frames above the limit are dropped. If none of
    /// `cbs`, `ebs` and `pbs` is set, frames above the limit wait. With `ebs` or `pbs`, the default
    /// is 200 ms of `cir`, at least 280048.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cbs: Option<u32>,
    /// Excess burst size in bytes (RFC 2697). Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ebs: Option<u32>,
    /// Peak information rate in bits per second (RFC 2698).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pir: Option<BitsPerSecond>,
    /// Peak burst size in bytes (RFC 2698), at which frames above `pir` are dropped. With `cbs`,
    /// the default is 200 ms of `pir`, at least 280048.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pbs: Option<u32>,
    /// Limit in frames per second, 1 to 1G.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pps: Option<PacketsPerSecond>,
    /// Burst of the limit `pps` in frames. The switch drops frames above the limit if `burst` is
    /// set; otherwise these frames wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// A mistake in a port's limits: the wrong key, the problem, and the remedy.
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

/// A limit, and a flag that is true if frames above the limit wait. Frames above the limit wait if
/// the operator sets no burst.
type Waits = (Limit, bool);

/// Returns the limits in a `police` table: the limit of RFC 2697 or RFC 2698 in bits per second,
/// the limit in frames per second, or both.
fn limits(police: &IngressPolicer) -> Result<Vec<Waits>, IngressPolicerError> {
    let IngressPolicer { cir, cbs, ebs, pir, pbs, pps, burst } = police;
    let odd =
        |problem: &str, remedy: &str| Err(IngressPolicerError::new("police", problem, remedy));
    if cir.is_none() && pps.is_none() {
        return odd("`police` has neither `cir` nor `pps`", "add `cir` or `pps`");
    }
    if cir.is_none() && (cbs.or(*ebs).or(*pbs).is_some() || pir.is_some()) {
        return odd("`cbs`, `ebs`, `pir` and `pbs` need `cir`", "add `cir`, or write `burst`");
    }
    if burst.is_some() && pps.is_none() {
        return odd("`burst` needs `pps`", "write `cbs`");
    }
    let bits = cir.map(|cir| of_bits(police, cir.0)).transpose()?;
    let frames = pps.map(|rate| (packets(rate.0, *burst), burst.is_none()));
    Ok(bits.into_iter().chain(frames).collect())
}

/// Returns the limit in bits per second with the committed rate `cir`.
fn of_bits(
    police: &IngressPolicer,
    cir: units::BitsPerSecond,
) -> Result<Waits, IngressPolicerError> {
    let IngressPolicer { cbs, ebs, pir, pbs, .. } = police;
    let odd =
        |problem: &str, remedy: &str| Err(IngressPolicerError::new("police", problem, remedy));
    let waits = cbs.or(*ebs).or(*pbs).is_none();
    let depth = if waits { wait_depth } else { default_depth };
    let cbs = cbs.unwrap_or_else(|| depth(cir));
    match (pir.map(|rate| rate.0), pbs, ebs) {
        (None, None, ebs) => Ok((Limit::SingleRate { cir, cbs, ebs: ebs.unwrap_or(0) }, waits)),
        (None, Some(_), _) => odd("`pbs` needs `pir`", "add `pir`, or write `ebs`"),
        (Some(_), _, Some(_)) => {
            odd("`pir` (RFC 2698) and `ebs` (RFC 2697) exclude each other", "keep one")
        }
        (Some(pir), pbs, None) => {
            let pbs = pbs.unwrap_or_else(|| depth(pir));
            Ok((Limit::TwoRate { cir, cbs, pir, pbs }, waits))
        }
    }
}

fn packets(rate: units::PacketsPerSecond, burst: Option<u32>) -> Limit {
    Limit::Packets { rate, burst: burst.unwrap_or_else(|| wait_frames(rate)) }
}

/// Returns the limits `max_rate` and `max_pps` of a contract.
fn maxima(contract: &Contract) -> Vec<Waits> {
    let bits = contract.max_rate.map(|rate| single_rate(rate.0));
    let frames = contract.max_pps.map(|rate| packets(rate.0, None));
    bits.into_iter().chain(frames).map(|limit| (limit, true)).collect()
}

/// Returns a limit in bits per second for which frames wait.
fn single_rate(cir: units::BitsPerSecond) -> Limit {
    Limit::SingleRate { cir, cbs: wait_depth(cir), ebs: 0 }
}

/// Returns the limits of a port: `max_rate` and `max_pps` of `contract`, and under the policies
/// `bps` and `pps` those of `police`. Without any of these limits, `bps` and `pps` limit the port
/// to the guaranteed rate of `contract`.
///
/// # Errors
/// Returns an error if the port has neither `police` nor `contract`, or if a limit is impossible.
pub(super) fn checked(
    police: Option<&IngressPolicer>,
    contract: Option<&Contract>,
    policy: IngressPolicy,
) -> Result<Vec<Spec>, IngressPolicerError> {
    // A `police` without its policy is checked as well.
    let given = police.map(limits).transpose()?;
    for (limit, _) in given.iter().flatten() {
        Spec::new(*limit)?;
    }
    let maxima = contract.map(maxima).unwrap_or_default();
    for (limit, _) in &maxima {
        let of_contract =
            |error: SpecError| IngressPolicerError { key: "contract", ..error.into() };
        Spec::new(*limit).map_err(of_contract)?;
    }
    let rate = contract.map(Contract::guaranteed);
    let limits = match (policy, given, rate) {
        (IngressPolicy::Bps, Some(_), _) if police.is_some_and(|police| police.cir.is_none()) => {
            let remedy = "write cir = \"...\", or set ingress_policy = \"pps\"";
            let problem = "policy `bps` needs `cir`";
            return Err(IngressPolicerError::new("police", problem, remedy));
        }
        (IngressPolicy::Pps, Some(_), _) if police.is_some_and(|police| police.pps.is_none()) => {
            let remedy = "write pps = \"...\", or set ingress_policy = \"bps\"";
            let problem = "policy `pps` needs `pps`";
            return Err(IngressPolicerError::new("police", problem, remedy));
        }
        (IngressPolicy::Bps | IngressPolicy::Pps, Some(limits), _) => limits,
        (IngressPolicy::Bps | IngressPolicy::Pps, None, _) if !maxima.is_empty() => Vec::new(),
        (IngressPolicy::Bps, None, Some(ContractRate::Bits(cir))) => {
            vec![(single_rate(cir), true)]
        }
        (IngressPolicy::Pps, None, Some(ContractRate::Packets(rate))) => {
            vec![(packets(rate, None), true)]
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
        _ => Vec::new(),
    };
    let spec = |(limit, waits)| {
        // Contracts and the cost model count a frame of 64 bytes as 60 bytes and the FCS.
        let spec = Spec::new(limit)?.per_frame(FCS_BYTES);
        Ok(if waits { spec.waiting() } else { spec })
    };
    let mut all: Vec<Waits> = limits;
    for limit in maxima {
        // Equal limits would share one bucket, and would charge it twice.
        if !all.contains(&limit) {
            all.push(limit);
        }
    }
    all.into_iter().map(spec).collect()
}

/// Returns the tightest limits in bits and in frames per second of a port: the key, and the rate.
pub(super) fn keys(
    police: Option<&IngressPolicer>,
    contract: Option<&Contract>,
    policy: IngressPolicy,
) -> [(&'static str, u64); 2] {
    let police = police.filter(|_| matches!(policy, IngressPolicy::Bps | IngressPolicy::Pps));
    let tighter = |own: Option<u64>, max: Option<u64>, keys: [&'static str; 2]| match (own, max) {
        (None, None) => ("`rate` of `contract`", 0),
        (Some(own), max) if max.is_none_or(|max| own <= max) => (keys[0], own),
        (_, max) => (keys[1], max.unwrap_or(0)),
    };
    let cir = police.and_then(|police| police.cir).map(|rate| rate.0.0);
    let max_rate = contract.and_then(|contract| contract.max_rate).map(|rate| rate.0.0);
    let rate = contract.map(Contract::guaranteed);
    let pps = police.and_then(|police| police.pps).map(|rate| rate.0.0);
    let max_pps = contract.and_then(|contract| contract.max_pps).map(|rate| rate.0.0);
    let mut limits = [
        tighter(cir, max_rate, ["`cir` of `police`", "`max_rate` of `contract`"]),
        tighter(pps, max_pps, ["`pps` of `police`", "`max_pps` of `contract`"]),
    ];
    // Without other limits, `bps` and `pps` limit the port to its guaranteed rate.
    match rate {
        Some(ContractRate::Bits(rate)) if limits[0].1 == 0 => limits[0].1 = rate.0,
        Some(ContractRate::Packets(rate)) if limits[1].1 == 0 => limits[1].1 = rate.0,
        _ => {}
    }
    limits
}

/// Returns the rate that a port purchased, in bits per second with FCS: the contract's rate,
/// otherwise the rate of `police`. A rate in frames per second is converted with the contract's
/// frame size, or with the mean size of IMIX if there is none.
pub(super) fn bought(
    police: Option<&IngressPolicer>,
    contract: Option<&Contract>,
) -> Option<units::BitsPerSecond> {
    let of_frames = |rate: units::PacketsPerSecond, size: Option<u64>| {
        units::BitsPerSecond(rate.0.saturating_mul(8 * size.unwrap_or(IMIX_BYTES)))
    };
    match (contract, police) {
        (Some(contract), _) => Some(match contract.guaranteed() {
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

    /// Returns a port's only limit, and true if frames above the limit wait.
    fn spec(toml: &str) -> Result<Option<Waits>, String> {
        let specs = specs(toml)?;
        assert!(specs.len() < 2, "{specs:?}");
        Ok(specs.first().copied())
    }

    fn specs(toml: &str) -> Result<Vec<Waits>, String> {
        let error = |error: IngressPolicerError| format!("{}: {}", error.problem, error.remedy);
        let limits = port(toml).checked_ingress_policers().map_err(error)?;
        Ok(limits.iter().map(|spec| (spec.limit(), spec.waits())).collect())
    }

    const G: u64 = 1_000_000_000;

    #[test]
    fn frames_above_a_limit_without_a_depth_wait() {
        let (cir, pir) = (BitsPerSecond(2 * G), BitsPerSecond(4 * G));
        let single = Limit::SingleRate { cir, cbs: 1_000_000, ebs: 0 };
        let got = spec("ingress_policy = \"bps\"\npolice = { cir = \"2G\" }");
        assert_eq!(got, Ok(Some((single, true))));
        let got = spec("ingress_policy = \"bps\"\ncontract = { rate = \"2G\" }");
        assert_eq!(got, Ok(Some((single, true))));
        let got = spec("ingress_policy = \"bps\"\npolice = { cir = \"2G\", pir = \"4G\" }");
        let two = Limit::TwoRate { cir, cbs: 1_000_000, pir, pbs: 2_000_000 };
        assert_eq!(got, Ok(Some((two, true))));
        let frames = Limit::Packets { rate: PacketsPerSecond(600_000), burst: 2_400 };
        let got = spec("ingress_policy = \"pps\"\npolice = { pps = \"600k\" }");
        assert_eq!(got, Ok(Some((frames, true))));
        let got = spec("ingress_policy = \"pps\"\ncontract = { rate = \"600kpps\" }");
        assert_eq!(got, Ok(Some((frames, true))));
        assert_eq!(spec("police = { cir = \"2G\" }"), Ok(None), "another policy");
        let bits = Limit::SingleRate { cir, cbs: 1_000_000, ebs: 0 };
        for policy in ["bps", "pps"] {
            let both = format!(
                "ingress_policy = \"{policy}\"\npolice = {{ cir = \"2G\", pps = \"600k\" }}"
            );
            assert_eq!(specs(&both), Ok(vec![(bits, true), (frames, true)]));
        }
        let one = "ingress_policy = \"bps\"\npolice = { cir = \"2G\", pps = \"600k\", burst = 9 }";
        let few = Limit::Packets { rate: PacketsPerSecond(600_000), burst: 9 };
        assert_eq!(specs(one), Ok(vec![(bits, true), (few, false)]), "each by its own keys");
    }

    #[test]
    fn frames_above_a_stated_depth_are_dropped_and_other_depths_are_filled_in() {
        let (cir, pir) = (BitsPerSecond(2 * G), BitsPerSecond(4 * G));
        for (police, limit) in [
            ("cbs = 9", Limit::SingleRate { cir, cbs: 9, ebs: 0 }),
            ("ebs = 9", Limit::SingleRate { cir, cbs: 50_000_000, ebs: 9 }),
            ("cbs = 9, pir = \"4G\"", Limit::TwoRate { cir, cbs: 9, pir, pbs: 100_000_000 }),
            ("pir = \"4G\", pbs = 9", Limit::TwoRate { cir, cbs: 50_000_000, pir, pbs: 9 }),
        ] {
            let text = format!("ingress_policy = \"bps\"\npolice = {{ cir = \"2G\", {police} }}");
            assert_eq!(spec(&text), Ok(Some((limit, false))), "{police}");
        }
        let got = spec("ingress_policy = \"pps\"\npolice = { pps = \"600k\", burst = 9 }");
        let frames = Limit::Packets { rate: PacketsPerSecond(600_000), burst: 9 };
        assert_eq!(got, Ok(Some((frames, false))));
    }

    #[test]
    fn maxima_of_a_contract_hold_under_every_policy() {
        let max = "contract = { min_rate = \"1G\", max_rate = \"2G\", max_pps = \"600k\" }";
        let cir = BitsPerSecond(2 * G);
        let bits = (Limit::SingleRate { cir, cbs: 1_000_000, ebs: 0 }, true);
        let frames = (Limit::Packets { rate: PacketsPerSecond(600_000), burst: 2_400 }, true);
        for policy in ["none", "bps", "pps", "cycles-strict", "cycles-minmax"] {
            let got = specs(&format!("ingress_policy = \"{policy}\"\n{max}"));
            assert_eq!(got, Ok(vec![bits, frames]), "{policy}");
        }
        let police =
            |cir| format!("ingress_policy = \"bps\"\npolice = {{ cir = \"{cir}\" }}\n{max}");
        assert_eq!(specs(&police("2G")), Ok(vec![bits, frames]), "equal limits are one limit");
        assert_eq!(specs(&police("3G")).unwrap().len(), 3);
        let keys = |toml: &str| port(toml).tightest_limits().map(|(key, _)| key);
        assert_eq!(keys(&police("2G")), ["`cir` of `police`", "`max_pps` of `contract`"]);
        assert_eq!(keys(&police("3G"))[0], "`max_rate` of `contract`");
        let rate = "ingress_policy = \"bps\"\ncontract = { rate = \"1G\" }";
        assert_eq!(port(rate).tightest_limits()[0], ("`rate` of `contract`", G));
        assert_eq!(port(&police("3G")).tightest_limits()[0].1, 2 * G);
        let error = specs("contract = { rate = \"1k\", max_rate = \"2k\" }").unwrap_err();
        assert!(error.starts_with("rate 2k is out of range"), "{error}");
    }

    /// Tests that a contract and a policer of equal rate pass the same frames: 1,000 frames of 64
    /// bytes with FCS are 512,000 bits.
    #[test]
    fn a_policed_frame_counts_its_fcs() {
        let toml = "ingress_policy = \"bps\"\npolice = { cir = \"512k\", cbs = 640 }";
        let policer = Policer::new(port(toml).ingress_policers()[0]);
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
            ("{ cbs = 1 }", "`police` has neither `cir` nor `pps`"),
            ("{ pps = \"1k\", cbs = 5 }", "`cbs`, `ebs`, `pir` and `pbs` need `cir`"),
            ("{ cir = \"1G\", burst = 5 }", "`burst` needs `pps`"),
            ("{ cir = \"1G\", pbs = 5 }", "`pbs` needs `pir`"),
            ("{ cir = \"1G\", ebs = 5, pir = \"1G\" }", "`pir` (RFC 2698) and `ebs`"),
            ("{ cir = \"1G\", pir = \"1M\" }", "peak rate 1M is below the committed rate 1G"),
            ("{ cir = \"1k\" }", "rate 1k is out of range"),
            ("{ pps = \"1k\" }", "policy `bps` needs `cir`"),
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
