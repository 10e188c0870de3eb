//! Answers whether a port could buy another contract, without a change of the configuration.
//!
//! A question has the form `PORT=RATE[@SIZE][,KEY=VALUE]...`, as in `vm7=4G@imix,class=2`. The port
//! may be new. If the contract does not fit, the answer has the largest contract of the same form
//! that fits.

use core::fmt;
use core::str::FromStr;

use crate::config::{
    self, BitsPerSecond, ConfigError, ConfigErrors, Contract, ContractRate, Flows, HostConfig,
    IngressPolicy, PacketsPerSecond, Port, Priority, Ring, VhostUser, Weight,
};
use crate::plan::text::down;
use crate::plan::{CapacityPlan, Checked, Planner, is_metered};
use crate::snapshot::IdTable;

/// A contract that a port might buy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhatIf {
    /// Name of the port, which need not exist.
    pub port: String,
    pub contract: Contract,
    /// Latency class; by default the port's present class.
    pub class: Option<Priority>,
    /// Weight for spare cycles; by default the port's present weight.
    pub weight: Option<Weight>,
}

/// The plan of a host on which a port has another contract.
#[derive(Clone, Debug)]
pub struct Supposed {
    pub config: HostConfig,
    pub plan: CapacityPlan,
    /// Whether the port is new.
    pub added: bool,
    /// If the contract does not fit, the same contract with the highest rate that fits; `None` if
    /// the contract fits, or if no rate fits.
    pub nearest: Option<WhatIf>,
}

const FORM: &str = "write PORT=RATE[@SIZE][,KEY=VALUE]..., as in vm7=4G@imix,class=2";
const KEYS: &str = "use `class`, `weight`, `flows`, `ring`, `segments`, `uplink`, `numa`, \
                    `min_pps`, `max_rate`, `max_pps`";

impl FromStr for WhatIf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        let form = || format!("{text:?} is no contract of a port; {FORM}");
        let (port, bought) = first.split_once('=').ok_or_else(form)?;
        let (rate, size) = match bought.split_once('@') {
            Some((rate, size)) => (rate, Some(size)),
            None => (bought, None),
        };
        if port.is_empty() {
            return Err(form());
        }
        let bad = |what: &str, error: &dyn fmt::Display| format!("{what}: {error}");
        let mut contract = Contract {
            rate: Some(rate.parse().map_err(|error| bad("RATE", &error))?),
            size: match size {
                Some(size) => Some(size.parse().map_err(|error| bad("SIZE", &error))?),
                None => None,
            },
            ..Contract::default()
        };
        let (mut class, mut weight) = (None, None);
        let mut given = Vec::new();
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(form)?;
            if given.contains(&key) {
                return Err(format!("{key}: given twice; keep one"));
            }
            given.push(key);
            let frames = || value.parse().map(PacketsPerSecond).map_err(|error| bad(key, &error));
            let number = || value.parse::<u64>().map_err(|error| bad(key, &error));
            match key {
                "class" => {
                    let class_of = penstock_units::Priority::new(number()?);
                    class = Some(Priority(class_of.map_err(|error| bad(key, &error))?));
                }
                "weight" => {
                    let weight_of = penstock_units::Weight::new(number()?);
                    weight = Some(Weight(weight_of.map_err(|error| bad(key, &error))?));
                }
                "flows" | "ring" | "segments" | "uplink" | "numa" => {
                    traffic(&mut contract, key, value)?
                }
                "min_pps" => contract.min_pps = Some(frames()?),
                "max_pps" => contract.max_pps = Some(frames()?),
                "max_rate" => {
                    let rate = value.parse().map(BitsPerSecond);
                    contract.max_rate = Some(rate.map_err(|error| bad(key, &error))?);
                }
                _ => return Err(format!("the key {key:?} is not known; {KEYS}")),
            }
        }
        if contract.min_pps.is_some() {
            match contract.rate.take() {
                Some(ContractRate::Bits(rate)) => contract.min_rate = Some(BitsPerSecond(rate)),
                _ => return Err("min_pps: RATE is in frames per second too; keep one".to_owned()),
            }
        }
        Ok(Self { port: port.to_owned(), contract, class, weight })
    }
}

/// Sets a key that describes the traffic of a contract.
fn traffic(contract: &mut Contract, key: &str, value: &str) -> Result<(), String> {
    let bad = |error: &dyn fmt::Display| format!("{key}: {error}");
    let unknown = |names: &str| Err(format!("{key}: {value:?}: write {names}"));
    match (key, value) {
        ("flows", "single") => contract.flows = Flows::Single,
        ("flows", "multiple") => contract.flows = Flows::Multiple,
        ("flows", _) => return unknown("single or multiple"),
        ("ring", "split") => contract.ring = Ring::Split,
        ("ring", "packed") => contract.ring = Ring::Packed,
        ("ring", _) => return unknown("split or packed"),
        ("segments", "true") => contract.segments = true,
        ("segments", "false") => contract.segments = false,
        ("segments", _) => return unknown("true or false"),
        ("numa", _) => contract.numa = Some(value.parse().map_err(|error| bad(&error))?),
        _ => contract.uplink = Some(value.parse().map_err(|error| bad(&error))?),
    }
    Ok(())
}

impl fmt::Display for WhatIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Contract { rate, min_rate, min_pps, max_rate, max_pps, size, .. } = &self.contract;
        let Contract { flows, ring, segments, uplink, numa, .. } = &self.contract;
        let rate = rate.or(min_rate.map(|rate| ContractRate::Bits(rate.0)));
        write!(f, "{}=", self.port)?;
        rate.map_or(Ok(()), |rate| write!(f, "{rate}"))?;
        size.as_ref().map_or(Ok(()), |size| write!(f, "@{size}"))?;
        min_pps.map_or(Ok(()), |rate| write!(f, ",min_pps={}", rate.0))?;
        max_rate.map_or(Ok(()), |rate| write!(f, ",max_rate={}", rate.0))?;
        max_pps.map_or(Ok(()), |rate| write!(f, ",max_pps={}", rate.0))?;
        if *flows == Flows::Multiple {
            f.write_str(",flows=multiple")?;
        }
        if *ring == Ring::Packed {
            f.write_str(",ring=packed")?;
        }
        if *segments {
            f.write_str(",segments=true")?;
        }
        uplink.map_or(Ok(()), |percent| write!(f, ",uplink={percent}"))?;
        numa.map_or(Ok(()), |node| write!(f, ",numa={node}"))?;
        self.class.map_or(Ok(()), |class| write!(f, ",class={}", class.0.get()))?;
        self.weight.map_or(Ok(()), |weight| write!(f, ",weight={}", weight.0.get()))
    }
}

impl WhatIf {
    /// Returns the question with `permille` thousandths of its guaranteed rates.
    fn scaled(&self, permille: u32) -> Self {
        let down = |of: u64| down(of, 10 * permille);
        let bits =
            |rate: penstock_units::BitsPerSecond| penstock_units::BitsPerSecond(down(rate.0));
        let frames =
            |rate: penstock_units::PacketsPerSecond| penstock_units::PacketsPerSecond(down(rate.0));
        let mut less = self.clone();
        let of = &mut less.contract;
        of.rate = of.rate.map(|rate| match rate {
            ContractRate::Bits(rate) => ContractRate::Bits(bits(rate)),
            ContractRate::Packets(rate) => ContractRate::Packets(frames(rate)),
        });
        of.min_rate = of.min_rate.map(|rate| BitsPerSecond(bits(rate.0)));
        of.min_pps = of.min_pps.map(|rate| PacketsPerSecond(frames(rate.0)));
        less
    }
}

impl Checked {
    /// Plans the host as if the port of `what` had another contract. A new port is planned on the
    /// worker with the most unsold cycles, for the first tenant of the configuration, and on the
    /// VLAN of this tenant's first port.
    ///
    /// # Errors
    /// Returns the mistakes that the configuration would have.
    pub fn suppose(&self, what: &WhatIf) -> Result<Supposed, ConfigErrors> {
        let added = !self.config.ports.iter().any(|port| port.name == what.port);
        let (config, plan) = self.plan_with(what)?;
        let nearest = if plan.refusals.is_empty() { None } else { self.nearest(what) };
        Ok(Supposed { config, plan, added, nearest })
    }

    /// Returns the question with the highest rate that fits, below the rate of `what`. Looks at
    /// thousandths of the rate. If none fits, looks at thousandths of a thousandth, and so on to a
    /// billionth.
    fn nearest(&self, what: &WhatIf) -> Option<WhatIf> {
        let whole = [what.clone(), what.scaled(1), what.scaled(1).scaled(1)];
        whole.into_iter().find_map(|whole| {
            let fits = |permille| {
                let less = self.plan_with(&whole.scaled(permille));
                less.is_ok_and(|(_, plan)| plan.refusals.is_empty())
            };
            largest(999, fits).map(|permille| whole.scaled(permille))
        })
    }

    fn plan_with(&self, what: &WhatIf) -> Result<(HostConfig, CapacityPlan), ConfigErrors> {
        let mut config = self.config.clone();
        let port = match config.ports.iter().position(|port| port.name == what.port) {
            Some(at) => &mut config.ports[at],
            None => {
                config.ports.push(self.new_port(&what.port)?);
                let last = config.ports.len() - 1;
                &mut config.ports[last]
            }
        };
        port.contract = Some(what.contract.clone());
        port.cycles = None;
        if !is_metered(port) {
            port.ingress_policy = IngressPolicy::CyclesMinmax;
        }
        port.priority = what.class.unwrap_or(port.priority);
        port.cycle_weight = what.weight.unwrap_or(port.cycle_weight);
        let text = config::text_of(&config).map_err(|error| ConfigErrors(vec![error]))?;
        let placeless = |error: ConfigError| ConfigError { line: 0, column: 0, ..error };
        let config = config::parse(&text, "")
            .map_err(|errors| ConfigErrors(errors.0.into_iter().map(placeless).collect()))?;
        let plan = Planner {
            config: &config,
            model: self.model.as_ref(),
            ids: &IdTable::default().next(&config),
            workers: config.worker.cores.len().max(1),
            origin: &self.origin,
            tsc: self.tsc,
        }
        .plan()
        .strict();
        Ok((config, plan))
    }

    fn new_port(&self, name: &str) -> Result<Port, ConfigErrors> {
        let Some(tenant) = self.config.tenants.first() else {
            let problem = "the port does not exist, and the configuration has no tenant for it";
            return Err(ConfigErrors(vec![ConfigError::placeless(
                format!("port {name:?}"),
                problem.to_owned(),
                "name an existing port, or add a [[tenant]]".to_owned(),
            )]));
        };
        // A tenant may have networks on VLANs only.
        let mut siblings = self.config.ports.iter();
        let sibling = siblings.find(|port| port.tenant.as_ref() == Some(&tenant.name));
        let rooms = self.plan.admission.room.iter().zip(0..);
        let worker = rooms.max_by_key(|(room, worker)| (room.0, core::cmp::Reverse(*worker)));
        Ok(Port {
            tenant: Some(tenant.name.clone()),
            vlan: sibling.and_then(|port| port.vlan),
            worker: worker.map(|(_, worker)| worker),
            ..Port::new(name, VhostUser::new(format!("/run/penstock/{name}.sock")))
        })
    }
}

/// Returns the largest number from 1 to `most` for which `fits` is true, if it is true for all
/// smaller numbers too; `None` if it is not true for 1.
fn largest(most: u32, fits: impl Fn(u32) -> bool) -> Option<u32> {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    (low > 0).then_some(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{MODEL_HZ, RED, checked, model, port};

    fn host(more: &str) -> Checked {
        let text = RED.to_owned()
            + &port("a", "contract = { rate = \"5Mpps\", size = 64 }\ncycle_weight = 3")
            + more;
        checked(&text, Some(&model()))
    }

    fn what(text: &str) -> WhatIf {
        text.parse().unwrap()
    }

    #[test]
    fn questions_are_read_and_written_the_same() {
        for text in [
            "vm7=4G@imix,class=2",
            "vm7=600kpps@64",
            "vm7=1G,flows=multiple,ring=packed",
            "vm7=1G,segments=true",
            "vm7=1G,uplink=50,numa=1",
            "a=1G@64:7+1518:1,min_pps=5k,max_rate=2G,max_pps=1M,uplink=50,class=1,weight=9",
        ] {
            assert_eq!(what(text).to_string(), text);
        }
        for (text, error) in [
            ("vm7", "\"vm7\" is no contract of a port; write PORT=RATE"),
            ("=4G", "\"=4G\" is no contract"),
            ("vm7=fast", "RATE: "),
            ("vm7=4G@9", "SIZE: size 9 is out of range"),
            ("vm7=4G,class=9", "class: "),
            ("vm7=4G,class=1,flows=single,class=2", "class: given twice"),
            ("vm7=4G,colour=2", "the key \"colour\" is not known; use `class`"),
            ("vm7=4kpps,min_pps=2k", "min_pps: RATE is in frames"),
            ("vm7=4G,flows=few", "flows: \"few\": write single or multiple"),
            ("vm7=4G,ring=none", "ring: \"none\": write split or packed"),
        ] {
            let got = text.parse::<WhatIf>().unwrap_err();
            assert!(got.starts_with(error), "{text}: {got}");
        }
    }

    #[test]
    fn a_contract_that_fits_is_planned_with_all_other_terms_of_the_port() {
        let host = host("");
        let got = host.suppose(&what("a=10Mpps@64,class=2")).unwrap();
        assert!(got.plan.refusals.is_empty() && got.nearest.is_none() && !got.added);
        let port = &got.config.ports[0];
        assert_eq!((port.priority.0.get(), port.cycle_weight.0.get()), (2, 3));
        assert_eq!(got.plan.ports[0].cycles.0, 1_000_000_000);
        assert_eq!(host.plan.ports[0].cycles.0, 500_000_000, "nothing changed");
    }

    #[test]
    fn a_contract_that_does_not_fit_names_the_largest_that_does() {
        let host = host("");
        let got = host.suppose(&what("b=20Mpps@64")).unwrap();
        assert!(got.added && got.plan.refusals.len() == 1, "{:?}", got.plan.refusals);
        let nearest = got.nearest.unwrap();
        let fits = |what: &WhatIf| host.suppose(what).unwrap().plan.refusals.is_empty();
        assert!(fits(&nearest), "{nearest}");
        assert!(!fits(&nearest.scaled(1_010)), "{nearest} is the largest");
        // The host sells 1.98 G cycles, and port a has 0.5 G. A frame costs 100.
        assert_eq!((MODEL_HZ, nearest.to_string().as_str()), (2_000_000_000, "b=14800kpps@64"));
        // Less than a thousandth of this fits.
        let nearest = host.suppose(&what("b=20Gpps@64")).unwrap().nearest.unwrap();
        assert_eq!(nearest.to_string(), "b=14800kpps@64");
    }

    #[test]
    fn mistakes_of_the_contract_are_told_without_a_place() {
        let errors = host("").suppose(&what("a=2G,max_rate=1G")).unwrap_err();
        let text = errors.to_string();
        assert!(text.contains("`max_rate` 1G is below `rate` 2G"), "{text}");
        let alone = checked("", Some(&model()));
        let text = alone.suppose(&what("b=1G")).unwrap_err().to_string();
        assert!(text.contains("the configuration has no tenant for it"), "{text}");
    }
}
