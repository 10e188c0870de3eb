//! Rates between two readings of the counters, for `stats --watch` and `top`.
//!
//! # Approach
//!
//! A rate is the difference of a counter divided by the time between the readings. If a counter has
//! decreased, it has started at 0 again, because the daemon restarted or a port was replaced. A
//! rate is therefore never negative. A port without an earlier reading has no rate yet.

use std::collections::HashMap;

use penstock_control::api::{
    Delays, Named, NamedCount, PortStats, RtpStatus, Stats, WorkerStatus, bits_of,
};

use crate::table::to_f64;

/// Returns the counter of this name, or 0 if the daemon has no such counter.
#[must_use]
pub fn counter(counters: &Named, name: &str) -> u64 {
    counters.iter().find(|count| count.name == name).map_or(0, |count| count.value)
}

/// Rates of a port between two readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortRates {
    pub port: String,
    /// Frames per second from the port.
    pub rx_pps: f64,
    /// Bits per second from the port, including the FCS but not the gap between frames.
    pub rx_bps: f64,
    /// Frames per second to the port.
    pub tx_pps: f64,
    /// Bits per second to the port, including the FCS but not the gap between frames.
    pub tx_bps: f64,
    /// Drops per second of frames from and towards the port.
    pub drop_pps: f64,
    /// The reason of most drops, with its rate.
    pub drop_reason: Option<(String, f64)>,
    /// Share of one core that the port's batches took, 0..=1.
    pub core_share: f64,
    /// Cycles per frame from the port, in all stages. `None` without frames.
    pub cycles_per_frame: Option<f64>,
    /// Cycles per frame of ingress, classification and egress in sampled batches.
    pub stage_cycles: Option<[f64; 3]>,
    /// Frames that wait inside the switch now.
    pub queued: u64,
    /// Cycles per second charged to the port.
    pub cycles: f64,
    /// Cycles in the port's bucket now. Negative while the port is in debt.
    pub tokens: i64,
    /// Upper bound of the frames' wait for their turn, in nanoseconds: the mean over batches, and
    /// the maximum of the last two seconds. `None` without batches.
    pub delay_ns: Option<(f64, u64)>,
    /// Frames that wait for the port now, and the 99th percentile of their wait in nanoseconds.
    /// `None` without a queue, or if no frame waited in the last second.
    pub queue: Option<(u64, u64)>,
    /// Part of the time in which frames waited and there were no cycles for them, 0..=1.
    pub throttled_share: f64,
    /// How long frames waited between the readings. Delays without frames are left out.
    pub delays: Vec<Delays>,
    /// RTP streams at the later reading.
    pub rtp: Vec<RtpStatus>,
}

/// Rates of a worker between two readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerRates {
    pub id: u32,
    pub core: u32,
    /// Whether the worker was stalled at the later reading.
    pub stalled: bool,
    /// Share of the worker's cycles that turns with frames took, 0..=1.
    pub busy_share: f64,
    /// Share of all cycles in which the core ran other programs, 0..=1.
    pub stolen_share: f64,
}

/// All rates between two readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Seconds between the readings. 0 if the later reading has no later time.
    pub interval_s: f64,
    /// One entry per port of the later reading, in its order.
    pub ports: Vec<PortRates>,
    pub workers: Vec<WorkerRates>,
}

impl Rates {
    /// Returns the rates between `earlier` and `later`. `tsc_hz` converts cycles to shares of a
    /// core.
    #[must_use]
    pub fn between(earlier: &Stats, later: &Stats, tsc_hz: u64) -> Self {
        let interval_s = to_f64(later.time_ns.saturating_sub(earlier.time_ns)) / 1e9;
        let before: HashMap<&str, &PortStats> =
            earlier.ports.iter().map(|port| (port.port.as_str(), port)).collect();
        let ports = later
            .ports
            .iter()
            .map(|port| {
                port_rates(before.get(port.port.as_str()).copied(), port, interval_s, tsc_hz)
            })
            .collect();
        let workers = later
            .workers
            .iter()
            .map(|worker| {
                worker_rates(earlier.workers.iter().find(|other| other.id == worker.id), worker)
            })
            .collect();
        Self { interval_s, ports, workers }
    }
}

/// Returns the growth of a counter. A counter that has decreased has started at 0 again.
fn grown(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn port_rates(before: Option<&PortStats>, now: &PortStats, seconds: f64, hz: u64) -> PortRates {
    let mut rates = PortRates {
        port: now.port.clone(),
        queued: counter(&now.counters, "queued"),
        tokens: counter(&now.counters, "tokens").cast_signed()
            - counter(&now.counters, "debt").cast_signed(),
        rtp: now.rtp.clone(),
        ..PortRates::default()
    };
    let Some(before) = before.filter(|_| seconds > 0.0) else { return rates };
    let delta = |name| grown(counter(&before.counters, name), counter(&now.counters, name));
    let rate = |name| to_f64(delta(name)) / seconds;
    rates.cycles = rate("cycles");
    rates.rx_pps = rate("rx_frames");
    let bits = |bytes, frames| to_f64(bits_of(delta(bytes), delta(frames))) / seconds;
    rates.rx_bps = bits("rx_bytes", "rx_frames");
    rates.tx_pps = rate("tx_frames");
    rates.tx_bps = bits("tx_bytes", "tx_frames");
    for (name, rate) in drop_rates(before, now, seconds) {
        rates.drop_pps += rate;
        if rate > 0.0 && rates.drop_reason.as_ref().is_none_or(|(_, most)| rate > *most) {
            rates.drop_reason = Some((name, rate));
        }
    }
    if hz > 0 {
        rates.core_share = rate("cycles") / to_f64(hz);
        rates.throttled_share = (rate("throttled") / to_f64(hz)).min(1.0);
    }
    let frames = delta("rx_frames");
    rates.cycles_per_frame = (frames > 0).then(|| to_f64(delta("cycles")) / to_f64(frames));
    let batches = delta("rx_batches");
    let delay_max = counter(&now.counters, "delay_max");
    rates.delay_ns = (batches > 0).then(|| (to_f64(delta("delay")) / to_f64(batches), delay_max));
    let queue = ["tx_queued", "tx_queue_p99"].map(|name| counter(&now.counters, name));
    rates.queue = (queue != [0, 0]).then_some((queue[0], queue[1]));
    let old = |name: &str| before.delays.iter().find(|delays| delays.name == name);
    let window = now.delays.iter().map(|delays| delays.since(old(&delays.name)));
    rates.delays = window.filter(|delays| delays.frames() > 0).collect();
    let stages = ["cycles_ingress", "cycles_classification", "cycles_egress"];
    let sampled = delta("sampled_frames");
    rates.stage_cycles =
        (sampled > 0).then(|| stages.map(|name| to_f64(delta(name)) / to_f64(sampled)));
    rates
}

/// Drops per second by reason. Reasons towards the port start with `tx `.
fn drop_rates(before: &PortStats, now: &PortStats, seconds: f64) -> Vec<(String, f64)> {
    let rate =
        |old: &Named, now: &NamedCount| to_f64(grown(counter(old, &now.name), now.value)) / seconds;
    let from = now.drops.iter().map(|n| (n.name.clone(), rate(&before.drops, n)));
    let to = now.tx_drops.iter().map(|n| (format!("tx {}", n.name), rate(&before.tx_drops, n)));
    from.chain(to).collect()
}

fn worker_rates(before: Option<&WorkerStatus>, now: &WorkerStatus) -> WorkerRates {
    let empty = Named::new();
    let old = before.map_or(&empty, |before| &before.counters);
    let delta = |name| to_f64(grown(counter(old, name), counter(&now.counters, name)));
    let (busy, idle, control) =
        (delta("cycles_charged"), delta("cycles_idle"), delta("cycles_host"));
    let stolen = delta("cycles_stolen");
    let own = busy + idle + control;
    // The data path does not count stolen cycles in the other three counters.
    let share = |part: f64, total: f64| if total > 0.0 { part / total } else { 0.0 };
    WorkerRates {
        id: now.id,
        core: now.core,
        stalled: now.stalled,
        busy_share: share(busy, own),
        stolen_share: share(stolen, own + stolen),
    }
}

/// Readings for tests of the modules that show rates.
#[cfg(test)]
pub mod fixture {
    use super::*;

    /// Returns a reading of port vm1 at `time_s` with these counters.
    pub fn reading(time_s: u64, counters: &[(&str, u64)], drops: &[(&str, u64)]) -> Stats {
        let own = |list: &[(&str, u64)]| {
            list.iter().map(|(name, value)| NamedCount::new(name, *value)).collect::<Named>()
        };
        Stats {
            time_ns: time_s * 1_000_000_000,
            ports: vec![PortStats {
                port: "vm1".into(),
                counters: own(counters),
                drops: own(drops),
                ..PortStats::default()
            }],
            workers: vec![WorkerStatus {
                core: 3,
                counters: own(&[("cycles_charged", time_s * 250), ("cycles_idle", time_s * 750)]),
                schedule: "round-robin".into(),
                ..WorkerStatus::default()
            }],
            ..Stats::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::reading;
    use super::*;

    #[test]
    fn rates_are_differences_over_the_readings_own_time() {
        let earlier = reading(10, &[("rx_frames", 100), ("rx_bytes", 6_400), ("cycles", 0)], &[]);
        let later = reading(
            12,
            &[("rx_frames", 300), ("rx_bytes", 19_200), ("cycles", 20_000)],
            &[("rule", 4), ("runt", 10)],
        );
        let rates = Rates::between(&earlier, &later, 100_000);
        let port = &rates.ports[0];
        assert_eq!((port.rx_pps, port.rx_bps), (100.0, 54_400.0));
        assert_eq!(port.drop_pps, 7.0);
        assert_eq!(port.drop_reason, Some(("runt".into(), 5.0)));
        assert_eq!(port.cycles_per_frame, Some(100.0));
        assert_eq!(port.core_share, 0.1);
        assert_eq!(rates.workers[0].busy_share, 0.25);
    }

    #[test]
    fn a_ports_delay_is_the_mean_of_its_batches_and_the_largest() {
        let earlier = reading(10, &[("rx_batches", 5), ("delay", 1_000)], &[]);
        let counters = [("rx_batches", 9), ("delay", 3_000), ("delay_max", 900)];
        let later = reading(11, &counters, &[]);
        assert_eq!(Rates::between(&earlier, &later, 1).ports[0].delay_ns, Some((500.0, 900)));
        assert_eq!(Rates::between(&later, &later, 1).ports[0].delay_ns, None);
    }

    #[test]
    fn stolen_cycles_are_not_the_workers_own() {
        let worker = |busy, idle, stolen| WorkerStatus {
            counters: [("cycles_charged", busy), ("cycles_idle", idle), ("cycles_stolen", stolen)]
                .map(|(name, value)| NamedCount::new(name, value))
                .into(),
            ..WorkerStatus::default()
        };
        let rates = worker_rates(Some(&worker(0, 0, 0)), &worker(25, 75, 300));
        assert_eq!((rates.busy_share, rates.stolen_share), (0.25, 0.75));
    }

    #[test]
    fn a_counter_that_went_back_starts_from_zero() {
        let earlier = reading(10, &[("rx_frames", 1_000)], &[]);
        let later = reading(11, &[("rx_frames", 5)], &[]);
        assert_eq!(Rates::between(&earlier, &later, 0).ports[0].rx_pps, 5.0);
    }

    #[test]
    fn no_time_between_readings_is_no_rate() {
        let now = reading(10, &[("rx_frames", 1_000)], &[]);
        let rates = Rates::between(&now, &now, 1);
        assert_eq!(rates.ports[0].rx_pps, 0.0);
        assert!(rates.ports[0].rx_pps.is_finite());
    }
}
