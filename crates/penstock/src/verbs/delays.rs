//! `penstock stats --delays` prints waiting times of frames, their variation, and the jitter of RTP
//! streams.

use penstock_control::api::{Delays, PortStats};

use crate::table::{Table, count, to_f64};

/// Kinds of delay, each with its meaning.
const MEANINGS: [(&str, &str); 4] = [
    ("waited", "time that the port's frames waited in the switch"),
    ("varied", "delay variation of the port's frames (RFC 3393)"),
    ("tx_waited", "time that frames for the port waited in the port's queue"),
    ("shaped", "time that the shaper kept frames in the port's ring"),
];

/// Formats nanoseconds as microseconds, with one decimal if the number is below 10.
#[must_use]
pub fn micros(nanos: Option<u64>) -> String {
    let Some(nanos) = nanos else { return "-".to_owned() };
    let micros = to_f64(nanos) / 1e3;
    if micros < 10.0 { format!("{micros:.1}") } else { format!("{micros:.0}") }
}

/// Returns all ports' delays since the daemon's start, and then their RTP streams.
#[must_use]
pub fn table(ports: &[PortStats]) -> String {
    let mut table = Table::new("PORT|WAIT|>FRAMES|>p50 us|>p99 us|>p99.9 us|MEANING");
    for (port, delays) in ports.iter().flat_map(|p| p.delays.iter().map(move |d| (p, d))) {
        let of = |milli_percent| micros(delays.percentile(milli_percent));
        let meaning = MEANINGS.iter().find(|(name, _)| *name == delays.name);
        table.row([
            port.port.clone(),
            delays.name.clone(),
            count(delays.frames()),
            of(50_000),
            of(99_000),
            of(99_900),
            meaning.map_or("", |(_, meaning)| meaning).to_owned(),
        ]);
    }
    table.render_or("no delays: no frame was measured yet\n") + &streams(ports)
}

fn streams(ports: &[PortStats]) -> String {
    let mut table = Table::new("PORT|>RTP TO|>SSRC|>PACKETS|>LOST|>JITTER us|>MAX us");
    for (port, stream) in ports.iter().flat_map(|p| p.rtp.iter().map(move |s| (p, s))) {
        table.row([
            port.port.clone(),
            stream.udp_port.to_string(),
            format!("{:08x}", stream.ssrc),
            count(stream.packets),
            count(stream.lost),
            micros(Some(stream.jitter_ns)),
            micros(Some(stream.jitter_max_ns)),
        ]);
    }
    let text = table.render_or("");
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// Returns the delays of the kind `name`, or `None` if no frame of the port had such a delay.
#[must_use]
pub fn of<'a>(port: &'a PortStats, name: &str) -> Option<&'a Delays> {
    port.delays.iter().find(|delays| delays.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_control::api::RtpStatus;

    #[test]
    fn delays_and_streams_are_listed() {
        let mut counts = vec![0; 60];
        (counts[0], counts[41]) = (90, 10);
        let port = PortStats {
            port: "vm1".into(),
            delays: vec![Delays { name: "waited".into(), counts }],
            rtp: vec![RtpStatus {
                udp_port: 5_004,
                ssrc: 0xabcd,
                packets: 1_000,
                lost: 2,
                jitter_ns: 1_211_000,
                jitter_max_ns: 4_000_000,
            }],
            ..PortStats::default()
        };
        assert_eq!(
            table(&[port]),
            "\
PORT  WAIT    FRAMES  p50 us  p99 us  p99.9 us  MEANING
vm1   waited     100     0.5    1180      1180  time that the port's frames waited in the switch

PORT  RTP TO      SSRC  PACKETS  LOST  JITTER us  MAX us
vm1     5004  0000abcd    1,000     2       1211    4000
"
        );
        assert_eq!(table(&[PortStats::default()]), "no delays: no frame was measured yet\n");
    }
}
