//! Who may receive how much: meters, which outlive a snapshot.
//!
//! **Rule.** A meter stays as long as its terms do, and one with other terms keeps what was used of
//! it. A tenant's is one for all its ports, on whichever worker they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_qos::policing::{Meter, Policing, Terms};

use crate::config::{HostConfig, Port};

/// All meters of a configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceiveTable {
    tenants: BTreeMap<String, Arc<Meter>>,
    ports: BTreeMap<String, Arc<Policing>>,
}

impl ReceiveTable {
    /// The table for `config`; what did not change is taken over.
    pub(super) fn next(&self, config: &HostConfig) -> Self {
        let mut next = Self::default();
        for tenant in &config.tenants {
            let of_tenant = |port: &&Port| port.tenant.as_ref() == Some(&tenant.name);
            let ports: Vec<&Port> = config.ports.iter().filter(of_tenant).collect();
            let contract = tenant.may_receive().map(|terms| {
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
                let policing = self.port(port, terms, contract.as_ref(), tenant.receive_sharing());
                next.ports.insert(port.name.clone(), policing);
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
        sharing: penstock_qos::policing::Sharing,
    ) -> Arc<Policing> {
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
            Arc::new(Policing::new(vm, contract.cloned(), sharing))
        })
    }

    /// What a port is held to.
    pub(super) fn of(&self, port: &str) -> Option<Arc<Policing>> {
        self.ports.get(port).cloned()
    }
}

fn renewed(old: Option<&Meter>, terms: Terms) -> Meter {
    old.map_or_else(|| Meter::new(terms), |old| old.changed(terms))
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
        let before = ReceiveTable::default().next(&config("receive = { rate = \"1G\" }"));
        let of = |table: &ReceiveTable, port: &str| table.of(port).unwrap();
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
}
