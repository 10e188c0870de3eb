//! Measures each tenant's traffic between two reports of the agent.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_units::NAME_BYTES_MAX;

use crate::wire::{MILLIS_MAX, TENANTS_MAX, v1};

/// Network traffic of a tenant in bytes, since the start of the tenant's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Number of bytes that the tenant's VMs on this host sent.
    pub sent: u64,
    /// Number of bytes that the tenant's VMs on this host received.
    pub received: u64,
}

/// Makes a session's traffic reports from the tenants' counters. The field `before` has the
/// counters at the previous report.
#[derive(Debug)]
pub(super) struct UsageMeter {
    number: u64,
    before: BTreeMap<String, Carried>,
}

impl UsageMeter {
    /// Creates the meter of a session. The argument `now` has the tenants' byte counters at the
    /// start of the session. The first report has the traffic since the start of the session.
    pub(super) fn new(now: BTreeMap<String, Carried>) -> Self {
        Self { number: 0, before: now }
    }

    /// Returns the next traffic report. `after` is the time since the previous report. Returns
    /// `None` if the time since the previous report exceeds [`MILLIS_MAX`].
    ///
    /// If a tenant's counter is new or has decreased, the report contains the counter's whole value
    /// instead of its growth. If the host has more tenants than a report may contain, the report
    /// contains the tenants with the most traffic.
    pub(super) fn report(
        &mut self,
        after: Duration,
        now: BTreeMap<String, Carried>,
    ) -> Option<v1::Report> {
        let since = |(name, now): (&String, &Carried)| {
            let before = self.before.get(name).copied().unwrap_or_default();
            let back = now.sent < before.sent || now.received < before.received;
            let before = if back { Carried::default() } else { before };
            v1::TenantUsage {
                name: name.clone(),
                sent_bytes: now.sent - before.sent,
                received_bytes: now.received - before.received,
            }
        };
        let named = |name: &String| (1..=NAME_BYTES_MAX).contains(&name.len());
        let mut tenants: Vec<_> = now.iter().filter(|(name, _)| named(name)).map(since).collect();
        if tenants.len() > TENANTS_MAX {
            tenants.sort_by_key(|t| std::cmp::Reverse(t.sent_bytes.max(t.received_bytes)));
            tenants.truncate(TENANTS_MAX);
        }
        self.before = now;
        let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1);
        if millis > MILLIS_MAX {
            return None;
        }
        self.number += 1;
        Some(v1::Report { number: self.number, millis, tenants })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(all: &[(&str, u64, u64)]) -> BTreeMap<String, Carried> {
        let one = |(name, sent, received): &(&str, u64, u64)| {
            ((*name).to_owned(), Carried { sent: *sent, received: *received })
        };
        all.iter().map(one).collect()
    }

    fn told(report: &v1::Report) -> Vec<(&str, u64, u64)> {
        let one = |t| -> (&str, u64, u64) {
            let t: &v1::TenantUsage = t;
            (&t.name, t.sent_bytes, t.received_bytes)
        };
        report.tenants.iter().map(one).collect()
    }

    #[test]
    fn reports_add_up_to_the_traffic() {
        let second = Duration::from_secs(1);
        let mut meter = UsageMeter::new(counters(&[("a", 1_000, 50)]));
        let report = meter.report(second, counters(&[("a", 1_500, 50), ("b", 7, 8)])).unwrap();
        assert_eq!((report.number, report.millis), (1, 1_000));
        assert_eq!(told(&report), [("a", 500, 0), ("b", 7, 8)], "b came meanwhile");
        let report = meter.report(second, counters(&[("a", 20, 60), ("b", 9, 8)])).unwrap();
        assert_eq!(report.number, 2);
        assert_eq!(told(&report), [("a", 20, 60), ("b", 2, 0)], "a's counters began anew");
        let hour = Duration::from_secs(3_601);
        assert_eq!(meter.report(hour, counters(&[("a", 90, 60)])), None);
        let report = meter.report(second, counters(&[("a", 91, 60)])).unwrap();
        assert_eq!((report.number, told(&report)), (3, vec![("a", 1, 0)]), "no number is left out");
    }

    #[test]
    fn a_tenant_with_the_longest_name_is_reported() {
        let name = "x".repeat(NAME_BYTES_MAX);
        let now = counters(&[(name.as_str(), 5, 6)]);
        let report = UsageMeter::new(BTreeMap::new()).report(Duration::from_secs(1), now).unwrap();
        assert_eq!(told(&report), [(name.as_str(), 5, 6)]);
    }

    #[test]
    fn a_report_with_too_many_tenants_has_those_with_the_most_traffic() {
        let many: BTreeMap<_, _> = (0..5_000_u64)
            .map(|n| (format!("t{n}"), Carried { sent: n, received: 0 }))
            .chain([("x".repeat(NAME_BYTES_MAX + 1), Carried { sent: 1 << 40, received: 0 })])
            .collect();
        let report = UsageMeter::new(BTreeMap::new()).report(Duration::from_secs(1), many).unwrap();
        assert_eq!(report.tenants.len(), TENANTS_MAX);
        assert_eq!(report.tenants[0].sent_bytes, 4_999, "a name that no controller takes");
        assert!(report.tenants.iter().all(|t| t.sent_bytes >= 904));
    }
}
