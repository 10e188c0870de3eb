//! Which tenant may send how much over the network: meters, which outlive a snapshot.
//!
//! **Rule.** As for what is received ([`super::receiving`]): a meter stays as long as its terms do,
//! and one with other terms keeps what was used of it; it is one for all ports of a tenant.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_qos::policing::{Meter, Policing, Sharing};

use crate::config::HostConfig;

/// All meters of a configuration, by tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct SendTable(BTreeMap<String, Arc<Policing>>);

impl SendTable {
    /// The table for `config`; what did not change is taken over.
    pub(super) fn next(&self, config: &HostConfig) -> Self {
        let limited = |tenant: &crate::config::Tenant| {
            let terms = tenant.may_send()?;
            let policing = match self.0.get(&tenant.name) {
                Some(old) if *old.vm().terms() == terms => Arc::clone(old),
                Some(old) => metered(old.vm().changed(terms)),
                None => metered(Meter::new(terms)),
            };
            Some((tenant.name.clone(), policing))
        };
        Self(config.tenants.iter().filter_map(limited).collect())
    }

    /// What a tenant is held to.
    pub(super) fn of(&self, tenant: &str) -> Option<Arc<Policing>> {
        self.0.get(tenant).cloned()
    }
}

fn metered(meter: Meter) -> Arc<Policing> {
    Arc::new(Policing::new(meter, None, Sharing::Strict))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn a_meter_stays_with_its_terms_and_goes_with_them() {
        let config = |send: &str| {
            let text = format!("[host]\nname = \"h\"\n[[tenant]]\nname = \"red\"\n{send}\n");
            parse(&text, "test").unwrap()
        };
        let before = SendTable::default().next(&config("send = { rate = \"1G\" }"));
        let same = before.next(&config("uplink_weight = 2\nsend = { rate = \"1G\" }"));
        assert!(Arc::ptr_eq(&before.of("red").unwrap(), &same.of("red").unwrap()));
        let other = same.next(&config("send = { rate = \"2G\" }"));
        assert!(!Arc::ptr_eq(&before.of("red").unwrap(), &other.of("red").unwrap()));
        assert!(other.next(&config("")).of("red").is_none());
    }
}
