//! The queues of a `wfq` output, as the worker takes them, and the code points of tenants.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_dataplane::queue::{Classes, HeldLane};
use penstock_toml::BitsPerSecond;

use super::super::model::{HostConfig, Port};
use super::super::release::Egress;
use super::super::wfq::Wfq;

impl Wfq {
    /// Its classes after `old`; `tenant` knows tenants' numbers.
    fn classes(&self, tenant: impl Fn(&str) -> Option<u16>, old: &Classes) -> Classes {
        let mut classes = Classes::new(self.queues.into());
        for (queue, weight) in self.weights.iter().enumerate() {
            classes = classes.with_weight(queue, weight.0);
        }
        for (dscp, queue) in &self.map {
            classes = classes.with_mapped(dscp.get(), *queue);
        }
        let held = |(name, rate): (&String, &BitsPerSecond)| {
            Some(HeldLane { tenant: tenant(name)?, rate: rate.0 })
        };
        let held: Vec<HeldLane> = self.ceilings.iter().filter_map(held).collect();
        // There are never more than lanes: that was checked.
        classes.clone().with_held(&held, old).unwrap_or(classes)
    }
}

impl HostConfig {
    /// The code points of ports whose tenants have one, by port.
    pub(crate) fn code_points(&self) -> BTreeMap<String, u8> {
        let of = |port: &Port| {
            let tenant = port.tenant.as_ref()?;
            let tenant = self.tenants.iter().find(|other| other.name == *tenant)?;
            Some((port.name.clone(), tenant.dscp?))
        };
        if self.tenants.iter().all(|tenant| tenant.dscp.is_none()) {
            return BTreeMap::new();
        }
        self.ports.iter().filter_map(of).collect()
    }
}

impl Port {
    /// Its queues by class, if it has such, after `old`; `tenant` knows tenants' numbers.
    pub(crate) fn classes(
        &self,
        tenant: impl Fn(&str) -> Option<u16>,
        old: &Classes,
    ) -> Option<Arc<Classes>> {
        let of = |wfq: &Wfq| Arc::new(wfq.classes(tenant, old));
        (self.egress == Egress::Wfq).then(|| self.wfq.as_ref().map_or_else(Arc::default, of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_becomes_classes_and_text_again() {
        let text = "queues = 4\nweights = [1, 10, 20]\nmap = { 8 = 1, 46 = 3 }\n";
        let wfq: Wfq = toml_edit::de::from_str(text).unwrap();
        let old = Classes::default();
        let classes = wfq.classes(|_| None, &old);
        let weights: Vec<_> = classes.weights().iter().map(|weight| weight.get()).collect();
        assert_eq!(weights, [1, 10, 20, 1]);
        assert_eq!([0, 8, 46, 47].map(|dscp| classes.queue_of(dscp)), [0, 1, 3, 0]);
        assert_eq!(toml_edit::ser::to_string(&wfq).unwrap(), text);
        assert_eq!(
            toml_edit::de::from_str::<Wfq>("").unwrap().classes(|_| None, &old),
            Classes::default()
        );
        let text = "queues = 4\n\n[ceilings]\nblue = \"3M\"\nred = \"5M\"\n";
        let wfq: Wfq = toml_edit::de::from_str(text).unwrap();
        let classes = wfq.classes(|name| (name == "red").then_some(9), &old);
        let held: Vec<_> = classes.held().map(|(lane, h)| (lane, h.tenant, h.rate.0)).collect();
        assert_eq!(held, [(4, 9, 5_000_000)]);
        let error = toml_edit::de::from_str::<Wfq>("map = { 64 = 1 }").unwrap_err();
        assert!(error.message().contains("64 is not a DSCP; write a number from 0 to 63"));
    }
}
