//! Rates between two readings of the counters, for `stats --watch` and `top`.
//!
//! # Approach
//!
//! A rate is the difference of a counter divided by the time between the readings. If a counter has
//! decreased, the daemon has restarted or a port was replaced, and the counter started at 0.
//! Because a decreased counter counts from 0, a rate is never negative. A port without an earlier
//! reading has no rate yet.

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

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortRates {
    pub port: String,
    /// Frames per second that the switch received from the port.
    pub rx_pps: f64,
    /// Bits per second from the port, including the FCS but not the gap between frames.
    pub rx_bps: f64,
    /// Frames per second to the port.
    pub tx_pps: f64,
    /// Bits per second to the port, including the FCS but not the gap between frames.
    pub tx_bps: f64,
    /// Drops per second of frames from and towards the port.
    pub drop_pps: f64,
    /// Most frequent reason for drops between the readings, and the drops per second for this
    /// reason.
    pub drop_reason: Option<(String, f64)>,
    /// Share of one core that the port's batches took, 0..=1.
    pub core_share: f64,
    /// Cycles per frame from the port, in all stages; `None` without frames.
    pub cycles_per_frame: Option<f64>,
    /// Cycles per frame of ingress, classification and egress in sampled batches.
    pub stage_cycles: Option<[f64; 3]>,
    /// Frames from the port that wait inside the switch now.
    pub queued: u64,
    /// Cycles per second charged to the port.
    pub cycles: f64,
    /// Cycles in the port's bucket now. `tokens` is negative if the port spent more cycles than the
    /// bucket had.
    pub tokens: i64,
    /// Time for which frames waited in the port's ring until the worker took them, in nanoseconds.
    /// The pair consists of the mean delay of all batches between the readings, and the maximum
    /// delay in the last two seconds. The mean delay and the maximum delay are upper bounds, and
    /// are `None` without batches.
    pub delay_ns: Option<(f64, u64)>,
    /// Frames that wait in the queue towards the port now, and the 99th percentile of their wait in
    /// nanoseconds. `None` if the port has no output queue, or if no frame waited in the queue in
    /// the last second.
    pub queue: Option<(u64, u64)>,
    /// Fraction of the time (0 to 1) in which frames waited because the port had no cycles.
    pub throttled_share: f64,
    /// Delays of the frames between the readings. The list omits kinds of delay that no frame had.
    pub delays: Vec<Delays>,
    /// State of the port's measured RTP streams at the later reading.
    pub rtp: Vec<RtpStatus>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerRates {
    pub id: u32,
    pub core: u32,
    pub stalled: bool,
    /// Shares of the worker's time between the readings.
    pub time: WorkerTime,
}

/// Shares of a worker's time, by kind of work. The sum of all shares of a worker's time is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerTime {
    /// Share of time that the worker charged to ports.
    pub charged: f64,
    /// Share of time for work that no port caused: refills, control requests, new snapshots.
    pub host: f64,
    /// Share of time in which no port had work.
    pub idle: f64,
    /// Share of time in which the core ran other programs.
    pub stolen: f64,
    /// Share of the worker's time that no other field contains. The unattributed share is negative
    /// if the other shares exceed the worker's time.
    pub unattributed: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Seconds between the readings; 0 if `later` is not later than `earlier`.
    pub interval_s: f64,
    /// One entry for each port of the later reading, in the reading's order.
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
                let before = earlier.workers.iter().find(|other| other.id == worker.id);
                worker_rates(before, worker, interval_s * to_f64(tsc_hz))
            })
            .collect();
        Self { interval_s, ports, workers }
    }
}

/// Returns the growth of a counter between two readings. If a counter has decreased, it restarted
/// at 0 after the first reading.
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

/// Drops per second by reason. Reasons for drops of frames towards the port start with `tx `.
fn drop_rates(before: &PortStats, now: &PortStats, seconds: f64) -> Vec<(String, f64)> {
    let rate =
        |old: &Named, now: &NamedCount| to_f64(grown(counter(old, &now.name), now.value)) / seconds;
    let from = now.drops.iter().map(|n| (n.name.clone(), rate(&before.drops, n)));
    let to = now.tx_drops.iter().map(|n| (format!("tx {}", n.name), rate(&before.tx_drops, n)));
    from.chain(to).collect()
}

/// The argument `passed` is the time between the two readings, in cycles. The rates of a worker
/// that did not exist at the earlier reading are 0.
fn worker_rates(before: Option<&WorkerStatus>, now: &WorkerStatus, passed: f64) -> WorkerRates {
    let mut rates =
        WorkerRates { id: now.id, core: now.core, stalled: now.stalled, ..WorkerRates::default() };
    let Some(before) = before.filter(|_| passed > 0.0) else { return rates };
    let share = |name| {
        to_f64(grown(counter(&before.counters, name), counter(&now.counters, name))) / passed
    };
    let [charged, host, idle, stolen] =
        ["cycles_charged", "cycles_host", "cycles_idle", "cycles_stolen"].map(share);
    let unattributed = 1.0 - (charged + host + idle + stolen);
    rates.time = WorkerTime { charged, host, idle, stolen, unattributed };
    rates
}

/// Sample readings for the tests of modules that print rates.
#[cfg(test)]
pub mod fixture {
    use super::*;

    /// Returns a reading of port vm1 at `time_s` with the given counters and drops.
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
                // The core has 1 GHz.
                counters: own(&[
                    ("cycles_charged", time_s * 250_000_000),
                    ("cycles_host", time_s * 10_000_000),
                    ("cycles_idle", time_s * 740_000_000),
                ]),
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
    fn the_accounts_of_a_worker_are_shares_of_its_time_and_show_what_is_missing() {
        let worker = |cycles: [u64; 4]| {
            let names = ["cycles_charged", "cycles_host", "cycles_idle", "cycles_stolen"];
            let counters = names.into_iter().zip(cycles);
            let counters = counters.map(|(name, value)| NamedCount::new(name, value)).collect();
            WorkerStatus { counters, ..WorkerStatus::default() }
        };
        let (before, now) = (worker([10, 0, 0, 0]), worker([260, 125, 250, 250]));
        let time = worker_rates(Some(&before), &now, 1_000.0).time;
        let WorkerTime { charged, host, idle, stolen, unattributed } = time;
        assert_eq!([charged, host, idle, stolen, unattributed], [0.25, 0.125, 0.25, 0.25, 0.125]);
        assert_eq!(worker_rates(None, &now, 1_000.0).time, WorkerTime::default());
        assert_eq!(worker_rates(Some(&before), &now, 0.0).time, WorkerTime::default());
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
