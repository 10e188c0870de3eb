//! State of the live view: the last two readings, the sort order, and the visible part.

use penstock_control::api::{HostStatus, PortStatus, Stats};

use penstock_vcpu_host::state::State;

use crate::rates::{PortRates, Rates};

/// State, counters and schedule of the host, read together.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub status: HostStatus,
    pub ports: Vec<PortStatus>,
    pub stats: Stats,
    /// State of the vCPU scheduler, if one runs.
    pub vcpus: Option<State>,
}

/// Order of the ports in the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The ports are in the order of the configuration.
    #[default]
    Slot,
    /// The view sorts ports by frames in both directions, the highest number first.
    Frames,
    /// The view sorts ports by bits in both directions, the highest number first.
    Bits,
    /// The view sorts ports by drops, the highest number first.
    Drops,
    /// The view sorts ports by cycles, the highest number first.
    Core,
}

impl Sort {
    #[must_use]
    pub const fn next(self) -> Self {
        match self {
            Self::Slot => Self::Frames,
            Self::Frames => Self::Bits,
            Self::Bits => Self::Drops,
            Self::Drops => Self::Core,
            Self::Core => Self::Slot,
        }
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slot => "id",
            Self::Frames => "frames",
            Self::Bits => "bits",
            Self::Drops => "drops",
            Self::Core => "core",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    Rates,
    Cycles,
    Delays,
    Vcpus,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    before: Option<Reading>,
    now: Reading,
    pub sort: Sort,
    /// Whether the view ignores new readings.
    pub paused: bool,
    pub view: View,
    /// Number of ports above the first visible port.
    pub scroll: usize,
}

impl Model {
    pub fn take(&mut self, reading: Reading) {
        let before = std::mem::replace(&mut self.now, reading);
        self.before = (before.stats.time_ns > 0).then_some(before);
        self.scroll = self.scroll.min(self.last_scroll());
    }

    /// Shows `view`, or shows the rates if `view` is already visible.
    pub fn toggle(&mut self, view: View) {
        self.view = if self.view == view { View::Rates } else { view };
    }

    /// Scrolls the table of ports down by one row, unless the last port is already visible.
    pub fn scroll_down(&mut self) {
        self.scroll = (self.scroll + 1).min(self.last_scroll());
    }

    fn last_scroll(&self) -> usize {
        self.now.stats.ports.len().saturating_sub(1)
    }

    #[must_use]
    pub const fn status(&self) -> &HostStatus {
        &self.now.status
    }

    #[must_use]
    pub const fn vcpus(&self) -> Option<&State> {
        self.now.vcpus.as_ref()
    }

    /// Returns the state of the port `name`. Returns `None` for the row that contains the sums of
    /// all deleted ports.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<&PortStatus> {
        self.now.ports.iter().find(|port| port.name == name)
    }

    /// Returns the rates between the last two readings, with the ports in the chosen order.
    #[must_use]
    pub fn rates(&self) -> Rates {
        let before = self.before.as_ref().map_or(&self.now.stats, |before| &before.stats);
        let mut rates = Rates::between(before, &self.now.stats, self.now.status.tsc_hz);
        let key: fn(&PortRates) -> f64 = match self.sort {
            Sort::Slot => return rates,
            Sort::Frames => |port| port.rx_pps + port.tx_pps,
            Sort::Bits => |port| port.rx_bps + port.tx_bps,
            Sort::Drops => |port| port.drop_pps,
            Sort::Core => |port| port.core_share,
        };
        rates.ports.sort_by(|a, b| key(b).total_cmp(&key(a)));
        rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_control::api::{NamedCount, PortStats};

    #[test]
    fn every_order_is_reached_by_the_key() {
        let mut sort = Sort::default();
        for _ in 0..5 {
            sort = sort.next();
        }
        assert_eq!(sort, Sort::default());
    }

    #[test]
    fn the_busiest_port_comes_first_when_sorted() {
        let reading = |time_ns, quiet: u64, busy: u64| {
            let port = |name: &str, frames| PortStats {
                port: name.into(),
                counters: vec![NamedCount::new("rx_frames", frames)],
                ..PortStats::default()
            };
            let ports = vec![port("quiet", quiet), port("busy", busy)];
            Reading { stats: Stats { time_ns, ports, ..Stats::default() }, ..Reading::default() }
        };
        let mut model = Model::default();
        model.take(reading(1_000_000_000, 5, 5));
        model.take(reading(2_000_000_000, 6, 100));
        assert_eq!(model.rates().ports[0].port, "quiet");
        model.sort = Sort::Frames;
        assert_eq!(model.rates().ports[0].port, "busy");
    }
}
