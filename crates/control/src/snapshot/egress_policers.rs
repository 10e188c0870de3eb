//! Egress policers: limits on what VMs and tenants may receive, and on what tenants may send by
//! shared ports.
//!
//! A meter outlives a snapshot. It stays while its terms stay the same. If the terms change, the
//! new meter keeps the used part of the depth. All ports of a tenant share the tenant's meter, on
//! all workers.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_qos::egress_policer::{EgressPolicer, Meter, Sharing, Terms};

use crate::config::{HostConfig, Port, Tenant};

/// The policers of the frames that ports receive.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceivePolicers {
    tenants: BTreeMap<String, Arc<Meter>>,
    ports: BTreeMap<String, Arc<EgressPolicer>>,
}

impl ReceivePolicers {
    /// The policers for `config`. Unchanged ones are taken over.
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

/// The policers of the frames that tenants send by shared ports, by tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct SendPolicers(BTreeMap<String, Arc<EgressPolicer>>);

impl SendPolicers {
    /// The policers for `config`. Unchanged ones are taken over.
    pub(super) fn next(&self, config: &HostConfig) -> Self {
        let limited = |tenant: &Tenant| {
            let terms = tenant.send_terms()?;
            let policer = match self.0.get(&tenant.name) {
                Some(old) if *old.vm().terms() == terms => Arc::clone(old),
                Some(old) => metered(old.vm().changed(terms)),
                None => metered(Meter::new(terms)),
            };
            Some((tenant.name.clone(), policer))
        };
        Self(config.tenants.iter().filter_map(limited).collect())
    }

    pub(super) fn of(&self, tenant: &str) -> Option<Arc<EgressPolicer>> {
        self.0.get(tenant).cloned()
    }
}

fn metered(meter: Meter) -> Arc<EgressPolicer> {
    Arc::new(EgressPolicer::new(meter, None, Sharing::Strict))
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
    fn a_meter_stays_with_its_terms_and_goes_with_them() {
        let config = |send: &str| {
            let text = format!("[host]\nname = \"h\"\n[[tenant]]\nname = \"red\"\n{send}\n");
            parse(&text, "test").unwrap()
        };
        let before = SendPolicers::default().next(&config("send = { rate = \"1G\" }"));
        let same = before.next(&config("uplink_weight = 2\nsend = { rate = \"1G\" }"));
        assert!(Arc::ptr_eq(&before.of("red").unwrap(), &same.of("red").unwrap()));
        let other = same.next(&config("send = { rate = \"2G\" }"));
        assert!(!Arc::ptr_eq(&before.of("red").unwrap(), &other.of("red").unwrap()));
        assert!(other.next(&config("")).of("red").is_none());
    }
}
