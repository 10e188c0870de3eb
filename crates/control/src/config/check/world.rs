//! Looks up tenants, ports and networks by name, for checks of references between objects.

use std::collections::HashMap;

use penstock_toml::Object;

use super::super::draft::Draft;
use super::super::model::{Port, Tenant};
use super::super::network::Networks;

/// Objects by name. The value `None` marks an object that could not be read because of a mistake.
pub(super) struct World<'a> {
    pub(super) networks: Networks,
    pub(super) tenants: HashMap<&'a str, Option<&'a Tenant>>,
    pub(super) ports: HashMap<&'a str, Option<&'a Port>>,
}

impl<'a> World<'a> {
    pub(super) fn new(draft: &'a Draft<'_>) -> Self {
        fn by_name<'a, T>(objects: &'a [Object<'_, T>]) -> HashMap<&'a str, Option<&'a T>> {
            let named = objects.iter().rev();
            named.filter_map(|o| Some((o.name.as_deref()?, o.value.as_ref()))).collect()
        }
        Self {
            networks: Networks::new(draft.tenants.iter().map(|t| t.value.as_ref())),
            tenants: by_name(&draft.tenants),
            ports: by_name(&draft.ports),
        }
    }

    /// A tenant's VLANs as text, for errors.
    pub(super) fn vlans_text(tenant: &Tenant) -> String {
        if tenant.vlans.is_empty() { "untagged".to_owned() } else { tenant.vlans.to_string() }
    }
}
