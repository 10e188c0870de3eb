//! Keeps the shares of the frames that arrive through uplinks, which outlive a snapshot.
//!
//! All ports of tenants share an uplink with the key `inbound`. The shares stay if neither the rate
//! nor a port or weight changes. Otherwise new shares replace them, and their buckets contain no
//! more tokens than before.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_qos::inbound_shares::{InboundShares, Member};
use penstock_units::Weight;

use super::ids::IdTable;
use crate::config::{HostConfig, Port};

/// The shares of a configuration, by the name of the uplink's port.
#[derive(Clone, Debug, Default)]
pub(super) struct InboundTable(BTreeMap<String, Arc<InboundShares>>);

impl InboundTable {
    /// Creates the shares of `config`, and reuses the existing shares if nothing changed.
    pub(super) fn next(&self, config: &HostConfig, ids: &IdTable) -> Self {
        let shared: Vec<_> = config
            .ports
            .iter()
            .filter_map(|port| Some((&port.name, port.inbound_rate()?)))
            .collect();
        if shared.is_empty() {
            return Self::default();
        }
        let members = members(config, ids);
        let shares = shared.into_iter().map(|(name, rate)| {
            let old = self.0.get(name);
            let same = old.filter(|old| old.are(rate, &members)).cloned();
            let shares = same.unwrap_or_else(|| {
                Arc::new(match old {
                    Some(old) => InboundShares::in_place_of(old, rate, &members),
                    None => InboundShares::new(rate, &members),
                })
            });
            (name.clone(), shares)
        });
        Self(shares.collect())
    }

    pub(super) fn of(&self, port: &str) -> Option<Arc<InboundShares>> {
        self.0.get(port).cloned()
    }
}

/// Returns the ports of all tenants with their weights.
fn members(config: &HostConfig, ids: &IdTable) -> Vec<Member> {
    let weights: BTreeMap<&str, Weight> = config
        .tenants
        .iter()
        .map(|tenant| (tenant.name.as_str(), tenant.uplink_weight.0))
        .collect();
    let member = |port: &Port| {
        let tenant = port.tenant.as_deref()?;
        Some(Member {
            port: ids.port(&port.name)?,
            tenant: ids.tenant(tenant)?,
            tenant_weight: *weights.get(tenant)?,
            vm_weight: port.uplink_share.0,
        })
    };
    config.ports.iter().filter_map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn config(inbound: &str, weight: u64) -> HostConfig {
        let text = format!(
            "[host]\nname = \"h\"\n[[tenant]]\nname = \"red\"\nuplink_weight = {weight}\n\
             [[port]]\nname = \"up\"\ntap.interface = \"up\"\nlink = \"1G\"\n{inbound}\n\
             [[port]]\nname = \"a\"\ntap.interface = \"a\"\ntenant = \"red\"\n"
        );
        parse(&text, "test").unwrap()
    }

    #[test]
    fn shares_stay_until_a_rate_or_a_weight_changes() {
        let next = |table: &InboundTable, inbound: &str, weight| {
            let config = config(inbound, weight);
            table.next(&config, &IdTable::default().next(&config))
        };
        let of = |table: &InboundTable| table.of("up").unwrap();
        let none = next(&InboundTable::default(), "", 5);
        assert!(none.of("up").is_none());
        let first = next(&none, "inbound = {}", 5);
        assert_eq!(of(&first).rate().0, 950_000_000);
        assert!(first.of("a").is_none());
        let same = next(&first, "inbound = { rate = \"950M\" }", 5);
        assert!(Arc::ptr_eq(&of(&first), &of(&same)));
        let slower = next(&same, "inbound = { rate = \"900M\" }", 5);
        assert_eq!(of(&slower).rate().0, 900_000_000);
        let heavier = next(&slower, "inbound = { rate = \"900M\" }", 6);
        assert!(!Arc::ptr_eq(&of(&slower), &of(&heavier)));
    }
}
