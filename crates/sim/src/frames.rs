//! Ethernet frames for simulated traffic.

use penstock_units::MacAddr;

/// Creates a UDP frame of `len` bytes (without FCS, 60 to 65000) from `source` to `target`. `flow`
/// is the UDP source port. The first 8 bytes of the payload are `sequence`. The IP addresses are
/// 10.x.x.x, with the last three bytes of the MAC addresses.
#[must_use]
pub fn udp_frame(
    source: MacAddr,
    target: MacAddr,
    len: usize,
    flow: u16,
    sequence: u64,
) -> Vec<u8> {
    let len = len.clamp(60, 65_000);
    let mut f = Vec::with_capacity(len);
    f.extend(target.0);
    f.extend(source.0);
    f.extend([8, 0, 0x45, 0]);
    let word = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
    f.extend(word(len - 14));
    f.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    f.extend([10, source.0[3], source.0[4], source.0[5]]);
    f.extend([10, target.0[3], target.0[4], target.0[5]]);
    let header = penstock_dataplane::finish::sum(&f[14..34], 0);
    let checksum = penstock_dataplane::finish::checksum(header);
    f[24..26].copy_from_slice(&checksum.to_be_bytes());
    f.extend(flow.to_be_bytes());
    f.extend([0, 9]);
    f.extend(word(len - 34));
    f.extend([0, 0]);
    f.extend(sequence.to_be_bytes());
    f.resize(len, 0);
    f
}
