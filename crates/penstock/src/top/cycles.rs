//! The view of cycles: entitlement and usage of each port on its core.

use penstock_control::api::PortStatus;

use super::model::Model;
use crate::rates::PortRates;
use crate::table::{Table, cycle_rate, cycles_per_second, or_dash, percent, to_f64};

/// Headings of the columns. Rates and entitlements are in cycles per second. `DELAY` has the mean
/// and the maximum wait of frames until the worker takes them. `QUEUE` has the waiting frames, and
/// their 99th percentile of waits.
pub const HEADING: [&str; 12] = [
    "PORT",
    "POLICY",
    "CLASS",
    "WEIGHT",
    "ENTITLED",
    "CYCLES/S",
    "USED",
    "CORE",
    "TOKENS",
    "THROTTLED",
    "DELAY us",
    "QUEUE/p99 us",
];
/// Indices of the columns that the view hides on a narrow terminal, in the order of hiding.
pub const HIDDEN_FIRST: [usize; 10] = [8, 11, 3, 2, 10, 1, 9, 7, 6, 4];

#[must_use]
pub fn cells(port: &PortRates, status: Option<&PortStatus>) -> [String; 12] {
    let dash = || "-".to_owned();
    let metered = status.is_some_and(|status| status.policy.starts_with("cycles"));
    let rate = |cycles: f64| cycle_rate(cycles).trim_end_matches("cycles/s").trim_end().to_owned();
    let entitled = status.map_or(0, |status| status.entitled);
    let bought = entitled > 0;
    [
        port.port.clone(),
        status.map_or_else(dash, |status| or_dash(&status.policy)),
        status.map_or_else(dash, |status| status.priority.to_string()),
        status.map_or_else(dash, |status| status.weight.to_string()),
        if bought { cycles_per_second(entitled) } else { dash() },
        rate(port.cycles),
        if bought { percent(port.cycles / to_f64(entitled)) } else { dash() },
        percent(port.core_share),
        if metered { port.tokens.to_string() } else { dash() },
        if metered { percent(port.throttled_share) } else { dash() },
        port.delay_ns.map_or_else(dash, |(mean, most)| {
            format!("{:.1}/{:.1}", mean / 1e3, to_f64(most) / 1e3)
        }),
        port.queue.map_or_else(dash, |(frames, p99)| format!("{frames}/{:.0}", to_f64(p99) / 1e3)),
    ]
}

#[must_use]
pub fn table(model: &Model) -> String {
    let [first, others @ ..] = HEADING;
    let mut table = Table::new(&format!("{first}|{}", others.join("|>")));
    for port in &model.rates().ports {
        table.row(cells(port, model.port(&port.port)));
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metered_port_shows_what_it_bought_and_used() {
        let status = PortStatus {
            policy: "cycles-strict".into(),
            entitled: 200_000_000,
            weight: 2,
            priority: 1,
            ..PortStatus::default()
        };
        let port = PortRates {
            port: "vm1".into(),
            cycles: 150e6,
            core_share: 0.075,
            tokens: -12_345,
            throttled_share: 0.25,
            delay_ns: Some((12_340.0, 56_780)),
            queue: Some((31, 4_567_000)),
            ..PortRates::default()
        };
        let row = cells(&port, Some(&status)).join("|");
        let bought = "vm1|cycles-strict|1|2|200 M|150 M|75.0 %|7.5 %";
        assert_eq!(row, format!("{bought}|-12345|25.0 %|12.3/56.8|31/4567"));
        let free = PortStatus { policy: "none".into(), priority: 8, ..PortStatus::default() };
        let port = PortRates { queue: None, ..port };
        let row = cells(&port, Some(&free)).join("|");
        assert_eq!(row, "vm1|none|8|0|-|150 M|-|7.5 %|-|-|12.3/56.8|-");
        assert_eq!(cells(&port, None)[1], "-");
    }
}
