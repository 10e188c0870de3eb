//! Builds ingress policers: limits on the frames that ports send, from `police`, and from a link
//! while it is the bottleneck.
//!
//! The next snapshot keeps a policer if the policer's limits do not change. An unrelated change of
//! the configuration therefore does not refill the policer's bucket. Each VM's port has a part of
//! each watched link, unless `fair-share`, `wfq` or `fq-codel` shares the link. A VM's part of a
//! link depends on all ports and on the link, so all VMs' parts of a link change together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use penstock_dataplane::ingress_policer::{IngressPolicer, LinkLimit};
use penstock_qos::bottleneck::{limits, part};
use penstock_qos::policer::{Limit, Policer, RATE_MAX, RATE_MIN, Spec};
use penstock_units::BitsPerSecond;

use crate::config::{Egress, HostConfig, Port};

/// A link that the daemon watches: the link of a shared port with `link` and `egress = "fifo"`.
#[derive(Clone, Debug)]
pub struct WatchedLink {
    pub capacity: BitsPerSecond,
    /// Whether each VM is currently limited to its part of the link. A worker reads this flag of
    /// the link before each batch of frames.
    pub active: Arc<AtomicBool>,
    /// Nanoseconds for which the VMs' frames waited for the VMs' parts of the link, all VMs
    /// together. The workers count them.
    pub waited: Arc<AtomicU64>,
    /// Policers that limit each VM to its part of the link, by the name of the VM's port.
    parts: BTreeMap<String, Arc<Policer>>,
}

impl WatchedLink {
    /// Returns each VM's part of the link in bits per second, by the name of the VM's port. The
    /// parts of the link include Ethernet's overhead for each frame.
    pub fn parts(&self) -> impl Iterator<Item = (&str, BitsPerSecond)> {
        self.parts.iter().filter_map(|(port, policer)| match policer.spec().limit() {
            Limit::SingleRate { cir, .. } => Some((port.as_str(), cir)),
            _ => None,
        })
    }
}

/// The ingress policers of all ports of a configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct IngressPolicers {
    own: BTreeMap<String, Vec<Arc<Policer>>>,
    pub(super) links: BTreeMap<String, WatchedLink>,
}

impl IngressPolicers {
    /// Creates the policers of `config`, and reuses the existing policers if their limits did not
    /// change.
    pub(super) fn next(&self, config: &HostConfig) -> Self {
        let own = config.ports.iter().filter_map(|port| {
            let old = self.own.get(&port.name).map_or(&[][..], |old| old);
            let own = |spec: Spec| kept(old.iter().find(|old| *old.spec() == spec), spec);
            let policers: Vec<_> = port.ingress_policers().into_iter().map(own).collect();
            (!policers.is_empty()).then(|| (port.name.clone(), policers))
        });
        let vms: Vec<&Port> = config.ports.iter().filter(|port| port.tenant.is_some()).collect();
        let links = config.ports.iter().filter_map(|port| {
            // Other outputs need no limits when their link is full: they share the link themselves.
            if port.egress != Egress::Fifo || port.tenant.is_some() {
                return None;
            }
            let old = self.links.get(&port.name);
            Some((port.name.clone(), link(old, port.link?.0, &vms)))
        });
        Self { own: own.collect(), links: links.collect() }
    }

    pub(super) fn of(&self, port: &str) -> Option<Arc<IngressPolicer>> {
        let part = |link: &WatchedLink| {
            let policer = Arc::clone(link.parts.get(port)?);
            let (active, waited) = (Arc::clone(&link.active), Arc::clone(&link.waited));
            Some(LinkLimit { active, waited, policer })
        };
        let own = self.own.get(port).cloned().unwrap_or_default();
        let limits = IngressPolicer { own, links: self.links.values().filter_map(part).collect() };
        (!limits.is_none()).then(|| Arc::new(limits))
    }
}

fn kept(old: Option<&Arc<Policer>>, spec: Spec) -> Arc<Policer> {
    let same = old.filter(|old| *old.spec() == spec);
    same.cloned().unwrap_or_else(|| Arc::new(Policer::new(spec)))
}

fn link(old: Option<&WatchedLink>, capacity: BitsPerSecond, vms: &[&Port]) -> WatchedLink {
    let bought: Vec<_> = vms.iter().map(|port| port.bought()).collect();
    let parts = vms.iter().zip(limits(capacity, &bought)).filter_map(|(port, rate)| {
        let spec = part(rate.clamp(RATE_MIN, RATE_MAX)).ok()?;
        let old = old.and_then(|old| old.parts.get(&port.name));
        Some((port.name.clone(), kept(old, spec)))
    });
    let (active, waited) =
        old.map(|old| (Arc::clone(&old.active), Arc::clone(&old.waited))).unwrap_or_default();
    WatchedLink { capacity, active, waited, parts: parts.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BitsPerSecond as Rate, IngressPolicer, IngressPolicy, Packet, Tap};

    fn config() -> HostConfig {
        let vm = |name: &str, cir: u64| Port {
            tenant: Some("red".into()),
            police: Some(IngressPolicer {
                cir: Some(Rate(BitsPerSecond(cir))),
                ..IngressPolicer::default()
            }),
            ..Port::new(name, Tap::new(name))
        };
        let link = Some(Rate(BitsPerSecond(1_000_000_000)));
        let mut config: HostConfig = toml_edit::de::from_str("[host]\nname = \"h\"\n").unwrap();
        config.ports = vec![
            Port { link, ..Port::new("up", Packet::new("up")) },
            vm("vm1", 200_000_000),
            Port { ingress_policy: IngressPolicy::Bps, ..vm("vm2", 600_000_000) },
        ];
        config
    }

    #[test]
    fn vms_have_parts_of_the_link_and_the_uplink_has_none() {
        let table = IngressPolicers::default().next(&config());
        let parts: Vec<_> = table.links["up"].parts().map(|(p, rate)| (p, rate.0)).collect();
        assert_eq!(parts, [("vm1", 247_500_000), ("vm2", 742_500_000)]);
        assert!(table.of("up").is_none());
        let limits = |port: &str| table.of(port).map(|l| (!l.own.is_empty(), l.links.len()));
        assert_eq!((limits("vm1"), limits("vm2")), (Some((false, 1)), Some((true, 1))));
    }

    #[test]
    fn what_did_not_change_is_taken_over_with_its_level() {
        let (before, mut config) = (IngressPolicers::default().next(&config()), config());
        config.ports[2].priority = crate::config::Priority::default();
        let after = before.next(&config);
        let of = |table: &IngressPolicers, port: &str| table.of(port).unwrap();
        let (old, new) = (of(&before, "vm2"), of(&after, "vm2"));
        assert!(Arc::ptr_eq(&old.own[0], &new.own[0]));
        assert!(Arc::ptr_eq(&old.links[0].policer, &new.links[0].policer));
        let cir = Some(Rate(BitsPerSecond(300_000_000)));
        config.ports[2].police = Some(IngressPolicer { cir, ..IngressPolicer::default() });
        let changed = of(&after.next(&config), "vm2");
        assert!(!Arc::ptr_eq(&new.own[0], &changed.own[0]));
        assert!(
            Arc::ptr_eq(&new.links[0].active, &changed.links[0].active),
            "the link is the same"
        );
    }
}
