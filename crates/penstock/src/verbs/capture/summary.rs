//! One line of text for a captured frame.

use core::fmt::Write as _;
use core::net::{Ipv4Addr, Ipv6Addr};

use penstock_control::api::{CaptureDirection, CapturedFrame, Verdict};

const VLAN: u16 = 0x8100;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const NANOS: u64 = 1_000_000_000;

/// Returns what the switch did with a frame, as `key=value` pairs.
pub(super) fn fate(port: &str, frame: &CapturedFrame) -> String {
    let (direction, other) = match frame.direction() {
        CaptureDirection::Out => ("out", "from"),
        _ => ("in", "to"),
    };
    let verdict = match frame.verdict() {
        Verdict::Forwarded => "forwarded",
        Verdict::Queued => "queued",
        Verdict::HandedOver => "handed-over",
        Verdict::Dropped => "dropped",
        Verdict::Unknown => "unknown",
    };
    let mut text = format!("port={port} direction={direction} verdict={verdict}");
    for (key, value) in
        [("reason", &frame.reason), ("rule", &frame.rule), (other, &frame.other_port)]
    {
        if !value.is_empty() {
            let _ = write!(text, " {key}={value}");
        }
    }
    if frame.missed > 0 {
        let _ = write!(text, " left-out={}", frame.missed);
    }
    text
}

/// Returns a line with the time (UTC), the frame's addresses and what the switch did with it.
pub(super) fn line(port: &str, frame: &CapturedFrame) -> String {
    let (second, nanos) = (frame.unix_ns / NANOS, frame.unix_ns % NANOS);
    let (hour, minute) = (second / 3_600 % 24, second / 60 % 60);
    let headers = headers(&frame.data).unwrap_or_else(|| "(no bytes)".to_owned());
    let fate = fate(port, frame);
    format!(
        "{hour:02}:{minute:02}:{:02}.{nanos:09} {:>5} B  {headers}  {fate}\n",
        second % 60,
        frame.len
    )
}

fn headers(frame: &[u8]) -> Option<String> {
    let mac = |at: usize| {
        let bytes = frame.get(at..at + 6)?;
        Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
    };
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let mut text = format!("{} > {}", mac(6)?, mac(0)?);
    let (mut at, mut kind) = (14, word(12)?);
    if kind == VLAN {
        let _ = write!(text, " vlan {}", word(14)? & 0xfff);
        (at, kind) = (18, word(16)?);
    }
    let rest = frame.get(at..)?;
    let network = match kind {
        IPV4 => ipv4(rest),
        IPV6 => ipv6(rest),
        ARP => arp(rest),
        _ => None,
    };
    match network {
        Some(network) => text = format!("{text} {network}"),
        None => {
            let _ = write!(text, " ethertype {kind:#06x}");
        }
    }
    Some(text)
}

fn arp(packet: &[u8]) -> Option<String> {
    let address = |at: usize| {
        let bytes: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(bytes))
    };
    let (from, about) = (address(14)?, address(24)?);
    Some(match packet.get(7)? {
        1 => format!("arp who has {about}, asks {from}"),
        _ => format!("arp {from} answers {about}"),
    })
}

fn ipv4(packet: &[u8]) -> Option<String> {
    let address = |at: usize| {
        let bytes: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(bytes).to_string())
    };
    let header = usize::from(packet.first()? & 15) * 4;
    // Only the first fragment has the ports.
    let first = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x1fff == 0;
    let rest = packet.get(header..).filter(|_| first);
    Some(transport(*packet.get(9)?, &address(12)?, &address(16)?, rest))
}

fn ipv6(packet: &[u8]) -> Option<String> {
    let address = |at: usize| {
        let bytes: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
        Some(Ipv6Addr::from(bytes).to_string())
    };
    Some(transport(*packet.get(6)?, &address(8)?, &address(24)?, packet.get(40..)))
}

fn transport(proto: u8, from: &str, to: &str, segment: Option<&[u8]>) -> String {
    let name = match proto {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        132 => "sctp".to_owned(),
        other => format!("proto {other}"),
    };
    match segment.and_then(|segment| segment.get(..4)) {
        Some(ports) if matches!(proto, 6 | 17 | 132) => {
            let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
            format!("{from}:{} > {to}:{} {name}", port(0), port(2))
        }
        _ => format!("{from} > {to} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(hex: &str) -> CapturedFrame {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte =
            |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap();
        let data: Vec<u8> = digits.chunks(2).map(byte).collect();
        let len = u32::try_from(data.len()).unwrap();
        CapturedFrame {
            unix_ns: 86_400_000_000_000 + 3_723_000_000_005,
            direction: CaptureDirection::In.into(),
            verdict: Verdict::Dropped.into(),
            reason: "ring-full".to_owned(),
            other_port: "vm2".to_owned(),
            missed: 8,
            data,
            len,
            ..CapturedFrame::default()
        }
    }

    #[test]
    fn a_line_says_what_the_frame_is_and_what_became_of_it() {
        let udp = frame(
            "525400000002 525400000001 8100 0007 0800 \
             45000020 00000000 40110000 0a000001 0a000002 1388 0050 000c0000",
        );
        assert_eq!(
            line("vm1", &udp),
            "01:02:03.000000005    46 B  52:54:00:00:00:01 > 52:54:00:00:00:02 vlan 7 \
             10.0.0.1:5000 > 10.0.0.2:80 udp  port=vm1 direction=in verdict=dropped \
             reason=ring-full to=vm2 left-out=8\n"
        );
    }

    #[test]
    fn short_and_strange_frames_have_a_line_too() {
        for cut in ["", "5254", "525400000002525400000001", "525400000002525400000001 88cc 01"] {
            assert!(line("vm1", &frame(cut)).contains("verdict=dropped"));
        }
        let arp = "ffffffffffff 525400000001 0806 0001 0800 06 04 0001 \
                   525400000001 0a000001 000000000000 0a000002";
        assert!(line("vm1", &frame(arp)).contains("arp who has 10.0.0.2, asks 10.0.0.1"));
    }
}
