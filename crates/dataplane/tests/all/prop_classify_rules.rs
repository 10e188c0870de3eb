//! The tuple-space search gives the same answer as a search of a rule list from the top.

#[path = "oracle/rules.rs"]
mod oracle;

use core::net::{Ipv4Addr, Ipv6Addr};

use oracle::fits;
use penstock_dataplane::headers::FlowKey;
use penstock_dataplane::headers::key::KeyFields;
use penstock_dataplane::snapshot::{Actions, IpMatch, Match, Rule, RuleTable, Then};
use penstock_units::{MacAddr, Vid};
use proptest::prelude::*;

/// Generates keys with few values per field, so that rules and keys often match.
fn key() -> impl Strategy<Value = KeyFields> {
    (
        (0_u16..3, 0_u16..3, any::<bool>(), 0_u64..3, 0_u64..3),
        (0_u32..8, 0_u32..8, 0_u16..6, 0_u16..6),
        (prop::sample::select(vec![1_u8, 6, 17]), 0_u8..3),
    )
        .prop_map(
            |((in_port, vid, v6, src_mac, dst_mac), (src, dst, sport, dport), (proto, dscp))| {
                let (wide_src, wide_dst) = (u128::from(src) << 100, u128::from(dst) << 100);
                KeyFields {
                    in_port,
                    vid,
                    ethertype: if v6 { 0x86dd } else { 0x0800 },
                    proto,
                    tos: dscp << 2,
                    dst_mac,
                    src_mac,
                    src_port: sport,
                    dst_port: dport,
                    ipv4_src: if v6 { 0 } else { src << 29 },
                    ipv4_dst: if v6 { 0 } else { dst << 29 },
                    ipv6_src: if v6 { wide_src } else { 0 },
                    ipv6_dst: if v6 { wide_dst } else { 0 },
                }
            },
        )
}

fn mac(n: u64) -> MacAddr {
    let b = n.to_be_bytes();
    MacAddr([b[2], b[3], b[4], b[5], b[6], b[7]])
}

/// Generates a rule from some of the fields of a key.
fn rule() -> impl Strategy<Value = (Match, u16)> {
    (
        key(),
        any::<[bool; 10]>(),
        0_u8..40,
        0_u16..4,
        prop::sample::select(vec![0xffff_u16, 0xfffe, 4]),
    )
        .prop_map(|(k, on, prefix, priority, port_mask)| {
            let v6 = k.ethertype == 0x86dd;
            let ip = |v4: u32, wide: u128| {
                if v6 {
                    IpMatch::v6_prefix(Ipv6Addr::from_bits(wide), prefix)
                } else {
                    IpMatch::v4_prefix(Ipv4Addr::from_bits(v4), prefix)
                }
            };
            let all = mac(u64::MAX);
            let deep = on[6] || on[7] || on[8] || on[9];
            let m = Match {
                in_port: on[0].then_some(k.in_port),
                vlan: on[1].then(|| Vid::new(k.vid.into()).unwrap()),
                src_mac: on[2].then(|| (mac(k.src_mac), all)),
                dst_mac: on[3].then(|| (mac(k.dst_mac), mac(u64::from(prefix)))),
                ethertype: deep.then_some(k.ethertype),
                src_ip: on[4].then(|| ip(k.ipv4_src, k.ipv6_src)),
                dst_ip: on[5].then(|| ip(k.ipv4_dst, k.ipv6_dst)),
                proto: on[6].then_some(k.proto),
                src_port: on[7].then_some((k.src_port, port_mask)),
                dst_port: on[8].then_some((k.dst_port, port_mask)),
                dscp: on[9].then_some(k.tos >> 2),
            };
            (m, priority)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn lookup_equals_the_list(
        rules in prop::collection::vec(rule(), 0..120),
        keys in prop::collection::vec(key(), 1..80),
        cap in 0_usize..40,
    ) {
        let rules: Vec<Rule> = rules
            .iter()
            .zip(1_u32..)
            .map(|(&(matching, priority), id)| {
                // Some ids decrease in the order of insertion, so that rules of equal priority are
                // tested.
                let id = if id % 2 == 0 { id } else { 1000 - id };
                Rule { priority, matching, actions: Actions::only(Then::Drop), id }
            })
            .collect();
        let table = RuleTable::build(&rules, cap).unwrap();
        prop_assert!(table.subtables() <= cap);
        for k in keys {
            let best = rules
                .iter()
                .filter(|r| fits(&r.matching, &k))
                .min_by_key(|r| (core::cmp::Reverse(r.priority), r.id))
                .map(|r| r.id);
            let found = table.lookup(&FlowKey::new(&k)).and_then(|at| table.rule(at)).map(|r| r.id);
            prop_assert_eq!(found, best);
        }
    }
}
