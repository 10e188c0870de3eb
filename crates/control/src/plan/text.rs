//! Writes the texts of a plan's refusals and warnings.

use penstock_qos::admission::{Excess, Remedy};
use penstock_qos::cost_model::{Action, Rate};
use penstock_units::CyclesPerSecond;

use super::{Basis, CapacityPlan, is_metered, to_f64};
use crate::config::{ConfigError, Port};

/// Returns the error for a contract that cannot be converted to cycles because the host has no cost
/// model.
pub(super) fn no_model(port: &Port) -> ConfigError {
    let object = format!("port {:?}", port.name);
    let problem = "the contract cannot be converted to cycles without a cost model".to_owned();
    let remedy = "run penstock calibrate and name the file in [model], or write `cycles`";
    ConfigError::placeless(object, problem, remedy.to_owned())
}

/// Returns the error for a contract that needs an action for which the cost model has no cost.
pub(super) fn no_cost(port: &Port, action: Action) -> ConfigError {
    let problem = format!("the cost model has no cost for \"{action}\"");
    let remedy = "run penstock calibrate again, or write `cycles`";
    ConfigError::placeless(format!("port {:?}", port.name), problem, remedy.to_owned())
}

/// Warns if the port's `cycles` differ from the cycles that the cost model computes from its
/// contract.
pub(super) fn compare(
    port: &Port,
    cycles: CyclesPerSecond,
    modelled: Option<CyclesPerSecond>,
    part: f64,
    plan: &mut CapacityPlan,
) {
    let (Some(_), Some(modelled)) = (port.cycles, modelled) else { return };
    let (set, needed) = (to_f64(cycles.0), to_f64(modelled.0));
    if (set - needed).abs() > part * needed {
        let text = format!(
            "port {}: `cycles` {cycles} differs by {:+.0} % from the cost model's {} for the \
             port's contract; `cycles` is used",
            port.name,
            100.0 * (set / needed - 1.0),
            short(modelled.0)
        );
        plan.warn([port.name.as_str()], text);
    }
}

/// Warns about purchased cycles that no policy guarantees.
pub(super) fn unenforced(port: &Port, basis: Basis, plan: &mut CapacityPlan) {
    if basis != Basis::None && !is_metered(port) {
        let text = format!(
            "port {}: purchased cycles, but its `ingress_policy` is {}, which guarantees none; \
             set \"cycles-strict\" or \"cycles-minmax\"",
            port.name, port.ingress_policy
        );
        plan.warn([port.name.as_str()], text);
    }
}

/// Returns a configuration error for each purchase that admission control refused. The claim at
/// index `n` of the admission belongs to the port at index `sellers[n]` of the plan.
pub(super) fn refusals(plan: &CapacityPlan, sellers: &[usize]) -> Vec<ConfigError> {
    let mut all = Vec::new();
    if let Some(excess) = &plan.admission.link {
        let [sold, there, more] = amounts(excess.sold.0, excess.there.0);
        let problem = format!(
            "{sold} bit/s are sold with Ethernet's overhead, and the link carries {there}: {more} \
             too much"
        );
        let remedies = remedies(plan, sellers, &excess.remedies, true);
        all.push(ConfigError::placeless("uplink".to_owned(), problem, remedies));
    }
    for excess in &plan.admission.cycles {
        let [sold, there, more] = amounts(excess.sold.0, excess.there.0);
        let problem =
            format!("{sold} cycles per second are sold and {there} are available: {more} too much");
        let mut remedy = remedies(plan, sellers, &excess.remedies, false);
        if remedy.is_empty() {
            remedy = "add a worker, or sell fewer cycles".to_owned();
        }
        all.push(ConfigError::placeless(workers_text(excess), problem, remedy));
    }
    all
}

fn workers_text<T>(excess: &Excess<T>) -> String {
    let numbers: Vec<String> = excess.workers.iter().map(|worker| worker.to_string()).collect();
    let noun = if numbers.len() == 1 { "worker" } else { "workers" };
    format!("{noun} {}", numbers.join(", "))
}

fn remedies(plan: &CapacityPlan, sellers: &[usize], remedies: &[Remedy], link: bool) -> String {
    let port = |claim: usize| sellers.get(claim).and_then(|at| plan.ports.get(*at));
    let texts = remedies.iter().filter_map(|remedy| match remedy {
        Remedy::Move { claim, worker } => {
            Some(format!("place port {} on worker {worker}", port(*claim)?.name))
        }
        Remedy::Reduce { claim, left_e4 } => {
            let port = port(*claim)?;
            let less = |of: u64, unit: &str| {
                let scale = scale(of);
                let (left, of) = (in_unit(down(of, *left_e4), scale), in_unit(of, scale));
                format!("{left}{unit} instead of {of}{unit}")
            };
            if port.basis == Basis::Cycles && !link {
                let less = less(port.cycles.0, "");
                return Some(format!("give port {} `cycles` of {less}", port.name));
            }
            let less = match port.contract.as_ref()?.rate {
                Rate::Bits(bits) => less(bits.0, ""),
                Rate::Packets(frames) => less(frames.0, "pps"),
            };
            Some(format!("sell port {} {less}", port.name))
        }
        Remedy::ReduceAll { left_e4 } => {
            Some(format!("reduce each port's purchase to {:.2} %", f64::from(*left_e4) / 100.0))
        }
    });
    texts.collect::<Vec<String>>().join(", or ")
}

/// Returns the part `left_e4` / 10000 of the amount `of`, rounded down to three digits.
pub(crate) fn down(of: u64, left_e4: u32) -> u64 {
    let left = u128::from(of) * u128::from(left_e4) / 10_000;
    let left = u64::try_from(left).unwrap_or(u64::MAX);
    let mut unit = 1;
    while left / unit >= 1_000 {
        unit *= 10;
    }
    left / unit * unit
}

/// Suffix of an amount, its factor, and the number of zeros of the factor.
type Scale = (&'static str, u64, usize);

/// Returns the unit in which `value` has the fewest digits before the point, but at least one.
fn scale(value: u64) -> Scale {
    const SCALES: [Scale; 3] = [("G", 1_000_000_000, 9), ("M", 1_000_000, 6), ("k", 1_000, 3)];
    SCALES.into_iter().find(|(_, factor, _)| value >= *factor).unwrap_or(("", 1, 0))
}

/// Returns a number in the given unit with all its digits, such as `1.88G`.
fn in_unit(value: u64, (suffix, factor, zeros): Scale) -> String {
    let (whole, part) = (value / factor, value % factor);
    if part == 0 {
        return format!("{whole}{suffix}");
    }
    let part = format!("{part:0zeros$}");
    format!("{whole}.{}{suffix}", part.trim_end_matches('0'))
}

/// Returns the sold amount, the available amount and their difference in one unit, rounded to
/// thousandths of the unit. If the difference has fewer than three digits then, all have more.
fn amounts(sold: u64, there: u64) -> [String; 3] {
    let (excess, scale) = (sold.saturating_sub(there), scale(sold));
    let mut step = (scale.1 / 1_000).max(1);
    while step > 1 && excess / step < 100 {
        step /= 10;
    }
    let nearest = |value: u64| value.saturating_add(step / 2) / step * step;
    [sold, there, excess].map(|value| in_unit(nearest(value), scale))
}

/// Returns a number with four digits and a suffix, such as `1.234G`.
fn short(value: u64) -> String {
    const SUFFIXES: [(&str, f64); 3] = [("G", 1e9), ("M", 1e6), ("k", 1e3)];
    let float = to_f64(value);
    match SUFFIXES.iter().find(|(_, scale)| float >= *scale) {
        Some((suffix, scale)) => {
            let text = format!("{:.3}", float / scale);
            let text = text.trim_end_matches('0').trim_end_matches('.');
            format!("{text}{suffix}")
        }
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_reductions_round_down() {
        assert_eq!(short(1_234_500_000), "1.234G");
        assert_eq!((short(200_000_000), short(999)), ("200M".to_owned(), "999".to_owned()));
        assert_eq!(down(4_000_000_000, 9_234), 3_690_000_000);
        assert_eq!(down(999, 10_000), 999);
    }

    #[test]
    fn amounts_of_an_error_have_one_unit() {
        let excess = |sold, there| amounts(sold, there).join(" ");
        assert_eq!(excess(2_300_000_000, 1_980_000_000), "2.3G 1.98G 0.32G");
        assert_eq!(excess(2_295_312_345, 1_977_612_345), "2.295G 1.978G 0.318G");
        assert_eq!(excess(10_000_000_100, 10_000_000_000), "10.0000001G 10G 0.0000001G");
        assert_eq!(
            (excess(1_500, 999), excess(9, 7)),
            ("1.5k 0.999k 0.501k".into(), "9 7 2".into())
        );
        assert_eq!(in_unit(14_800_000, scale(20_000_000)), "14.8M");
        assert_eq!(in_unit(1_050, scale(20_000_000)), "0.00105M");
    }
}
