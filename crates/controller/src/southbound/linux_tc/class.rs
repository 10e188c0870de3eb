//! Translates a class of HTB to the kernel's structures and to the words of `tc`.
//!
//! # Approach
//!
//! The kernel expects the size of a burst as the time in which the class sends the burst at its
//! rate. The unit of this time is a tick of 64 ns. The driver rounds ticks up, so a burst never has
//! fewer bytes than intended. The kernel stores rates in whole bytes per second.
//!
//! # Source
//!
//! `linux/pkt_sched.h` defines `struct tc_htb_opt`, and `linux/gen_stats.h` defines the counters.
//! Linux `net/sched/sch_htb.c` ignores the rate tables of a class with a link layer, and reads
//! rates of 2³² bytes per second or more from attributes of their own.

use super::layout::name;
use super::netlink::{Attributes, TCA_OPTIONS, TCA_STATS2, attributes, put, word};

const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_STATS_PKT64: u16 = 8;
/// Link layer of `struct tc_ratespec` for which the kernel computes sending times itself.
const TC_LINKLAYER_ETHERNET: u8 = 1;

/// Number of bursts that an HTB class sends per second at its rate. The burst size of an HTB class
/// is the traffic of one millisecond, but at least [`BURST_LEAST`] bytes.
const BURSTS_A_SECOND: u64 = 1_000;
const BURST_LEAST: u64 = 3_200;
/// Duration of a tick of the kernel's packet scheduler, in nanoseconds (`/proc/net/psched`).
const TICK_NS: u128 = 64;

/// Rates, quantum, priority and counters of a class of HTB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) prio: u32,
    /// Quantum in bytes, or 0 for the class above the queues, which shares with no other class.
    pub(super) quantum: u32,
    /// Guaranteed rate of the class in bit/s.
    pub(super) rate: u64,
    /// Ceiling of the class in bit/s.
    pub(super) ceil: u64,
    pub(super) bytes: u64,
    pub(super) packets: u64,
    pub(super) dropped: u64,
    /// Number of frames that wait in the qdiscs below the class.
    pub(super) waiting: u64,
}

impl Class {
    /// Returns true if the kernel stores the same values for both classes. Counters do not matter.
    pub(super) fn same(&self, other: &Self) -> bool {
        let values = |class: &Self| (class.prio, class.quantum, class.rate / 8, class.ceil / 8);
        values(self) == values(other)
    }

    /// Returns the words of `tc class replace` after the port: the parent, the handle and the
    /// options of the class.
    pub(super) fn words(&self, parent: u32, handle: u32) -> String {
        let Self { prio, quantum, rate, ceil, .. } = self;
        let share = match quantum {
            0 => String::new(),
            _ => format!(" prio {prio} quantum {quantum}"),
        };
        format!(
            "parent {} classid {} htb rate {rate}bit ceil {ceil}bit burst {}b cburst {}b{share}",
            name(parent),
            name(handle),
            burst(*rate),
            burst(*ceil),
        )
    }

    /// Returns the value of the attribute `TCA_OPTIONS`.
    pub(super) fn options(&self) -> Vec<u8> {
        let rates = [self.rate / 8, self.ceil / 8];
        let mut parameters = Vec::new();
        for rate in rates {
            // The other fields of `struct tc_ratespec` adjust the length of frames.
            parameters.extend([0, TC_LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
            parameters.extend(u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
        }
        // The kernel sets the field between quantum and priority, which is the class's level.
        for number in [ticks(self.rate), ticks(self.ceil), self.quantum, 0, self.prio] {
            parameters.extend(number.to_ne_bytes());
        }
        let mut options = Vec::new();
        put(&mut options, TCA_HTB_PARMS, &parameters);
        for (kind, rate) in [TCA_HTB_RATE64, TCA_HTB_CEIL64].into_iter().zip(rates) {
            if rate > u64::from(u32::MAX) {
                put(&mut options, kind, &rate.to_ne_bytes());
            }
        }
        options
    }

    /// Decodes a class from the attributes of the kernel's message.
    pub(super) fn read(class: &Attributes<'_>) -> Option<Self> {
        let options = attributes(class.get(&TCA_OPTIONS)?)?;
        let parameters = options.get(&TCA_HTB_PARMS)?;
        let number = |at| Some(u32::from_ne_bytes(word(parameters, at)?));
        let rate = |kind: u16, at| {
            let bytes = match options.get(&kind) {
                Some(large) => u64::from_ne_bytes(word(large, 0)?),
                None => u64::from(number(at)?),
            };
            bytes.checked_mul(8)
        };
        // The kernel also stores a quantum for inner classes, which it does not use.
        let leaf = number(36)? == 0;
        let statistics = attributes(class.get(&TCA_STATS2)?)?;
        let basic = statistics.get(&TCA_STATS_BASIC)?;
        let packets = match statistics.get(&TCA_STATS_PKT64) {
            Some(many) => u64::from_ne_bytes(word(many, 0)?),
            None => u64::from(u32::from_ne_bytes(word(basic, 8)?)),
        };
        let queue = statistics.get(&TCA_STATS_QUEUE)?;
        Some(Self {
            prio: if leaf { number(40)? } else { 0 },
            quantum: if leaf { number(32)? } else { 0 },
            rate: rate(TCA_HTB_RATE64, 8)?,
            ceil: rate(TCA_HTB_CEIL64, 20)?,
            bytes: u64::from_ne_bytes(word(basic, 0)?),
            packets,
            dropped: u64::from(u32::from_ne_bytes(word(queue, 8)?)),
            waiting: u64::from(u32::from_ne_bytes(word(queue, 0)?)),
        })
    }
}

/// Returns the burst of a class in bytes, for a rate or ceiling in bit/s.
fn burst(rate: u64) -> u64 {
    (rate / 8 / BURSTS_A_SECOND).max(BURST_LEAST)
}

/// Returns the burst of a class in ticks, for a rate or ceiling in bit/s.
fn ticks(rate: u64) -> u32 {
    let nanoseconds = u128::from(burst(rate)) * 1_000_000_000;
    let ticks = nanoseconds.div_ceil(u128::from((rate / 8).max(1)) * TICK_NS);
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABIT: u64 = 1_000_000;

    /// Returns a message of the kernel about `class`, with the level and counters of the class.
    fn message(class: &Class, level: u32, packets: Option<u64>) -> Vec<u8> {
        let mut options = class.options();
        options[4 + 36..4 + 40].copy_from_slice(&level.to_ne_bytes());
        let mut basic = class.bytes.to_ne_bytes().to_vec();
        basic.extend(u32::try_from(class.packets & 0xffff_ffff).expect("masked").to_ne_bytes());
        let mut queue = vec![0; 20];
        for (at, count) in [(0, class.waiting), (8, class.dropped)] {
            let count = u32::try_from(count).expect("few");
            queue[at..at + 4].copy_from_slice(&count.to_ne_bytes());
        }
        let mut statistics = Vec::new();
        put(&mut statistics, TCA_STATS_BASIC, &basic);
        if let Some(packets) = packets {
            put(&mut statistics, TCA_STATS_PKT64, &packets.to_ne_bytes());
        }
        put(&mut statistics, TCA_STATS_QUEUE, &queue);
        let mut message = Vec::new();
        put(&mut message, TCA_OPTIONS, &options);
        put(&mut message, TCA_STATS2, &statistics);
        message
    }

    fn read(message: &[u8]) -> Option<Class> {
        Class::read(&attributes(message).expect("whole"))
    }

    #[test]
    fn the_options_are_those_of_tc() {
        // tc class replace dev e0 parent 9e50:1 classid 9e50:11 htb rate 24998000bit ceil
        // 100000000bit burst 3200b cburst 12500b prio 0 quantum 4800, as iproute2 6.1 sends it.
        let sent: [u32; 11] = [
            0x0103,
            0xffff,
            0x002f_ae0e,
            0x0103,
            0xffff,
            0x00be_bc20,
            0x3e80,
            0x3d09,
            0x12c0,
            0,
            0,
        ];
        let class =
            Class { quantum: 4_800, rate: 24_998_000, ceil: 100 * MEGABIT, ..Class::default() };
        let options = class.options();
        let parameters = attributes(&options).expect("whole")[&TCA_HTB_PARMS];
        let own: Vec<u32> =
            parameters.as_chunks::<4>().0.iter().map(|bytes| u32::from_ne_bytes(*bytes)).collect();
        // `tc` also describes its rate table in the first two words, which the kernel ignores.
        assert_eq!([own[0], own[1], own[3], own[4]], [0x0100, 0, 0x0100, 0]);
        assert_eq!((own[2], own[5]), (sent[2], sent[5]), "rate and ceiling");
        // iproute2 6.1 rounds bursts down to microseconds.
        assert!((sent[6]..sent[6] + 16).contains(&own[6]), "{} ticks", own[6]);
        assert_eq!(own[7..], sent[7..], "the burst of the ceiling, quantum, level and priority");
    }

    #[test]
    fn a_class_comes_back_with_its_counters() {
        let class = Class {
            prio: 1,
            quantum: 1_600,
            rate: 8_000,
            ceil: 400_000 * MEGABIT,
            bytes: 1 << 40,
            packets: (1 << 32) + 5,
            dropped: 7,
            waiting: 2,
        };
        assert_eq!(read(&message(&class, 0, Some(class.packets))), Some(class.clone()));
        let few = Class { packets: 5, ..class };
        assert_eq!(read(&message(&few, 0, None)), Some(few));
    }

    #[test]
    fn an_inner_class_has_no_quantum() {
        let rate = 100 * MEGABIT;
        let class = Class { quantum: 200_000, rate, ceil: rate, ..Class::default() };
        let inner = Class { quantum: 0, ..class.clone() };
        assert_eq!(read(&message(&class, 7, None)), Some(inner));
    }

    #[test]
    fn classes_are_the_same_if_the_kernel_stores_the_same() {
        let class = Class { rate: 800, ceil: 1_600, quantum: 1, ..Class::default() };
        let counted = Class { packets: 3, bytes: 9, dropped: 1, ..class.clone() };
        assert!(class.same(&counted));
        assert!(class.same(&Class { rate: 807, ..class.clone() }), "the same bytes per second");
        for other in [
            Class { rate: 808, ..class.clone() },
            Class { ceil: 1_599, ..class.clone() },
            Class { quantum: 2, ..class.clone() },
            Class { prio: 1, ..class.clone() },
        ] {
            assert!(!class.same(&other), "{other:?}");
        }
    }

    #[test]
    fn bursts_are_a_millisecond_but_at_least_two_frames() {
        assert_eq!([8_000, MEGABIT, 100 * MEGABIT].map(burst), [3_200, 3_200, 12_500]);
        // The bursts last 3.2 s and 1 ms.
        assert_eq!([8_000, 100 * MEGABIT].map(ticks), [50_000_000, 15_625]);
        assert_eq!([0, u64::MAX].map(ticks), [u32::MAX, 15_625]);
    }

    #[test]
    fn a_damaged_class_is_no_class() {
        let class = Class { rate: 800, ceil: 800, quantum: 1, ..Class::default() };
        let whole = message(&class, 0, None);
        assert!(read(&whole).is_some());
        for kind in [TCA_OPTIONS, TCA_STATS2] {
            let mut without = attributes(&whole).expect("whole");
            without.remove(&kind);
            assert_eq!(Class::read(&without), None);
            without.insert(kind, &[12, 0, 1, 0, 1]);
            assert_eq!(Class::read(&without), None, "too short");
            without.insert(kind, &[8, 0, 1, 0, 1, 2, 3, 4]);
            assert_eq!(Class::read(&without), None, "too small");
        }
        let large = message(&Class { rate: u64::MAX, ..class }, 0, None);
        let mut options =
            attributes(attributes(&large).expect("whole")[&TCA_OPTIONS]).expect("too");
        options.insert(TCA_HTB_RATE64, &[0xff; 8]);
        let mut bytes = Vec::new();
        options.iter().for_each(|(kind, value)| put(&mut bytes, *kind, value));
        let mut all = attributes(&large).expect("whole");
        all.insert(TCA_OPTIONS, &bytes);
        assert_eq!(Class::read(&all), None, "a rate beyond 64 bits");
    }
}
