//! Pings to a QEMU guest over UDP. Each UDP datagram holds an Ethernet frame, as with QEMU's
//! `-netdev socket`.
//!
//! # Source
//!
//! The frames follow RFC 826 (ARP), RFC 791 (IPv4) and RFC 792 (echo).
//!
//! # Approach
//!
//! The pings use no TAP device, so the host needs no new interface. The program that sends a ping
//! also notifies the scheduler, as the switch does.

use penstock_dataplane::finish::{checksum, sum};

/// MAC and IP address of one end of the link to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Station {
    pub mac: [u8; 6],
    pub ip: [u8; 4],
}

const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
/// First six bytes of an ARP packet (RFC 826): types of hardware and protocol, and address lengths
/// of 6 and 4 bytes.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ECHO: u8 = 8;
const ECHO_REPLY: u8 = 0;
/// Identifier in the echo requests that the lab sends.
const OURS: [u8; 2] = *b"PS";

/// Calculates the Internet checksum (RFC 1071).
fn check_sum(bytes: &[u8]) -> [u8; 2] {
    checksum(sum(bytes, 0)).to_be_bytes()
}

/// Builds an echo request with sequence number `number`.
pub(super) fn ping(from: Station, to: Station, number: u16) -> Vec<u8> {
    let mut echo = vec![ECHO, 0, 0, 0];
    echo.extend(OURS);
    echo.extend(number.to_be_bytes());
    echo.extend([0x5a; 56]);
    let sum = check_sum(&echo);
    echo[2..4].copy_from_slice(&sum);
    let length = u16::try_from(20 + echo.len()).unwrap_or(u16::MAX).to_be_bytes();
    let mut head = vec![0x45, 0, length[0], length[1], 0, 0, 0x40, 0, 64, 1, 0, 0];
    head.extend(from.ip);
    head.extend(to.ip);
    let sum = check_sum(&head);
    head[10..12].copy_from_slice(&sum);
    [&to.mac[..], &from.mac, &IPV4, &head, &echo].concat()
}

/// Content of a received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    /// ICMP echo reply to the lab, with the sequence number of the lab's echo request.
    Pong(u16),
    /// ARP request for the lab's MAC address, with the ARP reply that the lab must send.
    Asked(Vec<u8>),
    Other,
}

/// Parses a frame that station `us` received.
pub(super) fn hear(us: Station, frame: &[u8]) -> Heard {
    let Some((head, body)) = frame.split_at_checked(14) else { return Heard::Other };
    let kind = &head[12..14];
    if kind == ARP && body.get(..8) == Some(&[&ARP_HEAD[..], &[0, 1]].concat()) {
        let (Some(asks), Some(asked)) = (body.get(8..18), body.get(24..28)) else {
            return Heard::Other;
        };
        if asked != us.ip {
            return Heard::Other;
        }
        let answer = [&asks[..6], &us.mac, &ARP, &ARP_HEAD, &[0, 2], &us.mac, &us.ip, asks];
        return Heard::Asked(answer.concat());
    }
    // Our requests have no IP options, so replies have none.
    if kind == IPV4
        && body.first() == Some(&0x45)
        && body.get(9) == Some(&1)
        && body.get(16..20) == Some(&us.ip)
        && body.get(20) == Some(&ECHO_REPLY)
        && body.get(24..26) == Some(&OURS)
        && let Some(&[high, low]) = body.get(26..28)
    {
        return Heard::Pong(u16::from_be_bytes([high, low]));
    }
    Heard::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Station = Station { mac: [2, 0, 0, 0, 0, 1], ip: [10, 77, 0, 1] };
    const GUEST: Station = Station { mac: [2, 0, 0, 0, 0, 2], ip: [10, 77, 0, 2] };

    #[test]
    fn check_sums_are_those_of_rfc_1071() {
        // RFC 1071, section 3, gives this example with the sum ddf2.
        assert_eq!(check_sum(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]), [0x22, 0x0d]);
        let frame = ping(US, GUEST, 7);
        assert_eq!(check_sum(&frame[14..34]), [0, 0], "with its sum a header sums up to nothing");
        assert_eq!((check_sum(&frame[34..]), frame.len()), ([0, 0], 98));
    }

    #[test]
    fn an_answer_is_told_from_other_frames() {
        let mut pong = ping(GUEST, US, 513);
        assert_eq!(hear(US, &pong), Heard::Other, "a request");
        pong[34] = ECHO_REPLY;
        assert_eq!(hear(US, &pong), Heard::Pong(513));
        assert_eq!(hear(GUEST, &pong), Heard::Other);
        for short in 0..42 {
            assert_eq!(hear(US, &pong[..short]), Heard::Other);
        }
    }

    #[test]
    fn who_asks_for_our_address_is_told() {
        let body = [&ARP_HEAD[..], &[0, 1], &GUEST.mac, &GUEST.ip, &[0; 6], &US.ip].concat();
        let frame = [&[0xff; 6][..], &GUEST.mac, &ARP, &body].concat();
        let Heard::Asked(answer) = hear(US, &frame) else { panic!("not heard") };
        assert_eq!((&answer[..6], &answer[6..12]), (&GUEST.mac[..], &US.mac[..]));
        assert_eq!(&answer[20..32], &[&[0, 2], &US.mac[..], &US.ip].concat()[..]);
        assert_eq!(&answer[32..], &[&GUEST.mac[..], &GUEST.ip].concat()[..]);
        assert_eq!(hear(GUEST, &frame), Heard::Other, "for another one's");
    }
}
