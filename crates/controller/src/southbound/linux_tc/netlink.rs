//! Encodes and decodes the parts of netlink messages: headers, attributes and numbers.
//!
//! # Approach
//!
//! Messages of rtnetlink consist of a fixed header and attributes. An attribute consists of its
//! length, its type and its value, and begins at a multiple of 4 bytes. All numbers have the byte
//! order of the machine. Functions that decode return `None` for bytes that are too short, so a
//! damaged message cannot cause a panic.
//!
//! # Source
//!
//! `linux/netlink.h` and `linux/rtnetlink.h` define the headers, attributes and numbers.
//!
//! # Departures
//!
//! The crates `rtnetlink` and `netlink-packet-route` have no types for the options of HTB, of its
//! classes and of classic BPF filters, which are most of the driver's messages. The driver would
//! encode these options itself in any case. The remaining headers need fewer lines than their
//! translation from and to the crates' types.

use std::collections::BTreeMap;

/// Attribute with the kind of a qdisc, class or filter, such as `htb`.
pub(super) const TCA_KIND: u16 = 1;
/// Attribute with the options of a qdisc, class or filter.
pub(super) const TCA_OPTIONS: u16 = 2;
/// Attribute with the counters of a qdisc or class.
pub(super) const TCA_STATS2: u16 = 7;

/// Flags of a request for all objects of a kind, which is called a dump.
pub(super) const NLM_F_DUMP: u16 = 0x300;

/// Bits of an attribute's type without the flags `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const TYPE_MASK: u16 = 0x3fff;
/// Length of an attribute's length and type, in bytes.
const ATTRIBUTE_HEADER: usize = 4;

/// Length of `struct nlmsghdr` in bytes.
pub(super) const MESSAGE_HEADER: usize = 16;

/// Values of attributes by their type.
pub(super) type Attributes<'a> = BTreeMap<u16, &'a [u8]>;

/// Returns the `N` bytes of a number that begins at the byte `at`.
pub(super) fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Returns the text of an attribute, which ends before the first zero byte.
pub(super) fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Appends an attribute to a message or to the value of another attribute.
pub(super) fn put(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(ATTRIBUTE_HEADER + value.len());
    to.extend(length.expect("the driver's attributes have a few kilobytes").to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Appends `struct nlmsghdr`, the header of a message whose body has `length` bytes.
pub(super) fn put_header(to: &mut Vec<u8>, length: usize, kind: u16, flags: u16, sequence: u32) {
    let length = u32::try_from(MESSAGE_HEADER + length).expect("a body has some kilobytes");
    to.extend(length.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(flags.to_ne_bytes());
    to.extend(sequence.to_ne_bytes());
    // The kernel fills in the number of the sender's socket.
    to.extend([0; 4]);
}

/// Returns the attributes in `bytes`. If several attributes have the same type, the last attribute
/// counts.
pub(super) fn attributes(mut bytes: &[u8]) -> Option<Attributes<'_>> {
    let mut all = Attributes::new();
    while !bytes.is_empty() {
        let length = usize::from(u16::from_ne_bytes(word(bytes, 0)?));
        let kind = u16::from_ne_bytes(word(bytes, 2)?) & TYPE_MASK;
        all.insert(kind, bytes.get(ATTRIBUTE_HEADER..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(all)
}

/// `struct tcmsg`, the header of messages about qdiscs, classes and filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TcHeader {
    /// Index of the network interface.
    pub(super) index: i32,
    pub(super) handle: u32,
    pub(super) parent: u32,
    /// Preference and protocol of a filter.
    pub(super) info: u32,
}

impl TcHeader {
    const LENGTH: usize = 20;

    pub(super) fn bytes(&self) -> Vec<u8> {
        // The message begins with an address family, which is 0, and three unused bytes.
        let mut bytes = vec![0; 4];
        bytes.extend(self.index.to_ne_bytes());
        for number in [self.handle, self.parent, self.info] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes
    }

    /// Decodes a message about a qdisc, class or filter.
    pub(super) fn read(body: &[u8]) -> Option<(Self, Attributes<'_>)> {
        let number = |at| Some(u32::from_ne_bytes(word(body, at)?));
        let header = Self {
            index: i32::from_ne_bytes(word(body, 4)?),
            handle: number(8)?,
            parent: number(12)?,
            info: number(16)?,
        };
        Some((header, attributes(body.get(Self::LENGTH..)?)?))
    }
}

/// `struct ifinfomsg`, the header of messages about network interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkHeader {
    /// Index of the network interface.
    pub(super) index: i32,
}

impl LinkHeader {
    const LENGTH: usize = 16;

    pub(super) fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes.extend(self.index.to_ne_bytes());
        bytes.resize(Self::LENGTH, 0);
        bytes
    }

    /// Decodes a message about a network interface.
    pub(super) fn read(body: &[u8]) -> Option<(Self, Attributes<'_>)> {
        let header = Self { index: i32::from_ne_bytes(word(body, 4)?) };
        Some((header, attributes(body.get(Self::LENGTH..)?)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_with_their_values() {
        let mut bytes = Vec::new();
        put(&mut bytes, 1, b"htb\0");
        put(&mut bytes, 2, b"12345");
        put(&mut bytes, 3, b"");
        assert_eq!(bytes.len(), 8 + 12 + 4, "each begins at a multiple of 4");
        let all = attributes(&bytes).expect("whole");
        let wanted: [(u16, &[u8]); 3] = [(1, b"htb\0"), (2, b"12345"), (3, b"")];
        assert_eq!(all, wanted.into());
        assert_eq!(text(all[&1]), "htb");
        put(&mut bytes, 0x8002, b"6");
        assert_eq!(attributes(&bytes).expect("whole")[&2], &b"6"[..], "without its flags");
    }

    #[test]
    fn an_attribute_without_padding_at_the_end_is_whole() {
        let mut bytes = Vec::new();
        put(&mut bytes, 2, b"12345");
        assert_eq!(attributes(&bytes[..9]).expect("whole")[&2], &b"12345"[..]);
    }

    #[test]
    fn damaged_bytes_are_no_attributes() {
        let mut whole = Vec::new();
        put(&mut whole, 7, b"12345678");
        for short in 1..whole.len() {
            assert_eq!(attributes(&whole[..short]), None, "{short} bytes");
        }
        for length in 0..4u16 {
            let bytes = [length.to_ne_bytes(), [1, 0]].concat();
            assert_eq!(attributes(&bytes), None, "an attribute of {length} bytes");
        }
    }

    #[test]
    fn headers_come_back() {
        let header = TcHeader { index: 3, handle: 0x9e50_0011, parent: 0x9e50_0001, info: 7 };
        let mut bytes = header.bytes();
        put(&mut bytes, TCA_KIND, b"htb\0");
        let (read, attributes) = TcHeader::read(&bytes).expect("whole");
        assert_eq!((read, attributes.len()), (header, 1));
        assert_eq!(TcHeader::read(&bytes[..19]), None);
        let link = LinkHeader { index: 9 };
        assert_eq!(LinkHeader::read(&link.bytes()), Some((link, Attributes::new())));
        assert_eq!(LinkHeader::read(&link.bytes()[..15]), None);
    }
}
