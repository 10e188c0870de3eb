//! The view of delays: waiting times of each port's frames, and jitter and loss of its streams.

use super::model::Model;
use crate::rates::PortRates;
use crate::table::Table;
use crate::verbs::delays::micros;

/// Headings of the columns. The waiting times are the median and the 99th percentile since the last
/// reading.
pub const HEADING: [&str; 7] = [
    "PORT",
    "WAITED us p50/p99",
    "VARIED us p99",
    "SHAPED us p50/p99",
    "TO IT us p50/p99",
    "QUEUED",
    "RTP JITTER us/LOST",
];
/// Indices of the columns that the view hides on a narrow terminal, in the order of hiding.
pub const HIDDEN_FIRST: [usize; 4] = [5, 3, 6, 2];

#[must_use]
pub fn cells(port: &PortRates) -> [String; 7] {
    let find = |name: &str| port.delays.iter().find(|delays| delays.name == name);
    let both = |name: &str| {
        find(name).map_or_else(
            || "-".to_owned(),
            |delays| {
                let of = |milli| micros(delays.percentile(milli));
                format!("{}/{}", of(50_000), of(99_000))
            },
        )
    };
    let streams = port.rtp.iter().filter(|stream| stream.packets > 0).map(|stream| {
        let jitter = micros(Some(stream.jitter_ns));
        format!(":{} {jitter}/{}", stream.udp_port, stream.lost)
    });
    let streams: Vec<String> = streams.collect();
    [
        port.port.clone(),
        both("waited"),
        find("varied").map_or_else(|| "-".to_owned(), |d| micros(d.percentile(99_000))),
        both("shaped"),
        both("tx_waited"),
        port.queued.to_string(),
        if streams.is_empty() { "-".to_owned() } else { streams.join("  ") },
    ]
}

#[must_use]
pub fn table(model: &Model) -> String {
    let mut table = Table::new(&HEADING.join("|>"));
    for port in &model.rates().ports {
        table.row(cells(port));
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_control::api::{Delays, RtpStatus};

    #[test]
    fn a_row_says_what_waited_and_what_became_of_streams() {
        let counts = |part: usize| {
            let mut counts = vec![0; part + 1];
            counts[part] = 7;
            counts
        };
        let port = PortRates {
            port: "vm1".into(),
            delays: vec![
                Delays { name: "waited".into(), counts: counts(41) },
                Delays { name: "varied".into(), counts: counts(1) },
            ],
            rtp: vec![
                RtpStatus {
                    udp_port: 5_004,
                    packets: 9,
                    lost: 1,
                    jitter_ns: 1_500,
                    ..Default::default()
                },
                RtpStatus { udp_port: 5_006, ..Default::default() },
            ],
            ..PortRates::default()
        };
        assert_eq!(cells(&port).join("|"), "vm1|1180/1180|1.2|-|-|0|:5004 1.5/1");
        assert_eq!(cells(&PortRates::default())[6], "-");
    }
}
