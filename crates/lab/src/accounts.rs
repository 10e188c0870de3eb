//! Divides the workers' cycles in the figure `c2qos-bill` into accounts, and judges the claims
//! about the accounts. The simulated and the live figure share this module.

use crate::evidence::{Claim, Outcome};

/// Names of the accounts of a worker's time, in the order of the account arrays in this module.
pub(crate) const NAMES: [&str; 4] = ["charged to ports", "host", "idle", "stolen"];

/// Results of the simulated or the live figure. Fields with percentages and ratios have the units
/// of the claims about the fields.
#[derive(Debug)]
pub(crate) struct Found {
    pub kept: f64,
    /// Cycles charged to a neighbour VM, divided by the cycles that the neighbour caused (index 0:
    /// kicks, 1: send calls).
    pub charged: [f64; 2],
    pub lower: f64,
}

/// Limits within which the claims of the figure `c2qos-bill` hold.
#[derive(Debug)]
pub(crate) struct Bands {
    pub kept: f64,
    pub charged: (f64, f64),
    pub lower: f64,
    pub unattributed: f64,
    pub host: f64,
}

/// Division of the workers' time into accounts, over all measurement windows of a figure.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Largest part of a measurement window's time that belongs to none of the accounts, in
    /// percent.
    unattributed_pct: f64,
    /// Largest part of a measurement window's time that no port caused, in percent.
    host_pct: f64,
    /// Time in each account for each measurement window, in percent of the window's time.
    windows: Vec<[f64; 4]>,
}

impl Totals {
    /// Adds a measurement window of `passed` cycles, counted over the cores of all workers.
    pub(crate) fn add(&mut self, accounts: [f64; 4], passed: f64) {
        let pct = |cycles: f64| 100.0 * cycles / passed;
        let open = (passed - accounts.iter().sum::<f64>()).abs();
        self.unattributed_pct = self.unattributed_pct.max(pct(open));
        self.host_pct = self.host_pct.max(pct(accounts[1]));
        self.windows.push(accounts.map(pct));
    }

    /// Adds the claims to `outcome`, and a series for each account of the workers' time.
    pub(crate) fn conclude(&self, outcome: &mut Outcome, found: &Found, bands: &Bands) {
        let [kicks, calls] = found.charged;
        let (low, high) = bands.charged;
        for claim in [
            Claim::new(
                "kicks_victim_kept_pct",
                "frames of a metered VM beside a VM whose frames need a kick each, of those alone",
                "%",
            )
            .at_least(bands.kept)
            .measured(found.kept),
            Claim::new(
                "kicks_charged_over_caused",
                "cycles charged to a VM whose frames need kicks, over those its presence costs",
                "",
            )
            .within(low, high)
            .measured(kicks),
            Claim::new(
                "sendto_charged_over_caused",
                "cycles charged to a sender to an AF_XDP uplink, over those its presence costs",
                "",
            )
            .within(low, high)
            .measured(calls),
            Claim::new(
                "lower_class_kept_pct",
                "cycles of a VM of class 8 behind a flood of class 1, of the cycles it bought",
                "%",
            )
            .at_least(bands.lower)
            .measured(found.lower),
            Claim::new("unattributed_pct", "cycles in no account, of the workers' time", "%")
                .at_most(bands.unattributed)
                .measured(self.unattributed_pct),
            Claim::new("host_pct_max", "cycles that no port caused, of the workers' time", "%")
                .at_most(bands.host)
                .measured(self.host_pct),
        ] {
            outcome.claim(claim);
        }
        for (at, account) in NAMES.into_iter().enumerate() {
            let windows = self.windows.iter().zip(1_u32..);
            outcome.series(account, "%", windows.map(|(window, n)| (f64::from(n), window[at])));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_window_counts() {
        let mut totals = Totals::default();
        totals.add([500.0, 20.0, 470.0, 0.0], 1_000.0);
        totals.add([405.0, 15.0, 580.0, 0.0], 1_000.0);
        assert!((totals.host_pct - 2.0).abs() < 1e-9);
        assert!((totals.unattributed_pct - 1.0).abs() < 1e-9);
        assert_eq!(totals.windows.len(), 2);
    }
}
