//! Checks that tuple-space search finds the same rule as a linear search of the list of rules.

use core::net::{Ipv4Addr, Ipv6Addr};

use penstock_dataplane::headers::FlowKey;
use penstock_dataplane::headers::key::KeyFields;
use penstock_dataplane::snapshot::{
    Actions, IpMatch, Match, Rule, RuleTable, RuleTableError, Then,
};
use penstock_units::{MacAddr, Vid};

use crate::input::Input;

#[path = "../../crates/dataplane/tests/all/oracle/rules.rs"]
mod oracle;

const RULES_MAX: usize = 512;
const KEYS_MAX: usize = 64;

/// Runs the target on one input.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let cap = usize::from(input.u8() % 48);
    let count = usize::from(input.u16()) % RULES_MAX;
    let mut rules = Vec::new();
    while rules.len() < count && !input.is_empty() {
        let id = u32::try_from(rules.len()).unwrap_or(0);
        let (matching, priority) = rule(&mut input);
        // Half of the ids descend, so that rules of equal priority are not always in the order of
        // their ids.
        let id = if id.is_multiple_of(2) { id } else { 10_000 - id };
        rules.push(Rule { priority, matching, actions: Actions::only(Then::Drop), id });
    }
    let table = match RuleTable::build(&rules, cap) {
        Ok(table) => table,
        Err(RuleTableError::Match { id, .. }) => {
            let named = rules.iter().find(|r| r.id == id).expect("an error with the id of a rule");
            assert!(named.matching.compile().is_err());
            return;
        }
        Err(RuleTableError::TooManyMasks { subtables, .. }) => {
            assert!(subtables <= cap);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert!(table.subtables() <= cap, "more subtables than configured");
    for _ in 0..KEYS_MAX {
        let k = key(&mut input);
        let best = rules
            .iter()
            .filter(|r| oracle::fits(&r.matching, &k))
            .min_by_key(|r| (core::cmp::Reverse(r.priority), r.id))
            .map(|r| r.id);
        let found = table.lookup(&FlowKey::new(&k)).and_then(|at| table.rule(at)).map(|r| r.id);
        assert_eq!(found, best, "{k:?}");
        if input.is_empty() {
            break;
        }
    }
}

/// Reads a key from the input. Most fields have few possible values, so that rules often match
/// keys.
fn key(input: &mut Input<'_>) -> KeyFields {
    let [a, b, c, d] = input.bytes();
    let wild = a == 0xff;
    let v6 = a & 1 == 1;
    let (src, dst) = if wild { (input.u32(), input.u32()) } else { (u32::from(b), u32::from(c)) };
    KeyFields {
        in_port: u16::from(a >> 1 & 3),
        vid: u16::from(a >> 3 & 3),
        ethertype: if v6 { 0x86dd } else { 0x0800 },
        proto: [1, 6, 17, 58][usize::from(a >> 5 & 3)],
        tos: (d & 3) << 2,
        dst_mac: u64::from(d >> 2 & 3),
        src_mac: u64::from(d >> 4 & 3),
        src_port: u16::from(b & 7),
        dst_port: u16::from(c & 7),
        ipv4_src: if v6 { 0 } else { src << 24 },
        ipv4_dst: if v6 { 0 } else { dst << 24 },
        ipv6_src: if v6 { u128::from(src) << 120 } else { 0 },
        ipv6_dst: if v6 { u128::from(dst) << 120 } else { 0 },
    }
}

fn mac(n: u64) -> MacAddr {
    let [_, _, b @ ..] = n.to_be_bytes();
    MacAddr(b)
}

/// Reads a rule that matches some fields of a random key, with masks on some fields.
fn rule(input: &mut Input<'_>) -> (Match, u16) {
    let k = key(input);
    let on = input.u16();
    let (prefix, priority) = (input.u8() % 34, u16::from(input.u8() % 8));
    let mask = [0xffff_u16, 0xfffe, 4, 0][input.below(4)];
    let is = |bit: u16| on >> bit & 1 == 1;
    let v6 = k.ethertype == 0x86dd;
    let ip = |v4: u32, wide: u128| {
        if v6 {
            IpMatch::v6_prefix(Ipv6Addr::from_bits(wide), prefix * 4)
        } else {
            IpMatch::v4_prefix(Ipv4Addr::from_bits(v4), prefix)
        }
    };
    let deep = is(6) || is(7) || is(8) || is(9);
    // Some inputs have an invalid match, which the compiler must refuse.
    let ethertype = if is(10) { deep.then_some(0x1234) } else { deep.then_some(k.ethertype) };
    let matching = Match {
        in_port: is(0).then_some(k.in_port),
        vlan: is(1).then(|| Vid::new(k.vid.into()).ok()).flatten(),
        src_mac: is(2).then(|| (mac(k.src_mac), mac(u64::MAX))),
        dst_mac: is(3).then(|| (mac(k.dst_mac), mac(u64::from(prefix)))),
        ethertype,
        src_ip: is(4).then(|| ip(k.ipv4_src, k.ipv6_src)),
        dst_ip: is(5).then(|| ip(k.ipv4_dst, k.ipv6_dst)),
        proto: is(6).then_some(k.proto),
        src_port: is(7).then_some((k.src_port, mask)),
        dst_port: is(8).then_some((k.dst_port, mask)),
        dscp: is(9).then_some(k.tos >> 2),
    };
    (matching, priority)
}
