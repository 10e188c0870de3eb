//! Checks `[[tenant]]`: names, ranges, and the number of networks.

use penstock_toml::Report;

use super::super::draft::Draft;
use super::super::limits::{DOMAINS_MAX, TENANTS_MAX};
use super::super::values::{check_count, check_names, check_range};
use super::super::wfq::DSCPS;
use super::world::World;

pub(super) fn check(draft: &Draft<'_>, world: &World<'_>, report: &mut Report<'_>) {
    check_names(&draft.tenants, report);
    check_count(&draft.tenants, "tenant", TENANTS_MAX, report);
    for object in &draft.tenants {
        if let Some(tenant) = &object.value {
            check_range(object, "fdb_limit", tenant.fdb_limit, 1..=131_072, report);
            if let Some(dscp) = tenant.dscp {
                check_range(object, "dscp", dscp.into(), DSCPS, report);
            }
            if let Some(receive) = &tenant.receive {
                receive.check(object, "receive", report);
            }
            if let Some(send) = &tenant.send {
                send.check(object, "send", report);
                if send.sharing.is_some() {
                    let remedy = "remove `sharing`; the tenant's VMs share the rate of `send`";
                    report.at(object, "send.sharing", "`sharing` belongs to `receive`", remedy);
                }
            }
        }
    }
    let networks = world.networks.len();
    if networks > DOMAINS_MAX
        && let Some(last) = draft.tenants.last()
    {
        let problem =
            format!("all tenants' VLANs together are {networks}, the limit is {DOMAINS_MAX}");
        report.at(last, "vlans", problem, "list only the VLANs that are used");
    }
}
