//! Builds, numbers and verifies the generator's frames.
//!
//! In this module, a `sum` is a one's complement sum of 16-bit words in memory order. RFC 1071 §2
//! (B) allows either byte order for checksums.

use std::net::Ipv4Addr;

use super::spec::{SizeMix, VmSpec};
use crate::mac::Mac;

const ETH: usize = 14;
const IP: usize = 20;
const UDP: usize = 8;
/// Length of the headers without a VLAN tag, in bytes.
const HEADERS: usize = ETH + IP + UDP;
/// Length of the headers with a VLAN tag, in bytes.
const HEADERS_TAGGED: usize = HEADERS + 4;
/// Length in bytes of the stamp, which is a frame's sender and sequence number. In a frame's
/// payload, the test pattern follows the stamp.
const STAMP: usize = 10;
/// Length in bytes of a frame's send timestamp. The payload of a frame with a send timestamp
/// contains no stamp (sender and sequence number) and no test pattern.
const TIME: usize = 8;
/// UDP port of the discard service (RFC 863).
const PORT: u16 = 9;
const FIRST_FLOW_PORT: u32 = 1024;
const FLOW_PORTS: u32 = 32_768;

/// Adds the 16-bit words of `bytes` in memory order. An odd last byte counts as the low byte of a
/// word.
fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let mut total = 0;
    for w in words.by_ref() {
        total += u64::from(u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    }
    let mut rest = [0; 4];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    total + u64::from(u32::from_le_bytes(rest))
}

/// Converts a sum below 2^48 to a checksum field in memory order.
#[inline]
fn fold(sum: u64) -> [u8; 2] {
    // The code has no loops, because it runs twice per frame.
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let [low, high, ..] = (!sum).to_le_bytes();
    [low, high]
}

/// Returns byte `i` of the constant body that all frames have without `touch`. Without `touch`, all
/// frames have the same constant body.
fn body_byte(i: usize) -> u8 {
    u8::try_from(i % 251).unwrap_or(0)
}

/// Difference between two successive 64-bit words of a frame's test pattern.
const STEP: u64 = 0xd1b5_4a32_d192_ed03;

/// Returns the first word of the pattern of frame `seq` from `sender`. Each following word of the
/// pattern is [`STEP`] more than the word before it. Words with a constant difference are fast to
/// compute with vector instructions. The multiplication gives different frames different patterns.
#[inline]
fn pattern(sender: u16, seq: u64) -> u64 {
    (seq ^ u64::from(sender) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Prepared headers of a frame, with the addresses of the first destination. `ip_sum` and `udp_sum`
/// do not include the IP addresses.
#[derive(Debug)]
struct Template {
    /// Length of the frame in the ring, in bytes.
    len: usize,
    headers: [u8; HEADERS_TAGGED],
    ip_sum: u64,
    /// Sum of the pseudo header and the constant UDP fields. Without `touch`, `udp_sum` also
    /// includes the constant body of the frames.
    udp_sum: u64,
}

/// A destination, and the number of frames that were built for the destination. Each destination
/// has its own sequence numbers, so that its sink sees no gaps.
#[derive(Debug)]
struct Target {
    mac: [u8; 6],
    ip: [u8; 4],
    seq: u64,
}

/// Builds the frames that one VM sends.
#[derive(Debug)]
pub(crate) struct FrameMaker {
    sender: u16,
    touch: bool,
    headers: usize,
    source: u32,
    templates: Vec<Template>,
    schedule: Vec<usize>,
    next: usize,
    flows: u32,
    flow: u32,
    targets: Vec<Target>,
    /// Index of the next frame's target in `targets`.
    target: usize,
    /// Sending time that the next frames carry; `None` if the frames carry no sending time.
    pub stamp: Option<u64>,
}

impl FrameMaker {
    /// The frames go to the `targets` in turn. `targets` must contain at least one target.
    pub fn new(vm: &VmSpec, targets: &[(Mac, Ipv4Addr)], sender: u16, touch: bool) -> Self {
        let headers = if vm.vlan.is_some() { HEADERS_TAGGED } else { HEADERS };
        let mut maker = Self {
            sender,
            touch,
            headers,
            source: u32::from(vm.ip),
            templates: Vec::new(),
            schedule: Vec::new(),
            next: 0,
            flows: vm.flows.max(1),
            flow: 0,
            targets: targets
                .iter()
                .map(|(mac, ip)| Target { mac: mac.0, ip: ip.octets(), seq: 0 })
                .collect(),
            target: 0,
            stamp: None,
        };
        maker.set_sizes(vm, &vm.sizes);
        maker
    }

    pub fn set_sizes(&mut self, vm: &VmSpec, sizes: &SizeMix) {
        let to = &self.targets[0];
        let make = |(size, _): &(u16, u16)| template(vm, to, *size, self.headers, self.touch);
        self.templates = sizes.0.iter().map(make).collect();
        self.schedule = sizes.schedule();
        self.next = 0;
    }

    /// Returns whether the [`FrameMaker`] writes every byte of a frame.
    pub fn touches(&self) -> bool {
        self.touch
    }

    pub fn set_flows(&mut self, flows: u32) {
        self.flows = flows.max(1);
        self.flow = 0;
    }

    /// Fills a buffer with the constant body that frames have without `touch`.
    pub fn prepare(frame: &mut [u8]) {
        frame.iter_mut().enumerate().for_each(|(i, b)| *b = body_byte(i));
    }

    /// Size of the next frame in bytes, including the FCS.
    #[inline]
    pub fn next_size(&self) -> u16 {
        u16::try_from(self.templates[self.schedule[self.next]].len + 4).unwrap_or(u16::MAX)
    }

    /// Writes the next frame, and returns the frame's length in the ring.
    #[inline]
    pub fn write(&mut self, frame: &mut [u8]) -> usize {
        let template = &self.templates[self.schedule[self.next]];
        self.next = if self.next + 1 == self.schedule.len() { 0 } else { self.next + 1 };
        let port = FIRST_FLOW_PORT + self.flow % FLOW_PORTS;
        let source = (self.source + self.flow / FLOW_PORTS).to_be_bytes();
        self.flow = if self.flow + 1 >= self.flows { 0 } else { self.flow + 1 };
        let target = &mut self.targets[self.target];
        let (seq, to) = (target.seq, target.ip);
        target.seq += 1;
        let [.., id_high, id_low] = seq.to_be_bytes();
        let [.., port_high, port_low] = port.to_be_bytes();

        let addresses_sum =
            u64::from(u32::from_le_bytes(source)) + u64::from(u32::from_le_bytes(to));
        let id_sum = u64::from(u16::from_le_bytes([id_high, id_low]));
        let port_sum = u64::from(u16::from_le_bytes([port_high, port_low]));
        let mut headers = template.headers;
        let ip = self.headers - IP - UDP;
        headers[ip + 4] = id_high;
        headers[ip + 5] = id_low;
        headers[ip + 10..ip + 12].copy_from_slice(&fold(template.ip_sum + id_sum + addresses_sum));
        headers[ip + 12..ip + 16].copy_from_slice(&source);
        let udp = ip + IP;
        headers[udp] = port_high;
        headers[udp + 1] = port_low;
        let mut udp_sum = template.udp_sum + addresses_sum + port_sum;
        let len = template.len;
        if self.touch {
            let payload = &mut frame[self.headers..len];
            udp_sum += write_payload(payload, self.sender, seq);
        }
        let checksum = match (self.stamp, fold(udp_sum)) {
            // RFC 768: a checksum of zero means that the sender computed none.
            (Some(stamp), _) => {
                frame[self.headers..self.headers + TIME].copy_from_slice(&stamp.to_le_bytes());
                [0, 0]
            }
            // A computed checksum of zero is sent as all ones.
            (None, [0, 0]) => [0xff, 0xff],
            (None, other) => other,
        };
        headers[udp + 6..udp + 8].copy_from_slice(&checksum);
        // Copies of known length are faster: they compile to a few moves, and not to a call.
        if self.headers == HEADERS {
            frame[..HEADERS].copy_from_slice(&headers[..HEADERS]);
        } else {
            frame[..HEADERS_TAGGED].copy_from_slice(&headers);
        }
        if self.targets.len() > 1 {
            // Changed in the frame and not in the copy of the headers. Otherwise the copy would
            // wait for these stores.
            frame[..6].copy_from_slice(&self.targets[self.target].mac);
            frame[ip + 16..ip + 20].copy_from_slice(&to);
            self.target = if self.target + 1 == self.targets.len() { 0 } else { self.target + 1 };
        }
        len
    }
}

fn template(vm: &VmSpec, to: &Target, size: u16, headers: usize, touch: bool) -> Template {
    let len = usize::from(size) - 4;
    let mut h = [0; HEADERS_TAGGED];
    h[..6].copy_from_slice(&to.mac);
    h[6..12].copy_from_slice(&vm.mac.0);
    if let Some(vlan) = vm.vlan {
        h[12..14].copy_from_slice(&0x8100_u16.to_be_bytes());
        h[14..16].copy_from_slice(&vlan.to_be_bytes());
    }
    let ip = headers - IP - UDP;
    h[ip - 2..ip].copy_from_slice(&0x0800_u16.to_be_bytes());
    h[ip] = 0x45;
    let word = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    h[ip + 2..ip + 4].copy_from_slice(&word(len - ip));
    h[ip + 8] = 64;
    h[ip + 9] = 17;
    let udp = ip + IP;
    h[udp + 2..udp + 4].copy_from_slice(&PORT.to_be_bytes());
    h[udp + 4..udp + 6].copy_from_slice(&word(len - udp));
    let pseudo = [0, 17, word(len - udp)[0], word(len - udp)[1]];
    let mut udp_sum = sum(&pseudo) + sum(&h[udp..udp + UDP]);
    if !touch {
        let body: Vec<u8> = (headers..len).map(body_byte).collect();
        udp_sum += sum(&body);
    }
    let ip_sum = sum(&h[ip..ip + IP]);
    h[ip + 16..ip + 20].copy_from_slice(&to.ip);
    Template { len, headers: h, ip_sum, udp_sum }
}

/// Returns the sum of the first `len` bytes (at most 8) of a little-endian word.
#[inline]
fn sum_of_word(word: u64, len: usize) -> u64 {
    let word = if len < 8 { word & ((1 << (8 * len)) - 1) } else { word };
    (word & 0xffff_ffff) + (word >> 32)
}

/// Writes the stamp and the pattern of a frame, and returns the sum of the written bytes. The sum
/// of the written bytes is computed from values in CPU registers, without reading the frame back.
/// Stores to cache lines that the switch has just read are slow. A CPU load instruction that spans
/// two earlier store instructions waits until both stores are complete.
#[inline]
fn write_payload(payload: &mut [u8], sender: u16, seq: u64) -> u64 {
    payload[..2].copy_from_slice(&sender.to_le_bytes());
    payload[2..STAMP].copy_from_slice(&seq.to_le_bytes());
    // The sequence number follows the two bytes of the sender, so its upper 16 bits are in the
    // third 32-bit word.
    let first = u64::from(sender) | seq << 16;
    let (mut low, mut high) = (sum_of_word(first, 8) + (seq >> 48), 0);
    let mut word = pattern(sender, seq);
    let mut words = payload[STAMP..].chunks_exact_mut(8);
    for bytes in words.by_ref() {
        bytes.copy_from_slice(&word.to_le_bytes());
        low += word & 0xffff_ffff;
        high += word >> 32;
        word = word.wrapping_add(STEP);
    }
    let rest = words.into_remainder();
    rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
    low + high + sum_of_word(word, rest.len())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A frame of the generator, with its source MAC address and IP identification. Without
    /// `touch`, the bytes of the frame's body are not verified.
    Numbered { mac: [u8; 6], id: u16 },
    /// A frame of the generator with verified bytes, and with its sender and sequence number.
    Verified { sender: u16, seq: u64 },
    /// A frame that the generator did not send, such as ARP.
    Other,
    /// A frame of the generator with wrong bytes.
    Bad,
}

/// Classifies a received frame. With `touch`, every byte of the frame is verified.
#[inline]
pub(crate) fn inspect(frame: &[u8], touch: bool) -> Seen {
    let Some(eth) = frame.first_chunk::<HEADERS>() else { return Seen::Bad };
    let tagged = eth[12..14] == [0x81, 0x00];
    let ip = if tagged { ETH + 4 } else { ETH };
    let headers = ip + IP + UDP;
    if frame.len() < headers || frame[ip - 2..ip] != [0x08, 0x00] || frame[ip + 9] != 17 {
        return Seen::Other;
    }
    if frame[ip + IP + 2..ip + IP + 4] != PORT.to_be_bytes() {
        return Seen::Other;
    }
    if !touch {
        let mac = [eth[6], eth[7], eth[8], eth[9], eth[10], eth[11]];
        return Seen::Numbered { mac, id: u16::from_be_bytes([frame[ip + 4], frame[ip + 5]]) };
    }
    let total = usize::from(u16::from_be_bytes([frame[ip + 2], frame[ip + 3]]));
    if total + ip != frame.len() || fold(sum(&frame[ip..ip + IP])) != [0, 0] {
        return Seen::Bad;
    }
    verify_payload(&frame[headers..])
}

fn verify_payload(payload: &[u8]) -> Seen {
    let Some(stamp) = payload.first_chunk::<STAMP>() else { return Seen::Bad };
    let sender = u16::from_le_bytes([stamp[0], stamp[1]]);
    let mut number = [0; 8];
    number.copy_from_slice(&stamp[2..]);
    let seq = u64::from_le_bytes(number);
    let mut words = payload[STAMP..].chunks_exact(8);
    let (mut differ, mut expected) = (0, pattern(sender, seq));
    for word in words.by_ref() {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        differ |= u64::from_le_bytes(bytes) ^ expected;
        expected = expected.wrapping_add(STEP);
    }
    let rest = words.remainder();
    let tail_is_right = rest == &expected.to_le_bytes()[..rest.len()];
    if differ == 0 && tail_is_right { Seen::Verified { sender, seq } } else { Seen::Bad }
}

/// Reads the sending time in a frame from a sender that stamps its frames. Returns `None` if the
/// frame is too short.
#[inline]
pub(crate) fn time_sent(frame: &[u8]) -> Option<u64> {
    let tagged = frame.get(12..14)? == [0x81, 0x00];
    let at = if tagged { HEADERS_TAGGED } else { HEADERS };
    frame.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Builds a gratuitous ARP request (RFC 5227 §3), from which the switch learns the VM's port.
pub(crate) fn announcement(vm: &VmSpec) -> Vec<u8> {
    let mut f = vec![0xff; 6];
    f.extend_from_slice(&vm.mac.0);
    if let Some(vlan) = vm.vlan {
        f.extend_from_slice(&[0x81, 0x00]);
        f.extend_from_slice(&vlan.to_be_bytes());
    }
    f.extend_from_slice(&[0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4, 0, 1]);
    f.extend_from_slice(&vm.mac.0);
    f.extend_from_slice(&vm.ip.octets());
    f.extend_from_slice(&[0; 6]);
    f.extend_from_slice(&vm.ip.octets());
    f.resize(f.len().max(60), 0);
    f
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(vlan: Option<u16>) -> VmSpec {
        let mac = "52:54:00:00:00:01".parse().unwrap();
        let mut vm = VmSpec::new("a", "/a", mac, Ipv4Addr::new(10, 0, 0, 1));
        vm.sizes = SizeMix(vec![(64, 1), (65, 1), (1518, 1)]);
        vm.vlan = vlan;
        vm.flows = 70_000;
        vm
    }

    fn checksums_hold(frame: &[u8], ip: usize) {
        assert_eq!(fold(sum(&frame[ip..ip + IP])), [0, 0], "IP header");
        let udp = &frame[ip + IP..];
        let pseudo = [0, 17, udp[4], udp[5]];
        let all = sum(&frame[ip + 12..ip + 20]) + sum(&pseudo) + sum(udp);
        assert_eq!(fold(all), [0, 0], "UDP");
        assert_ne!(udp[6..8], [0, 0], "a UDP checksum is present");
    }

    #[test]
    fn checksums_are_right_with_and_without_touch_and_tag() {
        let to = ("52:54:00:00:00:02".parse().unwrap(), Ipv4Addr::new(10, 0, 0, 2));
        let far = ("52:54:00:00:00:ff".parse().unwrap(), Ipv4Addr::new(255, 254, 253, 252));
        for (vlan, touch) in [(None, false), (None, true), (Some(5), false), (Some(5), true)] {
            let mut maker = FrameMaker::new(&vm(vlan), &[to, far], 3, touch);
            let mut buffer = vec![0; 1514];
            for i in 0..100_000_u32 {
                if i % 1000 < 3 {
                    FrameMaker::prepare(&mut buffer);
                }
                let len = maker.write(&mut buffer);
                if i % 1000 < 3 {
                    checksums_hold(&buffer[..len], if vlan.is_some() { 18 } else { 14 });
                    assert_eq!(len, [60, 61, 1514][(i % 3) as usize]);
                }
            }
        }
    }

    #[test]
    fn targets_have_frames_in_turn_and_numbers_of_their_own() {
        let to = |n| (Mac([0x52, 0x54, 0, 0, 0, n]), Ipv4Addr::new(10, 0, n, 1));
        let mut maker = FrameMaker::new(&vm(None), &[to(2), to(3), to(4)], 1, true);
        let mut frame = vec![0; 1514];
        for round in 0..3 {
            for n in 2..5 {
                let len = maker.write(&mut frame);
                assert_eq!((&frame[..6], &frame[30..34]), (&to(n).0.0[..], &to(n).1.octets()[..]));
                let seen = inspect(&frame[..len], true);
                assert_eq!(seen, Seen::Verified { sender: 1, seq: round });
            }
        }
    }

    #[test]
    fn a_stamp_takes_the_checksums_place_and_is_found_again() {
        let to = ("52:54:00:00:00:02".parse().unwrap(), Ipv4Addr::new(10, 0, 0, 2));
        for vlan in [None, Some(5)] {
            let mut maker = FrameMaker::new(&vm(vlan), &[to], 3, false);
            let mut frame = vec![0; 1514];
            maker.stamp = Some(0x0123_4567_89ab_cdef);
            let len = maker.write(&mut frame);
            let udp = if vlan.is_some() { 38 } else { 34 };
            assert_eq!((len, &frame[udp + 6..udp + 8]), (60, &[0, 0][..]));
            assert_eq!(time_sent(&frame[..len]), Some(0x0123_4567_89ab_cdef));
        }
        assert_eq!(time_sent(&[0; 44]), None);
    }

    #[test]
    fn every_flipped_bit_of_a_touched_payload_is_found() {
        let to = ("52:54:00:00:00:02".parse().unwrap(), Ipv4Addr::new(10, 0, 0, 2));
        let mut maker = FrameMaker::new(&vm(None), &[to], 3, true);
        let mut frame = vec![0; 1514];
        maker.targets[0].seq = 77;
        let len = maker.write(&mut frame);
        frame.truncate(len);
        assert_eq!(inspect(&frame, true), Seen::Verified { sender: 3, seq: 77 });
        for byte in HEADERS..len {
            frame[byte] ^= 0x10;
            assert_ne!(inspect(&frame, true), Seen::Verified { sender: 3, seq: 77 });
            frame[byte] ^= 0x10;
        }
        assert_eq!(inspect(&frame[..len - 1], true), Seen::Bad);
    }

    #[test]
    fn untouched_frames_carry_sender_and_number_and_arp_is_other() {
        let to = ("52:54:00:00:00:02".parse().unwrap(), Ipv4Addr::new(10, 0, 0, 2));
        let mut maker = FrameMaker::new(&vm(Some(5)), &[to], 3, false);
        let mut frame = vec![0; 1514];
        maker.targets[0].seq = 0x1_0203;
        let len = maker.write(&mut frame);
        let mac = [0x52, 0x54, 0, 0, 0, 1];
        assert_eq!(inspect(&frame[..len], false), Seen::Numbered { mac, id: 0x0203 });
        assert_eq!(inspect(&announcement(&vm(None)), false), Seen::Other);
    }
}
