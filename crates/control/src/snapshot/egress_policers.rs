//! Builds egress policers: limits on the frames that VMs and tenants receive, and on the frames
//! that tenants send through shared ports.
//!
//! A meter is kept across snapshots if its limits do not change. If the limits change, each bucket
//! of the new meter contains at most as many tokens as the old bucket. All ports of a tenant share
//! the tenant's meter, on all workers together.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_qos::egress_policer::{EgressPolicer, Meter, Sharing, Terms};

use crate::config::{HostConfig, Port};

/// Policers of the frames that ports receive.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceivePolicers {
    tenants: BTreeMap<String, Arc<Meter>>,
    ports: BTreeMap<String, Arc<EgressPolicer>>,
}

impl ReceivePolicers {
    /// Creates the policers of `config`, and reuses the existing policers if their limits did not
    /// change.
    pub(super) fn next(&self, config: &HostConfig) -> Self {
        let mut next = Self::default();
        for tenant in &config.tenants {
            let of_tenant = |port: &&Port| port.tenant.as_ref() == Some(&tenant.name);
            let ports: Vec<&Port> = config.ports.iter().filter(of_tenant).collect();
            let contract = tenant.receive_terms().map(|terms| {
                let old = self.tenants.get(&tenant.name);
                match old.filter(|old| *old.terms() == terms) {
                    Some(old) => Arc::clone(old),
                    None => Arc::new(renewed(old.map(|old| &**old), terms)),
                }
            });
            for (port, terms) in ports.iter().zip(tenant.parts(&ports)) {
                if contract.is_none() && port.receive.is_none() {
                    continue;
                }
                let policer = self.port(port, terms, contract.as_ref(), tenant.receive_sharing());
                next.ports.insert(port.name.clone(), policer);
            }
            next.tenants.extend(contract.map(|contract| (tenant.name.clone(), contract)));
        }
        next
    }

    fn port(
        &self,
        port: &Port,
        terms: Terms,
        contract: Option<&Arc<Meter>>,
        sharing: Sharing,
    ) -> Arc<EgressPolicer> {
        let old = self.ports.get(&port.name);
        let same = old.filter(|old| {
            let contracts = match (old.tenant(), contract) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new),
                (old, new) => old.is_none() && new.is_none(),
            };
            *old.vm().terms() == terms && old.sharing() == sharing && contracts
        });
        same.cloned().unwrap_or_else(|| {
            let vm = renewed(old.map(|old| old.vm()), terms);
            Arc::new(EgressPolicer::new(vm, contract.cloned(), sharing))
        })
    }

    pub(super) fn of(&self, port: &str) -> Option<Arc<EgressPolicer>> {
        self.ports.get(port).cloned()
    }
}

fn renewed(old: Option<&Meter>, terms: Terms) -> Meter {
    old.map_or_else(|| Meter::new(terms), |old| old.changed(terms))
}

/// Policers of the frames that tenants send through shared ports. If frames above the limit wait,
/// each port has a policer with its part of the limit, and a port above its part uses what the
/// tenant's other ports leave. If frames above the limit are dropped, all ports share one policer.
#[derive(Clone, Debug, Default)]
pub(super) struct SendPolicers {
    tenants: BTreeMap<String, Arc<Meter>>,
    ports: BTreeMap<String, Arc<EgressPolicer>>,
}

impl SendPolicers {
    /// Creates the policers of `config`, and reuses the existing policers if their limits did not
    /// change.
    pub(super) fn next(&self, config: &HostConfig) -> Self {
        let mut next = Self::default();
        for tenant in &config.tenants {
            let Some(terms) = tenant.send_terms() else { continue };
            let old = self.tenants.get(&tenant.name);
            let meter = match old.filter(|old| *old.terms() == terms) {
                Some(old) => Arc::clone(old),
                None => Arc::new(renewed(old.map(|old| &**old), terms)),
            };
            let of_tenant = |port: &&Port| port.tenant.as_ref() == Some(&tenant.name);
            let ports: Vec<&Port> = config.ports.iter().filter(of_tenant).collect();
            for (port, part) in ports.iter().zip(tenant.send_parts(&ports)) {
                let policer = part_of(self.ports.get(&port.name), part, &meter);
                next.ports.insert(port.name.clone(), policer);
            }
            next.tenants.insert(tenant.name.clone(), meter);
        }
        next
    }

    pub(super) fn of(&self, port: &str) -> Option<Arc<EgressPolicer>> {
        self.ports.get(port).cloned()
    }
}

/// Returns a policer for a port's part of its tenant's limit, and reuses the existing policer `old`
/// if the limits did not change. A part without rates limits nothing, so only the tenant's limit
/// applies.
fn part_of(
    old: Option<&Arc<EgressPolicer>>,
    part: Terms,
    tenant: &Arc<Meter>,
) -> Arc<EgressPolicer> {
    let same = old.filter(|old| {
        *old.vm().terms() == part && old.tenant().is_some_and(|old| Arc::ptr_eq(old, tenant))
    });
    same.cloned().unwrap_or_else(|| {
        let vm = renewed(old.map(|old| old.vm()), part);
        Arc::new(EgressPolicer::new(vm, Some(Arc::clone(tenant)), Sharing::Borrow))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn config(receive: &str) -> HostConfig {
        let text = format!(
            "[host]\nname = \"h\"\n[[tenant]]\nname = \"red\"\n{receive}\n\
             [[tenant]]\nname = \"blue\"\n\
             [[port]]\nname = \"a\"\ntap.interface = \"a\"\ntenant = \"red\"\n\
             [[port]]\nname = \"b\"\ntap.interface = \"b\"\ntenant = \"red\"\n\
             [[port]]\nname = \"c\"\ntap.interface = \"c\"\ntenant = \"blue\"\n\
             receive = {{ pps = \"5k\" }}\n"
        );
        parse(&text, "test").unwrap()
    }

    #[test]
    fn a_tenants_ports_share_its_meter_and_what_did_not_change_stays() {
        let before = ReceivePolicers::default().next(&config("receive = { rate = \"1G\" }"));
        let of = |table: &ReceivePolicers, port: &str| table.of(port).unwrap();
        let (a, b) = (of(&before, "a"), of(&before, "b"));
        assert!(Arc::ptr_eq(a.tenant().unwrap(), b.tenant().unwrap()));
        assert!(of(&before, "c").tenant().is_none());
        let same = before.next(&config("uplink_weight = 2\nreceive = { rate = \"1G\" }"));
        assert!(["a", "b", "c"].iter().all(|p| Arc::ptr_eq(&of(&before, p), &of(&same, p))));
        let changed = same.next(&config("receive = { rate = \"2G\" }"));
        assert!(!Arc::ptr_eq(&a, &of(&changed, "a")));
        assert!(Arc::ptr_eq(&of(&before, "c"), &of(&changed, "c")));
        let none = changed.next(&config(""));
        assert!(none.of("a").is_none() && none.of("c").is_some());
    }

    #[test]
    fn a_send_limit_stays_with_its_terms_and_is_divided_only_if_frames_wait() {
        let send = |send: &str| {
            let mut config = config("");
            config.tenants[0].send = Some(toml_edit::de::from_str(send).unwrap());
            config
        };
        let before = SendPolicers::default().next(&send("rate = \"1G\""));
        let of = |table: &SendPolicers, port: &str| table.of(port).unwrap();
        let rate = |policer: &EgressPolicer| policer.vm().terms().bytes.map(|(rate, _)| rate.0);
        assert!(of(&before, "a").waits() && rate(&of(&before, "a")) == Some(500_000_000));
        assert!(before.of("c").is_none(), "blue has no limit");
        let mut same = send("rate = \"1G\"");
        same.tenants[1].send = Some(toml_edit::de::from_str("rate = \"3G\"").unwrap());
        let same = before.next(&same);
        assert!(["a", "b"].iter().all(|p| Arc::ptr_eq(&of(&before, p), &of(&same, p))));
        let other = same.next(&send("rate = \"2G\""));
        assert!(!Arc::ptr_eq(&of(&before, "a"), &of(&other, "a")));
        let drops = other.next(&send("rate = \"2G\"\nburst = 9000"));
        let (a, b) = (of(&drops, "a"), of(&drops, "b"));
        assert!(!a.waits() && rate(&a).is_none());
        assert!(Arc::ptr_eq(a.tenant().unwrap(), b.tenant().unwrap()));
        assert!(drops.next(&config("")).of("a").is_none());
    }
}
