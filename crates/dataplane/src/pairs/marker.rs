//! Wire format of the markers, which hosts exchange: questions and answers about pairs of VMs, and
//! announcements of code points.
//!
//! # Format
//!
//! A marker is an Ethernet frame of [`LEN`] bytes with an `EtherType` for local experiments (IEEE
//! 802, clause 9.2.3). Its addresses are those of the pair's VMs. All numbers are big-endian.
//!
//! | Offset | Bytes | Question | Answer |
//! |---|---|---|---|
//! | 14 | 4 | [`MAGIC`] | [`MAGIC`] |
//! | 18 | 1 | [`VERSION`] | [`VERSION`] |
//! | 19 | 1 | 1 | 2 |
//! | 20 | 2 | [`AHEAD`], or 0 if the question must not pass the pair's frames | [`AHEAD`] |
//! | 22 | 4 | number of the question | the same |
//! | 26 | 4 | active flows, or 0 (5 bits), and beginning of the sender's pair | the same |
//! | 30 | 8 | frames sent | the same |
//! | 38 | 8 | part of the sender's guarantee, bit/s | part of the receiver's guarantee, bit/s |
//! | 46 | 8 | demand, bit/s | frames received |
//! | 54 | 8 | rate, bit/s | marked frames |
//! | 62 | 4 | 0 | beginning of the pair at the receiver's host |
//!
//! An announcement has the same first fields, with 3 at offset 19 and [`AHEAD`]. All other bytes
//! are 0, except for the number of the flow ([`super::flow`]) at offset 30 and the code point (0 to
//! 63) at offset 38, with 8 bytes each.
//!
//! Hosts ignore kinds of markers that they do not know. A question may have 0 to [`FLOWS_MAX`]
//! flows: the receiving host counts 1 to 16 (`penstock_fabric::rate_alloc::flow_count`).
//!
//! # Earlier versions
//!
//! The first hosts with questions knew no flows, and refuse a question with another number than 0
//! at offset 62. They return the bytes at offset 26 unchanged, so the number of flows is there. The
//! hosts of some later commits have it at offset 62, where it still counts.
//!
//! # Order
//!
//! A queue that lets TCP's pure acknowledgements pass data also lets markers with [`AHEAD`] pass
//! ([`passes_data`]). If a marker waited in the queues that its pair fills, the pair's limit would
//! come late. A question of a host that looks for spare bandwidth counts the frames before it. It
//! must stay behind them, because frames that it passed would seem lost.
//!
//! # Trust
//!
//! A VM must not send markers ([`is_forged`]). The network between the hosts is trusted like the
//! code points in its frames, but each field is checked before it is used.

use penstock_qos::pair_table::{Answer, EPOCH_BITS, Question};
use penstock_units::BitsPerSecond;

use crate::headers::is_tag;

/// `EtherType` for local experiments.
const ETHERTYPE: u16 = 0x88b5;
/// First bytes after the `EtherType`, which distinguish markers from other experiments.
const MAGIC: u32 = 0x5065_6e31;
const VERSION: u8 = 1;
/// Flag of a marker that may pass the frames of its queue.
const AHEAD: u16 = 1;
/// Length of a marker without VLAN tag.
pub(crate) const LEN: usize = 66;

const QUESTION: u8 = 1;
const ANSWER: u8 = 2;
const ANNOUNCEMENT: u8 = 3;
/// Largest beginning of a pair, and largest number of flows in a question.
const EPOCH_MAX: u32 = u32::MAX >> (u32::BITS - EPOCH_BITS);
const FLOWS_MAX: u32 = u32::MAX >> EPOCH_BITS;
/// Largest code point, because a code point has six bits.
const CODE_POINT_MAX: u8 = 63;
/// Maximum number of VLAN tags behind which a marker is searched.
const TAGS_MAX: usize = 3;
/// Length of the two addresses of a frame.
const ADDRESSES: usize = 12;

/// A valid marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    Question(Question),
    Answer(Answer),
    /// The sending VM wrote the code point `dscp` into the frames of the flow `flow`.
    Announcement {
        flow: u64,
        dscp: u8,
    },
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_be_bytes)
}

/// Whether a frame without VLAN tag that begins with `head` is a marker, valid or not.
#[inline]
pub(crate) fn is_marker(head: &[u8]) -> bool {
    u16_at(head, ADDRESSES) == Some(ETHERTYPE) && u32_at(head, ADDRESSES + 2) == Some(MAGIC)
}

/// Whether a frame that begins with `head` is a marker, or becomes one if a switch removes its VLAN
/// tags.
#[inline]
pub(crate) fn is_forged(head: &[u8]) -> bool {
    for tags in 0..=TAGS_MAX {
        let at = ADDRESSES + 4 * tags;
        match u16_at(head, at) {
            Some(ETHERTYPE) => return u32_at(head, at + 2) == Some(MAGIC),
            Some(tag) if is_tag(tag) => {}
            _ => return false,
        }
    }
    // A frame with more tags is suspicious, and no fabric needs one.
    true
}

/// Whether a frame that begins with `head`, with or without VLAN tags, is a marker that may pass
/// the frames of its queue. Outputs call the function only for frames that are no whole IP packets.
#[cold]
pub(crate) fn passes_data(head: &[u8]) -> bool {
    for tags in 0..=TAGS_MAX {
        let at = ADDRESSES + 4 * tags;
        match u16_at(head, at) {
            Some(ETHERTYPE) => {
                let is_marker = u32_at(head, at + 2) == Some(MAGIC);
                return is_marker && u16_at(head, at + 8) == Some(AHEAD);
            }
            Some(tag) if is_tag(tag) => {}
            _ => return false,
        }
    }
    false
}

/// Reads a marker without VLAN tag that begins with `head` and has `len` bytes. Returns `None` if
/// the marker is not valid.
pub(crate) fn read(head: &[u8], len: usize) -> Option<Marker> {
    let head = head.get(..LEN).filter(|_| len == LEN && is_marker(head))?;
    if head[18] != VERSION || u16_at(head, 20)? > AHEAD {
        return None;
    }
    let (number, begun, sent) = (u32_at(head, 22)?, u32_at(head, 26)?, u64_at(head, 30)?);
    let epoch = begun & EPOCH_MAX;
    let (first, second, third) = (u64_at(head, 38)?, u64_at(head, 46)?, u64_at(head, 54)?);
    let last = u32_at(head, 62)?;
    match head[19] {
        QUESTION if number != 0 => Some(Marker::Question(Question {
            number,
            epoch,
            sent,
            part: BitsPerSecond(first),
            want: BitsPerSecond(second),
            rate: BitsPerSecond(third),
            flows: last.max(begun >> EPOCH_BITS),
        })),
        ANSWER if third <= second => Some(Marker::Answer(Answer {
            number,
            epoch,
            sent,
            receive_epoch: last,
            received: second,
            marked: third,
            part: BitsPerSecond(first),
        })),
        ANNOUNCEMENT => {
            let dscp = u8::try_from(first).ok().filter(|dscp| *dscp <= CODE_POINT_MAX)?;
            Some(Marker::Announcement { flow: sent, dscp })
        }
        _ => None,
    }
}

/// Returns a question of the VM whose frame begins with `head`, to the frame's destination. `ahead`
/// tells whether the question may pass the pair's frames.
pub(crate) fn question(head: &[u8], question: &Question, ahead: bool) -> Option<[u8; LEN]> {
    let addresses = head.first_chunk::<ADDRESSES>()?;
    let Question { number, epoch, sent, part, want, rate, flows } = *question;
    let kind = (QUESTION, if ahead { AHEAD } else { 0 });
    let begun = (flows.min(FLOWS_MAX) << EPOCH_BITS) | (epoch & EPOCH_MAX);
    Some(bytes(*addresses, kind, (number, begun, sent), [part.0, want.0, rate.0], 0))
}

/// Returns the announcement of the code point `dscp` of a flow, to the destination of the frame
/// that begins with `head`.
pub(crate) fn announcement(head: &[u8], flow: u64, dscp: u8) -> Option<[u8; LEN]> {
    let addresses = head.first_chunk::<ADDRESSES>()?;
    Some(bytes(*addresses, (ANNOUNCEMENT, AHEAD), (0, 0, flow), [dscp.into(), 0, 0], 0))
}

/// Turns the marker that begins with `head` into an answer to its sender.
pub(crate) fn answer(head: &mut [u8], answer: &Answer) {
    let Some(marker) = head.first_chunk_mut::<LEN>() else { return };
    let Answer { number, epoch, sent, receive_epoch, received, marked, part } = *answer;
    let mut addresses = [0; ADDRESSES];
    addresses[..6].copy_from_slice(&marker[6..12]);
    addresses[6..].copy_from_slice(&marker[..6]);
    let values = [part.0, received, marked];
    *marker = bytes(addresses, (ANSWER, AHEAD), (number, epoch, sent), values, receive_epoch);
}

fn bytes(
    addresses: [u8; ADDRESSES],
    (kind, flags): (u8, u16),
    (number, epoch, sent): (u32, u32, u64),
    values: [u64; 3],
    last: u32,
) -> [u8; LEN] {
    let mut marker = [0; LEN];
    marker[..12].copy_from_slice(&addresses);
    marker[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    marker[14..18].copy_from_slice(&MAGIC.to_be_bytes());
    (marker[18], marker[19]) = (VERSION, kind);
    marker[20..22].copy_from_slice(&flags.to_be_bytes());
    marker[22..26].copy_from_slice(&number.to_be_bytes());
    marker[26..30].copy_from_slice(&epoch.to_be_bytes());
    marker[30..38].copy_from_slice(&sent.to_be_bytes());
    for (place, value) in marker[38..62].chunks_exact_mut(8).zip(values) {
        place.copy_from_slice(&value.to_be_bytes());
    }
    marker[62..].copy_from_slice(&last.to_be_bytes());
    marker
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ADDRESSES_OF_VMS: [u8; 12] = [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 7];

    fn asked() -> Question {
        let [part, want, rate] = [6, 7, 8].map(BitsPerSecond);
        Question { number: 3, epoch: 4, sent: 5, part, want, rate, flows: 9 }
    }

    fn valid() -> [u8; LEN] {
        question(&ADDRESSES_OF_VMS, &asked(), false).unwrap()
    }

    #[test]
    fn a_vm_pays_for_the_length_of_a_question() {
        assert_eq!(usize::try_from(penstock_qos::pair_table::QUESTION_BYTES), Ok(LEN));
    }

    #[test]
    fn a_question_becomes_an_answer_to_its_sender() {
        let mut frame = valid();
        assert_eq!(frame[..12], ADDRESSES_OF_VMS);
        assert_eq!(read(&frame, LEN), Some(Marker::Question(asked())));
        let told = Answer {
            number: 3,
            epoch: 4,
            sent: 5,
            receive_epoch: 6,
            received: 8,
            marked: 7,
            part: BitsPerSecond(9),
        };
        answer(&mut frame, &told);
        assert_eq!(frame[..12], [2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 9]);
        assert_eq!(read(&frame, LEN), Some(Marker::Answer(told)));
    }

    #[test]
    fn a_marker_with_a_wrong_length_or_field_is_none() {
        let frame = valid();
        for len in (0..LEN).chain([LEN + 1, 1_500]) {
            assert_eq!(read(&frame[..len.min(LEN)], len), None, "{len} bytes");
        }
        // A truncated head with the right length is none, too.
        assert_eq!(read(&frame[..40], LEN), None);
        let changes = [(12, 0), (14, 0), (18, 2), (19, 0), (19, 4), (20, 1), (21, 2)];
        for (at, value) in changes {
            let mut wrong = frame;
            wrong[at] = value;
            assert_eq!(read(&wrong, LEN), None, "byte {at}");
        }
        let mut none = frame;
        none[22..26].fill(0);
        assert_eq!(read(&none, LEN), None, "no question has number 0");
        let mut more = frame;
        answer(&mut more, &Answer { received: 4, marked: 4, ..Answer::default() });
        more[61] = 5;
        assert_eq!(read(&more, LEN), None, "more marked frames than frames");
    }

    #[test]
    fn a_host_that_knows_no_flows_accepts_a_question_with_flows() {
        for flows in [0, 1, 16, 31, u32::MAX] {
            let told = Question { flows, ..asked() };
            let frame = question(&ADDRESSES_OF_VMS, &told, true).unwrap();
            let heard = Question { flows: flows.min(31), ..told };
            assert_eq!(read(&frame, LEN), Some(Marker::Question(heard)));
            // Such a host refuses other bytes here, and returns the beginning of the pair as it is.
            assert_eq!(frame[62..], [0; 4], "{flows} flows");
            let mut answered = frame;
            let begun = u32_at(&frame, 26).unwrap();
            answer(&mut answered, &Answer { number: 3, epoch: begun, ..Answer::default() });
            assert_eq!(answered[26..30], frame[26..30]);
            let Some(Marker::Answer(heard)) = read(&answered, LEN) else { panic!("no answer") };
            assert_eq!(heard.epoch, told.epoch);
        }
        let [none, seven] = [0, 7].map(|flows| Question { flows, ..asked() });
        let mut other = question(&ADDRESSES_OF_VMS, &none, true).unwrap();
        other[65] = 7;
        assert_eq!(read(&other, LEN), Some(Marker::Question(seven)));
    }

    #[test]
    fn an_announcement_has_a_code_point_of_six_bits() {
        let told = Marker::Announcement { flow: 0x1234, dscp: 46 };
        let frame = announcement(&ADDRESSES_OF_VMS, 0x1234, 46).unwrap();
        assert_eq!(frame[..12], ADDRESSES_OF_VMS);
        assert_eq!(read(&frame, LEN), Some(told));
        assert!(is_forged(&frame) && passes_data(&frame));
        for (at, value) in [(45, 64), (44, 1), (38, 1), (18, 2)] {
            let mut wrong = frame;
            wrong[at] = value;
            assert_eq!(read(&wrong, LEN), None, "byte {at}");
        }
    }

    /// Returns a frame behind VLAN tags.
    fn tagged(frame: &[u8], tags: usize) -> Vec<u8> {
        let mut bytes = frame[..12].to_vec();
        (0..tags).for_each(|_| bytes.extend([0x81, 0, 0, 9]));
        bytes.extend(&frame[12..]);
        bytes
    }

    #[test]
    fn an_answer_passes_data_and_a_question_only_if_it_need_not_follow_its_frames() {
        let ahead = question(&ADDRESSES_OF_VMS, &asked(), true).unwrap();
        assert_eq!(read(&ahead, LEN), Some(Marker::Question(asked())));
        // The controller's program for Linux switches looks for these bytes.
        assert_eq!(ahead[12..22], [0x88, 0xb5, 0x50, 0x65, 0x6e, 0x31, 1, 1, 0, 1]);
        let behind = valid();
        let mut answered = behind;
        answer(&mut answered, &Answer { number: 3, ..Answer::default() });
        for tags in 0..=TAGS_MAX {
            let passes = [ahead, answered, behind].map(|frame| passes_data(&tagged(&frame, tags)));
            assert_eq!(passes, [true, true, false], "{tags} tags");
        }
        assert!(!passes_data(&tagged(&ahead, TAGS_MAX + 1)));
        for (at, value) in [(12, 8), (14, 0), (21, 0)] {
            let mut other = ahead;
            other[at] = value;
            assert!(!passes_data(&other), "byte {at}");
        }
        assert!((0..22).all(|len| !passes_data(&ahead[..len])) && passes_data(&ahead[..22]));
    }

    #[test]
    fn a_marker_behind_tags_is_forged() {
        let frame = valid();
        for tags in 0..6 {
            assert!(is_forged(&tagged(&frame, tags)), "{tags}");
            assert_eq!(is_marker(&tagged(&frame, tags)), tags == 0);
        }
        let mut other = frame;
        other[14] = 0;
        assert!(!is_forged(&other) && !is_marker(&other), "another experiment");
        assert!(!is_forged(&frame[..17]) && !is_forged(&[]));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..128), len in 0..200_usize,
        ) {
            let _ = (read(&bytes, len), is_forged(&bytes), is_marker(&bytes), passes_data(&bytes));
            answer(&mut bytes, &Answer::default());
            let _ = question(&bytes, &Question::default(), false);
            let _ = announcement(&bytes, 1, 46);
        }
    }
}
