//! Builds the frames with which several crates test how they find TCP's pure acknowledgements.

/// Returns a frame with a TCP segment over IPv4, or over IPv6 if `v6` is true. The segment has the
/// flags `flags`, `options` bytes of options and `data` bytes of data. The frame has the VLAN tags
/// `tags` and is padded to 60 bytes. An IPv4 header has four bytes of options.
pub fn segment(tags: &[u16], v6: bool, flags: u8, [options, data]: [u8; 2]) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    for tag in tags {
        bytes.extend(tag.to_be_bytes());
        bytes.extend([0, 7]);
    }
    let tcp = 20 + options + data;
    if v6 {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, tcp, 6, 64]);
        bytes.extend([1; 32]);
    } else {
        bytes.extend([0x08, 0x00, 0x46, 0, 0, 24 + tcp, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend([1; 12]);
    }
    bytes.extend([0; 12]);
    bytes.extend([(5 + options / 4) << 4, flags]);
    bytes.resize(bytes.len() + usize::from(6 + options + data), 0);
    bytes.resize(bytes.len().max(60), 0);
    bytes
}
